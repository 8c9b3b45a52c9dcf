"""Where the trainer and its watchers meet: the run directory, its lease, and the heartbeat of each rank."""
