"""What the machine has and what is in use: cores, memory, cgroup limits."""
