"""Creates the page of `vaswani demo`, and creates a Space on the Hub with the same page."""
