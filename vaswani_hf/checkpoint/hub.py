"""Sends requests to the Hub, repeats failed requests, and explains each error in one sentence."""

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
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers

from ..model.errors_vaswani import InvalidValueError
from ..settings.base import first_line_of

# The seconds to wait before each retry of a failed request.
WAITS: tuple[float, ...] = (1, 2, 4, 8, 15)
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)
# Prefixes of the names of the modules that define HTTP exceptions. The prefix "httpx" also matches httpx2,
# which some versions of huggingface_hub use instead of httpx.
_HTTP_LIBRARIES = ("httpx", "httpcore")
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol", "InvalidURL"}

T = TypeVar("T")


class HubError(OSError):
    """Raised if a request or a transfer fails. The error message is one sentence with a remedy."""


class InvalidHubValueError(HubError, InvalidValueError):
    """Raised if the Hub does not accept a value of the user, such as the name of a missing repository."""


class UnreachableHubError(HubError):
    """Raised if the Hub cannot be reached, or if the offline mode of huggingface_hub is on
    (HF_HUB_OFFLINE=1).
    """


@contextmanager
def explained() -> Iterator[None]:
    """Context manager that converts an exception of the Hub or of the connection to a `HubError`."""
    try:
        yield
    except (HubError, InvalidValueError):
        raise
    except Exception as error:
        explained_error = hub_error(error)
        if explained_error is None:
            raise
        raise explained_error from error


def with_retries(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of huggingface_hub. Repeat the call if the Hub is overloaded or has an internal error.

    huggingface_hub itself retries only failed uploads, listings and requests for the metadata of a file.
    """
    for pause in WAITS:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            seconds = _seconds_until_retry(error, pause)
            if seconds is None:
                raise
        line = f"the Hub is overloaded or has an error; trying again in {seconds:g} s"
        print(line, file=sys.stderr, flush=True)
        sleep(seconds)
    return call(*args, **kwargs)


def _seconds_until_retry(error: BaseException, pause: float) -> float | None:
    """Return the seconds to wait before a new try, at least `pause`. Return None for an error after which the
    call is not repeated.
    """
    refusals = [link for link in _chain(error) if isinstance(link, HfHubHTTPError)]
    responses = [getattr(refusal, "response", None) for refusal in refusals]
    response = next((response for response in responses if response is not None), None)
    if response is None:
        return None
    if response.status_code >= 500:
        return pause
    if response.status_code != 429:
        return None
    limit = parse_ratelimit_headers(response.headers)
    if limit is None or limit.remaining > 0:
        return pause
    # Wait one second longer, because the Hub rounds `reset_in_seconds` down.
    return max(pause, limit.reset_in_seconds + 1)


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and its causes. transformers and datasets wrap exceptions of huggingface_hub."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        context = None if link.__suppress_context__ else link.__context__
        link = link.__cause__ or context
    return chain


def hub_error(error: BaseException) -> HubError | None:
    """Return a `HubError` that explains an error of a request to the Hub in one sentence, or None for other
    errors.
    """
    # Return None for an `InvalidValueError`, because its message already explains the error.
    if isinstance(error, InvalidValueError) and not isinstance(error, HubError):
        return None
    chain = _chain(error)
    for describe in (_own_error, _connection_error, _refusal, _transfer_error):
        for link in chain:
            sentence = describe(link)
            if sentence:
                return _kind_of(chain)(_on_one_line(sentence))
    return None


def _kind_of(chain: list[BaseException]) -> type[HubError]:
    """Return the class of the `HubError` that explains an exception. `chain` contains the exception and its
    causes.
    """
    if any(map(_is_invalid_value, chain)):
        return InvalidHubValueError
    return UnreachableHubError if any(map(_is_unreachable, chain)) else HubError


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, (UnreachableHubError, OfflineModeIsEnabled)) or bool(
        _http_kinds(error) & _UNREACHABLE
    )


def _http_kinds(error: BaseException) -> set[str]:
    """Return the class names of an exception, base classes included. Leave out classes that no HTTP library
    defines.
    """
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(_HTTP_LIBRARIES)}


def _is_invalid_value(error: BaseException) -> bool:
    """Return True if the user has named a repository, dataset or revision that does not exist, or a
    repository with an invalid name.
    """
    invalid = (InvalidHubValueError, RepositoryNotFoundError, RevisionNotFoundError, HFValidationError)
    return isinstance(error, invalid) and not isinstance(error, GatedRepoError)


def sentence_of(error: BaseException) -> str:
    """Return a sentence that explains an exception and contains no access token."""
    return _on_one_line(str(hub_error(error) or error)) or type(error).__name__


def _on_one_line(message: str) -> str:
    return _without_tokens(" ".join(message.split()))


def has_token(text: str) -> bool:
    """Return True if a text contains the user's access token, or a word that looks like an access token."""
    return _without_tokens(text) != text


def _without_tokens(text: str) -> str:
    token = get_token()
    if token:
        text = text.replace(token, "hf_…")
    return _TOKEN.sub("hf_…", text)


def _own_error(error: BaseException) -> str | None:
    # Return the Hub's message about a rejected model card unchanged, because the message already explains the
    # error.
    is_sentence = isinstance(error, HubError) or str(error).startswith("Invalid metadata in README.md")
    return str(error) if is_sentence else None


def _connection_error(error: BaseException) -> str | None:
    """Explain an unreachable server, a lost connection, or a server that is not a Hub."""
    if isinstance(error, json.JSONDecodeError) and _comes_from(error, "huggingface_hub", "httpx"):
        return (
            f"The answer of {constants.ENDPOINT} is not JSON, so it may come from a proxy or another "
            "server; check HF_ENDPOINT, or run the command again later."
        )
    kinds = _http_kinds(error)
    if kinds & _UNREACHABLE:
        return (
            f"{constants.ENDPOINT} cannot be reached ({first_line_of(error)}); check the connection, "
            "HF_ENDPOINT and the proxy, or set HF_HUB_OFFLINE=1 to use only files in the cache."
        )
    if kinds and not hasattr(error, "response"):
        return (
            f"The connection to {constants.ENDPOINT} was lost ({first_line_of(error)}); run the command "
            "again; complete files are not transferred again."
        )
    return None


def _refusal(error: BaseException) -> str | None:
    """Explain why huggingface_hub did not send a request, or why the Hub refused a request."""
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
    hidden = "there is no token"
    remedy = "log in with `hf auth login` or set HF_TOKEN"
    if response.request.headers.get("authorization") is not None:
        hidden = "this token gives no access to it"
        remedy = "use a token of a user who may read the " + word
    # If a download (GET or HEAD) failed, `name` is perhaps the misspelled name of a local folder.
    is_read = response.request.method in ("GET", "HEAD")
    folder = " and no folder of that name here" if is_read else ""
    return (
        f"There is no {word} '{name}' on {constants.ENDPOINT}{folder}, or it is private and {hidden}; check "
        f"the name, or {remedy}."
    )


def _transfer_error(error: BaseException) -> str | None:
    """Explain a built-in exception that huggingface_hub or its library hf_xet raises during a transfer."""
    if not isinstance(error, (OSError, RuntimeError)) or not _comes_from(error, "huggingface_hub"):
        return None
    if "No space left" in str(error) or getattr(error, "errno", None) in _NOT_WRITABLE:
        return (
            f"The downloaded files cannot be written ({first_line_of(error)}); free space, or set HF_HOME to "
            "another folder. For a push, set TMPDIR instead of HF_HOME."
        )
    without_xet = ", or set HF_HUB_DISABLE_XET=1 to transfer without xet"
    if constants.HF_HUB_DISABLE_XET:
        without_xet = ""
    return (
        f"The transfer failed ({first_line_of(error)}); run the command again{without_xet}; complete files "
        "are not transferred again."
    )


def _comes_from(error: BaseException, *packages: str) -> bool:
    """Return True if a frame in the traceback of `error` belongs to one of the Python packages `packages`."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith(packages) for frame, _ in frames)
