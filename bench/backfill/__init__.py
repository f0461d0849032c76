"""Benchmarks of time in the scheduler: backfill (B5), estimated starts (B13)."""
