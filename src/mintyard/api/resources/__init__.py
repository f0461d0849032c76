"""Resources: one module for each kind of thing, each with the table of its routes. Handlers translate and
nothing more."""
