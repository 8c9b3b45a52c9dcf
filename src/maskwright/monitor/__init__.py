"""Watching runs: all of it reads the run directory. What it writes there is a wish to stop."""
