"""What goes wrong between here and the Hub: one sentence with the remedy, and patience with what passes."""

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import sleep
from typing import Any, TypeVar
from urllib.parse import unquote

from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# Seconds before each further try of a request that the Hub answers with an error of its own.
WAITS: tuple[float, ...] = (1, 2, 4, 8, 15)
# The Hub counts requests in windows of five minutes; who asks for more than that does not mean us to wait.
LONGEST_WAIT = 301.0
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
# Exceptions of the HTTP library, httpx or httpx2 by the version of the client.
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol", "InvalidURL"}

T = TypeVar("T")


class HubError(OSError):
    """What the Hub refused, or what failed on the way to it; the message is a sentence with the remedy."""


@contextmanager
def explained(cache: str | None = None) -> Iterator[None]:
    """Turn what the requests within raise into a `HubError`.

    Args:
        cache (str, optional): Where they download to, if that is a folder for the moment.

    Raises:
        HubError: In place of every exception that has to do with the Hub.
    """
    try:
        yield
    except Exception as error:
        sentence = explain(error, cache)
        if sentence is None or isinstance(error, HubError):
            raise
        raise HubError(sentence) from error


def patiently(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What a request gives, tried again a few times while the Hub asks to wait or has an error of its own.

    It is for the requests that huggingface_hub does not try again by itself. One line on stderr says so.

    Args:
        call (Callable): The request.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        What it returns.
    """
    for pause in WAITS:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            seconds, reason = _pause_before_another_try(error, pause)
            if seconds is None or seconds > LONGEST_WAIT:
                raise
        print(f"the Hub {reason}; trying again in {seconds:g} s", file=sys.stderr, flush=True)
        sleep(seconds)
    return call(*args, **kwargs)


def _pause_before_another_try(error: BaseException, pause: float) -> tuple[float | None, str]:
    """Seconds, and why; None where another try would end as this one."""
    for link in _chain(error):
        # What stands before the Hub (a proxy) answers with a page where JSON is due.
        if isinstance(link, json.JSONDecodeError):
            return pause, "answers with something that is no JSON"
        status = _status(link)
        if status and _was_tried_again(link):
            return None, ""
        if status == 429:
            return max(pause, _asked_pause(link)), "asks to wait (429)"
        if status >= 500:
            return pause, f"has an error of its own ({status})"
    return None, ""


def _was_tried_again(error: BaseException) -> bool:
    """Whether the client itself tries requests of this kind again, which takes it half a minute."""
    request = error.response.request  # type: ignore[attr-defined]
    url = str(request.url)
    is_upload = request.method != "GET" and (".git/info/lfs/" in url or not url.startswith(constants.ENDPOINT))
    return request.method == "HEAD" or is_upload or bool(re.search("/(preupload|tree|xet-[a-z]+-token)/", url))


def _asked_pause(error: BaseException) -> float:
    """The seconds that the answer with status 429 asks to wait; 0 where it does not say."""
    headers = error.response.headers  # type: ignore[attr-defined]
    limit = re.search(r"\br=0\b.*\bt=(\d+)", headers.get("RateLimit", ""))
    after = headers.get("Retry-After", "")
    # One more: the window ends within the last second.
    return float(limit.group(1)) + 1 if limit else float(after) if after.isdecimal() else 0.0


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None) if isinstance(error, HfHubHTTPError) else None
    return response.status_code if response is not None else 0


def _chain(error: BaseException) -> list[BaseException]:
    """An exception with its causes, innermost last: transformers and datasets wrap what the client raises."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def explain(error: BaseException, cache: str | None = None) -> str | None:
    """What went wrong with the Hub, and what to do about it.

    Args:
        error (BaseException): What was raised, by the client or by a library around it.
        cache (str, optional): Where it downloads to, if that is a folder for the moment.

    Returns:
        str: One sentence without tokens; None if the exception has nothing to do with the Hub.
    """
    chain = _chain(error)
    for link in chain:
        if isinstance(link, HubError):
            return str(link)
    of_disk = partial(_explain_disk, cache=cache)
    for cases in (of_disk, _explain_client, _explain_answer, _explain_connection, _explain_rest):
        for link in chain:
            sentence = cases(link)
            if sentence:
                return without_tokens(" ".join(sentence.split()))
    return None


def sentence_of(error: BaseException) -> str:
    """What went wrong, in one sentence where it has to do with the Hub, else as the exception says it.

    Args:
        error (BaseException): What was raised.

    Returns:
        str: A text without tokens.
    """
    return explain(error) or without_tokens(" ".join(str(error).split())) or type(error).__name__


def without_tokens(text: str) -> str:
    """A text in which nobody can read a token.

    Args:
        text (str): What may hold one.

    Returns:
        str: The text with `hf_…` in its place.
    """
    token = get_token()
    return _TOKEN.sub("hf_…", text.replace(token, "hf_…") if token else text)


def has_token(text: str) -> bool:
    """Whether somebody could read a token in a text.

    Args:
        text (str): What may hold one.

    Returns:
        bool: True for the token that is in use, and for what looks like one of the Hub's.
    """
    token = get_token()
    return bool(_TOKEN.search(text)) or bool(token and token in text)


def _comes_from_client(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("huggingface_hub") for frame, _ in frames)


def _explain_disk(error: BaseException, cache: str | None) -> str | None:
    number = getattr(error, "errno", None)
    is_full = number == errno.ENOSPC or "No space left on device" in str(error)
    is_forbidden = number in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR) or (
        number == errno.ENOENT and str(getattr(error, "filename", "")).startswith(cache or constants.HF_HUB_CACHE)
    )
    if not (is_full or is_forbidden) or not _comes_from_client(error):
        return None
    place = "the temporary folder" if cache else "the cache"
    variable = "TMPDIR" if cache else "HF_HOME (or HF_HUB_CACHE)"
    if is_full:
        return (
            f"The disk is full: what is downloaded goes to {place} '{cache or constants.HF_HUB_CACHE}'; make room there, or "
            f"set {variable} to a folder on a larger disk."
        )
    return (
        f"What is downloaded goes to {place} '{cache or constants.HF_HUB_CACHE}', where nothing can be written "
        f"({_reason(error)}); set {variable} to a folder of your own."
    )


class _Request:
    """What was asked of the Hub, read from the request that an answer belongs to.

    Attributes:
        method (str): "GET" and so on.
        has_token (bool): Whether a token was sent along.
        token (str): Where that token is, for a sentence.
        repository (str): Kind and name for a sentence.
        revision (str): Branch, tag or commit; empty where the address names none.
        path (str): A file, or what is asked of the repository; empty where the address names none.
        page (str): The address of the repository for a browser.
    """

    _API = re.compile(r"/api/(models|datasets|spaces)/([^/]+/[^/]+)(?:/([^/]+))?(?:/([^/]+))?")
    _FILE = re.compile(r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
    _LARGE_FILES = re.compile(r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)\.git/(info)/(lfs)/")

    def __init__(self, error: HfHubHTTPError):
        request = error.response.request
        self.method = request.method
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.has_token, self.token = bool(given), "that was given"
        if given in (os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN")):
            self.token = "in HF_TOKEN"
        elif given == get_token():
            self.token = f"in '{constants.HF_TOKEN_PATH}'"
        route = str(request.url).removeprefix(constants.ENDPOINT).split("?")[0]
        kind, name, self.revision, self.path = "models", "", "", ""
        if found := self._API.match(route):
            kind, name, self.path, self.revision = (unquote(group or "") for group in found.groups())
        elif found := self._FILE.match(route) or self._LARGE_FILES.match(route):
            kind, name, self.revision, self.path = (unquote(group or "") for group in found.groups())
        elif route == "/api/repos/create":
            # Here the name is in the body.
            given = json.loads(request.content)
            name = "/".join(given[key] for key in ("organization", "name") if given.get(key))
        word = "dataset" if kind == "datasets" else "repository"
        self.repository = f"{word} '{name}'" if name else "repository"
        prefix = f"{kind}/" if kind in ("datasets", "spaces") else ""
        self.page = f"{constants.ENDPOINT}/{prefix}{name}".rstrip("/")


def _explain_answer(error: BaseException) -> str | None:
    """The sentence for an answer of the Hub that is an error."""
    if not isinstance(error, HfHubHTTPError) or not _status(error):
        return None
    request, status = _Request(error), _status(error)
    if isinstance(error, GatedRepoError):
        return f"The {request.repository} is gated: ask for access at {request.page}, and " + (
            "use the token of an account that has it." if request.has_token else f"{LOG_IN}."
        )
    if isinstance(error, RevisionNotFoundError):
        return (
            f"The {request.repository} has no branch, tag or commit '{request.revision}'; see {request.page}/tree/main "
            "for those that it has."
        )
    if isinstance(error, EntryNotFoundError):
        return f"The {request.repository} has no file '{request.path}'; see {request.page}/tree/main for those it has."
    if isinstance(error, RepositoryNotFoundError) or (status == 401 and not request.has_token):
        hidden = "this token may not read it" if request.has_token else "there is no token"
        # Where something is read, the name may have been meant for a folder.
        folder = " and no folder of that name here" if request.method in ("GET", "HEAD") else ""
        return (
            f"There is no {request.repository} on {constants.ENDPOINT}{folder}, or it is private and {hidden}; check the "
            f"name, or {LOG_IN}."
        )
    if status == 401:
        return (
            f"{constants.ENDPOINT} does not know the token {request.token}; make one at "
            f"{constants.ENDPOINT}/settings/tokens, and {LOG_IN}."
        )
    return _explain_status(error, request, status)


def _explain_status(error: HfHubHTTPError, request: _Request, status: int) -> str:
    says = getattr(error, "server_message", None) or ""
    says = f" ({says.strip().rstrip('.')[:200]})" if says else ""
    if status == 403 and (request.method != "GET" or request.path == "auth-check"):
        return (
            f"The token {request.token} may not write to the {request.repository}{says}; take a name of your own "
            "account or organization and a token with write permission, or offer a pull request with `--create-pr`."
        )
    if status == 403:
        return f"The token {request.token} may not read the {request.repository}{says}; ask its owner for access."
    if status == 412:
        return (
            f"Somebody else pushed to the {request.repository} at the same moment, and nothing of this push is in it; "
            "run it again."
        )
    if status == 429:
        pause = _asked_pause(error)
        when = f"in {pause:.0f} s" if pause else "later"
        return f"{constants.ENDPOINT} has had too many requests and asks to wait; run it again {when}."
    if status >= 500:
        return (
            f"{constants.ENDPOINT} has an error of its own (HTTP {status}) and had it at each try; run it again later, "
            "what has arrived is not sent twice."
        )
    return f"{constants.ENDPOINT} refused the request for the {request.repository} with HTTP {status}{says}."


def _explain_client(error: BaseException) -> str | None:
    """The sentence for what the client refuses before it asks, or finds in what it was answered."""
    if isinstance(error, LocalTokenNotFoundError):
        return f"This needs a token of {constants.ENDPOINT}, and there is none; {LOG_IN}."
    if isinstance(error, HFValidationError):
        return f"A name on the Hub must be user/name of letters, digits, '-', '_' and '.': {str(error).rstrip('.')}."
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"HF_HUB_OFFLINE is set, and what is asked for is not in the cache '{constants.HF_HUB_CACHE}'; run it once "
            "without HF_HUB_OFFLINE."
        )
    if isinstance(error, json.JSONDecodeError) and _comes_from_client(error):
        return (
            f"{constants.ENDPOINT} answered with something that is no JSON, as a proxy or another server would; check "
            "HF_ENDPOINT, or run it again later."
        )
    if isinstance(error, ValueError) and "Invalid metadata in README.md" in str(error):
        problems = str(error).split("\n- ", 1)[-1].replace("\n- ", ", ").rstrip(".")
        problems = problems if len(problems) < 300 else f"{problems[:300]} …"
        return f"The Hub refuses the card: {problems}; mend the lines between the two --- of README.md."
    return None


def _explain_connection(error: BaseException) -> str | None:
    """The sentence for a connection that does not come about or breaks off."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith(("httpx", "httpcore"))}
    reason = _reason(error)
    if kinds & _UNREACHABLE:
        return (
            f"{constants.ENDPOINT} cannot be reached ({reason}); check the connection, HF_ENDPOINT and the proxy, or "
            "work with what is in the cache by HF_HUB_OFFLINE=1."
        )
    if kinds:
        return (
            f"The connection to {constants.ENDPOINT} broke off ({reason}); run it again, whole files that have arrived "
            "are not transferred twice."
        )
    return None


def _explain_rest(error: BaseException) -> str | None:
    """The sentence for what the client, or xet within it, raises as builtins of Python."""
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"What is asked for is not in the cache '{constants.HF_HUB_CACHE}', and no connection is allowed; leave out "
            "`local_files_only`."
        )
    if isinstance(error, (OSError, RuntimeError)) and _comes_from_client(error):
        without_xet = "" if constants.HF_HUB_DISABLE_XET else ", or with HF_HUB_DISABLE_XET=1, which does without xet"
        return f"The transfer failed ({_reason(error)}); run it again, what has arrived is not transferred twice{without_xet}."
    return None


def _reason(error: BaseException) -> str:
    lines = str(error).strip().rstrip(".").splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
