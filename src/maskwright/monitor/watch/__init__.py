"""`maskwright watch`: all runs below some folders, in a table of the terminal or on a page that this machine serves."""
