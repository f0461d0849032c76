"""Scheduling: a function from a snapshot and a time to a plan. Integer arrays, batch kernels, ties to the lowest index."""
