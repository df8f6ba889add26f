"""A Hub on loopback for the tests. It has the parts of the Hub's HTTP interface that the package uses."""

from local_hub.server import LocalHub

__all__ = ["LocalHub"]
