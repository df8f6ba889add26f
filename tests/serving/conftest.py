"""A running service with the copier, in a thread of the test process."""

import contextlib
import socket
import threading

import pytest

pytest.importorskip("fastapi", reason="needs FastAPI: pip install '.[serve]'")
pytest.importorskip("prometheus_client", reason="needs prometheus_client: pip install '.[serve]'")
uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn: pip install '.[serve]'")
httpx = pytest.importorskip("httpx", reason="the tests call the service with httpx: pip install '.[dev]'")

from vaswani_hf.model.inputs_vaswani import TranslationOptions  # noqa: E402
from vaswani_hf.serving.app import make_app  # noqa: E402
from vaswani_hf.serving.directions import Directions  # noqa: E402
from vaswani_hf.serving.limits import Limits  # noqa: E402
from vaswani_hf.serving.service import Service  # noqa: E402


@contextlib.contextmanager
def running(service: Service):
    """Run a service on a free port, and give its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()
    server = uvicorn.Server(uvicorn.Config(make_app(service, ready.set), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextlib.contextmanager
def client_of(
    copier,
    models=None,
    *,
    api_key=None,
    options=None,
    glossaries=None,
    detector=None,
    language_check=None,
    **limits,
):
    """Run a service with the copier, or with other models, and give a client."""
    service = Service(
        Directions(models or [("en", "de", copier)], detector),
        TranslationOptions.of(split_sentences=True, **(options or {})),
        Limits(**limits),
        api_key,
        glossaries,
        language_check,
    )
    with running(service) as address, httpx.Client(base_url=address, timeout=60) as client:
        client.service = service
        yield client


@pytest.fixture
def serve(copier):
    """A function that starts a service with the arguments of `client_of`, and gives a client."""
    with contextlib.ExitStack() as stack:
        yield lambda *models, **given: stack.enter_context(client_of(copier, *models, **given))


@pytest.fixture(scope="module")
def client(copier):
    """A client of a service with the default limits."""
    with client_of(copier) as client:
        yield client
