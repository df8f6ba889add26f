"""What the Hub refuses, and what goes wrong on the way to it: one sentence each, and nothing is changed by it."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, get_token, hf_hub_download
from safetensors.torch import load_file, save_file

from vaswani_hf.checkpoint import hub_errors
from vaswani_hf.checkpoint.hub_errors import explain, sentence_of
from vaswani_hf.translation.translator import Translator

IS_LFS = "HF_HUB_DISABLE_XET" in os.environ
# Where the bytes of a large file go to, and where they come from.
UPLOAD = ("PUT", "/storage/") if IS_LFS else ("POST", "/xorbs/")
DOWNLOAD = ("GET", "/storage/") if IS_LFS else ("GET", "/blocks/")
WRITE_ADVICE = (
    "take a name of your own account or organization and a token with write permission, or offer a pull request with "
    "`--create-pr`."
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Our own waits and those of the client are short; xet reads its own when its session begins."""
    monkeypatch.setattr(hub_errors, "WAITS", (0.01,) * 4)
    if not IS_LFS:
        from huggingface_hub.utils._xet import abort_xet_session

        monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("HF_XET_CLIENT_RETRY_BASE_DELAY", "10ms")
        abort_xet_session()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache: a file that is in it would be given to whoever asks."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def published(hub, repo_id, tiny_checkpoint):
    """A repository of alice with a checkpoint, that nobody has loaded yet."""
    folder = tiny_checkpoint("published")
    repository = hub.create_repository(repo_id)
    repository.commit({path.name: path.read_bytes() for path in folder.iterdir()})
    return repository


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@contextmanager
def nothing_changes(hub, folder):
    """No repository, branch, tag or pull request more or less, and the folder as it was."""

    def state():
        return {key: repository.refs() for key, repository in hub.repositories.items()}, contents(folder)

    before = state()
    yield
    assert state() == before


def uploads(hub) -> list[str]:
    return [request.path for request in hub.requests if re.search(UPLOAD[1], request.path) and request.method != "GET"]


# What makes a push impossible, and what is said about it.


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def without_a_weight(path):
    weights = load_file(path)
    del weights["model.decoder.layers.1.fc2.bias"]
    save_file(weights, path, {"format": "pt"})


DAMAGES = {
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        "'{folder}' holds no checkpoint: it has no config.json.",
    ),
    "damaged config": (
        lambda folder: (folder / "config.json").write_text("{"),
        "The config.json of '{folder}' must name its `model_type`, but is damaged.",
    ),
    "another architecture": (
        lambda folder: edit(folder / "config.json", '"vaswani"', '"bert"'),
        "`model` must be a checkpoint of this package, but '{folder}' is one of model type 'bert'; load it with "
        "transformers.",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "'{folder}' holds no whole checkpoint: it has no model.safetensors.",
    ),
    "truncated weights": (
        lambda folder: cut(folder / "model.safetensors"),
        "model.safetensors of '{folder}' is damaged or not all there (Error while deserializing header: incomplete metadata, "
        "file not fully covered); copy or download it again.",
    ),
    "a pointer of git-lfs": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "model.safetensors of '{folder}' is damaged or not all there (Error while deserializing header: header too large); "
        "copy or download it again.",
    ),
    "a weight less": (
        lambda folder: without_a_weight(folder / "model.safetensors"),
        "'{folder}' does not hold the weights that its config.json describes: model.decoder.layers.1.fc2.bias is missing; "
        "take both files from one checkpoint.",
    ),
    "more layers": (
        lambda folder: edit(folder / "config.json", '"encoder_layers": 2', '"encoder_layers": 3'),
        "'{folder}' does not hold the weights that its config.json describes: model.encoder.layers.2.fc1.bias and 11 more "
        "are missing; take both files from one checkpoint.",
    ),
    "fewer layers": (
        lambda folder: edit(folder / "config.json", '"encoder_layers": 2', '"encoder_layers": 1'),
        "'{folder}' does not hold the weights that its config.json describes: model.encoder.layers.1.fc1.bias and 11 more "
        "are unexpected; take both files from one checkpoint.",
    ),
    "other shapes": (
        lambda folder: edit(folder / "config.json", '"encoder_ffn_dim": 20', '"encoder_ffn_dim": 24'),
        "'{folder}' does not hold the weights that its config.json describes: model.encoder.layers.0.fc1.bias and 5 more are "
        "of another shape; take both files from one checkpoint.",
    ),
    "a shard less": (
        lambda folder: (
            (folder / "model.safetensors").unlink(),
            (folder / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}})
            ),
        ),
        "'{folder}' holds no whole checkpoint: it has no model-00001-of-00001.safetensors.",
    ),
    "a damaged index": (
        lambda folder: (
            (folder / "model.safetensors").unlink(),
            (folder / "model.safetensors.index.json").write_text("{}"),
        ),
        "model.safetensors.index.json of '{folder}' is damaged; copy or download it again.",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_neither_pushed_nor_loaded(hub, repo_id, tiny_checkpoint, vaswani, damage):
    folder = tiny_checkpoint()
    break_it, sentence = DAMAGES[damage]
    break_it(folder)
    for words in (("push", folder, repo_id), ("translate", folder, "--text", "der Hund")):
        with nothing_changes(hub, folder):
            assert vaswani(*words) == (1, "", sentence.format(folder=folder))
    assert not hub.requests


def test_a_checkpoint_without_its_head_or_with_more_than_a_model_loads(tiny_model, tiny_checkpoint):
    """What transformers itself takes for whole: tied weights stored once, and a checkpoint of the bare model."""
    folder = tiny_checkpoint()
    tiny_model(vocab_size=270).model.save_pretrained(folder)
    assert Translator.from_pretrained(str(folder), "cpu").model.config.vocab_size == 270


REFUSALS = {
    "a name with two dashes": (
        ("alice/a--b",),
        "A name on the Hub must be user/name of letters, digits, '-', '_' and '.': Cannot have -- or .. in repo_id: "
        "'alice/a--b'.",
    ),
    "a name of three parts": (
        ("alice/a/b",),
        "A name on the Hub must be user/name of letters, digits, '-', '_' and '.': Repo id must be in the form 'repo_name' "
        "or 'namespace/repo_name': 'alice/a/b'. Use `repo_type` argument if needed.",
    ),
    "a tag that git does not allow": (
        ("{repo}", "--tag", "v 1"),
        "`tag` must be a name that git allows, such as v1.0, but is 'v 1'.",
    ),
    "no tag": (("{repo}", "--tag", ""), "`tag` must be a name that git allows, such as v1.0, but is ''."),
    "a branch that git does not allow": (
        ("{repo}", "--revision", "a..b"),
        "`revision` must be the name of a branch that git allows, or refs/pr/N, but is 'a..b'.",
    ),
    "a commit as a branch": (
        ("{repo}", "--revision", "0" * 40),
        f"`revision` must be the name of a branch that git allows, or refs/pr/N, but is '{'0' * 40}'.",
    ),
    "a pull request with a tag": (
        ("{repo}", "--create-pr", "--tag", "v2"),
        "`create_pr` opens a pull request to main, which goes without `tag`, but that is 'v2'; leave out one of the two.",
    ),
    "a pull request with a branch": (
        ("{repo}", "--create-pr", "--revision", "b"),
        "`create_pr` opens a pull request to main, which goes without `revision`, but that is 'b'; leave out one of the two.",
    ),
    "a tag that there is": (
        ("{repo}", "--tag", "v1"),
        "`tag` must be new, but '{repo}' has a tag 'v1'; take another name.",
    ),
    "a tag named as a branch": (
        ("{repo}", "--tag", "main"),
        "`tag` must be new, but '{repo}' has a branch 'main'; take another name.",
    ),
    "a tag as a branch": (
        ("{repo}", "--revision", "v1"),
        "`revision` must be a branch, but 'v1' is a tag of '{repo}'.",
    ),
    "no such pull request": (
        ("{repo}", "--revision", "refs/pr/9"),
        "`revision` is 'refs/pr/9', but '{repo}' has no such pull request.",
    ),
    "a pull request to nothing": (
        ("alice/nothing", "--create-pr"),
        "A pull request needs a repository, but there is no 'alice/nothing' on {hub}, or it is private and this token may "
        "not read it; check the name.",
    ),
    "private, but there and public": (
        ("{repo}", "--private"),
        "`private` is for a repository that is made, but '{repo}' is there and public; leave it out, or make it private at "
        "{hub}/{repo}/settings.",
    ),
    "a licence for a card that is there": (
        ("{repo}", "--license", "mit"),
        "`license` is for a card that is made, but is 'mit' while '{folder}/README.md' is taken as it is; write it there, or "
        "move that file away.",
    ),
    "somebody else's repository": (
        ("bob/model",),
        "The token in HF_TOKEN may not write to the repository 'bob/model' (You don't have the required permissions to perform "
        f"this action); {WRITE_ADVICE}",
    ),
    "somebody else's name": (
        ("bob/new",),
        "There is no repository 'bob/new', and the token of alice cannot make one for 'bob'; push to 'alice/new', or use a "
        "token of 'bob'.",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_cannot_be_pushed_is_refused_before_anything_is_made(
    hub, published, bob, tiny_checkpoint, vaswani, refusal
):
    folder = tiny_checkpoint()
    (folder / "README.md").write_text("---\nlicense: mit\n---\nBy hand.\n")
    if ("model", "bob/model") not in hub.repositories:
        hub.create_repository("bob/model")
    HfApi().create_tag(published.id, tag="v1")
    hub.clear()
    words, sentence = REFUSALS[refusal]
    names = {"repo": published.id, "hub": hub.endpoint, "folder": folder}
    with nothing_changes(hub, folder):
        code, _, said = vaswani("push", folder, *(word.format(**names) for word in words))
    assert (code, said) == (1, sentence.format(**names))
    assert not uploads(hub)


CARDS = {
    "metadata that the Hub rejects": (
        "---\nlanguage: [17]\nlicense: 5\n---\n",
        'The Hub refuses the card: "language[0]" must be a string, "license[0]" must be a string; mend the lines between the '
        "two --- of README.md.",
    ),
    "no YAML": (
        "---\nlicense: mit: x\n---\n",
        "The Hub refuses the card: Invalid YAML in card metadata: mapping values are not allowed here in "
        '"<unicode string>", line 1, column 13: license: mit: x ^; mend the lines between the two --- of README.md.',
    ),
    "a local path": (
        "Trained in {folder}/run.",
        "README.md must be free of local paths, but has '{folder}'; take it out and push again.",
    ),
    "a home": (
        "Data from {home}/data.",
        "README.md must be free of local paths, but has '{home}'; take it out and push again.",
    ),
    "another machine's path": (
        "Trained on /data/bob/corpus.txt.",
        "README.md must be free of local paths, but has '/data/bob'; take it out and push again.",
    ),
    "a token": (
        "Load with hf_{token}.",
        "README.md must be free of tokens, but has one; take it out, make another token and push again.",
    ),
    "the token": (
        "Load with {own}.",
        "README.md must be free of tokens, but has one; take it out, make another token and push again.",
    ),
}


@pytest.mark.parametrize("card", CARDS)
def test_a_card_that_cannot_be_published(hub, repo_id, alice, tiny_checkpoint, vaswani, monkeypatch, card):
    folder = tiny_checkpoint()
    monkeypatch.setenv("HOME", "/home/alice")
    names = {"folder": folder, "home": "/home/alice", "token": "a" * 34, "own": alice.token}
    text, sentence = CARDS[card]
    (folder / "README.md").write_text(text.format(**names))
    with nothing_changes(hub, folder):
        code, _, said = vaswani("push", folder, repo_id)
    assert (code, said) == (1, sentence.format(**names))
    assert not uploads(hub)


def test_what_only_looks_like_a_local_path_is_published(hub, repo_id, tiny_checkpoint, vaswani, monkeypatch):
    folder = tiny_checkpoint()
    monkeypatch.setenv("HOME", "/home/alice")
    text = f"---\nlicense: mit\n---\nhttps://example.com{folder}, https://example.com/home/alice/x, and/or\n"
    (folder / "README.md").write_text(text)
    assert vaswani("push", folder, repo_id)[0] == 0
    assert hub.repository(repo_id).files()["README.md"] == text.encode()


def test_a_local_path_in_json_is_found_as_json_writes_it(hub, repo_id, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint("Straße")
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"made_by": str(folder)}))
    with nothing_changes(hub, folder):
        code, _, said = vaswani("push", folder, repo_id)
    assert code == 1
    assert said == (
        f"generation_config.json must be free of local paths, but has '{json.dumps(str(folder))[1:-1]}'; take it out and push "
        "again."
    )


TOKENS = {
    "none": (None, "This needs a token of {hub}, and there is none; log in with `hf auth login` or set HF_TOKEN."),
    "wrong": (
        "hf_" + "w" * 34,
        "{hub} does not know the token in HF_TOKEN; make one at {hub}/settings/tokens, and log in with `hf auth login` or set "
        "HF_TOKEN.",
    ),
    "read": (
        "read",
        "The token of alice may read but not write; make one with write permission at {hub}/settings/tokens, and log in with "
        "`hf auth login` or set HF_TOKEN.",
    ),
}


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_token_that_may_not_push(hub, published, tiny_checkpoint, vaswani, monkeypatch, token, is_there):
    folder = tiny_checkpoint()
    value, sentence = TOKENS[token]
    if value is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", hub.add_token("alice", role="read") if value == "read" else value)
    with nothing_changes(hub, folder):
        result = vaswani("push", folder, published.id if is_there else f"{published.id}-new")
    assert result == (1, "", sentence.format(hub=hub.endpoint))


def test_offline_nothing_is_pushed_and_only_the_cache_is_loaded(
    hub, published, cache, tiny_checkpoint, vaswani, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tiny_checkpoint()
    with nothing_changes(hub, folder):
        assert vaswani("push", folder, published.id) == (
            *(1, ""),
            "A push needs the Hub, but HF_HUB_OFFLINE is set; run it without.",
        )
    translate = ("translate", published.id, "--text", "der Hund")
    sentence = f"HF_HUB_OFFLINE is set, and what is asked for is not in the cache '{cache}'; run it once without HF_HUB_OFFLINE."
    assert vaswani(*translate) == (1, "", sentence)
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    online = vaswani(*translate)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.clear()
    assert vaswani(*translate) == online and online[0] == 0
    assert not hub.requests


def test_an_endpoint_that_cannot_be_reached(repo_id, cache, tiny_checkpoint, vaswani, monkeypatch):
    # Nobody listens at the port for "discard".
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    sentence = (
        "http://127.0.0.1:9 cannot be reached ([Errno 111] Connection refused); check the connection, HF_ENDPOINT and the "
        "proxy, or work with what is in the cache by HF_HUB_OFFLINE=1."
    )
    assert vaswani("push", tiny_checkpoint(), repo_id) == (1, "", sentence)
    assert vaswani("translate", repo_id, "--text", "der Hund") == (1, "", sentence)


# Reading.


def test_what_the_hub_does_not_have(hub, published, cache, vaswani):
    name = published.id
    sentences = {
        ("alice/nothing",): (
            f"There is no repository 'alice/nothing' on {hub.endpoint} and no folder of that name here, or it is private and this "
            "token may not read it; check the name, or log in with `hf auth login` or set HF_TOKEN."
        ),
        (name, "--revision", "v9"): (
            f"The repository '{name}' has no branch, tag or commit 'v9'; see {hub.endpoint}/{name}/tree/main for those that it "
            "has."
        ),
        (name, "--revision", "refs/pr/3"): (
            f"The repository '{name}' has no branch, tag or commit 'refs/pr/3'; see {hub.endpoint}/{name}/tree/main for those "
            "that it has."
        ),
    }
    for words, sentence in sentences.items():
        assert vaswani("translate", *words, "--text", "der Hund") == (1, "", sentence)
    published.commit({"model.safetensors": None})
    sentence = f"'{name}' holds no whole checkpoint: it has no model.safetensors."
    assert vaswani("translate", name, "--text", "der Hund") == (1, "", sentence)
    with pytest.raises(OSError) as caught:
        hf_hub_download(name, "nothing.json")
    assert sentence_of(caught.value) == (
        f"The repository '{name}' has no file 'nothing.json'; see {hub.endpoint}/{name}/tree/main for those it has."
    )


def test_private_and_gated_repositories(hub, published, bob, cache, vaswani, monkeypatch):
    name, translate = published.id, ("translate", published.id, "--text", "der Hund")
    missing = (
        f"There is no repository '{name}' on {hub.endpoint} and no folder of that name here, or it is private and "
    )
    advice = "; check the name, or log in with `hf auth login` or set HF_TOKEN."
    gated = f"The repository '{name}' is gated: ask for access at {hub.endpoint}/{name}, and "
    sentences = {
        (True, False, None): f"{missing}there is no token{advice}",
        (True, False, bob.token): f"{missing}this token may not read it{advice}",
        (False, True, None): f"{gated}log in with `hf auth login` or set HF_TOKEN.",
        (False, True, bob.token): f"{gated}use the token of an account that has it.",
        (False, False, "hf_wrong"): (
            f"{hub.endpoint} does not know the token in HF_TOKEN; make one at {hub.endpoint}/settings/tokens, and log in with "
            "`hf auth login` or set HF_TOKEN."
        ),
    }
    for (published.private, published.gated, token), sentence in sentences.items():
        monkeypatch.delenv("HF_TOKEN", raising=False)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        assert vaswani(*translate) == (1, "", sentence)
        assert vaswani("export", name, cache / "out", "--format", "marian") == (1, "", sentence)
        assert not (cache / "out").exists()
    published.gated, published.private = True, False
    published.grant("bob")
    monkeypatch.setenv("HF_TOKEN", bob.token)
    assert vaswani(*translate)[0] == 0


def test_a_dataset_that_the_hub_does_not_have(hub, repo_id, tmp_path, vaswani):
    (tmp_path / "recipe.yaml").write_text(
        f"output_dir: {tmp_path / 'out'}\ndata: {{source_language: en, target_language: de, dataset: {repo_id}}}\n"
        "training: {max_steps: 1}\n"
    )
    code, _, sentence = vaswani("train", tmp_path / "recipe.yaml")
    assert code == 1 and f"There is no dataset '{repo_id}' on {hub.endpoint}" in sentence
    assert not (tmp_path / "out").exists()


# Weights that were changed on their way, or on the disk.


def test_weights_that_were_changed_are_not_loaded(hub, published, cache, vaswani):
    name, translate = published.id, ("translate", published.id, "--text", "der Hund")
    expected = vaswani(*translate)
    assert expected[0] == 0
    (blob,) = {path.resolve() for path in cache.rglob("model.safetensors")}
    content = bytearray(blob.read_bytes())
    content[-3] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    sentence = (
        f"model.safetensors of '{name}' is not the file that the Hub has: it was damaged or changed on its way or on disk; "
        f"delete '{blob}' and run it again, which downloads it anew."
    )
    assert vaswani(*translate) == (1, "", sentence)
    blob.unlink()
    assert vaswani(*translate) == expected


def test_weights_that_change_on_the_way_are_not_loaded(hub, repo_id, cache, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    assert vaswani("push", folder, repo_id)[0] == 0
    hub.fault(*DOWNLOAD, change=lambda body: body[:5000] + bytes([body[5000] ^ 1]) + body[5001:])
    code, _, sentence = vaswani("translate", repo_id, "--text", "der Hund")
    assert code == 1
    assert sentence.startswith(
        f"model.safetensors of '{repo_id}' is not the file that the Hub has: it was damaged or changed "
    )
    hub.clear()
    shutil.rmtree(cache)
    assert vaswani("translate", repo_id, "--text", "der Hund")[0] == 0


@pytest.mark.skipif(not IS_LFS, reason="xet asks for ranges and reads them to their end")
def test_weights_that_are_cut_on_the_way_are_not_loaded(hub, published, cache, vaswani):
    hub.fault(*DOWNLOAD, change=lambda body: body[:1000])
    size = len(published.files()["model.safetensors"])
    code, _, sentence = vaswani("translate", published.id, "--text", "der Hund")
    assert code == 1
    start = f"The transfer failed (Consistency check failed: file should be of size {size} but has size 1000 ("
    assert sentence.startswith(start) and sentence.endswith("run it again, what has arrived is not transferred twice.")
    assert vaswani("translate", published.id, "--text", "der Hund")[0] == 0


# A Hub that is busy, ill, or gone in the middle.

BUSY = [("POST", "/api/repos/create"), ("POST", "/commit/"), ("GET", "/api/whoami-v2"), ("POST", "/api/validate-yaml")]
BUSY += [("GET", "/refs"), ("POST", "/branch/"), ("POST", "/tag/")]


def test_requests_that_are_refused_for_a_moment_are_sent_again(hub, repo_id, tiny_checkpoint, vaswani):
    for method, pattern in BUSY:
        hub.fault(method, pattern, status=429, times=1)
        hub.fault(method, pattern, status=503, times=1)
    folder = tiny_checkpoint()
    assert vaswani("push", folder, repo_id, "--revision", "new", "--tag", "v1")[0] == 0
    assert not [fault for fault in hub.faults if fault.times]
    assert set(hub.repository(repo_id).refs()) == {"refs/heads/main", "refs/heads/new", "refs/tags/v1"}


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "1"}, {"RateLimit": '"api";r=0;t=0', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}],
)
def test_a_wait_is_as_long_as_the_hub_asks(hub, published, cache, capsys, headers, monkeypatch):
    waits = []
    monkeypatch.setattr(hub_errors, "sleep", waits.append)
    hub.fault("GET", "/api/models/", status=429, headers=headers)
    Translator.from_pretrained(published.id, "cpu")
    assert waits == [1.0]
    assert capsys.readouterr().err == "the Hub asks to wait (429); trying again in 1 s\n"


def test_a_wait_has_an_end(hub, published, tiny_checkpoint, vaswani, cache, monkeypatch):
    waits = []
    monkeypatch.setattr(hub_errors, "sleep", waits.append)
    folder = tiny_checkpoint()
    busy = f"{hub.endpoint} has had too many requests and asks to wait; run it again in"
    hub.fault("POST", "/commit/", status=429, headers={"Retry-After": "20"}, times=None)
    with nothing_changes(hub, folder):
        assert vaswani("push", folder, published.id) == (1, "", f"{busy} 20 s.")
    assert waits == [20.0] * 4
    hub.clear()
    hub.fault("GET", "/api/models/", status=429, headers={"Retry-After": "3600"}, times=None)
    assert vaswani("translate", published.id, "--text", "der Hund") == (1, "", f"{busy} 3600 s.")
    assert waits == [20.0] * 4


STORMS = {
    "commit": ("push", ("POST", "/commit/")),
    "check of the card": ("push", ("POST", "/api/validate-yaml")),
    "refs": ("push", ("GET", "/refs")),
    "whoami": ("push", ("GET", "/api/whoami-v2")),
    "what there is": ("translate", ("GET", "/api/models/")),
    "a file": ("translate", ("GET", "/resolve/.*/tokenizer.json")),
}


@pytest.mark.parametrize("storm", STORMS)
def test_a_storm_of_errors_has_an_end(hub, published, cache, tiny_checkpoint, vaswani, storm):
    command, place = STORMS[storm]
    folder = tiny_checkpoint()
    words = ("push", folder, published.id) if command == "push" else ("translate", published.id, "--text", "der Hund")
    hub.fault(*place, status=503, times=None)
    with nothing_changes(hub, folder):
        assert vaswani(*words) == (
            *(1, ""),
            f"{hub.endpoint} has an error of its own (HTTP 503) and had it at each try; run it again later, what has arrived "
            "is not sent twice.",
        )
    hub.clear()
    if storm in ("commit", "a file"):
        assert vaswani(*words)[0] == 0


def test_what_the_client_tries_again_is_not_tried_again_by_us(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", lambda seconds: waits.append(seconds) if seconds else None)
    hub.fault("POST", "/preupload/", status=503, times=None)
    assert vaswani("push", tiny_checkpoint(), published.id)[0] == 1
    assert waits == [1, 2, 4, 8, 8]


def test_a_page_where_json_is_due(hub, published, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    sentence = (
        f"{hub.endpoint} answered with something that is no JSON, as a proxy or another server would; check HF_ENDPOINT, or "
        "run it again later."
    )
    for pattern, status in (("/api/validate-yaml", 502), ("/api/whoami-v2", 200)):
        hub.fault(".*", pattern, status=status, body=b"<html>Sign in</html>", times=None)
        with nothing_changes(hub, folder):
            assert vaswani("push", folder, published.id) == (1, "", sentence)


def test_an_upload_that_is_cut_can_be_run_again(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    folder = tiny_checkpoint()
    hub.fault(*UPLOAD, cut_after=500, times=None)
    with nothing_changes(hub, folder):
        code, out, sentence = vaswani("push", folder, published.id)
    assert (code, out) == (1, "") and len(uploads(hub)) > 0
    if IS_LFS:
        assert re.fullmatch(
            rf"The connection to {hub.endpoint} broke off \(.+\); run it again, whole files that have arrived are not "
            r"transferred twice\.",
            sentence,
        )
    else:
        assert re.fullmatch(
            r"The transfer failed \(Network error: .+\); run it again, what has arrived is not transferred twice, or with "
            r"HF_HUB_DISABLE_XET=1, which does without xet\.",
            sentence,
        )
    hub.clear()
    assert vaswani("push", folder, published.id)[0] == 0
    assert published.files()["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    # What has arrived is not sent again.
    hub.clear()
    assert vaswani("push", folder, published.id, "--revision", "again")[0] == 0
    assert not uploads(hub)


def test_an_upload_that_is_cut_once_goes_on_by_itself(hub, published, tiny_checkpoint, vaswani, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "3")
    hub.fault(*UPLOAD, cut_after=500, times=1)
    assert vaswani("push", tiny_checkpoint(), published.id)[0] == 0


@pytest.mark.parametrize("fault", [{"cut_after": 300}, {"status": 503}])
def test_a_download_that_breaks_off_can_be_run_again(
    hub, repo_id, cache, tiny_checkpoint, vaswani, monkeypatch, fault
):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert vaswani("push", tiny_checkpoint(), repo_id)[0] == 0
    hub.fault(*DOWNLOAD, times=None, **({"cut_after": 0} if IS_LFS and "cut_after" in fault else fault))
    code, _, sentence = vaswani("translate", repo_id, "--text", "der Hund")
    assert code == 1
    if not IS_LFS:
        assert sentence.startswith("The transfer failed (Task error: File reconstruction error: ")
    elif "status" in fault:
        assert sentence.startswith(f"{hub.endpoint} has an error of its own (HTTP 503) and had it at each try; ")
    else:
        assert sentence.startswith(f"The connection to {hub.endpoint} broke off (")
    assert not list(cache.rglob("*.incomplete"))
    hub.clear()
    assert vaswani("translate", repo_id, "--text", "der Hund")[0] == 0
    # The small files had arrived.
    assert not [request for request in hub.requests if "tokenizer" in request.path]


@pytest.mark.skipif(IS_LFS, reason="there is no xet in this mode")
@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_hub_without_xet_says_how_to_do_without(hub, published, tiny_checkpoint, vaswani, status):
    folder = tiny_checkpoint()
    hub.fault("GET", "/xet-write-token/", status=status, times=None)
    with nothing_changes(hub, folder):
        code, _, sentence = vaswani("push", folder, published.id)
    assert code == 1
    assert re.fullmatch(
        rf"The transfer failed \(.*{status}.*\); run it again, what has arrived is not transferred twice, or with "
        r"HF_HUB_DISABLE_XET=1, which does without xet\.",
        sentence,
    )


def test_a_full_disk_names_the_cache(hub, alice, repo_id, tiny_checkpoint, tmp_path, vaswani):
    small = tmp_path / "small"
    small.mkdir()
    inside = f"mount -t tmpfs -o size=400k tmpfs {small} && "
    if subprocess.run(["unshare", "-rm", "sh", "-c", f"{inside}true"], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    assert vaswani("push", tiny_checkpoint(encoder_ffn_dim=9000), repo_id)[0] == 0
    command = f"{inside}HF_HOME={small} {sys.executable} -m vaswani_hf.cli translate {repo_id} --text Hund"
    result = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"vaswani: The disk is full: what is downloaded goes to the cache '{small}/hub'; make room there, or set HF_HOME (or "
        "HF_HUB_CACHE) to a folder on a larger disk."
    )


def test_a_cache_that_cannot_be_written(published, tmp_path, monkeypatch, vaswani):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    code, _, sentence = vaswani("translate", published.id, "--text", "der Hund")
    assert code == 1
    assert re.fullmatch(
        rf"What is downloaded goes to the cache '{tmp_path}/file/hub', where nothing can be written \(\[Errno 20\] Not a "
        r"directory: '.+'\); set HF_HOME \(or HF_HUB_CACHE\) to a folder of your own\.",
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
