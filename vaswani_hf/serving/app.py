"""Defines the HTTP interface of the translation service."""

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..model.backend_vaswani import PyTorchBackend
from ..model.errors_vaswani import InvalidValueError
from ..model.generation_vaswani import setting_of
from ..model.glossary_vaswani import Glossary
from ..model.inputs_vaswani import Request as TextRequest
from ..model.inputs_vaswani import TranslationOptions
from ..model.translations_vaswani import Translation
from ..translation.language_check import LanguageCheck
from ..version import __version__
from .directions import AUTO, Direction, Directions, language_name
from .documents import DocumentsJob
from .engine import Engine, Job, QueueFullError
from .limits import Limits
from .metrics import Metrics
from .schema import ApiRequest, DetectRequest, LibreTranslateRequest, TranslationsRequest, Wanted, detection

logger = logging.getLogger(__name__)

# Maps the path of each translation endpoint to the class of its requests.
INTERFACES: dict[str, type[ApiRequest]] = {
    "/translate": LibreTranslateRequest,
    "/v1/translations": TranslationsRequest,
}
# If the queue is full, the header `Retry-After` of the answer tells the client to wait this number of
# seconds.
_RETRY_AFTER = 2
# The maximum number of entries in the cache of translation options. The cache has one entry for each
# combination of model and request settings.
_MOST_SETTINGS = 100
# The content types of HTML forms. An empty content type also means a form, because some clients send a form
# without a content type.
_FORM_TYPES = ("", "application/x-www-form-urlencoded")
# The maximum number of characters of an error message.
_MOST_SHOWN = 400


class Service:
    """Holds the models, the request queue and the options of the HTTP service.

    Args:
        directions (Directions): The models.
        options (TranslationOptions): The default options of all translations.
        limits (Limits): The limits on requests, on the queue and on batches.
        api_key (str, optional): The key that each request must have.
        glossaries (mapping, optional): The glossaries that requests can use. The keys are the names of the
            glossaries.
        language_check (str, optional): With "pass", the service returns a text unchanged if the text is not
            in the source language. With "refuse", the service answers a request with an error if a text of
            the request is not in the source language. If `directions` has no language detector, the service
            checks no texts.

    Raises:
        ValueError: If a model does not support the options or the glossaries, or if the detector does not
            know a source language.
    """

    def __init__(
        self,
        directions: Directions,
        options: TranslationOptions,
        limits: Limits,
        api_key: str | None = None,
        glossaries: Mapping[str, Glossary] | None = None,
        language_check: Literal["pass", "refuse"] | None = None,
    ):
        self.directions = directions
        self.limits = limits
        self.metrics = Metrics()
        self.engine = Engine(limits, self.metrics.count_batch)
        self.metrics.watch_queue(lambda: self.engine.num_waiting_characters)
        self._options = options
        self._api_key = api_key
        self._glossaries = glossaries or {}
        # Cache the translation options, because most requests have the same settings, and computing the
        # options takes about 0.5 ms.
        self._options_for = lru_cache(_MOST_SETTINGS)(self._complete_options)
        # Each thread of `_threads` handles only one request with HTML documents at a time. Therefore the
        # number of threads limits the number of requests with HTML documents that the service handles at the
        # same time. The threads need little CPU time, because the threads mostly wait for the engine.
        self._threads = ThreadPoolExecutor(limits.max_batch, "documents")
        self._checks: dict[str, LanguageCheck] = {}
        if language_check is not None and directions.detector is not None:
            self._checks = {
                language: LanguageCheck(language, language_check, directions.detector)
                for language in directions.sources()
            }
        for direction in directions:
            glossary: Any
            for glossary in (None, *self._glossaries.values()):
                direction.translator.complete(replace(options, glossary=glossary))

    def start(self) -> None:
        """Start the translation thread. Load the model of the language detector in another thread, because the
        service needs the model only for some requests.
        """
        self.engine.start()
        if self.directions.detector is not None:
            self._threads.submit(self.directions.detector, "")

    def stop(self) -> None:
        """Finish all accepted requests, and end the threads."""
        self._threads.shutdown()
        self.engine.stop()

    @property
    def needs_key(self) -> bool:
        """True if clients must send the API key."""
        return self._api_key is not None

    def authorize(self, request: Request, fields: dict[str, Any]) -> None:
        """Refuse a request that does not contain the API key. A client sends the key as the field `api_key`
        or as a bearer token in the header.
        """
        if self._api_key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        key = token if scheme.lower() == "bearer" else str(fields.get("api_key") or "")
        if not key:
            raise HTTPException(
                403, "The service needs an API key; ask the operator of the service for a key."
            )
        if not hmac.compare_digest(key.encode(errors="replace"), self._api_key.encode()):
            raise HTTPException(403, "Invalid API key")

    def check_limits(self, wanted: Wanted) -> None:
        """Refuse a request with too many characters, texts or alternatives."""
        num_characters = sum(map(len, (*wanted.texts, wanted.target_prefix, *wanted.must_contain)))
        for number, limit, name in (
            (num_characters, self.limits.max_characters, "characters"),
            (len(wanted.texts), self.limits.max_texts, "texts"),
        ):
            if number > limit:
                raise HTTPException(
                    413,
                    f"A request may have at most {limit:,} {name}, but has {number:,}; divide the request.",
                )
        if wanted.num_alternatives > self.limits.max_alternatives:
            raise InvalidValueError(
                f"`alternatives` must be at most {self.limits.max_alternatives}, but is {wanted.num_alternatives}."
            )

    def submit(
        self, direction: Direction, wanted: Wanted, on_text: Callable[[str], None] | None = None
    ) -> Job | DocumentsJob:
        """Put the texts of a request into the queue, and return the job that receives the translations."""
        self._check_support(direction, wanted)
        options = self._options_for(direction, replace(wanted, texts=(), target_prefix="", must_contain=()))
        if not wanted.is_html:
            requests = self._requests(direction, wanted.texts, wanted.target_prefix, wanted.must_contain)
            return self._enqueue(Job(direction.translator, requests, options, on_text))
        options = replace(options, split_sentences=False, return_alignments=True)

        def enqueue(sentences: Sequence[str]) -> Job:
            return self._enqueue(Job(direction.translator, self._requests(direction, sentences), options))

        documents = DocumentsJob(wanted.texts, enqueue)
        self._threads.submit(documents.run)
        return documents

    def _requests(
        self,
        direction: Direction,
        texts: Sequence[str],
        target_prefix: str = "",
        must_contain: Sequence[str] = (),
    ) -> list[TextRequest]:
        """Convert the texts of a client to `Request` objects. If the option `language_check` is set, check
        the language of each text.
        """
        requests = [TextRequest(direction.without_tags(text), target_prefix, must_contain) for text in texts]
        check = self._checks.get(direction.source)
        return requests if check is None else list(map(check, requests))

    def _enqueue(self, job: Job) -> Job:
        """Put a job into the queue, or refuse the request with the HTTP status 429 if the queue is full."""
        try:
            self.engine.submit(job)
        except QueueFullError:
            raise HTTPException(
                429,
                "The queue of the service is full; send the request again later.",
                {"Retry-After": str(_RETRY_AFTER)},
            ) from None
        self.metrics.characters.inc(job.num_characters)
        return job

    def _check_support(self, direction: Direction, wanted: Wanted) -> None:
        """Refuse a request if the engine that runs the model does not support the request."""
        backend = direction.translator.backend
        if wanted.must_contain and not backend.supports_phrases:
            raise InvalidValueError(
                "`must_contain` must be left out, because the engine that runs the model does not support "
                "phrases."
            )
        if wanted.is_streamed and not isinstance(backend, PyTorchBackend):
            raise InvalidValueError(
                "`stream` must be left out, because the engine that runs the model cannot send parts of a "
                "translation."
            )

    def _complete_options(self, direction: Direction, wanted: Wanted) -> TranslationOptions:
        """Return the options of a request. `wanted` contains the settings of the request, without its texts."""
        translator = direction.translator
        of_request: dict[str, Any] = {
            "min_confidence": wanted.min_confidence,
            "glossary": self._glossary(wanted.glossary),
            "tgt_lang": direction.tag,
        }
        options = replace(
            self._options,
            return_scores=wanted.has_scores,
            return_alignments=wanted.has_alignments,
            **{name: value for name, value in of_request.items() if value is not None},
        )
        if wanted.is_streamed and options.min_confidence is not None:
            raise InvalidValueError(
                "`stream` must be left out with `min_confidence`, because the confidence of a translation is "
                "known at the end of the search."
            )
        generate = dict(options.generate)
        if wanted.is_streamed:
            generate["num_beams"] = 1
        if wanted.num_alternatives:
            settings = translator.complete(options).generate
            num_beams = setting_of("num_beams", settings, translator.backend.generation_config) or 1
            generate["num_return_sequences"] = 1 + wanted.num_alternatives
            generate["num_beams"] = max(num_beams, generate["num_return_sequences"])
        return translator.complete(replace(options, generate=generate))

    def _glossary(self, name: str | None) -> Glossary | None:
        if name is None:
            return None
        if name in self._glossaries:
            return self._glossaries[name]
        known = ", ".join(self._glossaries)
        if not known:
            raise InvalidValueError(
                f"`glossary` is {name!r}, but the service has no glossary; leave `glossary` out."
            )
        raise InvalidValueError(f"`glossary` must be a glossary of the service ({known}), but is {name!r}.")


def make_app(service: Service, on_ready: Callable[[], None] = lambda: None) -> FastAPI:
    """Return the FastAPI application. The application calls `on_ready` after the translation thread has
    started.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        on_ready()
        yield
        await asyncio.to_thread(service.stop)

    # Disable the documentation pages of FastAPI, because the pages load scripts from other servers.
    app = FastAPI(title="vaswani_hf", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(_BodyLimit, limit=service.limits.max_body)
    app.add_middleware(
        CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    app.add_middleware(service.metrics.middleware)
    app.add_exception_handler(StarletteHTTPException, _error_answer)
    app.add_exception_handler(Exception, _unexpected_error_answer)
    for path, kind in INTERFACES.items():
        app.add_api_route(path, _translation_endpoint(service, kind), methods=["POST"], name=path)
    _add_information(app, service)
    return app


def _translation_endpoint(service: Service, kind: type[ApiRequest]) -> Callable[..., Any]:
    """Return the function that answers translation requests of the class `kind`."""

    async def translate(request: Request) -> Response:
        try:
            async with asyncio.timeout(service.limits.timeout):
                fields = await _fields_of(request)
                service.authorize(request, fields)
                fields.pop("api_key", None)
                parsed = kind.load(fields)
                wanted = parsed.wanted()
                service.check_limits(wanted)
                direction = service.directions.find(wanted.source, wanted.target, wanted.texts)
                if wanted.is_streamed:
                    return _streamed_answer(service, parsed, direction, wanted)
                translations = await _result_of(service.submit(direction, wanted), request)
        except TimeoutError:
            raise HTTPException(503, _timeout_message(service)) from None
        except ValueError as error:
            raise HTTPException(400, _short_message(error)) from None
        return JSONResponse(_answer(service, parsed, direction, wanted, translations))

    return translate


def _answer(
    service: Service,
    parsed: ApiRequest,
    direction: Direction,
    wanted: Wanted,
    translations: list[list[Translation]],
) -> dict[str, Any]:
    """Return the answer to a request."""
    confidence = 0.0
    if wanted.source == AUTO:
        confidence = service.directions.confidences(wanted.texts)[direction.source]
    return parsed.answer(direction, translations, confidence)


def _short_message(error: Exception) -> str:
    """Return the message of an exception. Truncate a long message, because the message may contain a long
    value that the client has sent.
    """
    message = str(error)
    return message if len(message) <= _MOST_SHOWN else f"{message[:_MOST_SHOWN]} …"


def _timeout_message(service: Service) -> str:
    return f"The request took longer than {service.limits.timeout:g} seconds; send a shorter text."


async def _fields_of(request: Request) -> dict[str, Any]:
    """Return the fields of a request as one dict. The fields are in the query of the URL and in the body
    (JSON or an HTML form).
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields: dict[str, Any] = dict(request.query_params)
    try:
        if content_type == "multipart/form-data":
            return fields | dict(await request.form(max_files=0))
        body = (await request.body()).decode()
        if content_type == "application/json":
            content = json.loads(body)
            if not isinstance(content, dict):
                raise ValueError
            # Raise an error for a lone surrogate such as "\ud800", because UTF-8 cannot encode a lone
            # surrogate in the answer.
            json.dumps(content, ensure_ascii=False).encode()
            return fields | content
        if body and content_type not in _FORM_TYPES:
            raise HTTPException(
                415,
                f"The header `Content-Type` must be application/json, {_FORM_TYPES[1]} or multipart/form-data, but is "
                f"{content_type[:_MOST_SHOWN]}.",
            )
        # Do not call `request.form`, because `request.form` decodes characters as Latin-1 if the characters
        # are not percent-encoded. curl does not percent-encode characters.
        return fields | dict(parse_qsl(body, keep_blank_values=True, errors="strict"))
    except ClientDisconnect:
        raise _disconnect_error() from None
    except UnicodeError:
        raise HTTPException(400, "The body must be text that UTF-8 can encode.") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "Invalid JSON format") from None


async def _result_of(job: Job | DocumentsJob, request: Request) -> list[list[Translation]]:
    """Wait for the translations of a job. If the client disconnects, remove the job from the queue."""
    result: asyncio.Future[Any] = asyncio.wrap_future(job.future)
    # The future `leaving` ends if the client disconnects. `leaving` also ends after the answer has been sent,
    # because `receive` then reports a disconnect.
    leaving: asyncio.Future[Any] = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({result, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise _disconnect_error()
        return result.result()
    except (HTTPException, ValueError):
        raise
    except Exception as error:
        raise _internal_error(error) from None
    finally:
        # `cancel` removes an unfinished job from the queue, and has no effect on a finished job.
        result.cancel()


def _disconnect_error() -> HTTPException:
    """Return the error of a request whose client has closed the connection. No client receives this error."""
    return HTTPException(499, "The client has closed the connection.")


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _internal_error(error: Exception) -> HTTPException:
    """Log the class of an exception, and return the answer for the client. The log and the answer do not
    contain the message of the exception, because the message may contain texts of the client or file paths.
    """
    logger.error("A translation failed with %s.", type(error).__name__)
    return HTTPException(500, "The translation failed.")


def _streamed_answer(
    service: Service, parsed: ApiRequest, direction: Direction, wanted: Wanted
) -> StreamingResponse:
    """Send each part of a translation as a server-sent event, and then the complete answer as the last event."""
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[str | None] = asyncio.Queue()

    def put(part: str | None) -> None:
        # `call_soon_threadsafe` raises a RuntimeError if the event loop is closed because the service has
        # stopped.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(parts.put_nowait, part)

    job = service.submit(direction, wanted, on_text=put)
    job.future.add_done_callback(lambda _: put(None))
    deadline = loop.time() + service.limits.timeout

    async def next_part() -> str | None:
        async with asyncio.timeout_at(deadline):
            return await parts.get()

    async def events() -> AsyncIterator[str]:
        try:
            while (part := await next_part()) is not None:
                if part:
                    yield _event({"text": part})
            yield _event(_answer(service, parsed, direction, wanted, job.future.result()))
        except TimeoutError:
            yield _event({"error": _timeout_message(service)})
        except ValueError as error:
            yield _event({"error": _short_message(error)})
        except Exception as error:
            yield _event({"error": _internal_error(error).detail})
        finally:
            job.future.cancel()

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _add_information(app: FastAPI, service: Service) -> None:
    """Add the endpoints that do not translate texts, such as `/health` and `/languages`.

    Each endpoint returns a `Response`, because FastAPI imports `pydantic.v1` for other return types, and this
    import delays the start of the service.
    """
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/")
    async def index() -> Response:
        return HTMLResponse(page)

    @app.get("/health")
    async def health() -> Response:
        if not service.engine.is_alive:
            raise HTTPException(500, "The translation thread of the service has ended; restart the service.")
        return JSONResponse({"status": "ok"})

    @app.get("/languages")
    async def languages() -> Response:
        return JSONResponse(_languages(service.directions))

    @app.get("/frontend/settings")
    async def frontend_settings() -> Response:
        return JSONResponse(_frontend_settings(service))

    @app.post("/detect")
    async def detect(request: Request) -> Response:
        fields = await _fields_of(request)
        service.authorize(request, fields)
        try:
            texts = DetectRequest.load(fields).texts
        except ValueError as error:
            raise HTTPException(400, _short_message(error)) from None
        service.check_limits(Wanted(texts, source=AUTO, target=None))
        confidences = service.directions.confidences(texts)
        return JSONResponse([detection(language, confidence) for language, confidence in confidences.items()])

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.authorize(request, {})
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _languages(directions: Directions) -> list[dict[str, Any]]:
    """Return the answer of `/languages`: each language, and the languages into which it can be translated."""
    targets: dict[str, list[str]] = {}
    for direction in directions:
        targets.setdefault(direction.source, []).append(direction.target)
        # Also list languages that are only target languages, because clients need the names of these
        # languages.
        targets.setdefault(direction.target, [])
    return [
        {"code": code, "name": language_name(code), "targets": sorted(others)}
        for code, others in targets.items()
    ]


def _frontend_settings(service: Service) -> dict[str, Any]:
    """Return the answer of `/frontend/settings`, which clients of LibreTranslate read."""
    first = next(iter(service.directions))
    return {
        "apiKeys": service.needs_key,
        "charLimit": service.limits.max_characters,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": service.needs_key,
        "language": {
            "source": {"code": AUTO, "name": "Auto Detect"},
            "target": {"code": first.target, "name": language_name(first.target)},
        },
        "suggestions": False,
        "supportedFilesFormat": [],
    }


async def _unexpected_error_answer(request: Request, error: Exception) -> Response:
    failure = _internal_error(error)
    return JSONResponse({"error": failure.detail}, failure.status_code)


async def _error_answer(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


class _BodyLimit:
    """Refuses a request whose body is larger than `limit` bytes. If the header `Content-Length` announces
    more than `limit` bytes, the request is refused before its body arrives.
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
