"""A start of a run: what it decides once, its first rank and the others, and what it may change."""
