"""Jobs that hosts fetch from a bucket."""
