"""Reads the fields of an HTTP request from the URL and the body, and refuses a body that is too large."""

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The number of characters after which an error message, or the value of a header in an error message, is
# truncated.
MOST_SHOWN = 400
# The content types of HTML forms. Some clients send a form without a content type.
_FORM_TYPES = ("", "application/x-www-form-urlencoded")


async def fields_of(request: Request) -> dict[str, Any]:
    """Return the fields of the query string and of the body (JSON or an HTML form). A field in the body
    overrides the field with the same name in the query string.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise HTTPException(
            415,
            "The body must not be compressed, but the header `Content-Encoding` is "
            f"{encoding[:MOST_SHOWN]}; send the body without compression.",
        )
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        # Do not use `request.query_params`, because it accepts invalid UTF-8. Use `request.form` only for
        # multipart forms. In a URL-encoded form, `request.form` reads a byte that is not percent-encoded as
        # Latin-1, but curl sends UTF-8 text that is not percent-encoded.
        fields = _with_lists(_decoded_pairs(request.scope["query_string"].decode()))
        # Decode also the body of a multipart form, so that invalid UTF-8 raises an error. `request.form`
        # would decode invalid UTF-8 as Latin-1.
        body = (await request.body()).decode()
        if content_type == "multipart/form-data":
            form = await request.form(max_files=0)
            return fields | _with_lists(form.multi_items())
        if content_type == "application/json":
            content = json.loads(body)
            if not isinstance(content, dict):
                raise ValueError
            # Refuse a lone surrogate such as "\ud800", because UTF-8 cannot encode a lone surrogate in the
            # answer.
            json.dumps(content, ensure_ascii=False).encode()
            return fields | content
        if body and content_type not in _FORM_TYPES:
            raise HTTPException(
                415,
                f"The header `Content-Type` must be application/json, {_FORM_TYPES[1]} or multipart/form-data, but is "
                f"{content_type[:MOST_SHOWN]}.",
            )
        return fields | _with_lists(_decoded_pairs(body))
    except ClientDisconnect:
        raise disconnect_error() from None
    except UnicodeError:
        raise HTTPException(400, "The query and the body must be text that UTF-8 can encode.") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "Invalid JSON format") from None


def _decoded_pairs(encoded: str) -> list[tuple[str, str]]:
    """Return the names and the values of the fields of a query or of an HTML form."""
    return parse_qsl(encoded, keep_blank_values=True, errors="strict")


def _with_lists(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict from field names to values. If a field occurs several times, its value is the list of all
    its values.
    """
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: of_field if len(of_field) > 1 else of_field[0] for name, of_field in values.items()}


def disconnect_error() -> HTTPException:
    """Return the exception for a request whose client has closed the connection."""
    return HTTPException(499, "The client has closed the connection.")


class BodyLimit:
    """Refuses a body of more than `limit` bytes. If the header `Content-Length` is above the limit, the body
    is not read.
    """

    def __init__(self, app: ASGIApp, limit: int):
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = int(dict(scope.get("headers", ())).get(b"content-length", 0))
        size = 0

        def check() -> None:
            if max(announced, size) > self._limit:
                raise HTTPException(
                    413, f"The body of a request may have at most {self._limit:,} bytes; divide the request."
                )

        async def limited() -> Message:
            nonlocal size
            check()
            message = await receive()
            size += len(message.get("body", b""))
            check()
            return message

        await self._app(scope, limited, send)
