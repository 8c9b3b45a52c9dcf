"""Child processes, why they end, and the runners that compute the parts of a work side by side."""
