"""Supervises a process on any host."""
