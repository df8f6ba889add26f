"""Push during the training with each `hub_strategy`, and resume a pushed run in another folder."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from factories import CODE_FILES, write_recipe
from huggingface_hub import HfApi
from tiny_runs import metrics, same, weights
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)

from vaswani_hf.checkpoint.hub import HubError
from vaswani_hf.publish.push import push
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import InterruptedRunError, train

CHANGES = {
    "data.numbers_train_size": 200,
    "tokenizer.vocab_size": 270,
    "tokenizer.bpe_dropout": 0.1,
    "model.d_model": 8,
    "training.max_steps": 6,
    "training.save_steps": 2,
    "training.eval_steps": 3,
    "training.gradient_accumulation_steps": 1,
    "training.save_total_limit": 2,
    "training.source_tokens_per_batch": 500,
    "training.target_tokens_per_batch": 500,
    "decoding.num_beams": 1,
    "decoding.max_length": 4,
}
ROOT_FILES = {
    *"config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json".split()
}
PUBLISHED = ROOT_FILES | {"README.md", "recipe.yaml", "training_curve.png"}
STATE_FILES = {
    *"manifest.json optimizer.pt scheduler.pt rng_state.pth trainer_state.json metrics.jsonl".split()
}


pytestmark = pytest.mark.usefixtures("few_numbers")


def options_of(keys):
    return [word for key, value in keys.items() for word in (f"--{key}", str(value))]


@pytest.fixture
def recipe(tmp_path):
    """Make the recipe of a run in this folder with these keys."""

    def make(folder, **keys):
        changes = CHANGES | {"output_dir": str(tmp_path / folder)}
        return load_recipe(write_recipe(tmp_path / "recipe.yaml", changes), options_of(keys))

    return make


@pytest.fixture
def pushing(hub, repo_id, alice):
    """Make the keys that push a run to the repository of the test, with other keys."""

    def make(strategy="checkpoint", **keys):
        return {"push_to_hub": "true", "hub_model_id": repo_id, "hub_strategy": strategy} | keys

    return make


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("finished")
    changes = CHANGES | {"output_dir": str(folder / "out"), "training.max_steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 10)
        train(load_recipe(write_recipe(folder / "recipe.yaml", changes)))
    return folder / "out"


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy of that run."""
    return Path(shutil.copytree(finished_once, tmp_path / "out"))


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
    train(recipe("out", **pushing(strategy), max_steps=4))
    repository = hub.repository(repo_id)
    folders = by_folder(repository.files())
    assert folders.pop("") == PUBLISHED
    if strategy == "every_save":
        assert folders == {}
    elif strategy == "checkpoint":
        assert folders == {"last-checkpoint": ROOT_FILES | STATE_FILES}
    else:
        assert folders["checkpoint-4"] == ROOT_FILES | STATE_FILES
        assert set(folders) == {"checkpoint-2", "checkpoint-4"}
    titles = [commit.title for commit in HfApi().list_repo_commits(repo_id)]
    assert titles[0] == "Push a checkpoint of vaswani_hf"
    # A checkpoint that is saved during a push is skipped, unless all checkpoints are kept or it is the last
    # checkpoint.
    assert "Training in progress, step 4" in titles
    expected = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert repository.files()["model.safetensors"] == expected
    printed = capsys.readouterr()
    for content in [*repository.files().values(), printed.out.encode(), printed.err.encode()]:
        assert alice.token.encode() not in content
    for name, content in repository.files().items():
        for path in (str(tmp_path), os.path.expanduser("~") + "/", str(tmp_path.parent)):
            assert path.encode() not in content, name


@pytest.mark.parametrize(
    ("strategy", "streaming"),
    [
        ("checkpoint", "false"),
        pytest.param("all_checkpoints", "true", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_on_another_machine(repo_id, recipe, pushing, strategy, streaming, tmp_path, capsys):
    keys = {"streaming": streaming, "bpe_dropout": 0.0 if streaming == "true" else 0.1}
    train(recipe("whole", max_steps=4, **keys))
    train(recipe("here", **pushing(strategy, max_steps=2, **keys)))
    capsys.readouterr()
    train(recipe("there", **pushing(strategy, max_steps=4, resume="true", **keys)))
    assert f"of {repo_id}, step 2" in capsys.readouterr().out
    assert same(*(weights(tmp_path / folder) for folder in ("whole", "there")))
    logs = []
    for folder in ("whole", "there"):
        rows = [row for row in metrics(tmp_path / folder) if "loss" in row]
        logs.append([(row["step"], row["loss"], row["target_tokens"]) for row in rows])
    assert logs[0] == logs[1]


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
    with pytest.raises(ValueError) as raised:
        train(recipe("there", resume="true", hub_model_id=repo_id))
    assert str(raised.value) == (
        f"`publishing.hub_model_id` '{repo_id}' has checkpoints but no recipe.yaml; therefore another trainer wrote the checkpoints; "
        "choose another repository, or leave out `--resume true`."
    )
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


def test_a_repository_without_checkpoints_is_no_run_to_continue(hub, repo_id, alice, recipe, finished):
    push(finished, repo_id)
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
    # Resuming a finished run only pushes the run again.
    train(recipe("here", **pushing("every_save", max_steps=2, resume="true")))
    assert by_folder(hub.repository(repo_id).files())[""] == PUBLISHED


@pytest.mark.parametrize("strategy", [pytest.param("end", marks=pytest.mark.slow), "all_checkpoints"])
def test_a_trainer_of_the_user_pushes_what_loads(hub, repo_id, alice, copier, strategy, tmp_path):
    tokenizer = copier.source_tokenizer
    row = {**tokenizer("der Hund"), "labels": tokenizer("der Hund")["input_ids"]}
    options = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-6}
    options |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    pushing = {
        "push_to_hub": True,
        "hub_model_id": repo_id,
        "hub_strategy": strategy,
        "hub_always_push": True,
    }
    arguments = Seq2SeqTrainingArguments(str(tmp_path / "out"), **options, **pushing)
    model = AutoModelForSeq2SeqLM.from_config(copier.model.config)
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = Seq2SeqTrainer(model, arguments, collator, [row] * 8, processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub()
    files = hub.repository(repo_id).files()
    assert ROOT_FILES | {"README.md"} <= set(files)
    assert {"configuration_vaswani.py", "modeling_vaswani.py", "pipeline_vaswani.py"} <= set(files)
    classes = {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert set(json.loads(files["config.json"])["auto_map"]) == classes
    loaded = AutoModelForSeq2SeqLM.from_pretrained(repo_id)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_a_pipeline_pushes_everything(hub, repo_id, alice, transfer, finished, tmp_path):
    pipeline("translation", model=str(finished)).push_to_hub(
        repo_id, private=True, commit_message="All of it"
    )
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED}
    assert {name for name in files if name.endswith(".py")} == CODE_FILES
    assert not any(str(tmp_path).encode() in content for content in files.values())
    assert b"alice" in files["README.md"] and hub.repository(repo_id).private
    # Push a model that was loaded from an older commit of the Hub, with the card, recipe and picture of this
    # commit.
    commit = hub.repository(repo_id).head()
    hub.repository(repo_id).commit({"README.md": b"---\nlicense: mit\n---\nAnother one.\n"})
    pipeline("translation", model=repo_id, revision=commit).push_to_hub(f"{repo_id}-again", create_pr=False)
    again = hub.repository(f"{repo_id}-again").files()
    assert again.keys() == files.keys()
    # The snippets of the card load what was pushed.
    assert again["README.md"] == files["README.md"].replace(repo_id.encode(), f"{repo_id}-again".encode())
    # transformers records the origin of a tokenizer in tokenizer_config.json.
    changed = {name for name in again if again[name] != files[name]}
    assert changed <= {"README.md", ".gitattributes", "tokenizer_config.json"}


def test_a_pipeline_with_other_weights_has_no_claim_to_the_scores(hub, repo_id, alice, finished):
    translator = pipeline("translation", model=str(finished))
    with torch.no_grad():
        translator.model.model.encoder.layers[0].fc1.bias.add_(1)
    translator.push_to_hub(repo_id)
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED - {"training_curve.png"}}
    assert b"The weights differ from the weights of the run described below" in files["README.md"]
    assert b"BLEU" not in files["README.md"]


@pytest.mark.parametrize("change", ["shards", "bfloat16"])
def test_a_pipeline_has_the_terms_of_its_run(hub, repo_id, alice, finished, change):
    recorded = (finished / "recipe.yaml").read_text()
    (finished / "recipe.yaml").write_text(recorded.replace("license: null", "license: research-only", 1))
    (finished / "README.md").write_text("---\nlicense: other\nlicense_name: research-only\n---\nBy hand.\n")
    translator = pipeline("translation", model=str(finished))
    if change == "bfloat16":
        translator.model.bfloat16()
    shards = {"max_shard_size": "20KB"} if change == "shards" else {}
    with pytest.raises(
        HubError, match="^`license` must be research-only or left out, because the training data"
    ):
        translator.push_to_hub(repo_id, license="apache-2.0", **shards)
    translator.push_to_hub(repo_id, license="research-only", **shards)
    card = hub.repository(repo_id).files()["README.md"]
    assert b"license_name: research-only" in card and b"By hand" not in card


def test_a_card_by_hand_may_not_give_what_the_data_does_not(hub, repo_id, alice, finished):
    recorded = (finished / "recipe.yaml").read_text()
    (finished / "recipe.yaml").write_text(recorded.replace("license: null", "license: research-only", 1))
    (finished / "README.md").write_text("---\nlicense: mit\n---\nBy hand.\n")
    with pytest.raises(HubError) as raised:
        push(finished, repo_id)
    assert str(raised.value) == (
        "`license` must be research-only or left out, because the training data is for research only, but is 'mit'."
    )
    with pytest.raises(KeyError):
        hub.repository(repo_id)


def test_a_finished_run_is_published_with_the_licence_that_is_asked_for_now(
    hub, repo_id, recipe, pushing, finished
):
    keys = {"max_steps": 2, "resume": "true", "publishing.license": "cc-by-4.0"}
    train(recipe("out", **pushing("every_save", **keys)))
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED}
    for name in ("README.md", "recipe.yaml"):
        assert b"license: cc-by-4.0\n" in files[name]
