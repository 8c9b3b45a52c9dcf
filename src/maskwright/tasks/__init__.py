"""The work of the commands that train or use a model: a package for each of a user's tasks."""
