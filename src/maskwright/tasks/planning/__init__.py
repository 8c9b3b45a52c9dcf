"""`maskwright plan`: time, memory and cost of a run, measured here by a probe, and projected elsewhere by a model that
measurements calibrate."""
