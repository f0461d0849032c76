"""The crash test: a real hub, killed over and over while people use it. `python -m tests.crash --kills N [--seed S]`."""
