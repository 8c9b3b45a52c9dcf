"""`data prepare` in parts: encoded by any number of workers, and joined to the store that one machine makes."""
