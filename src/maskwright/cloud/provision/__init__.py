"""Create, change, fill and delete an environment."""
