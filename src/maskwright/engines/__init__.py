"""One optimizer update from batches, on some device, behind one small protocol (`base.Engine`)."""
