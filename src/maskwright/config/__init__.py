"""The keys of a run's configuration: reading, checks, explanations, and allowed changes between two starts."""
