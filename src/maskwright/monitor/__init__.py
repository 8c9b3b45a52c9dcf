"""Watching runs by reading the run directory. The only file that it writes there is a request to stop."""
