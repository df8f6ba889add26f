"""Push a checkpoint to the local Hub, and load the requested revision from the Hub."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from factories import CODE_FILES, add_languages, files_in, write_recipe
from huggingface_hub import HfApi
from transformers import pipeline

import vaswani_hf
from vaswani_hf.checkpoint.loading import load_model
from vaswani_hf.publish.push import Destination, HubError, check_destination, fingerprint, push
from vaswani_hf.translation.translator import Translator

MODEL_FOLDER = Path(vaswani_hf.__file__).parent / "model"
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
TARGET_TOKENIZER = {f"target_tokenizer/{name}" for name in TOKENIZER}
ROOT = {
    *".gitattributes LICENSE README.md handler.py requirements.txt config.json generation_config.json".split()
}
ROOT |= TOKENIZER | CODE_FILES
CHECKED = "same logits, tokens and translation"


def in_spite(hub, repo_id) -> str:
    url = f"{hub.endpoint}/{repo_id}/commit/{hub.repository(repo_id).head()}"
    return f"The commit exists ({url}); repeat the push to check the files again; the repeated push creates no second commit."


def test_a_push_leaves_a_whole_repository_in_one_commit(
    hub, repo_id, alice, transfer, tiny_checkpoint, vaswani
):
    folder = tiny_checkpoint(two_vocabularies=True)
    # A push adds the code to a checkpoint without code.
    for path in folder.glob("*.py"):
        path.unlink()
    config = json.loads((folder / "config.json").read_text())
    without_code = {key: config[key] for key in config.keys() - {"auto_map", "custom_pipelines"}}
    (folder / "config.json").write_text(json.dumps(without_code))
    (folder / "checkpoint-5").mkdir()
    for name in ("training_args.bin", "optimizer.pt", "metrics.jsonl", "checkpoint-5/model.safetensors"):
        (folder / name).write_text(str(folder))
    before = files_in(folder)
    code, out, _ = vaswani("push", folder, repo_id)
    repository = hub.repository(repo_id)
    sha = repository.head()
    url = f"{hub.endpoint}/{repo_id}/commit/{sha}"
    assert (code, out) == (0, f"pushed to {url}\nchecked: downloaded at {sha[:7]}, {CHECKED}\n")
    assert repository.titles() == ["Push a checkpoint of vaswani_hf", "initial commit"]
    files = repository.files()
    assert set(files) == ROOT | {"model.safetensors"} | TARGET_TOKENIZER
    for name in {"model.safetensors", "generation_config.json", *TOKENIZER, *TARGET_TOKENIZER}:
        assert files[name] == before[name], name
    assert all(files[name] == (MODEL_FOLDER / name).read_bytes() for name in CODE_FILES)
    assert json.loads(files["config.json"]) == config
    assert files_in(folder) == before
    for name, content in files.items():
        assert str(folder).encode() not in content and alice.token.encode() not in content, name


@pytest.fixture
def train(repo_id, few_numbers, tmp_path):
    """The arguments of the command that trains and pushes to a private repository."""
    path = write_recipe(tmp_path / "recipe.yaml", {"training.max_steps": 2}, output_dir=str(tmp_path / "run"))
    return ("train", path, "--push_to_hub", "true", "--hub_model_id", repo_id, "--hub_private_repo", "true")


def test_a_run_pushes_its_checkpoint_with_card_recipe_and_curve(
    hub, repo_id, alice, train, tmp_path, vaswani
):
    folder = tmp_path / "run"
    hub.fault("POST", "/commit/", status=413)
    code, _, sentence = vaswani(*train)
    assert code == 1 and "413" in sentence and hub.uploads()
    again = f"push it with `vaswani push {folder} {repo_id} --private`."
    assert sentence.endswith(f"The trained checkpoint is complete in '{folder}'; {again}")
    repository = hub.repository(repo_id)
    assert repository.titles() == ["initial commit"] and repository.private
    hub.clear()
    code, out, _ = vaswani(*train, "--resume", "true")
    assert code == 0 and f"pushed to {hub.endpoint}/{repo_id}/commit/{repository.head()}\nchecked: " in out
    # A file that has already been uploaded is not uploaded again.
    assert not hub.uploads()
    assert b"output_dir: run\n" in repository.files()["recipe.yaml"]
    assert alice.token.encode() not in b"".join(files_in(folder).values())
    assert vaswani("push", folder, repo_id)[1].startswith("nothing has changed since ")


def test_a_run_that_may_not_push_says_so_before_it_trains(hub, train, tmp_path, monkeypatch, vaswani):
    monkeypatch.delenv("HF_TOKEN")
    code, _, sentence = vaswani(*train)
    assert code == 1 and sentence.startswith("A push needs an access token with write permission, but there")
    assert not (tmp_path / "run").exists()


def test_files_of_an_earlier_push_are_deleted_and_files_of_others_are_not(
    hub, repo_id, tiny_checkpoint, vaswani
):
    sharded = tiny_checkpoint("sharded", two_vocabularies=True)
    model = load_model(sharded)
    model.save_pretrained(sharded, max_shard_size="40KB")
    shards = {path.name for path in sharded.glob("model*")}
    assert len(shards) > 2
    assert vaswani("push", sharded, repo_id)[0] == 0
    repository = hub.repository(repo_id)
    assert set(repository.files()) == ROOT | shards | TARGET_TOKENIZER
    foreign = {"data/table.csv": b"1", "pytorch_model.bin": b"2", "last-checkpoint/model.safetensors": b"3"}
    foreign |= {"data/modeling_vaswani.py": b"5", "model-old/model.safetensors": b"6"}
    foreign |= {"mine_vaswani.py": b"", "target_tokenizer/notes.json": b"{}"}
    ours = {"recipe.yaml": b"", "training_curve.png": b"4"}
    # A calibration and a certificate of another model are deleted.
    ours |= {"calibration.json": b"{}", "certificate.json": b"{}", "attention.png": b"5"}
    repository.commit({**foreign, **ours})
    whole = tiny_checkpoint("whole")
    (whole / "generation_config.json").unlink()

    def commit_first(body):
        """Somebody else commits during the push."""
        repository.commit({"other.txt": b"faster"})
        return body

    hub.fault("POST", "/preupload/", change=commit_first)
    assert vaswani("push", whole, repo_id)[0] == 0
    assert json.loads(repository.files()["generation_config.json"])["decoder_start_token_id"] == 0
    assert set(repository.files()) == ROOT | {"model.safetensors", "other.txt", *foreign}
    assert len(repository.titles()) == 5


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "10KB"}], ids=["one file", "shards"])
def test_a_pipeline_is_pushed_with_the_records_of_its_model(hub, repo_id, tiny_checkpoint, options):
    folder = tiny_checkpoint()
    records = {"certificate.json": b"{}", "training_curve.png": b"4"}
    records |= {"README.md": b"---\nlicense: mit\n---\n"}
    for name, content in records.items():
        (folder / name).write_bytes(content)
    pipeline("translation", model=str(folder), device="cpu").push_to_hub(repo_id, **options)
    files = hub.repository(repo_id).files()
    assert {name: files[name] for name in records} == records
    assert ("model.safetensors" in files) is not bool(options)


def test_an_unchanged_checkpoint_makes_no_commit_and_stays_private(hub, repo_id, tiny_checkpoint, vaswani):
    folder, options = tiny_checkpoint(), ("--private", "--license", "cc-by-4.0")
    # The namespace of the user is the default.
    assert vaswani("push", folder, repo_id.removeprefix("alice/"), *options)[0] == 0
    repository = hub.repository(repo_id)
    sha = repository.head()
    assert repository.private and HfApi().model_info(repo_id).card_data.license == "cc-by-4.0"
    code, out, _ = vaswani("push", folder, repo_id, *options)
    assert code == 0 and repository.head() == sha
    url = f"{hub.endpoint}/{repo_id}/commit/{sha}"
    assert out == f"nothing has changed since {url}\nchecked: downloaded at {sha[:7]}, {CHECKED}\n"
    # The README.md of the folder is the card, and the repository stays private without the option.
    (folder / "README.md").write_text("---\nlicense: mit\n---\nBy hand.\n")
    code, out, _ = vaswani("push", folder, repo_id)
    unchanged = "the model card is the README.md of the checkpoint, without changes"
    assert code == 0 and out.startswith(f"{unchanged}\npushed to ")
    assert repository.files()["README.md"] == b"---\nlicense: mit\n---\nBy hand.\n" and repository.private


def test_branch_tag_commit_and_pull_request(hub, repo_id, bob, tiny_checkpoint, vaswani, monkeypatch):
    names = ("main", "branch", "tag", "request")
    folders = {name: tiny_checkpoint(name, dropout=0.1 * number) for number, name in enumerate(names)}
    assert vaswani("push", folders["main"], repo_id)[0] == 0
    repository = hub.repository(repo_id)
    first = repository.head()
    assert vaswani("push", folders["branch"], repo_id, "--revision", "exp/2")[0] == 0
    code, out, _ = vaswani("push", folders["tag"], repo_id, "--tag", "v1.0")
    assert (code, out.splitlines()[-1]) == (0, "tagged v1.0")
    monkeypatch.setenv("HF_TOKEN", bob.token)
    for number, base in ((1, "main"), (2, "exp/2")):
        code, out, _ = vaswani("push", folders["request"], repo_id, "--create-pr", "--revision", base)
        assert (code, out.splitlines()[0]) == (0, f"pushed to {hub.endpoint}/{repo_id}/discussions/{number}")
    refs = {"refs/heads/main", "refs/heads/exp/2", "refs/tags/v1.0", "refs/pr/1", "refs/pr/2"}
    assert set(repository.refs) == refs
    places = {first: "main", "exp/2": "branch", "v1.0": "tag", "refs/pr/1": "request", "refs/pr/2": "request"}
    for revision, name in places.items():
        weights = repository.files(revision)["model.safetensors"]
        assert weights == (folders[name] / "model.safetensors").read_bytes(), revision
    # The author of a pull request can push to the pull request again.
    assert vaswani("push", folders["main"], repo_id, "--revision", "refs/pr/1")[0] == 0
    assert len(repository.titles("refs/pr/1")) == 5 and len(repository.titles()) == 3


def test_every_subcommand_takes_a_revision(hub, repo_id, tiny_checkpoint, vaswani, tmp_path):
    folder = tiny_checkpoint("one")
    hub.create_repository(repo_id).commit(files_in(folder), ref="exp/2")
    text = tmp_path / "text"
    text.write_text("der Hund\n")
    score = ("--source", text, "--target", text)
    commands = [
        ("translate", repo_id, "--text", "der Hund"),
        ("evaluate", repo_id, "--source", text, "--reference", text),
        ("export", repo_id, tmp_path / "marian", "--format", "marian"),
        ("score", repo_id, *score),
    ]
    for words in commands:
        assert vaswani(*words)[0] == 2, words
        assert vaswani(*words, "--revision", "exp/2")[0] == 0, words
    assert vaswani("score", f"{repo_id}@exp/2", *score) == vaswani("score", folder, *score)
    sentence = f"`revision` is for a repository on the Hub, but '{folder}' is a folder; leave `revision` out."
    assert vaswani("translate", folder, "--revision", "exp/2", "--text", "x") == (2, "", sentence)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Translator.from_pretrained(str(folder), revision="exp/2")
    both = Translator.from_pretrained(repo_id, "cpu", revision="exp/2", ensemble=[f"{repo_id}@exp/2"])
    assert len(both.backend.ensemble) == 1


def test_from_python_with_another_token_and_message(
    hub, repo_id, bob, tiny_checkpoint, monkeypatch, tmp_path
):
    monkeypatch.delenv("HF_TOKEN")
    name = repo_id.replace("alice/", "bob/")
    url = push(tiny_checkpoint(), name, token=bob.token, private=True, commit_message="Mine")
    assert url == f"{hub.endpoint}/{name}/commit/{hub.repository(name).head()}"
    monkeypatch.setenv("HF_TOKEN", bob.token)
    assert hub.repository(name).titles()[0] == "Mine"
    # Every user of the local Hub is a member of the organisation "team".
    assert check_destination(Destination("team/model")).repo_id == "team/model"
    with pytest.raises(HubError, match=f"^`model` must be a checkpoint, but '{tmp_path}' has no config.json"):
        push(tmp_path, repo_id)


def test_a_push_is_checked_after_the_download(hub, repo_id, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    path = "/resolve/.*/generation_config.json"
    hub.fault("GET", path, change=lambda body: body.replace(b": 1", b": 3", 1))
    code, out, sentence = vaswani("push", folder, repo_id, "--tag", "v1.0")
    assert code == 1 and out.startswith("pushed to ")
    differ = "After the push, the downloaded files differ from the pushed files in generation_config.json."
    assert sentence == f"{differ} {in_spite(hub, repo_id)}"
    # Do not tag a commit that was not verified.
    assert "refs/tags/v1.0" not in hub.repository(repo_id).refs
    # The commit exists, so a failed tag is no failed push.
    hub.fault("POST", "/tag/", status=403)
    code, _, sentence = vaswani("push", folder, repo_id, "--tag", "v2.0")
    assert code == 1 and sentence.endswith(in_spite(hub, repo_id)), sentence


def test_another_model_or_tokenizer_has_another_fingerprint(tiny_checkpoint):
    one, other = tiny_checkpoint("one"), tiny_checkpoint("other")
    first = fingerprint(one)
    assert fingerprint(one) == first and first["logits"] != fingerprint(other)["logits"]
    model = load_model(one)
    with torch.no_grad():
        # Change only the last bits of one weight.
        model.model.encoder.layers[0].fc1.weight[1, 0] *= 1 + 2**-18
    model.save_pretrained(other)
    assert [name for name, output in fingerprint(other).items() if output != first[name]] == ["logits"]
    pairs = tiny_checkpoint("pairs", two_vocabularies=True)
    shutil.copy(pairs / "target_tokenizer" / "tokenizer.json", one / "tokenizer.json")
    assert fingerprint(one)["tokens"] != first["tokens"]


def test_a_model_with_language_tokens_has_a_fingerprint(tiny_checkpoint):
    folder = tiny_checkpoint()
    expected = fingerprint(folder)
    add_languages(folder, de="x", en="y")
    assert fingerprint(folder)["logits"] == expected["logits"]


def test_a_model_that_computes_no_numbers_is_not_pushed(hub, alice, repo_id, tiny_checkpoint):
    folder = tiny_checkpoint()
    model = load_model(folder)
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight[1, 0] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(HubError) as raised:
        push(folder, repo_id)
    sentence = (
        f"The model in '{folder}' must compute finite logits, but some logits are infinite or NaN; push"
    )
    assert str(raised.value).startswith(sentence) and ("model", repo_id) not in hub.repositories


def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    hub, repo_id, tiny_checkpoint, vaswani, monkeypatch
):
    monkeypatch.setattr("vaswani_hf.checkpoint.hub.WAITS", (0.01,))
    assert vaswani("push", tiny_checkpoint("one"), repo_id)[0] == 0
    hub.repository(repo_id).commit({"training_curve.png": b"deleted by the push"})
    create_commit = HfApi.create_commit

    def losing(self, *args, **kwargs):
        commit = create_commit(self, *args, **kwargs)
        monkeypatch.setattr(HfApi, "create_commit", create_commit)
        hub.fault("GET", "/api/models/", status=502)
        HfApi().model_info(repo_id)
        return commit

    monkeypatch.setattr(HfApi, "create_commit", losing)
    assert vaswani("push", tiny_checkpoint("two", dropout=0.5), repo_id)[0] == 0
    assert hub.repository(repo_id).titles()[:2] == ["Push a checkpoint of vaswani_hf", "Change files"]
