"""Commands: one module for each noun; a module is loaded when its noun is used."""
