"""Simulation: the production core under a virtual clock, with crashes, store faults, lying engines and hurried clients.

Everything here is seeded; nothing sleeps, and no real time or process may enter.
"""
