"""Pushing a checkpoint to the local Hub, and loading from it what was asked for."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi

import vaswani_hf
from vaswani_hf.checkpoint.loading import load_model
from vaswani_hf.publish.push import HubError, fingerprint, push
from vaswani_hf.translation.translator import Translator

CODE = {path.name for path in (Path(vaswani_hf.__file__).parent / "model").glob("*_vaswani.py")} - {
    "language_models_vaswani.py"
}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
ROOT = {".gitattributes", "README.md", "config.json", "generation_config.json", *TOKENIZER, *CODE}
pytestmark = pytest.mark.usefixtures("few_numbers")
IS_LFS = "HF_HUB_DISABLE_XET" in os.environ
# The route of the bytes of a large file.
UPLOAD = ("PUT", "/storage/") if IS_LFS else ("POST", "/xorbs/")


def contents(folder) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def commits(hub, repo_id, revision="main") -> list[str]:
    """The titles of the commits, newest first."""
    return [commit.title for commit in HfApi().list_repo_commits(repo_id, revision=revision)]


def requested(hub, method, part) -> list[str]:
    return [request.path for request in hub.requests if request.method == method and part in request.path]


@pytest.mark.transfer
@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_a_push_leaves_a_whole_repository_in_one_commit(
    hub, repo_id, alice, tiny_checkpoint, vaswani, two_vocabularies
):
    folder = tiny_checkpoint(two_vocabularies=two_vocabularies)
    for name in (
        "training_args.bin",
        "optimizer.pt",
        "metrics.jsonl",
        "notes.txt",
        "checkpoint-5/model.safetensors",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(str(folder))
    before = contents(folder)
    code, out, _ = vaswani("push", folder, repo_id)
    repository = hub.repository(repo_id)
    sha = repository.head()
    assert (code, out) == (
        0,
        f"pushed to {hub.endpoint}/{repo_id}/commit/{sha}\n"
        f"checked: downloaded at {sha[:7]}, same logits, tokens and translation\n",
    )
    assert commits(hub, repo_id) == ["Push a checkpoint of vaswani_hf", "initial commit"]
    files = repository.files()
    targets = {f"target_tokenizer/{name}" for name in TOKENIZER} if two_vocabularies else set()
    assert set(files) == ROOT | {"model.safetensors"} | targets
    assert all(
        files[name] == before[name]
        for name in {"model.safetensors", "generation_config.json", *TOKENIZER, *targets}
    )
    assert all(
        files[name] == (Path(vaswani_hf.__file__).parent / "model" / name).read_bytes() for name in CODE
    )
    assert set(json.loads(files["config.json"])["auto_map"]) == {
        "AutoConfig",
        "AutoModel",
        "AutoModelForSeq2SeqLM",
    }
    assert contents(folder) == before
    for name, content in files.items():
        assert str(folder).encode() not in content and alice.token.encode() not in content, name


def test_a_checkpoint_from_before_there_was_code_in_it_gets_what_travels(
    hub, repo_id, tiny_checkpoint, vaswani
):
    folder = tiny_checkpoint()
    for path in [*folder.glob("*.py"), folder / "generation_config.json"]:
        path.unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k not in ("auto_map", "custom_pipelines")})
    )
    before = contents(folder)
    assert vaswani("push", folder, repo_id)[0] == 0
    files = hub.repository(repo_id).files()
    assert set(files) == ROOT | {"model.safetensors"}
    assert {"auto_map", "custom_pipelines"} <= json.loads(files["config.json"]).keys()
    assert json.loads(files["generation_config.json"])["decoder_start_token_id"] == 0
    assert contents(folder) == before


RECIPE = """
output_dir: {folder}
data: {{source_language: en, target_language: de, corpus: numbers, numbers_train_size: 100, max_length: 64}}
tokenizer: {{vocab_size: 270}}
model: {{d_model: 8, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 8, decoder_ffn_dim: 8}}
training:
  {{bf16: false,
    max_steps: 2, save_steps: 1, source_tokens_per_batch: 500, target_tokens_per_batch: 500}}
decoding: {{num_beams: 1, max_length: 4}}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(folder=tmp_path / "run"))
    return path


@pytest.mark.transfer
def test_a_run_pushes_its_checkpoint_with_card_recipe_and_curve(
    hub, repo_id, alice, recipe, tmp_path, vaswani
):
    code, out, _ = vaswani(
        *("train", recipe, "--push_to_hub", "true", "--hub_model_id", repo_id, "--hub_private_repo", "true")
    )
    repository = hub.repository(repo_id)
    assert code == 0 and f"pushed to {hub.endpoint}/{repo_id}/commit/{repository.head()}\nchecked: " in out
    assert repository.private
    files = repository.files()
    assert set(files) == ROOT | {"model.safetensors", "recipe.yaml", "training_curve.png"}
    assert files["model.safetensors"] == (tmp_path / "run" / "model.safetensors").read_bytes()
    assert b"output_dir: run\n" in files["recipe.yaml"]
    everything = b"".join([*files.values(), *contents(tmp_path / "run").values(), out.encode()])
    assert alice.token.encode() not in everything
    assert str(tmp_path).encode() not in b"".join(files.values())
    # By hand from the same folder it is the same.
    assert vaswani("push", tmp_path / "run", repo_id)[1].startswith("nothing has changed since ")


def test_a_run_that_may_not_push_says_so_before_it_trains(
    hub, repo_id, recipe, tmp_path, monkeypatch, vaswani
):
    monkeypatch.delenv("HF_TOKEN")
    code, _, sentence = vaswani("train", recipe, "--push_to_hub", "true", "--hub_model_id", repo_id)
    assert (code, sentence) == (
        1,
        "Token is required to call the /whoami-v2 endpoint, but no token found. You must provide a token or be logged in to "
        "Hugging Face with `hf auth login` or `huggingface_hub.login`. See https://huggingface.co/settings/tokens.",
    )
    assert not (tmp_path / "run").exists()


def test_a_run_whose_push_fails_says_how_to_push_later(hub, repo_id, recipe, tmp_path, vaswani):
    hub.fault("POST", "/commit/", status=413)
    words = (
        "train",
        recipe,
        "--push_to_hub",
        "true",
        "--hub_model_id",
        repo_id,
        "--hub_private_repo",
        "true",
    )
    code, _, sentence = vaswani(*words)
    folder = tmp_path / "run"
    assert code == 1 and "413" in sentence
    assert sentence.endswith(
        f"The trained checkpoint is complete in '{folder}'; push it with `vaswani push {folder} {repo_id} --private`."
    )
    assert vaswani("push", folder, repo_id, "--private")[0] == 0
    assert "recipe.yaml" in hub.repository(repo_id).files()


@pytest.mark.transfer
def test_what_an_earlier_push_left_is_deleted_and_what_others_put_there_is_not(
    hub, repo_id, tiny_checkpoint, vaswani
):
    sharded = tiny_checkpoint("sharded", two_vocabularies=True)
    model = load_model(sharded)
    (sharded / "model.safetensors").unlink()
    model.save_pretrained(sharded, max_shard_size="40KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    assert vaswani("push", sharded, repo_id)[0] == 0
    repository = hub.repository(repo_id)
    shards = {path.name for path in sharded.glob("model*")}
    assert set(repository.files()) == ROOT | shards | {f"target_tokenizer/{name}" for name in TOKENIZER}
    foreign = {"data/table.csv": b"1", "pytorch_model.bin": b"2", "last-checkpoint/model.safetensors": b"3"}
    foreign |= {"data/modeling_vaswani.py": b"5", "model-old/model.safetensors": b"6"}
    repository.commit(
        {**foreign, "language_models_vaswani.py": b"", "recipe.yaml": b"", "training_curve.png": b"4"}
    )
    assert vaswani("push", tiny_checkpoint("whole"), repo_id)[0] == 0
    assert set(repository.files()) == ROOT | {"model.safetensors", *foreign}
    assert len(commits(hub, repo_id)) == 4


@pytest.mark.transfer
def test_what_has_not_changed_makes_no_commit_and_stays_private(hub, repo_id, tiny_checkpoint, vaswani):
    folder, made = tiny_checkpoint(), ("--private", "--license", "cc-by-4.0")
    # A name alone is one of the user.
    assert vaswani("push", folder, repo_id.removeprefix("alice/"), *made)[0] == 0
    repository = hub.repository(repo_id)
    sha = repository.head()
    assert repository.private and HfApi().model_info(repo_id).card_data.license == "cc-by-4.0"
    code, out, _ = vaswani("push", folder, repo_id, *made)
    assert code == 0 and repository.head() == sha
    assert out == (
        f"nothing has changed since {hub.endpoint}/{repo_id}/commit/{sha}\n"
        f"checked: downloaded at {sha[:7]}, same logits, tokens and translation\n"
    )
    # The card of the folder is the card, and the repository stays private without the word.
    (folder / "README.md").write_text("---\nlicense: mit\n---\nBy hand.\n")
    code, out, _ = vaswani("push", folder, repo_id)
    assert code == 0 and out.startswith("the card is the README.md of the checkpoint, as it is\npushed to ")
    assert repository.files()["README.md"] == b"---\nlicense: mit\n---\nBy hand.\n" and repository.private


def test_branch_tag_commit_and_pull_request_each_by_its_name(
    hub, repo_id, bob, tiny_checkpoint, vaswani, monkeypatch, tmp_path
):
    """Four checkpoints, which each subcommand tells apart by the scores that it gives."""
    folders = {
        name: tiny_checkpoint(name, dropout=0.1 * i)
        for i, name in enumerate(("main", "branch", "tag", "request"))
    }
    assert vaswani("push", folders["main"], repo_id)[0] == 0
    repository = hub.repository(repo_id)
    first = repository.head()
    assert vaswani("push", folders["branch"], repo_id, "--revision", "exp/2")[0] == 0
    code, out, _ = vaswani("push", folders["tag"], repo_id, "--tag", "v1.0")
    assert (code, out.splitlines()[-1]) == (0, "tagged v1.0")
    monkeypatch.setenv("HF_TOKEN", bob.token)
    code, out, _ = vaswani("push", folders["request"], repo_id, "--create-pr")
    assert (code, out.splitlines()[0]) == (0, f"pushed to {hub.endpoint}/{repo_id}/discussions/1")
    code, out, _ = vaswani("push", folders["request"], repo_id, "--create-pr", "--revision", "exp/2")
    assert (code, out.splitlines()[0]) == (0, f"pushed to {hub.endpoint}/{repo_id}/discussions/2")
    assert set(repository.refs()) == {
        *("refs/heads/main", "refs/heads/exp/2", "refs/tags/v1.0"),
        *("refs/pr/1", "refs/pr/2"),
    }
    revisions = {first: "main", "exp/2": "branch", "v1.0": "tag", "refs/pr/1": "request"}
    for name in ("source", "target"):
        (tmp_path / name).write_text("der Hund\n")
    words = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    for revision, name in revisions.items():
        local = vaswani("score", folders[name], *words)[1]
        assert local and vaswani("score", repo_id, "--revision", revision, *words)[1] == local
        assert vaswani("score", f"{repo_id}@{revision}", *words)[1] == local
    assert len({vaswani("score", folder, *words)[1] for folder in folders.values()}) == 4
    # A pull request can be changed by its author.
    assert vaswani("push", folders["main"], repo_id, "--revision", "refs/pr/1")[0] == 0
    weights = (folders["main"] / "model.safetensors").read_bytes()
    assert repository.files("refs/pr/1")["model.safetensors"] == weights
    assert len(commits(hub, repo_id, "refs/pr/1")) == 5 and len(commits(hub, repo_id)) == 3


def test_every_subcommand_takes_a_revision(hub, repo_id, tiny_checkpoint, vaswani, tmp_path):
    assert vaswani("push", tiny_checkpoint("one"), repo_id, "--revision", "exp/2")[0] == 0
    (tmp_path / "text").write_text("der Hund\n")
    sides = ("--source", tmp_path / "text", "--reference", tmp_path / "text")
    commands = [
        ("translate", repo_id, "--text", "der Hund", "--max_new_tokens", 2),
        ("evaluate", repo_id, *sides, "--max_new_tokens", 2),
        ("export", repo_id, tmp_path / "marian", "--format", "marian"),
    ]
    for words in commands:
        code, _, sentence = vaswani(*words)
        assert code == 1 and "has no file" not in sentence, words
        assert vaswani(*words, "--revision", "exp/2")[0] == 0, words
    code, _, sentence = vaswani("translate", tmp_path / "one", "--revision", "exp/2", "--text", "x")
    assert (code, sentence) == (
        1,
        f"`revision` is for a repository on the Hub, but '{tmp_path / 'one'}' is a folder; leave it out.",
    )
    both = Translator.from_pretrained(repo_id, "cpu", revision="exp/2", ensemble=[f"{repo_id}@exp/2"])
    assert len(both.backend.ensemble) == 1


def test_from_python_with_another_token_and_message(hub, repo_id, bob, tiny_checkpoint, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    name = repo_id.replace("alice/", "bob/")
    url = push(tiny_checkpoint(), name, token=bob.token, private=True, commit_message="Mine")
    sha = hub.repository(name).head()
    assert url == f"{hub.endpoint}/{name}/commit/{sha}"
    monkeypatch.setenv("HF_TOKEN", bob.token)
    assert commits(hub, name)[0] == "Mine"


@pytest.mark.transfer
def test_what_arrives_otherwise_than_it_was_sent_is_loud(hub, repo_id, tiny_checkpoint, vaswani):
    hub.fault(
        "GET", "/resolve/.*/generation_config.json", change=lambda body: body.replace(b": 1,", b": 3,", 1)
    )
    folder = tiny_checkpoint()
    code, out, sentence = vaswani("push", folder, repo_id)
    url = f"{hub.endpoint}/{repo_id}/commit/{hub.repository(repo_id).head()}"
    assert (code, out) == (1, f"pushed to {url}\n")
    assert sentence == (
        f"What was downloaded after the push differs in generation_config.json. The commit is there all the same ({url}); "
        "the same push once more makes no second one, and checks it again."
    )
    assert vaswani("push", folder, repo_id)[0] == 0


def test_a_check_that_cannot_be_made_is_loud(hub, repo_id, tiny_checkpoint, vaswani):
    hub.fault("GET", "/resolve/.*/tokenizer.json", status=403)
    code, _, sentence = vaswani("push", tiny_checkpoint(), repo_id, "--tag", "v1.0")
    url = f"{hub.endpoint}/{repo_id}/commit/{hub.repository(repo_id).head()}"
    assert (
        code == 1
        and sentence.startswith("403 Forbidden: ")
        and sentence.endswith(
            f"The commit is there all the same ({url}); the same push once more makes no second one, and checks it again."
        )
    )
    # A commit that was not checked is not tagged.
    assert "refs/tags/v1.0" not in hub.repository(repo_id).refs()


def test_another_model_or_tokenizer_would_be_noticed(tiny_checkpoint):
    one, other, pairs = (
        tiny_checkpoint("one"),
        tiny_checkpoint("other"),
        tiny_checkpoint("pairs", two_vocabularies=True),
    )
    shutil.copy(pairs / "target_tokenizer" / "tokenizer.json", one / "other.json")
    first, second = fingerprint(one), fingerprint(other)
    assert fingerprint(one) == first and first["logits"] != second["logits"]
    model = load_model(one)
    with torch.no_grad():
        # The last bits of one weight.
        model.model.encoder.layers[0].fc1.weight[1, 0] *= 1 + 2**-18
    model.save_pretrained(other)
    assert [name for name, output in fingerprint(other).items() if output != first[name]] == ["logits"]
    os.replace(one / "other.json", one / "tokenizer.json")
    assert fingerprint(one)["tokens"] != first["tokens"]


def test_a_model_that_computes_no_numbers_is_not_pushed(hub, alice, repo_id, tiny_checkpoint):
    folder = tiny_checkpoint()
    model = load_model(folder)
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight[1, 0] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(HubError) as raised:
        push(folder, repo_id)
    assert str(raised.value) == (
        f"The model in '{folder}' must compute finite logits, but there are infinite ones or NaN."
    )
    with pytest.raises(KeyError):
        hub.repository(repo_id)


@pytest.mark.transfer
def test_a_push_that_failed_is_run_again_without_uploading_what_is_there(
    hub, repo_id, tiny_checkpoint, vaswani
):
    folder = tiny_checkpoint()
    hub.fault("POST", "/commit/", status=413)
    assert vaswani("push", folder, repo_id)[0] == 1
    assert requested(hub, *UPLOAD)
    assert commits(hub, repo_id) == ["initial commit"]
    hub.clear()
    assert vaswani("push", folder, repo_id)[0] == 0
    assert not requested(hub, *UPLOAD)
    assert hub.repository(repo_id).files()["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_whoever_pushed_in_between_is_not_undone(hub, repo_id, tiny_checkpoint, vaswani):
    assert vaswani("push", tiny_checkpoint("one"), repo_id)[0] == 0
    repository = hub.repository(repo_id)

    def commit_first(body):
        repository.commit({"other.txt": b"faster"})
        return body

    hub.fault("POST", "/preupload/", change=commit_first)
    two = tiny_checkpoint("two")
    assert vaswani("push", two, repo_id)[0] == 0
    files = repository.files()
    assert files["other.txt"] == b"faster"
    assert files["model.safetensors"] == (two / "model.safetensors").read_bytes()


def test_a_tag_that_git_does_not_allow_is_named_after_the_push(hub, repo_id, tiny_checkpoint, vaswani):
    code, _, sentence = vaswani("push", tiny_checkpoint(), repo_id, "--tag", "v 1")
    assert code == 1
    assert sentence.startswith("Bad request: Invalid reference name: v 1 The commit is there all the same (")
    assert vaswani("push", tiny_checkpoint(), repo_id, "--tag", "v1")[0] == 0
    assert "refs/tags/v1" in hub.repository(repo_id).refs()


def test_python_gets_one_class_of_errors(repo_id, tmp_path):
    with pytest.raises(HubError, match=f"^'{tmp_path}' holds no checkpoint: it has no config.json.$"):
        push(tmp_path, repo_id)


def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    hub, repo_id, tiny_checkpoint, vaswani, monkeypatch
):
    monkeypatch.setattr("vaswani_hf.checkpoint.hub.WAITS", (0.01,))
    assert vaswani("push", tiny_checkpoint("one"), repo_id)[0] == 0
    repository = hub.repository(repo_id)
    repository.commit({"training_curve.png": b"deleted by the push"})
    create_commit = HfApi.create_commit

    def losing(self, *args, **kwargs):
        commit = create_commit(self, *args, **kwargs)
        monkeypatch.setattr(HfApi, "create_commit", create_commit)
        hub.fault("GET", "/api/models/", status=502)
        HfApi().model_info(repo_id)
        return commit

    monkeypatch.setattr(HfApi, "create_commit", losing)
    two = tiny_checkpoint("two", dropout=0.5)
    assert vaswani("push", two, repo_id)[0] == 0
    assert commits(hub, repo_id)[:2] == ["Push a checkpoint of vaswani_hf", "Change files"]
