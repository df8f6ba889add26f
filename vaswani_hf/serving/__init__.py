"""The HTTP service: `vaswani serve`."""
