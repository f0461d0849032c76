"""Benchmarks: one command each, `python -m bench ID [--quick] [--data DIR]`. Nothing of the product imports this package,
and no test holds a figure of it: machines differ and are noisy."""
