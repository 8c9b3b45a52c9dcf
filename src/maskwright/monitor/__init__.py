"""Watching runs: all of it reads the run directory, and none of it writes there."""
