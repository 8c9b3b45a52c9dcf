"""A start of a run: rank 0, the other ranks, decisions for the whole run, and changes that a start may make."""
