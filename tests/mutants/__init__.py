"""Mutants of the core: small faults put in on purpose, each of which simulation and core tests must notice."""
