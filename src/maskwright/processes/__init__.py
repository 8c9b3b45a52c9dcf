"""Processes that others of this package start: children, their reasons to end, and parts of a work run side by side."""
