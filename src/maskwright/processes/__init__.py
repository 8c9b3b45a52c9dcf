"""Child processes, their reasons for ending, and the runners that compute parts of a work side by side."""
