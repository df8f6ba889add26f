"""Creates the page of `vaswani demo`, and creates Spaces on the Hub that translate with a model."""
