"""An environment as it is: its cost, its hosts' health, its differences from the YAML."""
