"""Many alike at once: submits, starts, ends. Each gives exactly what the plain way gives one after the other (decision 11)."""
