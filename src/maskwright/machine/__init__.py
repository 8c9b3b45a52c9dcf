"""The machine's resources and their use: cores, memory, cgroup limits."""
