"""Pushing while training, by each `hub_strategy`, and going on with a pushed run elsewhere."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

import vaswani_hf
from vaswani_hf import TranslationPipeline
from vaswani_hf.checkpoint.hub import HubError
from vaswani_hf.publish.push import push
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import InterruptedRunError, train
from vaswani_hf.training.trainer import VaswaniTrainer

STRATEGIES = ("every_save", "checkpoint", "all_checkpoints")
RECIPE = """
output_dir: {output_dir}
data: {{source_language: en, target_language: de, corpus: numbers, numbers_train_size: 200, max_length: 64}}
tokenizer: {{vocab_size: 270, bpe_dropout: 0.1}}
model: {{d_model: 8, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2,
  encoder_ffn_dim: 8, decoder_ffn_dim: 8, dropout: 0.1}}
training:
  {{bf16: false,
    max_steps: 6, save_steps: 2, eval_steps: 3, logging_steps: 2,
    source_tokens_per_batch: 500, target_tokens_per_batch: 500, save_total_limit: 2}}
decoding: {{num_beams: 1, max_length: 4}}
"""
ROOT_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
PUBLISHED = ROOT_FILES | {"README.md", "recipe.yaml", "training_curve.png"}
# Those of a language model alone are not among them.
TRAVELLERS = {path.name for path in (Path(vaswani_hf.__file__).parent / "model").glob("*_vaswani.py")} - {
    "language_models_vaswani.py"
}
STATE_FILES = {
    "manifest.json",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "metrics.jsonl",
}


pytestmark = pytest.mark.usefixtures("few_numbers")


@pytest.fixture
def recipe(tmp_path):
    """Make the recipe of a run in this folder with these keys."""

    def make(folder, **keys):
        path = tmp_path / "recipe.yaml"
        path.write_text(RECIPE.format(output_dir=tmp_path / folder))
        return load_recipe(path, [word for key, value in keys.items() for word in (f"--{key}", str(value))])

    return make


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    """A finished run of two steps."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "recipe.yaml").write_text(RECIPE.format(output_dir=folder / "out"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 10)
        train(load_recipe(folder / "recipe.yaml", ["--max_steps", "2"]))
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_each_strategy_leaves(hub, repo_id, alice, recipe, strategy, tmp_path, capsys):
    train(recipe("out", push_to_hub="true", hub_model_id=repo_id, hub_strategy=strategy))
    repository = hub.repository(repo_id)
    folders = by_folder(repository.files())
    assert folders.pop("") == PUBLISHED
    if strategy == "every_save":
        assert folders == {}
    elif strategy == "checkpoint":
        assert folders == {"last-checkpoint": ROOT_FILES | STATE_FILES}
    else:
        assert folders["checkpoint-6"] == ROOT_FILES | STATE_FILES
        assert set(folders) == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    titles = [commit.title for commit in HfApi().list_repo_commits(repo_id)]
    assert titles[0] == "Push a checkpoint of vaswani_hf"
    # One that comes while another is pushed is left out unless all are kept, the last one never is.
    assert "Training in progress, step 6" in titles
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert repository.files()["model.safetensors"] == weights
    printed = capsys.readouterr()
    for content in [*repository.files().values(), printed.out.encode(), printed.err.encode()]:
        assert alice.token.encode() not in content
    for name, content in repository.files().items():
        for path in (str(tmp_path), os.path.expanduser("~") + "/", str(tmp_path.parent)):
            assert path.encode() not in content, name


@pytest.mark.parametrize(
    ("strategy", "streaming"),
    [("checkpoint", "false"), pytest.param("all_checkpoints", "true", marks=pytest.mark.transfer)],
)
def test_a_run_goes_on_on_another_machine(hub, repo_id, alice, recipe, strategy, streaming, tmp_path, capsys):
    keys = {"streaming": streaming, "bpe_dropout": 0.0 if streaming == "true" else 0.1}
    train(recipe("whole", **keys))
    pushing = {**keys, "push_to_hub": "true", "hub_model_id": repo_id, "hub_strategy": strategy}
    train(recipe("here", max_steps=4, **pushing))
    capsys.readouterr()
    train(recipe("there", resume="true", **pushing))
    assert f"of {repo_id}, step 4" in capsys.readouterr().out
    whole, there = (load_file(tmp_path / folder / "model.safetensors") for folder in ("whole", "there"))
    assert all(torch.equal(whole[name], there[name]) for name in whole)
    logs = []
    for folder in ("whole", "there"):
        rows = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        logs.append([(row["step"], row["loss"], row["target_tokens"]) for row in rows if "loss" in row])
    assert logs[0] == logs[1]


def test_another_recipe_does_not_continue_a_pushed_run(hub, repo_id, alice, recipe):
    pushing = {"push_to_hub": "true", "hub_model_id": repo_id, "hub_strategy": "checkpoint"}
    train(recipe("here", max_steps=2, **pushing))
    with pytest.raises(ValueError, match="`model.dropout` is 0.3, but the run in .* has 0.1"):
        train(recipe("there", resume="true", dropout=0.3, **pushing))


def test_checkpoints_of_another_trainer_are_no_run_to_continue(hub, repo_id, alice, recipe, tmp_path):
    hub.create_repository(repo_id).commit({"last-checkpoint/trainer_state.json": b"{}"})
    with pytest.raises(ValueError) as raised:
        train(recipe("there", resume="true", hub_model_id=repo_id))
    assert str(raised.value) == (
        f"`publishing.hub_model_id` '{repo_id}' has checkpoints but no recipe.yaml, so that they are of another trainer; "
        "choose another repository, or leave out `--resume true`."
    )
    assert not (tmp_path / "there").exists()


def test_a_checkpoint_that_is_not_whole_is_no_run_to_continue(hub, repo_id, alice, recipe, tmp_path):
    pushing = {"push_to_hub": "true", "hub_model_id": repo_id, "hub_strategy": "checkpoint"}
    train(recipe("here", max_steps=2, **pushing))
    hub.repository(repo_id).commit({"last-checkpoint/optimizer.pt": b"not this one"})
    with pytest.raises(
        ValueError, match="last-checkpoint of the repository must be a whole .*optimizer.pt has 12 bytes"
    ):
        train(recipe("there", resume="true", max_steps=3, **pushing))
    assert not list((tmp_path / "there").glob("checkpoint-*"))


def test_the_best_checkpoint_is_known_elsewhere_if_it_is_there(hub, repo_id, alice, recipe, tmp_path):
    stopping = {"early_stopping_patience": 3, "eval_steps": 1, "save_steps": 1, "save_total_limit": 3}
    pushing = {"push_to_hub": "true", "hub_model_id": repo_id, "hub_strategy": "all_checkpoints"}
    train(recipe("here", max_steps=3, **stopping, **pushing))
    pushed = json.loads(hub.repository(repo_id).files()["checkpoint-3/trainer_state.json"])
    assert [row["step"] for row in pushed["log_history"] if "eval_loss" in row] == [1, 2, 3]
    train(recipe("there", max_steps=4, resume="true", **stopping, **pushing))
    state = json.loads((tmp_path / "there" / "checkpoint-4" / "trainer_state.json").read_text())
    assert [row["step"] for row in state["log_history"] if "eval_loss" in row] == [1, 2, 3, 4]


def test_a_repository_without_checkpoints_is_no_run_to_continue(hub, repo_id, alice, recipe, finished):
    push(finished, repo_id)
    results = train(recipe("there", resume="true", max_steps=2, hub_model_id=repo_id))
    assert results["training"]["steps"] == 2


def test_an_interrupted_run_is_pushed_before_it_ends(hub, repo_id, alice, recipe, monkeypatch):
    step = VaswaniTrainer.training_step

    def interrupting(self, *args, **kwargs):
        if self.state.global_step == 2:
            os.kill(os.getpid(), 2)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(VaswaniTrainer, "training_step", interrupting)
    with pytest.raises(InterruptedRunError):
        train(
            recipe(
                "here", push_to_hub="true", hub_model_id=repo_id, hub_strategy="checkpoint", save_steps=100
            )
        )
    state = json.loads(hub.repository(repo_id).files()["last-checkpoint/trainer_state.json"])
    assert state["global_step"] == 3


def test_a_push_that_fails_does_not_stop_the_training(hub, repo_id, alice, recipe, capsys, monkeypatch):
    monkeypatch.setattr("vaswani_hf.checkpoint.hub.WAITS", (0.1,))
    hub.create_repository(repo_id)
    hub.fault("POST", "/commit/", status=503, times=None)
    with pytest.raises(Exception, match="vaswani push"):
        train(
            recipe("here", push_to_hub="true", hub_model_id=repo_id, hub_strategy="every_save", max_steps=2)
        )
    assert "step 2 could not be pushed: " in capsys.readouterr().out
    hub.clear()
    # A finished run is only pushed again.
    train(recipe("here", push_to_hub="true", hub_model_id=repo_id, max_steps=2, resume="true"))
    assert by_folder(hub.repository(repo_id).files())[""] == PUBLISHED


@pytest.mark.parametrize("strategy", ["end", "all_checkpoints"])
def test_a_trainer_of_the_user_pushes_what_loads(hub, repo_id, alice, copier, strategy, tmp_path):
    tokenizer = copier.source_tokenizer
    row = {**tokenizer("der Hund"), "labels": tokenizer("der Hund")["input_ids"]}
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path / "out"),
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-6,
        push_to_hub=True,
        hub_model_id=repo_id,
        hub_strategy=strategy,
        hub_always_push=True,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    model = AutoModelForSeq2SeqLM.from_config(copier.model.config)
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=[row] * 8,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.push_to_hub()
    files = hub.repository(repo_id).files()
    assert ROOT_FILES | {"README.md"} <= set(files)
    assert {"configuration_vaswani.py", "modeling_vaswani.py", "pipeline_vaswani.py"} <= set(files)
    assert set(json.loads(files["config.json"])["auto_map"]) == {
        "AutoConfig",
        "AutoModel",
        "AutoModelForSeq2SeqLM",
    }
    loaded = AutoModelForSeq2SeqLM.from_pretrained(repo_id)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


@pytest.mark.transfer
def test_a_pipeline_pushes_everything(hub, repo_id, alice, finished, tmp_path):
    pipeline("translation", model=str(finished)).push_to_hub(
        repo_id, private=True, commit_message="All of it"
    )
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED}
    assert {name for name in files if name.endswith(".py")} == TRAVELLERS
    assert not any(str(tmp_path).encode() in content for content in files.values())
    assert b"alice" in files["README.md"] and hub.repository(repo_id).private
    # From the Hub, at a commit that is not the newest, with card, recipe and picture of that commit.
    commit = hub.repository(repo_id).head()
    hub.repository(repo_id).commit({"README.md": b"---\nlicense: mit\n---\nAnother one.\n"})
    pipeline("translation", model=repo_id, revision=commit).push_to_hub(f"{repo_id}-again", create_pr=False)
    again = hub.repository(f"{repo_id}-again").files()
    assert again.keys() == files.keys()
    # The snippets of the card load what was pushed.
    assert again["README.md"] == files["README.md"].replace(repo_id.encode(), f"{repo_id}-again".encode())
    # transformers notes there where a tokenizer came from.
    changed = {name for name in again if again[name] != files[name]}
    assert changed <= {"README.md", ".gitattributes", "tokenizer_config.json"}


def test_a_pipeline_with_other_weights_has_no_claim_to_the_scores(hub, repo_id, alice, finished):
    translator = pipeline("translation", model=str(finished))
    with torch.no_grad():
        translator.model.model.encoder.layers[0].fc1.bias.add_(1)
    translator.push_to_hub(repo_id)
    files = hub.repository(repo_id).files()
    assert by_folder(files) == {"": PUBLISHED - {"training_curve.png"}}
    assert b"The weights are not those of the run described below" in files["README.md"]
    assert b"BLEU" not in files["README.md"]


@pytest.mark.parametrize("change", ["none", "shards", "bfloat16"])
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


def test_a_pipeline_with_another_model_pushes_what_transformers_pushes(hub, repo_id, alice, copier):
    config = T5Config(
        vocab_size=300, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    translator = TranslationPipeline(T5ForConditionalGeneration(config), copier.source_tokenizer)
    translator.push_to_hub(repo_id)
    config = json.loads(hub.repository(repo_id).files()["config.json"])
    assert config["model_type"] == "t5" and "custom_pipelines" not in config


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
    hub, repo_id, alice, recipe, finished
):
    pushing = {
        "push_to_hub": "true",
        "hub_model_id": repo_id,
        "resume": "true",
        "publishing.license": "cc-by-4.0",
    }
    train(recipe("out", max_steps=2, **pushing))
    assert b"license: cc-by-4.0\n" in hub.repository(repo_id).files()["README.md"]
    assert b"license: cc-by-4.0\n" in hub.repository(repo_id).files()["recipe.yaml"]
