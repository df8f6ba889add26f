"""Replies of the server, and the refusals that its handlers raise."""

import json
import re
from dataclasses import dataclass, field


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """An answer other than 200, with the Hub's error code for the client's choice of an exception."""

    def __init__(self, status: int, message: str, code: str | None = None, **content):
        super().__init__(message)
        self.status, self.message, self.code, self.content = status, message, code, content
        self.headers = {}

    def reply(self) -> Reply:
        reply = json_reply({"error": self.message} | self.content, self.status)
        reply.headers |= self.headers | {"X-Error-Message": self.message}
        if self.code:
            reply.headers["X-Error-Code"] = self.code
        return reply


def json_reply(content, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(content).encode(), {"Content-Type": "application/json"} | headers)


def part_of(reply: Reply, range_header: str | None) -> Reply:
    """The part of a file that a Range header asks for."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", range_header or "")
    if (
        "Accept-Ranges" not in reply.headers
        or reply.status != 200
        or not found
        or found.group(0) == "bytes=-"
    ):
        return reply
    size = len(reply.body)
    if found.group(1):
        start, end = int(found.group(1)), min(int(found.group(2) or size - 1) + 1, size)
    else:
        start, end = max(0, size - int(found.group(2))), size
    if start >= size:
        return Reply(416, b"", {"Content-Range": f"bytes */{size}"})
    headers = reply.headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Reply(206, reply.body[start:end], headers)
