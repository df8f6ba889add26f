"""A little Hub for the tests: HTTP on loopback over bare git repositories, with LFS and xet storage."""

from local_hub.hub import LocalHub

__all__ = ["LocalHub"]
