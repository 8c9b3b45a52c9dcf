"""Reports on an environment: what exists and what it costs, and how its hosts are."""
