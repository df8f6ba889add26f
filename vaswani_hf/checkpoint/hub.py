"""Requests to the Hub: one sentence per fault, and retries."""

import errno
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any, TypeVar

from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

# Seconds before each retry of a request that the Hub answers with an error of its own.
WAITS: tuple[float, ...] = (1, 2, 4, 8, 15)
# The Hub counts requests in windows of five minutes; a longer wait is left to the user.
LONGEST_WAIT = 301.0
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
# The client retries these requests itself, for half a minute.
_RETRIED_BY_CLIENT = re.compile(r"^(HEAD|PUT) |/(preupload|tree|xet-[a-z]+-token|info/lfs)/")
_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)
# Exceptions of the HTTP library, httpx or httpx2 by the version of the client.
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol", "InvalidURL"}

T = TypeVar("T")


class HubError(OSError):
    """A request that the Hub refused, or a transfer that failed; the message is a sentence with the remedy."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn what the requests within raise into a `HubError`.

    Raises:
        HubError: In place of every exception that has to do with the Hub.
    """
    try:
        yield
    except Exception as error:
        sentence = explain(error)
        if sentence is None or isinstance(error, HubError):
            raise
        raise HubError(sentence) from error


def with_retries(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The result of a request, which is retried while the Hub asks to wait or has an error of its own.

    It is for the requests that huggingface_hub does not retry. One line on stderr announces each retry.

    Args:
        call (Callable): The request.
        *args: Its arguments.
        **kwargs: Its keyword arguments.
    """
    for pause in WAITS:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            seconds = max((_pause_before_retry(link, pause) for link in _chain(error)), default=0.0)
            if not 0 < seconds <= LONGEST_WAIT:
                raise
        print(f"the Hub is busy or ill; trying again in {seconds:g} s", file=sys.stderr, flush=True)
        sleep(seconds)
    return call(*args, **kwargs)


def _pause_before_retry(error: BaseException, pause: float) -> float:
    """The seconds to wait, at least `pause`; 0 for a request that would fail again."""
    # A proxy before the Hub answers with a page where JSON is due.
    if isinstance(error, json.JSONDecodeError):
        return pause
    response = getattr(error, "response", None) if isinstance(error, HfHubHTTPError) else None
    if response is None or _RETRIED_BY_CLIENT.search(f"{response.request.method} {response.request.url}"):
        return 0.0
    if response.status_code != 429:
        return pause if response.status_code >= 500 else 0.0
    limit = re.search(r"\br=0\b.*\bt=(\d+)", response.headers.get("RateLimit", ""))
    after = response.headers.get("Retry-After", "")
    # One second more: the window ends within the last one.
    return max(pause, float(limit.group(1)) + 1 if limit else float(after) if after.isdecimal() else 0.0)


def _chain(error: BaseException) -> list[BaseException]:
    """An exception with its causes, innermost last: transformers and datasets wrap what the client raises."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def explain(error: BaseException) -> str | None:
    """One sentence on a fault of the Hub, or of the way to it; the client's own where that is clear.

    Args:
        error (BaseException): An exception of the client, or of a library around it.

    Returns:
        str: The sentence, which has no token; None if the exception has nothing to do with the Hub.
    """
    chain = _chain(error)
    for kind in (_of_ours, _of_connection, _of_answer, _of_transfer):
        for link in chain:
            sentence = kind(link)
            if sentence:
                return _without_tokens(" ".join(sentence.split()))
    return None


def sentence_of(error: BaseException) -> str:
    """One sentence on any exception: that of `explain`, or else its own message, without tokens.

    Args:
        error (BaseException): The exception.
    """
    return explain(error) or _without_tokens(" ".join(str(error).split())) or type(error).__name__


def _without_tokens(text: str) -> str:
    token = get_token()
    return _TOKEN.sub("hf_…", text.replace(token, "hf_…") if token else text)


def has_token(text: str) -> bool:
    """True for a text with the token that is in use, or with a word that looks like one of the Hub's.

    Args:
        text (str): Any text.
    """
    return _without_tokens(text) != text


def _comes_from(error: BaseException, *packages: str) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith(packages) for frame, _ in frames)


def _of_ours(error: BaseException) -> str | None:
    return str(error) if isinstance(error, HubError) else None


def _of_connection(error: BaseException) -> str | None:
    """The sentence for a connection that does not come about or breaks off, or leads to something that is no Hub."""
    if isinstance(error, json.JSONDecodeError) and _comes_from(error, "huggingface_hub", "httpx"):
        return (
            f"{constants.ENDPOINT} answered with something that is no JSON, as a proxy or another server would; check "
            "HF_ENDPOINT, or run it again later."
        )
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(("httpx", "httpcore"))}
    if kinds & _UNREACHABLE:
        return (
            f"{constants.ENDPOINT} cannot be reached ({_reason(error)}); check the connection, HF_ENDPOINT and the proxy, or "
            "work with what is in the cache by HF_HUB_OFFLINE=1."
        )
    if kinds and not isinstance(error, HfHubHTTPError) and not hasattr(error, "response"):
        return (
            f"The connection to {constants.ENDPOINT} broke off ({_reason(error)}); run it again, whole files that have arrived "
            "are not transferred twice."
        )
    return None


def _of_answer(error: BaseException) -> str | None:
    """The sentence for a request that the client does not send, or that the Hub refuses."""
    if isinstance(error, (HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled)):
        return str(error)
    if not isinstance(error, HfHubHTTPError):
        return None
    response = getattr(error, "response", None)
    is_hidden = isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError)
    if response is None or not is_hidden:
        return re.sub(r" \(Request ID: [^)]*\)|\nFor more information check: \S+", "", str(error))
    word = "dataset" if getattr(error, "repo_type", None) == "dataset" else "repository"
    name = getattr(error, "repo_id", None) or str(response.request.url)
    hidden = "this token may not read it" if response.request.headers.get("authorization") else "there is no token"
    # A name that is read may have been meant for a folder.
    folder = " and no folder of that name here" if response.request.method in ("GET", "HEAD") else ""
    return (
        f"There is no {word} '{name}' on {constants.ENDPOINT}{folder}, or it is private and {hidden}; check the name, or log "
        "in with `hf auth login` or set HF_TOKEN."
    )


def _of_transfer(error: BaseException) -> str | None:
    """The sentence for what the client, or xet within it, raises as builtins of Python."""
    if not isinstance(error, (OSError, RuntimeError)) or not _comes_from(error, "huggingface_hub"):
        return None
    if "No space left" in str(error) or getattr(error, "errno", None) in _NOT_WRITABLE:
        return (
            f"What is downloaded cannot be written ({_reason(error)}); free space, or set HF_HOME, in place of which a push is "
            "checked in TMPDIR, to another folder."
        )
    without_xet = "" if constants.HF_HUB_DISABLE_XET else ", or with HF_HUB_DISABLE_XET=1, which does without xet"
    return f"The transfer failed ({_reason(error)}); run it again, what has arrived is not transferred twice{without_xet}."


def _reason(error: BaseException) -> str:
    lines = str(error).strip().rstrip(".").splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
