"""An environment is made, changed, filled and taken away."""
