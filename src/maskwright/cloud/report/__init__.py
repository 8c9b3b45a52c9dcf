"""Reports on an environment: what exists, what it costs, and the health of its hosts."""
