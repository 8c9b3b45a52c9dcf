"""The keys of a run's configuration: how they are read, checked, explained, and what may change between two starts."""
