"""What every other part may rely on. Imports neither torch nor numpy."""
