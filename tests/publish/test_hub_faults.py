"""A refusal of the Hub or a fault of the connection gives an error of one sentence, and changes nothing."""

import errno
import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from factories import files_in
from huggingface_hub import HfApi, constants, get_token

from vaswani_hf.checkpoint import hub as requests
from vaswani_hf.checkpoint.hub import explain, sentence_of
from vaswani_hf.translation.translator import Translator


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Shorten the waiting times of the package and of the client."""
    monkeypatch.setattr(requests, "WAITS", (0.01,) * 4)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, because a client may read every file that is in the cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def published(hub, repo_id, tiny_checkpoint):
    """A repository of alice with a checkpoint that no test has loaded yet."""
    repository = hub.create_repository(repo_id)
    repository.commit(files_in(tiny_checkpoint("published")))
    return repository


@contextmanager
def nothing_changes(hub, folder):
    """Check that the repositories, branches, tags, pull requests and the folder have not changed."""

    def state():
        refs = {key: dict(repository.refs) for key, repository in hub.repositories.items()}
        return refs, files_in(folder)

    before = state()
    yield
    assert state() == before


NEW_TAG = "`tag` must be new, but '{repo}' has a tag or branch '%s'; take another name."
NO_BRANCH = "`revision` must be a branch or a pull request that '{repo}' has, but is '%s'."
REFUSALS = {
    "a name with two dashes": (("alice/a--b",), "Cannot have -- or .. in repo_id: 'alice/a--b'."),
    "a branch that git does not allow": (
        ("{repo}", "--revision", "a..b"),
        "Bad request: Invalid reference name: a..b",
    ),
    "a tag that there is": (("{repo}", "--tag", "v1"), NEW_TAG % "v1"),
    "a tag named as a branch": (("{repo}", "--tag", "main"), NEW_TAG % "main"),
    "a tag as a branch": (("{repo}", "--revision", "v1"), NO_BRANCH % "v1"),
    "no such pull request": (("{repo}", "--revision", "refs/pr/9"), NO_BRANCH % "refs/pr/9"),
    "a pull request to nothing": (
        ("alice/nothing", "--create-pr"),
        "There is no repository 'alice/nothing' on {hub} and no folder of that name here, or it is private and this token may "
        "not read it; check the name, or use a token of a user who may read the repository.",
    ),
    "private, but there and public": (
        ("{repo}", "--private"),
        "`private` is for a new repository, but '{repo}' exists and is public; leave `private` out, or make the repository private at "
        "{hub}/{repo}/settings.",
    ),
    "a licence for a card that is there": (
        ("{repo}", "--license", "mit"),
        "`license` is for a new model card, but is 'mit', and '{folder}/README.md' is used unchanged; write the value into "
        "'{folder}/README.md', or move the file away.",
    ),
    "somebody else's repository": (
        ("bob/model",),
        "403 Forbidden: You don't have the required permissions to perform this action. Cannot access content at: "
        "{hub}/api/models/bob/model/auth-check/write. Make sure your token has the correct permissions.",
    ),
    "somebody else's name": (
        ("bob/new",),
        "There is no repository 'bob/new', and the token of alice cannot make a repository for 'bob'; push to 'alice/new', or use a "
        "token of 'bob'.",
    ),
}


# All other refusals are usage errors.
REFUSED_BY_THE_HUB = (
    "a branch that git does not allow",
    "somebody else's repository",
    "somebody else's name",
)


def test_what_cannot_be_pushed_is_refused_before_anything_is_made(
    hub, published, bob, tiny_checkpoint, vaswani
):
    folder = tiny_checkpoint()
    (folder / "README.md").write_text("---\nlicense: mit\n---\nBy hand.\n")
    hub.create_repository("bob/model")
    HfApi().create_tag(published.id, tag="v1")
    hub.clear()
    names = {"repo": published.id, "hub": hub.endpoint, "folder": folder}
    for refusal, (words, sentence) in REFUSALS.items():
        with nothing_changes(hub, folder):
            code, _, said = vaswani("push", folder, *(word.format(**names) for word in words))
        expected = 1 if refusal in REFUSED_BY_THE_HUB else 2
        assert (code, said) == (expected, sentence.format(**names)), refusal
    assert not hub.uploads()


HAS_TOKEN = (
    "must not contain an access token of the Hub, but contains one; remove the access token, make a new access token and "
    "push again."
)
CARDS = {
    "---\nlicense: mit: x\n---\n": (
        "The card '{folder}/README.md' must begin with YAML between two lines of ---, but the YAML cannot be read: mapping values "
        'are not allowed here in "<unicode string>", line 1, column 13: license: mit: x ^'
    ),
    "Load with hf_{token}.": f"README.md {HAS_TOKEN}",
    "Load with {own}.": f"README.md {HAS_TOKEN}",
    "---\nlanguage: [17]\nlicense: 5\n---\n": (
        'Invalid metadata in README.md. - "language[0]" must be a string - "license[0]" must be a string'
    ),
    "---\nlicense: my-own\n---\n": 'Invalid metadata in README.md. - "license" must be one of [',
}


def test_cards_and_files_that_cannot_be_published(hub, published, alice, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    names = {"folder": folder, "token": "a" * 34, "own": alice.token}
    for card, sentence in CARDS.items():
        (folder / "README.md").write_text(card.format(**names))
        with nothing_changes(hub, folder):
            code, _, said = vaswani("push", folder, published.id)
        assert code == 1 and said.startswith(sentence.format(**names)), card
    (folder / "README.md").unlink()
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"made_by": alice.token}))
    with nothing_changes(hub, folder):
        assert vaswani("push", folder, published.id)[2] == f"generation_config.json {HAS_TOKEN}"
    assert not hub.uploads()


def test_a_token_that_may_not_push(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    folder = tiny_checkpoint()
    sentences = {
        "": "A push needs an access token with write permission, but there is no token; log in with `hf auth login` or set HF_",
        "hf_" + "w" * 34: "Invalid user token. The token from HF_TOKEN environment variable is invalid.",
        hub.add_token(
            "alice", role="read"
        ): "The token of alice may read but not write; make a token with write permission at ",
    }
    for token, sentence in sentences.items():
        monkeypatch.setenv("HF_TOKEN", token)
        for name in (published.id, f"{published.id}-new"):
            with nothing_changes(hub, folder):
                code, out, said = vaswani("push", folder, name)
            assert (code, out) == (1, "") and said.startswith(sentence)


def test_offline_nothing_is_pushed_and_only_the_cache_is_loaded(
    hub, published, cache, tiny_checkpoint, vaswani, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder, translate = tiny_checkpoint(), ("translate", published.id, "--text", "der Hund")
    for words in (("push", folder, published.id), translate):
        with nothing_changes(hub, folder):
            code, out, sentence = vaswani(*words)
        assert (code, out) == (1 if words[0] == "push" else 2, "")
        assert "offline mode is enabled" in sentence and "HF_HUB_OFFLINE" in sentence
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    online = vaswani(*translate)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.clear()
    assert vaswani(*translate) == online and online[0] == 0
    assert not hub.requests


def test_an_endpoint_that_cannot_be_reached(repo_id, cache, tiny_checkpoint, vaswani, monkeypatch):
    # No server listens on port 9 ("discard").
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    sentence = (
        "http://127.0.0.1:9 cannot be reached ([Errno 111] Connection refused); check the connection, HF_ENDPOINT and the "
        "proxy, or set HF_HUB_OFFLINE=1 to use only files in the cache."
    )
    assert vaswani("push", tiny_checkpoint(), repo_id) == (1, "", sentence)
    no_folder = (
        f"`model` must be a checkpoint folder or user/name on the Hub, but there is no folder '{repo_id}' here, and "
        f"{sentence}"
    )
    assert vaswani("translate", repo_id, "--text", "der Hund") == (2, "", no_folder)


def test_a_mistyped_folder_without_a_network_is_named(cache, tiny_checkpoint, vaswani, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    tiny_checkpoint().rename(tmp_path / "checkpoints" / "numbers")
    no_folder = (
        "`model` must be a checkpoint folder or user/name on the Hub, but there is no folder 'checkpoints/numbrs' here "
        "(the nearest one is 'checkpoints/numbers'), and "
    )
    for name, value, way in (
        ("ENDPOINT", "http://127.0.0.1:9", "http://127.0.0.1:9 cannot be reached"),
        ("HF_HUB_OFFLINE", True, "Cannot reach"),
    ):
        monkeypatch.setattr(constants, name, value)
        code, out, sentence = vaswani("translate", "checkpoints/numbrs", "--text", "der Hund")
        assert (code, out) == (2, "") and sentence.startswith(no_folder + way)
        recipe = Path(__file__).parents[2] / "configuration" / "numbers.yaml"
        code, out, sentence = vaswani("train", recipe, "--init_from", "checkpoints/numbrs")
        named = no_folder.replace("`model`", "`model.init_from`")
        assert (code, out) == (2, "") and sentence.startswith(named + way)


# Reading.


def test_what_the_hub_does_not_have_or_not_for_everybody(
    hub, published, bob, cache, vaswani, monkeypatch, tmp_path
):
    def said(name, *words):
        code, out, sentence = vaswani("translate", name, "--text", "der Hund", *words)
        # A name that does not exist is a usage error. A missing permission or file is failed work.
        is_unknown = sentence.startswith(("There is no repository", "404 Client Error. Revision"))
        assert (code, out) == (2 if is_unknown else 1, "")
        return sentence

    name = published.id
    assert said(name, "--revision", "v9").startswith("404 Client Error. Revision Not Found for url: ")
    assert said(name, "--revision", "refs/pr/3").endswith("Invalid rev id: refs/pr/3")
    missing = "There is no repository '{}' on {} and no folder of that name here, or it is private and {}."
    other = "this token may not read it; check the name, or use a token of a user who may read the repository"
    none = "there is no token; check the name, or log in with `hf auth login` or set HF_TOKEN"
    assert said("alice/nothing") == missing.format("alice/nothing", hub.endpoint, other)
    for token, hidden in ((bob.token, other), ("", none)):
        monkeypatch.setenv("HF_TOKEN", token)
        published.private, published.gated = True, False
        assert said(name) == missing.format(name, hub.endpoint, hidden)
        assert vaswani("export", name, tmp_path / "out", "--format", "marian")[2] == said(name)
        published.private, published.gated = False, True
        assert f"Access to model {name} is restricted" in said(name)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "Invalid credentials in Authorization header" in said(name)
    published.readers.add("bob")
    monkeypatch.setenv("HF_TOKEN", bob.token)
    assert vaswani("translate", name, "--text", "der Hund")[0] == 0
    published.commit({"model.safetensors": None})
    assert (
        said(name)
        == f"'{name}' holds no whole checkpoint: it has no model.safetensors; copy or download the file again."
    )
    assert not (tmp_path / "out").exists()


# Files that were changed on the disk.


def test_files_that_were_changed_in_the_cache_are_not_loaded(published, cache, vaswani):
    translate = ("translate", published.id, "--text", "der Hund")
    expected = vaswani(*translate)
    assert expected[0] == 0
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        (blob,) = {path.resolve() for path in cache.rglob(file)}
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1] + b" ")
        sentence = (
            f"{WRONG % (file, published.id)}delete '{blob}', and run the command again to download the file."
        )
        assert vaswani(*translate) == (1, "", sentence)
        blob.unlink()
        assert vaswani(*translate) == expected


# A Hub that is overloaded, that has an error, or that closes the connection during a transfer.

WRONG = (
    "%s of '%s' is not the file that the Hub has: it was damaged or changed during the download or on disk; "
)
ERROR = "Server error '503 Service Unavailable' for url '"
NOT_JSON = "The answer of {hub} is not JSON, so it may come from a proxy or another server; check HF_ENDPOINT, or run the command again later."
LOST = "The connection to {hub} was lost ("
FAILED = "The transfer failed ("
AGAIN = "); run the command again; complete files are not transferred again."
XET_AGAIN = "); run the command again, or set HF_HUB_DISABLE_XET=1 to transfer without xet; complete files are not transferred again."
PAGE = b"<html>Sign in</html>"
WEIGHTS = "/resolve/.*/model.safetensors"
# Each row is a command, the requests that fail, their fault, and the beginning and the end of the error.
FAULTS = [
    ("push", "POST", "/commit/", {"status": 503}, ERROR, ""),
    ("push", "POST", "/api/validate-yaml", {"status": 503}, ERROR, ""),
    ("push", "GET", "/refs", {"status": 503}, ERROR, ""),
    ("push", "GET", "/api/whoami-v2", {"status": 503}, ERROR, ""),
    ("push", "POST", "/api/validate-yaml", {"status": 502, "body": PAGE}, NOT_JSON, ""),
    ("push", "GET", "/api/whoami-v2", {"status": 200, "body": PAGE}, NOT_JSON, ""),
    ("push", "PUT", "/storage/", {"cut_after": 500}, LOST, AGAIN),
    ("translate", "GET", WEIGHTS, {"cut_after": 300}, LOST, AGAIN),
    ("translate", "GET", WEIGHTS, {"status": 503}, ERROR, ""),
    (
        "translate",
        "GET",
        WEIGHTS,
        {"change": lambda body: body[:-1] + b"x"},
        WRONG % ("model.safetensors", "{repo}"),
        "",
    ),
    ("push with xet", "GET", "/xet-write-token/", {"status": 404}, FAILED, XET_AGAIN),
]


@pytest.mark.parametrize(("command", "method", "path", "fault", "begin", "end"), FAULTS)
def test_a_command_that_fails_on_the_way_can_be_run_again(
    hub, published, cache, tiny_checkpoint, vaswani, monkeypatch, command, method, path, fault, begin, end
):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", "xet" not in command)
    folder = tiny_checkpoint()
    words = (
        ("push", folder, published.id) if "push" in command else ("translate", published.id, "--text", "Hund")
    )
    hub.fault(method, path, times=None, **fault)
    with nothing_changes(hub, folder):
        code, out, sentence = vaswani(*words)
    assert (code, out) == (1, "") and not list(cache.rglob("*.incomplete"))
    names = {"hub": hub.endpoint, "repo": published.id}
    assert sentence.startswith(begin.format(**names)) and sentence.endswith(end)
    hub.clear()
    shutil.rmtree(cache, ignore_errors=True)
    assert vaswani(*words)[0] == 0


def test_complete_files_are_not_downloaded_again(hub, published, cache, vaswani):
    hub.fault("GET", WEIGHTS, status=403)
    translate = ("translate", published.id, "--text", "der Hund")
    assert vaswani(*translate)[0] == 1
    hub.clear()
    assert vaswani(*translate)[0] == 0
    assert not [request for request in hub.requests if "tokenizer" in request.path]


BUSY = [("POST", "/api/repos/create"), ("POST", "/commit/"), ("GET", "/api/whoami-v2"), ("GET", "/refs")]
BUSY += [("POST", "/branch/"), ("POST", "/tag/"), ("POST", "/preupload/")]


def test_requests_that_are_refused_for_a_moment_are_sent_again(hub, published, tiny_checkpoint, vaswani):
    for method, pattern in BUSY:
        hub.fault(method, pattern, status=429)
        hub.fault(method, pattern, status=503)
    assert vaswani("push", tiny_checkpoint(), published.id, "--revision", "new", "--tag", "v1")[0] == 0
    assert not [fault for fault in hub.faults if fault.times]
    assert set(published.refs) == {"refs/heads/main", "refs/heads/new", "refs/tags/v1"}


def test_a_wait_is_as_long_as_the_hub_asks(hub, published, cache, capsys, monkeypatch):
    waits = []
    monkeypatch.setattr(requests, "sleep", waits.append)
    limit = {"RateLimit": '"api";r=0;t=7', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
    for headers in ({}, limit):
        hub.fault("GET", "/api/models/", status=429, headers=headers)
    Translator.from_pretrained(published.id, "cpu")
    assert waits == [0.01, 8]
    line = "the Hub is overloaded or has an error; trying again in {} s\n"
    assert capsys.readouterr().err == line.format(0.01) + line.format(8)


def test_the_client_and_the_package_repeat_requests_but_not_without_end(
    hub, published, tiny_checkpoint, vaswani, monkeypatch
):
    waits = []
    monkeypatch.setattr("time.sleep", lambda seconds: waits.append(seconds) if seconds else None)
    hub.fault("POST", "/preupload/", status=503, times=None)
    assert vaswani("push", tiny_checkpoint(), published.id)[0] == 1
    assert waits == [1, 2, 4, 8, 8] * 5


def test_a_cache_that_cannot_be_written(published, tmp_path, monkeypatch, vaswani):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    code, _, sentence = vaswani("translate", published.id, "--text", "der Hund")
    assert code == 1
    assert re.fullmatch(
        rf"The downloaded files cannot be written \(\[Errno 20\] Not a directory: '{tmp_path}/file/hub.*'\); free space, or set "
        r"HF_HOME to another folder\. For a push, set TMPDIR instead of HF_HOME\.",
        sentence,
    )


# The sentences themselves.


def test_what_has_nothing_to_do_with_the_hub_is_not_explained():
    for error in (
        ValueError("`d_model` must be even."),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyError("x"),
    ):
        assert explain(error) is None
    try:
        raise ConnectionError("of somebody else")
    except ConnectionError as error:
        assert explain(error) is None


def test_no_sentence_has_a_token(alice):
    other = "hf_" + "b" * 34
    assert alice.token == get_token()
    assert sentence_of(RuntimeError(f"with {alice.token} and {other}")) == "with hf_… and hf_…"


def test_what_was_wrapped_is_explained_by_its_cause(hub, published):
    with pytest.raises(OSError) as caught:
        HfApi().model_info("alice/nothing")
    try:
        try:
            raise caught.value
        except OSError as error:
            raise RuntimeError("a page of text") from error
    except RuntimeError as error:
        wrapped = error
    assert explain(wrapped) == explain(caught.value)
    assert explain(wrapped).startswith(f"There is no repository 'alice/nothing' on {hub.endpoint}")
