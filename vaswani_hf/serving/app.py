"""Defines the HTTP interface of the translation service."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException

from ..model.translations_vaswani import Translation
from ..version import __version__
from .directions import AUTO, Direction, Directions, language_name
from .documents import DocumentsJob
from .engine import Job
from .request_fields import MOST_SHOWN, BodyLimit, disconnect_error, fields_of
from .schema import ApiRequest, DetectRequest, LibreTranslateRequest, TranslationsRequest, Wanted, detection
from .service import Service

logger = logging.getLogger(__name__)

Endpoint = Callable[..., Any]

# Maps the path of each translation endpoint to the class of its requests.
INTERFACES: dict[str, type[ApiRequest]] = {
    "/translate": LibreTranslateRequest,
    "/v1/translations": TranslationsRequest,
}


def make_app(service: Service, on_ready: Callable[[], None] = lambda: None) -> FastAPI:
    """Return the application. The application calls `on_ready` after the translation thread has started."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        on_ready()
        yield
        await asyncio.to_thread(service.stop)

    # Disable the documentation pages of FastAPI, because the pages load scripts from other servers.
    app = FastAPI(title="vaswani_hf", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, limit=service.limits.max_body)
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
                fields = await fields_of(request)
                service.authorize(request, fields)
                fields.pop("api_key", None)
                parsed = kind.load(fields)
                wanted = parsed.wanted()
                service.check_limits(wanted)
                direction = service.directions.find(wanted.source, wanted.target, wanted.texts_to_detect)
                if wanted.settings.stream:
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
    confidence = 0.0
    if wanted.source == AUTO:
        confidence = service.directions.confidences(wanted.texts_to_detect)[direction.source]
    return parsed.answer(direction, translations, confidence)


def _short_message(error: Exception) -> str:
    """Return the message. Truncate a long message, because the message can contain a value from the
    client.
    """
    message = str(error)
    return message if len(message) <= MOST_SHOWN else f"{message[:MOST_SHOWN]} …"


def _timeout_message(service: Service) -> str:
    return f"The request took longer than {service.limits.timeout:g} seconds; send a shorter text."


async def _result_of(job: Job | DocumentsJob, request: Request) -> list[list[Translation]]:
    """Wait for the translations of a job. If the client disconnects, remove the job from the queue."""
    result: asyncio.Future[Any] = asyncio.wrap_future(job.future)
    # The future `leaving` completes when the client disconnects, and also after the answer has been sent.
    leaving: asyncio.Future[Any] = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({result, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise disconnect_error()
        return result.result()
    except (HTTPException, ValueError):
        raise
    except Exception as error:
        raise _internal_error(error) from None
    finally:
        # `cancel` removes an unfinished job from the queue, and has no effect on a finished job.
        result.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _internal_error(error: Exception) -> HTTPException:
    """Log only the class of an exception, because the message perhaps contains file paths or texts of the
    client.
    """
    logger.error("A translation failed with %s.", type(error).__name__)
    return HTTPException(500, "The translation failed.")


def _streamed_answer(
    service: Service, parsed: ApiRequest, direction: Direction, wanted: Wanted
) -> StreamingResponse:
    """Send each part of a translation as a server-sent event, and then the complete answer as the last
    event.
    """
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[str | None] = asyncio.Queue()

    def put(part: str | None) -> None:
        # `call_soon_threadsafe` raises a RuntimeError if the service has stopped and the event loop is
        # closed.
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
    """Add the endpoints that do not translate texts, such as `/health` and `/languages`. Each endpoint
    returns a `Response`, because FastAPI imports `pydantic.v1` for other return types, and this import delays
    the start.
    """

    def get(path: str) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds an endpoint for GET requests and HEAD requests, because load balancers
        send HEAD requests to check whether the service is ready.
        """

        def add(endpoint: Endpoint) -> Endpoint:
            app.add_api_route(path, endpoint, methods=["GET"])
            # Leave the function out of the OpenAPI schema, because FastAPI prints a warning if the schema
            # contains a function twice.
            app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
            return endpoint

        return add

    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @get("/")
    async def index() -> Response:
        return HTMLResponse(page)

    @get("/health")
    async def health() -> Response:
        if not service.engine.is_alive:
            raise HTTPException(500, "The translation thread of the service has ended; restart the service.")
        return JSONResponse({"status": "ok"})

    @get("/languages")
    async def languages() -> Response:
        return JSONResponse(_languages(service.directions))

    @get("/frontend/settings")
    async def frontend_settings() -> Response:
        return JSONResponse(_frontend_settings(service))

    @app.post("/detect")
    async def detect(request: Request) -> Response:
        fields = await fields_of(request)
        service.authorize(request, fields)
        try:
            texts = DetectRequest.load(fields).texts
        except ValueError as error:
            raise HTTPException(400, _short_message(error)) from None
        service.check_limits(Wanted(texts, source=AUTO, target=None))
        confidences = service.directions.confidences(texts)
        return JSONResponse([detection(language, confidence) for language, confidence in confidences.items()])

    @get("/metrics")
    async def metrics(request: Request) -> Response:
        service.authorize(request, {})
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _languages(directions: Directions) -> list[dict[str, Any]]:
    """Return the answer of `/languages`: each language, and the languages into which it can be translated."""
    targets: dict[str, list[str]] = {}
    for direction in directions:
        targets.setdefault(direction.source, []).append(direction.target)
        # Clients also need the names of languages that are only target languages.
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
