"""Child processes, the errors that they pass on, and runners that compute parts of a work side by side."""
