"""Ports: what the shell needs of the world, as Protocols with few methods, batch first.

Each port has an in-memory adapter, a conformance suite that every adapter runs, and a fault-injecting wrapper for tests.
Only types and Protocols live here.
"""
