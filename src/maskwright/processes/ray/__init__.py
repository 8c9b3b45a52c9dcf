"""Parts of a work as tasks of a Ray cluster."""
