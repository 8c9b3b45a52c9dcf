"""Pages: what all of them share (frame, tables, plots), and the report of one run or several. No torch, no numpy."""
