"""What there is of an environment: what it costs, how its hosts are, where it differs from its YAML."""
