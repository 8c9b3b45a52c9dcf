"""Text in parts, which any number of workers judge, and the search for duplicates over all parts."""
