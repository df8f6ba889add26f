"""A refusal of the Hub or a fault of the connection gives an error of one sentence, and changes nothing."""

import errno
import json
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, get_token
from safetensors.torch import load_file, save_file

from vaswani_hf.checkpoint import hub as requests
from vaswani_hf.checkpoint.hub import explain, sentence_of
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.translation.translator import Translator

IS_LFS = "HF_HUB_DISABLE_XET" in os.environ
# The routes of the bytes of a large file, to the Hub and back.
UPLOAD = ("PUT", "/storage/") if IS_LFS else ("POST", "/xorbs/")
DOWNLOAD = ("GET", "/storage/") if IS_LFS else ("GET", "/blocks/")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Shorten the waiting times of the package and of the client; xet reads its waiting times when its
    session begins.
    """
    monkeypatch.setattr(requests, "WAITS", (0.01,) * 4)
    if not IS_LFS:
        from huggingface_hub.utils._xet import abort_xet_session

        monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("HF_XET_CLIENT_RETRY_BASE_DELAY", "10ms")
        abort_xet_session()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, because a client may read every file that is in the cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def published(hub, repo_id, tiny_checkpoint):
    """A repository of alice with a checkpoint that no test has loaded yet."""
    folder = tiny_checkpoint("published")
    repository = hub.create_repository(repo_id)
    repository.commit({path.name: path.read_bytes() for path in folder.iterdir()})
    return repository


def contents(folder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@contextmanager
def nothing_changes(hub, folder):
    """Check that the repositories, branches, tags, pull requests and the folder have not changed."""

    def state():
        return {key: repository.refs() for key, repository in hub.repositories.items()}, contents(folder)

    before = state()
    yield
    assert state() == before


def uploads(hub) -> list[str]:
    return [
        request.path for request in hub.requests if request.method == UPLOAD[0] and UPLOAD[1] in request.path
    ]


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def drop_a_weight(path):
    weights = load_file(path)
    del weights["model.decoder.layers.1.fc2.bias"]
    save_file(weights, path, {"format": "pt"})


def write_index(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


TORN = "model.safetensors of '{folder}' is damaged or incomplete (Error while deserializing header: %s); copy or download it again."
OTHER = "'{folder}' does not hold the weights that its config.json describes: model.%s; take config.json and the weights from one checkpoint."
DAMAGES = {
    "`model` must be a checkpoint, but '{folder}' has no config.json; check the name, or copy the whole checkpoint again.": lambda folder: (
        (folder / "config.json").unlink()
    ),
    "The config.json of '{folder}' must name its `model_type`, but is damaged.": (
        lambda folder: (folder / "config.json").write_text("{")
    ),
    "`model` must be a checkpoint of this package, but '{folder}' has the model type 'bert'; load it with transformers.": (
        lambda folder: edit(folder / "config.json", '"vaswani"', '"bert"')
    ),
    "'{folder}' holds no whole checkpoint: it has no model.safetensors; copy or download the file again.": (
        lambda folder: (folder / "model.safetensors").unlink()
    ),
    TORN % "incomplete metadata, file not fully covered": (
        lambda folder: os.truncate(
            folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 100
        )
    ),
    TORN % "header too large": (
        lambda folder: (folder / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\n"
        )
    ),
    OTHER % "decoder.layers.1.fc2.bias is missing": lambda folder: drop_a_weight(
        folder / "model.safetensors"
    ),
    OTHER % "encoder.layers.2.fc1.bias and 11 more are missing": (
        lambda folder: edit(folder / "config.json", '"encoder_layers": 2', '"encoder_layers": 3')
    ),
    OTHER % "encoder.layers.1.fc1.bias and 11 more are unexpected": (
        lambda folder: edit(folder / "config.json", '"encoder_layers": 2', '"encoder_layers": 1')
    ),
    OTHER % "encoder.layers.0.fc1.bias and 5 more are of another shape": (
        lambda folder: edit(folder / "config.json", '"encoder_ffn_dim": 20', '"encoder_ffn_dim": 24')
    ),
    "'{folder}' holds no whole checkpoint: it has no model-00001-of-00001.safetensors; copy or download the file again.": (
        lambda folder: write_index(folder, {"weight_map": {"a": "model-00001-of-00001.safetensors"}})
    ),
    "model.safetensors.index.json of '{folder}' is damaged; copy or download the file again.": (
        lambda folder: write_index(folder, {})
    ),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_checkpoint_is_neither_pushed_nor_loaded(hub, repo_id, tiny_checkpoint, vaswani, sentence):
    folder = tiny_checkpoint()
    DAMAGES[sentence](folder)
    for words in (("push", folder, repo_id), ("translate", folder, "--text", "der Hund")):
        with nothing_changes(hub, folder):
            # A file can be damaged in the right folder. `model` names a wrong folder.
            code = 2 if sentence.startswith("`model`") else 1
            assert vaswani(*words) == (code, "", sentence.format(folder=folder))
    assert not hub.requests


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
    assert not uploads(hub)


HAS_TOKEN = "must be free of tokens, but has one; remove the token, make a new token and push again."
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
    edit(folder / "generation_config.json", "{", f'{{"made_by": "{alice.token}",')
    with nothing_changes(hub, folder):
        assert vaswani("push", folder, published.id)[2] == f"generation_config.json {HAS_TOKEN}"
    assert not uploads(hub)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a\\b.safetensors", 7])
def test_an_index_names_no_file_elsewhere(hub, repo_id, tiny_checkpoint, vaswani, shard):
    folder = tiny_checkpoint()
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    sentence = (
        f"model.safetensors.index.json of '{folder}' must name .safetensors files in the same folder, but names {str(shard)!r}; take "
        "the files of one checkpoint."
    )
    assert vaswani("translate", folder, "--text", "der Hund") == (1, "", sentence)
    assert vaswani("push", folder, repo_id) == (1, "", sentence)
    with pytest.raises(ValueError, match="must name .safetensors files in the same folder"):
        model_card(folder, repo_id)
    assert ("model", repo_id) not in hub.repositories and not uploads(hub)


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
        assert (
            (code, out) == (1, "") and "offline mode is enabled" in sentence and "HF_HUB_OFFLINE" in sentence
        )
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
    published.grant("bob")
    monkeypatch.setenv("HF_TOKEN", bob.token)
    assert vaswani("translate", name, "--text", "der Hund")[0] == 0
    published.commit({"model.safetensors": None})
    assert (
        said(name)
        == f"'{name}' holds no whole checkpoint: it has no model.safetensors; copy or download the file again."
    )
    assert not (tmp_path / "out").exists()


# Weights that were changed during the download or on the disk.


@pytest.mark.transfer
def test_weights_that_were_changed_are_not_loaded(hub, repo_id, cache, tiny_checkpoint, vaswani):
    translate = ("translate", repo_id, "--text", "der Hund")
    assert vaswani("push", tiny_checkpoint(), repo_id)[0] == 0
    hub.fault(*DOWNLOAD, change=lambda body: body[:5000] + bytes([body[5000] ^ 1]) + body[5001:])
    code, _, sentence = vaswani(*translate)
    wrong = f"model.safetensors of '{repo_id}' is not the file that the Hub has: it was damaged or changed during the download or on disk; "
    assert code == 1 and sentence.startswith(wrong)
    hub.clear()
    shutil.rmtree(cache)
    expected = vaswani(*translate)
    assert expected[0] == 0
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        (blob,) = {path.resolve() for path in cache.rglob(file)}
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1] + b" ")
        assert vaswani(*translate) == (
            *(1, ""),
            f"{wrong.replace('model.safetensors', file)}delete '{blob}', and run the command again to download the file.",
        )
        blob.unlink()
        assert vaswani(*translate) == expected


# A Hub that is overloaded, that has an error, or that closes the connection during a transfer.

BUSY = [("POST", "/api/repos/create"), ("POST", "/commit/"), ("GET", "/api/whoami-v2"), ("GET", "/refs")]
BUSY += [("POST", "/branch/"), ("POST", "/tag/"), ("POST", "/preupload/")]


def test_requests_that_are_refused_for_a_moment_are_sent_again(
    hub, published, tiny_checkpoint, vaswani, monkeypatch
):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for method, pattern in BUSY:
        hub.fault(method, pattern, status=429, times=1)
        hub.fault(method, pattern, status=503, times=1)
    folder = tiny_checkpoint()
    assert vaswani("push", folder, published.id, "--revision", "new", "--tag", "v1")[0] == 0
    assert not [fault for fault in hub.faults if fault.times]
    assert set(published.refs()) == {"refs/heads/main", "refs/heads/new", "refs/tags/v1"}


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


STORMS = [("POST", "/commit/"), ("POST", "/api/validate-yaml"), ("GET", "/refs"), ("GET", "/api/whoami-v2")]


def test_a_storm_of_errors_has_an_end(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    folder, waits = tiny_checkpoint(), []
    monkeypatch.setattr("time.sleep", lambda seconds: waits.append(seconds) if seconds else None)
    for place in STORMS:
        hub.clear()
        hub.fault(*place, status=503, times=None)
        with nothing_changes(hub, folder):
            code, out, sentence = vaswani("push", folder, published.id)
        assert (code, out) == (1, "") and sentence.startswith(
            "Server error '503 Service Unavailable' for url '"
        )
    # The client and the package repeat requests, but not without end.
    waits.clear()
    hub.clear()
    hub.fault("POST", "/preupload/", status=503, times=None)
    assert vaswani("push", folder, published.id)[0] == 1
    assert waits == [1, 2, 4, 8, 8] * 5
    hub.clear()
    for pattern, status in (("/api/validate-yaml", 502), ("/api/whoami-v2", 200)):
        hub.fault(".*", pattern, status=status, body=b"<html>Sign in</html>", times=None)
        with nothing_changes(hub, folder):
            assert vaswani("push", folder, published.id) == (
                *(1, ""),
                f"The answer of {hub.endpoint} is not JSON, so it may come from a proxy or another server; check "
                "HF_ENDPOINT, or run the command again later.",
            )


@pytest.mark.transfer
def test_an_upload_that_is_cut_can_be_run_again(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    folder = tiny_checkpoint()
    hub.fault(*UPLOAD, cut_after=500, times=None)
    with nothing_changes(hub, folder):
        code, out, sentence = vaswani("push", folder, published.id)
    assert (code, out) == (1, "") and len(uploads(hub)) > 0
    broken = rf"The connection to {hub.endpoint} was lost \(.+\); run the command again; "
    without = r", or set HF_HUB_DISABLE_XET=1 to transfer without xet; "
    complete = r"complete files are not transferred again\."
    failed = rf"The transfer failed \(Network error: .+\); run the command again{without}{complete}"
    assert re.fullmatch(broken + complete if IS_LFS else failed, sentence)
    hub.clear()
    assert vaswani("push", folder, published.id)[0] == 0
    assert published.files()["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    # Files that have already been uploaded are not uploaded again.
    hub.clear()
    assert vaswani("push", folder, published.id, "--revision", "again")[0] == 0
    assert not uploads(hub)


@pytest.mark.transfer
def test_a_download_that_breaks_off_can_be_run_again(
    hub, repo_id, cache, tiny_checkpoint, vaswani, monkeypatch
):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert vaswani("push", tiny_checkpoint(), repo_id)[0] == 0
    starts = {
        "status": "Server error '503 Service Unavailable'",
        "cut_after": f"The connection to {hub.endpoint} was lost (",
    }
    for fault, value in (("cut_after", 0 if IS_LFS else 300), ("status", 503)):
        hub.fault(*DOWNLOAD, times=None, **{fault: value})
        code, _, sentence = vaswani("translate", repo_id, "--text", "der Hund")
        assert code == 1
        assert sentence.startswith(
            starts[fault] if IS_LFS else "The transfer failed (Task error: File reconstruction error: "
        )
        assert not list(cache.rglob("*.incomplete"))
        hub.clear()
    assert vaswani("translate", repo_id, "--text", "der Hund")[0] == 0
    # The small files were already downloaded.
    assert not [request for request in hub.requests if "tokenizer" in request.path]


@pytest.mark.skipif(IS_LFS, reason="there is no xet in this mode")
def test_a_hub_without_xet_says_how_to_do_without(hub, published, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    for status in (404, 503):
        hub.clear()
        hub.fault("GET", "/xet-write-token/", status=status, times=None)
        with nothing_changes(hub, folder):
            code, _, sentence = vaswani("push", folder, published.id)
        assert code == 1
        assert re.fullmatch(
            rf"The transfer failed \(.*{status}.*\); run the command again, or set "
            r"HF_HUB_DISABLE_XET=1 to transfer without xet; complete files are not transferred again\.",
            sentence,
        )


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
