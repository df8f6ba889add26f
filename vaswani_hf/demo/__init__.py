"""The demonstration page of `vaswani demo` and of a Space."""
