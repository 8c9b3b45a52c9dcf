"""Jobs that are started over ssh, on every host of a TPU slice."""
