"""Push during the training with each `hub_strategy`, and resume a pushed run in another folder."""

import json
import os
import shutil
import signal

import pytest
import torch
from factories import CODE_FILES, write_recipe
from sentences import refused
from tiny_runs import metrics, same, weights
from transformers import pipeline

from vaswani_hf.checkpoint.hub import HubError
from vaswani_hf.checkpoint.manifest import manifest
from vaswani_hf.publish.push import push
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import InterruptedRunError, train

CHANGES = {
    "tokenizer.bpe_dropout": 0.1,
    "training.max_steps": 6,
    "training.save_steps": 2,
    "training.eval_steps": 3,
    "training.gradient_accumulation_steps": 1,
    "training.save_total_limit": 2,
    "decoding.num_beams": 1,
    "decoding.max_length": 4,
}
ROOT_FILES = {
    *"config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json".split()
}
PUBLISHED = ROOT_FILES | {"README.md", "recipe.yaml", "training_curve.png"}
PUBLISHED |= {"LICENSE", "attention.png", "handler.py", "requirements.txt"}
STATE_FILES = {
    *"manifest.json optimizer.pt scheduler.pt rng_state.pth trainer_state.json metrics.jsonl".split()
}


@pytest.fixture
def recipe(tmp_path):
    """Make the recipe of a run in this folder with these keys."""

    def make(folder, **keys):
        path = write_recipe(tmp_path / "recipe.yaml", CHANGES, output_dir=str(tmp_path / folder))
        return load_recipe(path, [word for key, value in keys.items() for word in (f"--{key}", str(value))])

    return make


@pytest.fixture
def pushing(hub, repo_id):
    """Make the keys that push a run to the repository of the test, with other keys."""

    def make(strategy="checkpoint", **keys):
        return {"push_to_hub": "true", "hub_model_id": repo_id, "hub_strategy": strategy} | keys

    return make


def by_folder(files):
    folders: dict[str, set] = {}
    for name in files:
        folder, _, rest = name.rpartition("/")
        if not rest.endswith("_vaswani.py") and rest != ".gitattributes":
            folders.setdefault(folder, set()).add(rest)
    return folders


@pytest.mark.parametrize(
    "strategy", [pytest.param("every_save", marks=pytest.mark.slow), "checkpoint", "all_checkpoints"]
)
def test_what_each_strategy_leaves(hub, repo_id, alice, recipe, pushing, strategy, tmp_path, capsys):
    resumable = {"every_save": [], "checkpoint": ["last-checkpoint"]}
    names = resumable.get(strategy, ["checkpoint-2", "checkpoint-4"])
    repository = hub.create_repository(repo_id)
    # An earlier run has pushed a moving average, and a user has added notes.
    earlier = {"moving_average.safetensors": b"1"}
    earlier |= {"manifest.json": manifest(earlier, {}), "notes.txt": b"2"}
    for name in names:
        repository.commit({f"{name}/{file}": content for file, content in earlier.items()})
    train(recipe("out", **pushing(strategy, max_steps=4)))
    files = repository.files()
    folders = by_folder(files)
    assert folders.pop("") == PUBLISHED
    assert folders == dict.fromkeys(names, ROOT_FILES | STATE_FILES | {"notes.txt"})
    assert repository.titles()[0] == "Push a checkpoint of vaswani_hf"
    # A checkpoint that is saved during a push is skipped, unless all are kept or it is the last.
    assert "Training in progress, step 4" in repository.titles()
    assert files["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    printed = capsys.readouterr()
    for content in [*files.values(), printed.out.encode(), printed.err.encode()]:
        assert alice.token.encode() not in content
    for name, content in files.items():
        assert str(tmp_path.parent).encode() not in content, name


@pytest.mark.parametrize(
    ("strategy", "streaming"),
    [("checkpoint", "false"), pytest.param("all_checkpoints", "true", marks=pytest.mark.slow)],
)
def test_a_run_goes_on_on_another_machine(repo_id, recipe, pushing, strategy, streaming, tmp_path, capsys):
    keys = {"streaming": streaming, "bpe_dropout": 0.0 if streaming == "true" else 0.1}
    train(recipe("whole", max_steps=4, **keys))
    train(recipe("here", **pushing(strategy, max_steps=2, **keys)))
    capsys.readouterr()
    train(recipe("there", **pushing(strategy, max_steps=4, resume="true", **keys)))
    assert f"of {repo_id}, step 2" in capsys.readouterr().out
    assert same(*(weights(tmp_path / folder) for folder in ("whole", "there")))
    rows = [[row for row in metrics(tmp_path / folder) if "loss" in row] for folder in ("whole", "there")]
    for name in ("step", "loss", "target_tokens"):
        assert [row[name] for row in rows[0]] == [row[name] for row in rows[1]]


def test_a_pushed_run_is_not_continued_by_another_recipe_or_from_damaged_files(
    hub, repo_id, recipe, pushing, tmp_path
):
    train(recipe("here", **pushing(max_steps=2)))
    with pytest.raises(ValueError, match="`model.dropout` is 0.3, but the run in .* has 0.1"):
        train(recipe("there", **pushing(resume="true", dropout=0.3)))
    shutil.rmtree(tmp_path / "there", ignore_errors=True)
    hub.repository(repo_id).commit({"last-checkpoint/optimizer.pt": b"not this one"})
    sentence = "last-checkpoint of the repository must be a whole .*optimizer.pt has 12 bytes"
    with pytest.raises(ValueError, match=sentence):
        train(recipe("there", **pushing(resume="true", max_steps=3)))
    assert not list((tmp_path / "there").glob("checkpoint-*"))


def test_checkpoints_of_another_trainer_are_no_run_to_continue(hub, repo_id, alice, recipe, tmp_path):
    hub.create_repository(repo_id).commit({"last-checkpoint/trainer_state.json": b"{}"})
    with refused(
        f"`publishing.hub_model_id` '{repo_id}' has checkpoints but no recipe.yaml; therefore another trainer wrote the checkpoints; "
        "choose another repository, or leave out `--resume true`."
    ):
        train(recipe("there", resume="true", hub_model_id=repo_id))
    assert not (tmp_path / "there").exists()


def test_the_best_checkpoint_is_known_elsewhere_if_it_is_there(hub, repo_id, recipe, pushing, tmp_path):
    stopping = {"early_stopping_patience": 3, "eval_steps": 1, "save_steps": 1, "save_total_limit": 3}
    keys = pushing("all_checkpoints", **stopping)

    def validated(state):
        return [row["step"] for row in json.loads(state)["log_history"] if "eval_loss" in row]

    train(recipe("here", max_steps=1, **keys))
    assert validated(hub.repository(repo_id).files()["checkpoint-1/trainer_state.json"]) == [1]
    train(recipe("there", max_steps=2, resume="true", **keys))
    state = tmp_path / "there" / "checkpoint-2" / "trainer_state.json"
    assert validated(state.read_text()) == [1, 2]


def test_a_repository_without_checkpoints_is_no_run_to_continue(hub, repo_id, recipe, copied):
    push(copied, repo_id)
    results = train(recipe("there", resume="true", max_steps=1, hub_model_id=repo_id))
    assert results["training"]["steps"] == 1


def test_an_interrupted_run_is_pushed_before_it_ends(hub, repo_id, recipe, pushing, before_method):
    before_method(1, lambda trainer: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(InterruptedRunError):
        train(recipe("here", **pushing(save_steps=100)))
    state = json.loads(hub.repository(repo_id).files()["last-checkpoint/trainer_state.json"])
    assert state["global_step"] == 2


def test_a_push_that_fails_does_not_stop_the_training(hub, repo_id, recipe, pushing, capsys, monkeypatch):
    monkeypatch.setattr("vaswani_hf.checkpoint.hub.WAITS", (0.1,))
    hub.create_repository(repo_id)
    hub.fault("POST", "/commit/", status=503, times=None)
    with pytest.raises(Exception, match="vaswani push"):
        train(recipe("here", **pushing("every_save", max_steps=2)))
    assert "step 2 could not be pushed: " in capsys.readouterr().out
    hub.clear()
    # Resuming a finished run only pushes the run again, with the licence that is asked for now.
    keys = pushing("every_save", max_steps=2, resume="true") | {"publishing.license": "cc-by-4.0"}
    train(recipe("here", **keys))
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED}
    assert all(b"license: cc-by-4.0\n" in files[name] for name in ("README.md", "recipe.yaml"))


def test_a_pipeline_pushes_everything(hub, repo_id, transfer, copied, tmp_path):
    pipeline("translation", model=str(copied)).push_to_hub(repo_id, private=True, commit_message="All of it")
    repository = hub.repository(repo_id)
    files = repository.files()
    assert by_folder(files) == {"": PUBLISHED}
    assert {name for name in files if name.endswith(".py")} == CODE_FILES | {"handler.py"}
    assert repository.private and repository.titles()[0] == "All of it"
    # Push a model of an older commit of the Hub, with the card, recipe and picture of this commit. The owner
    # of the new repository is the user.
    name = repo_id.removeprefix("alice/")
    commit = repository.head()
    repository.commit({"README.md": b"---\nlicense: mit\n---\nAnother one.\n"})
    pipeline("translation", model=repo_id, revision=commit).push_to_hub(f"{name}-again", create_pr=False)
    again = hub.repository(f"{repo_id}-again").files()
    assert again.keys() == files.keys()
    # The snippets of the card load what was pushed, and the title is the new name.
    assert again["README.md"] == files["README.md"].replace(name.encode(), f"{name}-again".encode())
    assert {name for name in again if again[name] != files[name]} == {"README.md"}


def test_a_pipeline_with_other_weights_has_no_claim_to_the_scores(hub, repo_id, copied):
    translator = pipeline("translation", model=str(copied))
    with torch.no_grad():
        translator.model.model.encoder.layers[0].fc1.bias.add_(1)
    translator.push_to_hub(repo_id)
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED - {"attention.png", "training_curve.png"}}
    assert b"The weights in this repository differ from the weights of the run" in files["README.md"]
    assert b"BLEU" not in files["README.md"]


def test_a_pipeline_has_the_terms_of_its_run(hub, repo_id, copied):
    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(recipe.replace("license: null", "license: research-only", 1))
    (copied / "README.md").write_text("---\nlicense: other\nlicense_name: research-only\n---\nBy hand.\n")
    translator = pipeline("translation", model=str(copied))
    shards = {"max_shard_size": "20KB"}
    with pytest.raises(HubError, match="^`license` must be research-only or left out, but"):
        translator.push_to_hub(repo_id, license="apache-2.0", **shards)
    translator.push_to_hub(repo_id, license="research-only", **shards)
    card = hub.repository(repo_id).files()["README.md"]
    assert b"license: other\nlicense_name: research-only\n" in card and b"By hand" not in card
