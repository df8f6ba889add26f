"""Defines the limits of the HTTP service. The fields of `Limits` are options of the command `vaswani serve`.

This file imports neither torch nor FastAPI, because the command parses its arguments before these slow
imports.
"""

from pydantic import Field

from ..settings.base import Settings


class Limits(Settings):
    """The maximum sizes of a request, of the queue and of a batch."""

    max_characters: int = Field(20_000, ge=1)
    """maximum number of characters of all texts of a request; a longer request is refused with the HTTP
    status 413
    """
    max_texts: int = Field(500, ge=1)
    """maximum number of texts of a request; a request with more texts is refused with the HTTP status 413"""
    max_alternatives: int = Field(9, ge=0)
    """maximum number of alternative translations of a text; a request with a larger `alternatives` is refused
    """
    max_waiting: int = Field(200_000, ge=1)
    """maximum number of characters in the queue; if the queue is full, a request is refused with the HTTP
    status 429
    """
    max_batch: int = Field(32, ge=1)
    """maximum number of sentences of a batch"""
    batch_wait: float = Field(0.005, ge=0)
    """maximum number of seconds that a request waits for other requests, so that one batch can translate
    several requests; a request does not wait if the last batch served only one request
    """
    timeout: float = Field(60.0, gt=0)
    """number of seconds after which a request without an answer is refused with the HTTP status 503"""

    @property
    def max_body(self) -> int:
        """The maximum size of a body in bytes. JSON needs up to 12 bytes for an escaped character outside the
        Basic Multilingual Plane.
        """
        return 12 * self.max_characters + 100_000
