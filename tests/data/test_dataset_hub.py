"""Training data from the Hub: one commit of it, recorded, kept by a resumed run, and named when it cannot be had."""

import io
import json
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file

from vaswani_hf.checkpoint.hub import HubError
from vaswani_hf.data.dataset_hub import pin_dataset
from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks import TASKS
from vaswani_hf.training import train

load_split = TASKS["translation"].load_split

CARD = """---
license: [cc-by-4.0]
configs:
- config_name: de-en
  data_files: [{split: train, path: de-en/train*}, {split: validation, path: de-en/validation*},
    {split: test, path: de-en/test*}]
- config_name: fr-en
  data_files: [{split: train, path: de-en/test*}]
---
"""
RECIPE = """
output_dir: out
data: {source_language: en, target_language: de, dataset: DATASET, dataset_config: de-en, max_length: 64}
tokenizer: {vocab_size: 270}
model: {d_model: 8, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 8, decoder_ffn_dim: 8}
training:
  {bf16: false,
   max_steps: 2, save_steps: 1, source_tokens_per_batch: 500, target_tokens_per_batch: 500}
decoding: {num_beams: 1, max_length: 4}
"""


def parquet(split, size) -> bytes:
    rows = [{"de": pair["target"], "en": pair["source"]} for pair in number_pairs(size, 1, split)]
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"translation": rows}), file)
    return file.getvalue()


def files(train_size=60, card=CARD) -> dict[str, bytes]:
    """A dataset repository in the layout of wmt14."""
    sizes = {"train": train_size, "validation": 10, "test": 10}
    data = {f"de-en/{split}-00000-of-00001.parquet": parquet(split, size) for split, size in sizes.items()}
    return {"README.md": card.encode(), **data}


pytestmark = pytest.mark.usefixtures("few_numbers")


@pytest.fixture
def dataset(hub, repo_id):
    """A dataset of alice, who is logged in; under a name that nothing is cached of."""
    repository = hub.create_repository(repo_id, type="dataset")
    repository.commit(files())
    return repository


@pytest.fixture
def recipe(dataset, tmp_path):
    """The recipe with these overrides."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.replace("DATASET", dataset.id), encoding="utf-8")

    def recipe(*overrides):
        return load_recipe(path, [f"--output_dir={tmp_path / 'run'}", *overrides])

    recipe.path, recipe.folder = path, tmp_path / "run"
    return recipe


def results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_a_run_is_made_from_one_commit_of_a_dataset_and_says_which(hub, dataset, recipe):
    commit = dataset.head()
    train(recipe())
    recorded = load_recipe(recipe.folder / "recipe.yaml")
    assert (recorded.data.dataset_revision, recorded.data.license) == (commit, "cc-by-4.0")
    data = results(recipe.folder)["data"]
    expected = {"name": dataset.id, "dataset": dataset.id, "config": "de-en", "revision": commit}
    assert data["train"] == expected | {"split": "train"}
    assert data["test"] == expected | {"split": "test"}
    assert results(recipe.folder)["corpus"]["train"]["kept"] == 60
    read = [request.path for request in hub.requests if "/resolve/" in request.path]
    assert read and all(f"/resolve/{commit}/" in path for path in read)
    card = model_card(recipe.folder, "alice/model")
    assert card.data.datasets == [dataset.id]
    assert card.data.license == "cc-by-4.0"
    assert card.data.eval_results[0].dataset_type == dataset.id
    assert card.data.eval_results[0].dataset_revision == commit
    assert card.data.eval_results[0].dataset_config == "de-en"
    assert (
        f"`{dataset.id}`, configuration `de-en`, split `train` at revision `{commit}`: 60 of 60" in card.text
    )


def test_a_resumed_run_keeps_its_commit_when_the_branch_has_moved_on(dataset, recipe):
    commit = dataset.head()
    train(recipe("--max_steps", "1", "--dataset_revision", "main"))
    later = dataset.commit(files(train_size=30))
    with pytest.raises(ValueError) as caught:
        train(recipe("--resume", "true", "--dataset_revision", later))
    assert str(caught.value) == (
        f"`data.dataset_revision` is '{later}', but the run in '{recipe.folder}' that is to be resumed has '{commit}'; "
        "give it the same value or choose another `--output_dir`."
    )
    train(recipe("--resume", "true", "--data.license", "mit"))
    recorded = load_recipe(recipe.folder / "recipe.yaml").data
    assert (recorded.dataset_revision, recorded.license) == (commit, "mit")
    assert results(recipe.folder)["corpus"]["train"]["kept"] == 60
    assert results(recipe.folder)["training"]["resumed_at_step"] == 1


def test_a_branch_and_a_short_commit_stand_for_a_commit(dataset, recipe):
    first = dataset.head()
    HfApi().create_branch(dataset.id, repo_type="dataset", branch="exp/2")
    branch = dataset.commit(files(train_size=20), branch="exp/2")
    assert pin_dataset(recipe("--dataset_revision", "exp/2").data, None).dataset_revision == branch
    assert (
        load_split(pin_dataset(recipe("--dataset_revision", "exp/2").data, None), "train", 1).num_rows == 20
    )
    recorded = pin_dataset(recipe("--dataset_revision", first).data, None)
    assert recorded.dataset_revision == first
    assert pin_dataset(recipe("--dataset_revision", first[:7]).data, recorded).dataset_revision == first
    with pytest.raises(HubError, match="Invalid rev id: 0000000"):
        pin_dataset(recipe("--dataset_revision", "0" * 7).data, recorded)


def test_a_stream_is_read_from_the_hub_too(recipe):
    pinned = pin_dataset(recipe("--streaming", "true").data, None)
    assert sum(1 for _ in load_split(pinned, "train", 1)) == 60


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_a_dataset_of_several_shards_is_read_whole_and_goes_on_exactly(dataset, recipe, tmp_path, streaming):
    shards = {
        f"de-en/train-0000{number}-of-00003.parquet": parquet("train", 20 + number) for number in range(3)
    }
    dataset.commit({**files(), "de-en/train-00000-of-00001.parquet": None, **shards})

    def run(name, *overrides):
        options = [f"--output_dir={tmp_path / name}", "--streaming", streaming, *overrides]
        train(load_recipe(recipe.path, options))
        return load_file(tmp_path / name / "model.safetensors")

    whole = run("whole", "--max_steps", "9")
    assert results(tmp_path / "whole")["corpus"]["train"]["kept"] >= 63
    for stop in ("1", "5") if streaming == "true" else ("4",):
        run(f"stopped{stop}", "--max_steps", stop)
        resumed = run(f"stopped{stop}", "--max_steps", "9", "--resume", "true")
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def refusal(recipe, *overrides) -> str:
    with pytest.raises((ValueError, HubError)) as caught:
        train(recipe(*overrides))
    assert not (recipe.folder / "recipe.yaml").exists()
    return str(caught.value)


def test_what_the_hub_does_not_have_is_named(hub, dataset, recipe):
    name = dataset.id
    # The recipe's key precedes the sentence that any command has for it.
    assert refusal(recipe, "--dataset", "alice/no-such-data").startswith(
        "`data.dataset` 'alice/no-such-data' cannot be read: There is no dataset 'alice/no-such-data' on "
    )
    assert refusal(recipe, "--dataset", "./no/such/folder") == (
        "`data.dataset` must be a local folder or a dataset of the Hub, but './no/such/folder' is neither."
    )
    assert refusal(recipe, "--dataset_revision", "v9") == (
        f"`data.dataset` '{name}' cannot be read: 404 Client Error. Revision Not Found for url: "
        f"{hub.endpoint}/api/datasets/{name}/revision/v9. Invalid rev id: v9"
    )
    assert refusal(recipe, "--dataset_config", "de-ne") == (
        "`data`, train split: BuilderConfig 'de-ne' not found. Available: ['de-en', 'fr-en']"
    )
    assert refusal(recipe, "--validation_split", "dev") == (
        "`data`, validation split: Unknown split \"dev\". Should be one of ['train', 'validation', 'test']."
    )
    assert "`source_language` must be one of the languages or columns de, en, but is fr" in refusal(
        recipe, "--source_language", "fr"
    )


def test_a_dataset_of_the_hub_that_one_may_not_read_is_named(hub, dataset, recipe, monkeypatch):
    dataset.private = True
    monkeypatch.delenv("HF_TOKEN")
    sentence = refusal(recipe)
    assert sentence.startswith(
        f"`data.dataset` '{dataset.id}' cannot be read: There is no dataset '{dataset.id}' on "
    )
    assert "it is private and there is no token" in sentence
    dataset.private, dataset.gated = False, True
    sentence = refusal(recipe)
    assert sentence.startswith(f"`data.dataset` '{dataset.id}' cannot be read: ") and "gated repo" in sentence
    assert sentence.endswith("You must have access to it and be authenticated to access it. Please log in.")


def test_a_licence_that_the_card_of_the_dataset_on_the_hub_rules_out(dataset, recipe):
    dataset.commit(files(card=CARD.replace("[cc-by-4.0]", "cc-by-nc-4.0")))
    assert refusal(recipe, "--publishing.license", "mit") == (
        "`publishing.license` must not permit commercial use, because the licence of the training data, cc-by-nc-4.0, does "
        "not, but is 'mit'; leave it out or write 'cc-by-nc-4.0'."
    )
    # A licence of one's own is stated.
    assert (
        pin_dataset(recipe("--publishing.license", "mit", "--data.license", "mit").data, None).license
        == "mit"
    )
    dataset.commit(files(card=CARD.replace("[cc-by-4.0]", "[mit, cc-by-4.0]")))
    assert pin_dataset(recipe().data, None).license is None


def test_a_cached_dataset_of_the_hub_serves_offline(dataset, recipe):
    commit = dataset.head()
    load_split(pin_dataset(recipe().data, None), "train", 1)
    code = f"""
from vaswani_hf.cli import main
arguments = ["train", {str(recipe.path)!r}, "--output_dir", {str(recipe.folder)!r}]
print([main([*arguments, *more]) for more in (["--dataset", "alice/none"], ["--dataset_revision", "{"0" * 40}"], [])])
"""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300
    )
    assert result.stdout.endswith("[1, 1, 0]\n"), result.stderr
    sentences = [line for line in result.stderr.splitlines() if line.startswith("vaswani: ")]
    assert sentences == [
        "vaswani: `data.dataset` 'alice/none' must be in the cache while HF_HUB_OFFLINE is set, but is not; run once without "
        "it.",
        f"vaswani: `data`, train split: `dataset_revision` {'0' * 40} of '{dataset.id}' could not be fetched, and the cache "
        f"holds only {commit}; try again when the Hub can be reached.",
    ]
    assert load_recipe(recipe.folder / "recipe.yaml").data.dataset_revision == commit


def test_a_folder_is_no_dataset_of_the_hub_even_if_it_is_called_like_one(
    dataset, recipe, tmp_path, monkeypatch
):
    for path, content in files().items():
        (tmp_path / dataset.id / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / dataset.id / path).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    train(recipe())
    monkeypatch.chdir("/")
    recorded = load_recipe(recipe.folder / "recipe.yaml").data
    assert (recorded.dataset, recorded.dataset_revision) == (f"./{dataset.id}", None)
    # The folder may be elsewhere when the run goes on.
    (tmp_path / dataset.id).rename(tmp_path / dataset.id.split("/")[1])
    moved = ("--dataset", str(tmp_path / dataset.id.split("/")[1]), "--resume", "true", "--max_steps", "3")
    train(recipe(*moved))
    card = model_card(recipe.folder, "alice/model")
    assert card.data.datasets is None
    assert f"`{dataset.id.split('/')[1]}`, configuration `de-en`" in card.text
    assert dataset.id not in str(card)
