"""A Hub on loopback for the tests. It speaks the HTTP of the real Hub, as far as the package uses it."""

from local_hub.server import LocalHub

__all__ = ["LocalHub"]
