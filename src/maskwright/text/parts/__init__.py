"""Text cut into parts that any number of workers judge, and the search for what they have in common."""
