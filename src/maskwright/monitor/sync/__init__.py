"""A run's numbers sent to other services, by a process that only reads the run directory."""
