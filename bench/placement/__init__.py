"""Placement: quality (B1) and speed (B2) of the production round."""
