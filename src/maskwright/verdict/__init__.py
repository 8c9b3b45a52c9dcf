"""Whether one model did better than another on the user's labels: the statistics and the page."""
