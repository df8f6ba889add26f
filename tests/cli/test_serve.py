"""`vaswani serve`: the process from its start to its end, bad input, and wrong options."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="needs FastAPI: pip install '.[serve]'")
httpx = pytest.importorskip("httpx", reason="the tests call the service with httpx: pip install '.[dev]'")

from sentences import rows  # noqa: E402

from vaswani_hf.cli.serve import ServeOptions  # noqa: E402
from vaswani_hf.convert.export import export  # noqa: E402
from vaswani_hf.serving.server import listening_socket  # noqa: E402

TEXTS = ["der Hund läuft", "zwei, nein", "Öl", "日本"]


@contextlib.contextmanager
def served(python, *words):
    """Start `vaswani serve` on a free port, and give the process, a client and the first two lines."""
    command = [python, "-m", "vaswani_hf.cli", "serve", *words, "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stderr.readline(), process.stderr.readline()]
        address = re.search(r"http://127\.0\.0\.1:\d+", lines[0])
        assert address, lines
        with httpx.Client(base_url=address[0], timeout=60) as client:
            yield process, client, lines
    finally:
        process.kill()
        process.communicate()


FIELDS = {"source": "en", "target": "de"}


def translate(client, text: str):
    return client.post("/translate", data={"q": text} | FIELDS)


@pytest.fixture(scope="module")
def checkpoint(copier_checkpoint, tmp_path_factory):
    """A copy of the checkpoint of the copier. A test deletes the copy."""
    return shutil.copytree(copier_checkpoint, tmp_path_factory.mktemp("served") / "checkpoint")


@pytest.fixture(scope="module")
def client(python, checkpoint):
    """A client of one service for all bad inputs."""
    with served(python, str(checkpoint), "--languages", "en:de") as (process, client, _):
        yield client
        process.terminate()
        # Nothing about a bad input is in the log.
        assert process.stderr.read() == "vaswani: the service has ended\n"


def json_of(q, **fields):
    return {"json": {"q": q} | FIELDS | fields}


def body_of(content: bytes, kind: str = "application/json"):
    return {"content": content, "headers": {"Content-Type": kind}}


NO_JSON = "Invalid JSON format"
NO_UTF_8 = "The query and the body must be text that UTF-8 can encode."
NO_TEXT = "Invalid request: missing q parameter"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\xfe\r\n--x--\r\n'
OTHER_TYPE = (
    f"The header `Content-Type` must be application/json, {FORM} or multipart/form-data, but is text/plain."
)
# The request, the status and the beginning of the error.
BAD_INPUT = {
    "characters": (
        json_of("a" * 100_000),
        413,
        "A request may have at most 20,000 characters, but has 100,0",
    ),
    "1 MB": (json_of("a" * 1_000_000), 413, "The body of a request may have at most 340,000 bytes; divide"),
    "plain text": (body_of(b"Hund", "text/plain; charset=utf-8"), 415, OTHER_TYPE),
    "no texts": (json_of([]), 400, NO_TEXT),
    "no body": (body_of(b"", ""), 400, NO_TEXT),
    "half an object": (body_of(b'{"q": '), 400, NO_JSON),
    "a list": (body_of(b"[1]"), 400, NO_JSON),
    "deep JSON": (body_of(b"[" * 100_000), 400, NO_JSON),
    "a long number": (body_of(b'{"alternatives": 1' + b"0" * 5000 + b"}"), 400, NO_JSON),
    "invalid UTF-8": (body_of(b'{"q": "\xff"}'), 400, NO_UTF_8),
    "half a character": (body_of(b'{"q": "\\ud800"}'), 400, NO_UTF_8),
    "invalid UTF-8 in a form": (body_of(b"q=\xff", FORM), 400, NO_UTF_8),
    "an invalid byte in a form": (body_of(b"q=%ff", FORM), 400, NO_UTF_8),
    "an invalid byte in a query": ({"url": "/translate?q=%ff%fe"}, 400, NO_UTF_8),
    "invalid UTF-8 in a multipart form": (body_of(PART, MULTIPART), 400, NO_UTF_8),
    "broken multipart": (body_of(b"Hund", MULTIPART), 400, "Invalid multipart data."),
    "a file": ({"files": {"q": ("a.txt", b"Hund")}}, 400, "Too many files. Maximum number of files is 0."),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(client, name):
    request, status, expected = BAD_INPUT[name]
    answer = client.post(**{"url": "/translate"} | request)
    assert answer.status_code == status and answer.json()["error"].startswith(expected)


def send_with(client, header: str, body: bytes) -> socket.socket:
    """Send a request with one more header, and return the connection without reading."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{header}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def send_only(client, body: bytes, length: int) -> socket.socket:
    """Send a request with a body of `length` announced bytes, as `send_with`."""
    return send_with(client, f"Content-Length: {length}", body)


# A chunk of 340,001 bytes without its end: one byte more than the limit. The service has read all of it when
# it answers, so the connection is not reset while the test sends.
CHUNK = f"{340_001:x}\r\n".encode() + b"a" * 340_001


@pytest.mark.parametrize(
    ("header", "body"),
    [("Content-Length: 1000000000000", b'{"q": '), ("Transfer-Encoding: chunked", CHUNK)],
    ids=["announced", "chunked"],
)
def test_a_body_that_is_too_large_is_refused_before_it_ends(client, header, body):
    """The service answers while the body is incomplete, and not with the status 503 after its timeout."""
    with send_with(client, header, body) as connection:
        answer = connection.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 413 ")
    assert translate(client, "Öl").json() == {"translatedText": "Öl"}


def never_reads(client, checkpoint):
    # The answer is larger than the buffers of a connection.
    body = json.dumps({"q": ["🎉" * 400] * 50} | FIELDS).encode()
    return [send_only(client, body, len(body)) for _ in range(20)]


def never_ends(client, checkpoint):
    return [send_only(client, b'{"q": ', 1000)]


def leaves(client, checkpoint):
    """Close connections while the service waits for the body, and while it translates."""
    body = json.dumps({"q": ["der Hund läuft. " * 25] * 40} | FIELDS).encode()
    for length in (len(body) + 1000, len(body)) * 5:
        send_only(client, body, length).close()
    return []


def loses_checkpoint(client, checkpoint):
    # A process that maps a shortened file into memory crashes.
    (checkpoint / "model.safetensors").write_bytes(b"")
    shutil.rmtree(checkpoint)
    return []


@pytest.mark.parametrize("misbehave", [never_reads, never_ends, leaves, loses_checkpoint])
def test_other_clients_are_served(client, checkpoint, misbehave):
    connections = misbehave(client, checkpoint)
    deadline = time.monotonic() + 300
    # The requests of `misbehave` can fill the queue for a moment. A client then sends its request again.
    while (answer := translate(client, "Öl")).status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer.json() == {"translatedText": "Öl"}
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_service_from_its_start_to_its_end(python, copier_checkpoint, number):
    """A signal arrives during a request of 120 lines, each in a batch of its own."""
    text = "\n".join([TEXTS[0]] * 120)
    words = (copier_checkpoint, "--languages", "en:de", "--max_batch", "1")
    with served(python, *words) as (process, client, lines):
        assert lines[0].startswith("vaswani serves en to de at http://127.0.0.1:")
        assert re.fullmatch(
            r"try: curl http://127\.0\.0\.1:\d+/translate --data-urlencode 'q=Hello, world!' .*\n", lines[1]
        )
        if shutil.which("curl"):
            command = lines[1].removeprefix("try: ")
            pasted = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
            assert json.loads(pasted.stdout).keys() == {"translatedText"}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(translate, client, text)
            while "vaswani_queue_characters 0.0" in client.get("/metrics").text:
                # If this process was slow, the service has answered already.
                if answer.done():
                    answer = pool.submit(translate, client, text)
            process.send_signal(number)
            assert answer.result(60).json() == {"translatedText": text}
        assert process.wait(60) == 0
        assert process.stderr.read() == "vaswani: the service has ended\n"


@pytest.fixture(scope="module")
def exported(copier_checkpoint, tmp_path_factory):
    """The arguments that serve an export to CTranslate2."""
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    folder = tmp_path_factory.mktemp("exports") / "ctranslate2"
    export(copier_checkpoint, folder, "ctranslate2")
    return [folder, "--engine", "ctranslate2", "--languages", "en:de"]


def test_the_engine_ctranslate2(python, exported, copier):
    with served(python, *exported) as (_, client, _):
        answer = client.post("/translate", json={"q": TEXTS, "source": "auto", "target": "de"})
        assert answer.json()["translatedText"] == list(copier.translate(TEXTS))
        for fields in ({"stream": True}, {"must_contain": ["Öl"]}):
            answer = client.post("/v1/translations", json={"text": "Hund"} | fields)
            message = f"`{next(iter(fields))}` must be left out, because the engine"
            assert answer.status_code == 400 and answer.json()["error"].startswith(message)


UNSUPPORTED = """
--glossary a=GLOSSARY | `glossary` must be left out, because the engine of the model does not
--min_confidence 0.5 | `min_confidence` needs the calibration of the checkpoint, but there is no
"""


@pytest.mark.parametrize(("words", "message"), rows(UNSUPPORTED))
def test_options_that_a_model_does_not_support(vaswani, exported, tmp_path, words, message):
    (tmp_path / "terms.tsv").write_text("hund\tÖl\n")
    words = words.replace("GLOSSARY", str(tmp_path / "terms.tsv")).split()
    code, _, error = vaswani("serve", *exported, "--port", "0", *words)
    assert code == 2 and error.startswith(message)


def test_the_repetition_guard_is_on_by_default():
    assert ServeOptions(models=["a"]).translation_settings()["repetition_guard"]
    settings = ServeOptions(models=["a"], repetition_guard=False, num_beams=1).translation_settings()
    assert (settings["repetition_guard"], settings["num_beams"]) == (False, 1)


def test_an_answer_does_not_wait_for_an_acknowledgement():
    """The service sets TCP_NODELAY on the listening socket, and connections inherit this option."""
    with listening_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use(vaswani):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, error = vaswani("serve", "a", "--port", port)
    message = (
        f"`--port` must be a free port, but {port} cannot be used (Address already in use); give another"
    )
    assert code == 2 and error.startswith(message)


WRONG = """
a a | `models` names a twice; name it once.
a --languages en:de de:en | `--languages` must have one entry for each model (1), but has 2.
a --languages en-de | `--languages` must have entries such as en:de, with the source language and
a --glossary terms.tsv | `--glossary` must have entries such as terms=terms.tsv, each with a different name and a file, but has 'terms.tsv'.
a --glossary a=no.tsv | `--glossary` must be an existing file, but is no.tsv.
a --host 0.0.0.0 | `--host` 0.0.0.0 can be reached from other machines and needs an API key; set
a --port 65536 | `--port` must be 65535 or less, but is 65536.
a --max_batch 0 | `--max_batch` must be 1 or more, but is 0.
a --host ::2 --port 0 | `--host` ::2 can be reached from other machines and needs an API
no/such/folder --port 0 | `model` must be a checkpoint folder or user/name on the Hub
"""


@pytest.mark.parametrize(("words", "message"), rows(WRONG))
def test_wrong_options(vaswani, words, message):
    code, _, error = vaswani("serve", *words.split())
    assert code == 2 and error.startswith(message)


def test_a_wrong_host(vaswani, monkeypatch):
    monkeypatch.setenv("VASWANI_API_KEY", "sesame")
    code, _, error = vaswani("serve", "a", "--host", "192.0.2.1", "--port", "0")
    assert code == 2
    assert error.startswith("`--host` must be an address of this machine, but is '192.0.2.1' (")
