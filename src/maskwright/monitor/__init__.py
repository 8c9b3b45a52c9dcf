"""Watching runs: all of it reads the run directory. It writes nothing there but a request to stop."""
