"""The shared parts of all pages (frame, tables, plots), and the report of one run or several. No torch, no numpy."""
