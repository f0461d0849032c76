"""The pure core: a deterministic state machine of tokens, ledger, jobs, nodes and plan.

Nothing here does I/O, reads a clock, draws a random number or looks at the environment. Commands with a
time go in; events, or a refusal with its reason, come out. Only the standard library, msgspec, numpy and numba
may be imported, and this package imports nothing on its own, so that a client can use `errors` and `units` lightly.
"""
