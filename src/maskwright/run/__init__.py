"""Where the trainer and those who watch it meet: the run directory, its lease, and each process's signs of life."""
