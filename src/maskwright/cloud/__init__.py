"""A training environment on Google Cloud: what it is made of, what it costs, how it comes and goes."""
