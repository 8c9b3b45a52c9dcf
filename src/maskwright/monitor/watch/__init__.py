"""`maskwright watch`: all runs below some folders, in a table on the terminal or on a page that this machine serves."""
