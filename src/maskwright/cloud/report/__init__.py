"""Reports on an environment: its parts, their cost, and the health of its hosts."""
