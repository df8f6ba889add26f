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
from sentences import rows

from vaswani_hf.checkpoint import hub as requests
from vaswani_hf.checkpoint.hub import hub_error, sentence_of
from vaswani_hf.translation.translator import Translator


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Shorten the times for which the package and the client wait before they repeat a request."""
    monkeypatch.setattr(requests, "WAITS", (0.01,) * 4)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def quick_push(monkeypatch):
    """Skip the outputs of the model, because these take half of the time of a push."""
    monkeypatch.setattr("vaswani_hf.publish.push.fingerprint", lambda folder: {})


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


# The arguments of `vaswani push`, the exit code and the start of the error. The code is 1 if the Hub refuses.
REFUSALS = """
alice/a--b | 2 | Cannot have -- or .. in repo_id: 'alice/a--b'.
{repo} --revision a..b | 2 | `revision` must be a name that git accepts, such as v1.0, but is 'a..b'; give another name.
{repo} --revision= | 2 | `revision` must be a name that git accepts, such as v1.0, but is ''; give another name.
{repo} --tag=a:b | 2 | `tag` must be a name that git accepts, such as v1.0, but is 'a:b'; give another name.
{repo} --tag v1 | 2 | `tag` must be new, but '{repo}' has a tag or branch 'v1'; take another name.
{repo} --tag main | 2 | `tag` must be new, but '{repo}' has a tag or branch 'main'; take another name.
{repo} --revision v1 | 2 | `revision` must be a branch or a pull request that '{repo}' has, but is 'v1'.
{repo} --revision refs/pr/9 | 2 | `revision` must be a branch or a pull request that '{repo}' has, but is 'refs/pr/9'.
{repo} --private | 2 | `private` is for a new repository, but '{repo}' exists and is public;
{repo} --license mit | 2 | `license` is 'mit', but the existing model card '{folder}/README.md'
alice/nothing --create-pr | 2 | There is no repository 'alice/nothing' on {hub}
bob/model | 1 | 403 Forbidden: You don't have the required permissions to perform this action.
bob/new | 1 | There is no repository 'bob/new', and the token of alice cannot make a repository for 'bob';
"""


@pytest.mark.usefixtures("quick_push")
def test_what_cannot_be_pushed_is_refused_before_anything_is_made(
    hub, published, bob, tiny_checkpoint, vaswani
):
    folder = tiny_checkpoint()
    (folder / "README.md").write_text("---\nlicense: mit\n---\nBy hand.\n")
    hub.create_repository("bob/model")
    published.refs["refs/tags/v1"] = published.head()
    names = {"repo": published.id, "hub": hub.endpoint, "folder": folder}
    for words, code, sentence in rows(REFUSALS.format(**names)):
        with nothing_changes(hub, folder):
            found, _, said = vaswani("push", folder, *words.split())
        assert found == int(code) and said.startswith(sentence), said
    assert not hub.uploads()


def test_a_damaged_checkpoint_is_neither_pushed_nor_loaded(hub, repo_id, tiny_checkpoint, vaswani, tmp_path):
    folder = tiny_checkpoint()
    (folder / "tokenizer.json").write_text("{")
    damaged = "tokenizer.json of '{}' must hold a JSON object, but does not: it is damaged; copy or download the file again."
    no_config = "`model` must be a checkpoint, but '{}' has no config.json; check the name, or copy the whole checkpoint again."
    nothing = "`model` must be a checkpoint folder, but there is no folder '{}'; check the name."
    places = [(folder, 1, damaged), (tmp_path, 2, no_config), (tmp_path / "none", 2, nothing)]
    for place, code, sentence in places:
        assert vaswani("push", place, repo_id) == (code, "", sentence.format(place))
    assert not hub.requests
    translate = ("translate", repo_id, "--text", "der Hund")
    repository = hub.create_repository(repo_id)
    assert vaswani(*translate) == (2, "", no_config.format(repo_id))
    repository.commit(files_in(folder))
    assert vaswani(*translate) == (1, "", damaged.format(repo_id))
    repository.commit({"adapter_config.json": b"{}"})
    adapter = f"`model` must be a whole model, but '{repo_id}' holds an adapter of PEFT"
    assert vaswani(*translate)[2].startswith(adapter)


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
}


@pytest.mark.usefixtures("quick_push")
def test_cards_and_files_that_cannot_be_published(hub, published, alice, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    names = {"folder": folder, "token": "a" * 34, "own": alice.token}
    for card, sentence in CARDS.items():
        (folder / "README.md").write_text(card.format(**names))
        with nothing_changes(hub, folder):
            code, _, said = vaswani("push", folder, published.id)
        assert code == 1 and said.startswith(sentence.format(**names)), card
    for licence, value in {
        "license: 3": "3",
        "license: [mit, no]": "False",
        "license_name: 1.0": "1.0",
    }.items():
        (folder / "README.md").write_text(f"---\n{licence}\n---\n")
        with nothing_changes(hub, folder):
            said = vaswani("push", folder, published.id)[2]
        assert said.startswith(
            f"The licence in the card '{folder}/README.md' must be a text, but is {value}; "
        )
    (folder / "README.md").unlink()
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"made_by": alice.token}))
    with nothing_changes(hub, folder):
        assert vaswani("push", folder, published.id)[2] == f"generation_config.json {HAS_TOKEN}"
    assert not hub.uploads()


@pytest.mark.usefixtures("quick_push")
def test_a_token_that_may_not_push(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    folder = tiny_checkpoint()
    sentences = {
        "": "A push needs an access token with write permission, but there is no token; log in with `hf auth login` or set HF_",
        "hf_" + "w" * 34: "Invalid user token. The token from HF_TOKEN environment variable is invalid.",
        hub.add_token("alice", role="read"): "The token of alice may read but not write; make a token with ",
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
    push = ("push", tiny_checkpoint(), published.id)
    translate = ("translate", published.id, "--text", "der Hund")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for words, expected in ((push, 1), (translate, 2)):
        code, out, sentence = vaswani(*words)
        assert (code, out) == (expected, "") and "offline mode is enabled" in sentence
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    online = vaswani(*translate)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.clear()
    assert vaswani(*translate) == online and online[0] == 0
    assert not hub.requests


def test_a_hub_that_cannot_be_reached(cache, alice, tiny_checkpoint, vaswani, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    tiny_checkpoint("checkpoints/numbers")
    # No server listens on port 9 ("discard").
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    unreachable = (
        "http://127.0.0.1:9 cannot be reached ([Errno 111] Connection refused); check the connection, HF_ENDPOINT and the "
        "proxy, or set HF_HUB_OFFLINE=1 to use only files in the cache."
    )
    assert vaswani("push", "checkpoints/numbers", "alice/numbers") == (1, "", unreachable)
    # A name without a folder can be a repository or a misspelt folder.
    recipe = Path(__file__).parents[2] / "configuration" / "numbers.yaml"
    for option, words in {
        "model": ("translate", "checkpoints/numbrs", "--text", "der Hund"),
        "model.init_from": ("train", recipe, "--init_from", "checkpoints/numbrs"),
    }.items():
        sentence = (
            f"`{option}` must be a checkpoint folder or user/name on the Hub, but there is no folder 'checkpoints/numbrs' here "
            f"(the nearest one is 'checkpoints/numbers'), and {unreachable}"
        )
        assert vaswani(*words) == (2, "", sentence)


def test_what_the_hub_does_not_have_or_not_for_everybody(hub, published, bob, cache, vaswani, monkeypatch):
    def said(name, *words):
        code, out, sentence = vaswani("translate", name, "--text", "der Hund", *words)
        # The exit code is 2 for a name that does not exist, and 1 for a missing permission or file.
        is_unknown = sentence.startswith(("There is no repository", "404 Client Error. Revision"))
        assert (code, out) == (2 if is_unknown else 1, "")
        return sentence

    name = published.id
    assert said(name, "--revision", "refs/pr/3").endswith("Invalid rev id: refs/pr/3")
    missing = "There is no repository '{}' on {} and no folder of that name here, or it is private and {}."
    other = "this token gives no access to it; check the name, or use a token of a user who may read the repository"
    none = "there is no token; check the name, or log in with `hf auth login` or set HF_TOKEN"
    assert said("alice/nothing") == missing.format("alice/nothing", hub.endpoint, other)
    for token, hidden in ((bob.token, other), ("", none)):
        monkeypatch.setenv("HF_TOKEN", token)
        published.private, published.gated = True, False
        assert said(name) == missing.format(name, hub.endpoint, hidden)
        published.private, published.gated = False, True
        assert f"Access to model {name} is restricted" in said(name)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "Invalid credentials in Authorization header" in said(name)


def test_files_that_were_changed_in_the_cache_are_not_loaded(published, cache, vaswani):
    translate = ("translate", published.id, "--text", "der Hund")
    expected = vaswani(*translate)
    assert expected[0] == 0
    # The Hub has the sha256 of a large file and the sha1 of a small file.
    for file in ("model.safetensors", "tokenizer.json"):
        (blob,) = {path.resolve() for path in cache.rglob(file)}
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1] + b" ")
        remedy = f"delete '{blob}', and run the command again to download the file."
        assert vaswani(*translate) == (1, "", f"{WRONG % (file, published.id)}{remedy}")
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
NO_LICENCE = {"status": 400, "body": b'{"errors": [{"message": "No licence"}], "warnings": []}'}
WEIGHTS = "/resolve/.*/model.safetensors"
# Each row is a command, the requests that fail, their fault, and the beginning and the end of the error.
FAULTS = [
    ("push", "POST", "/commit/", {"status": 503}, ERROR, ""),
    ("push", "POST", "/api/validate-yaml", {"status": 502, "body": PAGE}, NOT_JSON, ""),
    ("push", "POST", "/api/validate-yaml", NO_LICENCE, "Invalid metadata in README.md. - No licence", ""),
    ("push", "PUT", "/storage/", {"cut_after": 500}, LOST, AGAIN),
    ("push with xet", "GET", "/xet-write-token/", {"status": 404}, FAILED, XET_AGAIN),
    ("translate", "GET", WEIGHTS, {"cut_after": 300}, LOST, AGAIN),
    ("translate", "GET", WEIGHTS, {"status": 503}, ERROR, ""),
]


@pytest.mark.usefixtures("quick_push")
@pytest.mark.parametrize(("command", "method", "path", "fault", "begin", "end"), FAULTS)
def test_a_command_that_fails_on_the_way_can_be_run_again(
    hub, published, cache, tiny_checkpoint, vaswani, monkeypatch, command, method, path, fault, begin, end
):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", "xet" not in command)
    folder = tiny_checkpoint()
    words = ("translate", published.id, "--text", "Hund")
    if "push" in command:
        words = ("push", folder, published.id)
    hub.fault(method, path, times=None, **fault)
    with nothing_changes(hub, folder):
        code, out, sentence = vaswani(*words)
    assert (code, out) == (1, "") and not list(cache.rglob("*.incomplete"))
    assert sentence.startswith(begin.format(hub=hub.endpoint)) and sentence.endswith(end)
    hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    shutil.rmtree(cache, ignore_errors=True)
    assert vaswani(*words)[0] == 0


BUSY = ["/api/repos/create", "/commit/", "/api/whoami-v2", "/refs", "/branch/", "/tag/", "/preupload/"]


@pytest.mark.usefixtures("quick_push")
def test_requests_that_are_refused_for_a_moment_are_sent_again(hub, published, tiny_checkpoint, vaswani):
    for pattern in BUSY:
        hub.fault("GET|POST", pattern, status=429)
        hub.fault("GET|POST", pattern, status=503)
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


def test_what_has_nothing_to_do_with_the_hub_is_not_explained():
    for error in (ValueError("`d_model` must be even."), OSError(errno.ENOSPC, "No space left on device")):
        assert hub_error(error) is None


def test_no_sentence_has_a_token(alice):
    other = "hf_" + "b" * 34
    assert alice.token == get_token()
    assert sentence_of(RuntimeError(f"with {alice.token} and {other}")) == "with hf_… and hf_…"


def test_what_was_wrapped_is_explained_by_its_cause(hub, alice):
    with pytest.raises(OSError) as caught:
        HfApi().model_info("alice/nothing")
    wrapped = RuntimeError("a page of text")
    wrapped.__cause__ = caught.value
    assert str(hub_error(wrapped)) == str(hub_error(caught.value))
    assert str(hub_error(wrapped)).startswith(f"There is no repository 'alice/nothing' on {hub.endpoint}")
