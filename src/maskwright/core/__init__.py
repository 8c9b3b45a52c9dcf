"""Code that every other room may use. Imports neither torch nor numpy."""
