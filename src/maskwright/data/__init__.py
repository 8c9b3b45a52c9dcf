"""Documents to a token store, and a token store to batches: numpy only, and pure functions of (seed, epoch, row)."""
