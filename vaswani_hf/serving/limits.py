"""The limits of the service. The options of `vaswani serve` contain these fields.

This file imports neither torch nor FastAPI, because the command `vaswani` reads its arguments with this file
before it imports the libraries.
"""

from pydantic import Field

from ..settings.base import Settings


class Limits(Settings):
    """The limits on a request, on the queue and on a batch."""

    max_characters: int = Field(20_000, ge=1)
    """maximum number of characters of a request, all texts together; a longer request gets the status 413"""
    max_texts: int = Field(500, ge=1)
    """maximum number of texts of a request; a request with more texts gets the status 413"""
    max_alternatives: int = Field(9, ge=0)
    """maximum number of alternative translations of a text"""
    max_waiting: int = Field(200_000, ge=1)
    """maximum number of characters in the queue; if the queue is full, a request gets the status 429"""
    max_batch: int = Field(32, ge=1)
    """maximum number of sentences that are translated at once"""
    batch_wait: float = Field(5.0, ge=0)
    """milliseconds that a request waits for other requests, to be translated in one batch with these requests"""
    timeout: float = Field(60.0, gt=0)
    """seconds after which a request without an answer gets the status 503 and leaves the queue"""

    @property
    def max_body(self) -> int:
        """The maximum size of the body of a request in bytes. JSON needs 12 bytes for a character outside the
        Basic Multilingual Plane.
        """
        return 12 * self.max_characters + 100_000
