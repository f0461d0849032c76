"""Reference pages and diagrams made from the code: `python -m scripts.docs` writes docs/reference, `--check` compares.

Every page is a pure function of what the package says of itself (tables, classes, docstrings); nothing is written by hand
here except what no table can hold: an example and a sentence for each field of a job file.
"""
