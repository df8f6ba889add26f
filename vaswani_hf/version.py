"""The version of the package, read by the build and by the cards."""

__version__ = "0.2.0"
