"""Training data from the Hub: the run records and keeps one commit, and errors name the commit."""

import io
import json

import pyarrow
import pyarrow.parquet
import pytest
import torch
from factories import write_recipe
from safetensors.torch import load_file
from sentences import contains, refused, rows

from vaswani_hf.checkpoint.hub import HubError
from vaswani_hf.data.dataset_hub import open_dataset, pin_dataset
from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.model.errors_vaswani import InvalidValueError
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.recipe.data_record import data_record
from vaswani_hf.tasks.translation import TranslationTask
from vaswani_hf.training import train

CARD = """---
license: [cc-by-4.0]
configs:
- config_name: de-en
  data_files: [{split: train, path: de-en/train*}, {split: validation, path: de-en/validation*},
    {split: test, path: de-en/test*}]
---
"""
CHANGES = {
    "tokenizer.vocab_size": 270,
    "training.max_steps": 2,
    "training.save_steps": 1,
    "training.gradient_accumulation_steps": 1,
    "decoding.num_beams": 1,
    "decoding.max_length": 4,
}
DATA = {"source_language": "en", "target_language": "de", "dataset_config": "de-en", "max_length": 64}


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
    """A dataset of alice under a new name, so that no cache contains the dataset."""
    repository = hub.create_repository(repo_id, type="dataset")
    repository.commit(files())
    return repository


@pytest.fixture
def recipe(dataset, tmp_path):
    """The recipe with these options, separated by spaces."""
    path = write_recipe(tmp_path / "recipe.yaml", CHANGES, data=DATA | {"dataset": dataset.id})

    def recipe(options=""):
        return load_recipe(path, [f"--output_dir={tmp_path / 'run'}", *options.split()])

    recipe.path, recipe.folder = path, tmp_path / "run"
    return recipe


def pinned(recipe, options="", recorded=None):
    """The section `data` of the recipe with these options, with the commit of the dataset."""
    return pin_dataset(recipe(options).data, recorded)


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
    read = [path for path in hub.requests if "/resolve/" in path]
    assert read and all(f"/resolve/{commit}/" in path for path in read)
    card = model_card(recipe.folder, "alice/model")
    assert card.data.datasets == [dataset.id]
    assert card.data.license == "cc-by-4.0"
    result = card.data.eval_results[0]
    assert (result.dataset_type, result.dataset_config) == (dataset.id, "de-en")
    assert result.dataset_revision == commit
    text = f"`{dataset.id}`, configuration `de-en`, split `train` at revision `{commit}`: 60 of 60"
    assert text in card.text


def test_a_resumed_run_keeps_its_commit_when_the_branch_has_moved_on(dataset, recipe):
    commit = dataset.head()
    train(recipe("--max_steps=1 --dataset_revision=main"))
    later = dataset.commit(files(train_size=30))
    with refused(
        f"`data.dataset_revision` is '{later}', but the run in '{recipe.folder}' that is to be resumed has '{commit}'; "
        "give `data.dataset_revision` the value of that run, or choose another `--output_dir`."
    ):
        train(recipe(f"--resume=true --dataset_revision={later}"))
    train(recipe("--resume=true --data.license=mit"))
    recorded = load_recipe(recipe.folder / "recipe.yaml").data
    assert (recorded.dataset_revision, recorded.license) == (commit, "mit")
    assert results(recipe.folder)["corpus"]["train"]["kept"] == 60
    assert results(recipe.folder)["training"]["resumed_at_step"] == 1


def test_a_branch_and_a_short_commit_stand_for_a_commit(dataset, recipe):
    first = dataset.head()
    branch = dataset.commit(files(train_size=20), ref="exp/2")
    section = pinned(recipe, "--dataset_revision=exp/2")
    assert section.dataset_revision == branch
    assert TranslationTask(section).load_split("train").num_rows == 20
    recorded = pinned(recipe, f"--dataset_revision={first}")
    assert recorded.dataset_revision == first
    assert pinned(recipe, f"--dataset_revision={first[:7]}", recorded).dataset_revision == first
    with pytest.raises(HubError, match="Invalid rev id: 0000000"):
        pinned(recipe, "--dataset_revision=0000000", recorded)


def test_a_streamed_dataset_of_several_shards_is_read_whole_and_goes_on_exactly(dataset, recipe, tmp_path):
    shards = {f"de-en/train-{number}.parquet": parquet("train", 20 + number) for number in range(3)}
    dataset.commit({"de-en/train-00000-of-00001.parquet": None, **shards})

    def run(name, options):
        words = f"--output_dir={tmp_path / name} --streaming=true --save_steps=9 {options}"
        train(load_recipe(recipe.path, words.split()))
        return load_file(tmp_path / name / "model.safetensors")

    whole = run("whole", "--max_steps=7")
    assert results(tmp_path / "whole")["corpus"]["train"]["kept"] >= 63
    run("stopped", "--max_steps=5")
    resumed = run("stopped", "--max_steps=7 --resume=true")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def refusal(recipe, options="") -> str:
    with pytest.raises((ValueError, HubError)) as caught:
        train(recipe(options))
    assert not (recipe.folder / "recipe.yaml").exists()
    return str(caught.value)


REFUSED = """
--dataset=alice/no-such-data | The dataset 'alice/no-such-data' of `data.dataset` cannot be read: There is no dataset 'alice/no-such-data' on
--dataset=./no/such/folder | `data.dataset` must be a local folder or a dataset of the Hub, but './no/such/folder' is neither.
--dataset_revision=v9 | The dataset 'NAME' of `data.dataset` cannot be read: 404 Client Error. Revision Not Found for url: HUB/api/datasets/NAME/revision/v9. Invalid rev id: v9
--dataset_config=de-ne | `data`, train split: `dataset` 'NAME' cannot be opened: BuilderConfig 'de-ne' not found. Available: ['de-en']
--validation_split=dev | `data`, validation split: `dataset` 'NAME' cannot be opened: Unknown split "dev". Should be one of ['train', 'validation', 'test'].
--source_language=fr | `source_language` must be one of the languages or columns de, en, but is fr
"""


def test_absent_data_of_the_hub_are_named(hub, dataset, recipe):
    for options, parts in rows(REFUSED):
        said = refusal(recipe, options)
        assert contains(said, parts.replace("NAME", dataset.id).replace("HUB", hub.endpoint)), said


def test_a_dataset_of_the_hub_that_one_may_not_read_is_named(dataset, recipe, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    cannot_be_read = f"The dataset '{dataset.id}' of `data.dataset` cannot be read: "
    dataset.private = True
    parts = f"{cannot_be_read}There is no dataset '{dataset.id}' on ... it is private and there is no token"
    assert contains(refusal(recipe), parts)
    dataset.private, dataset.gated = False, True
    assert contains(refusal(recipe), f"{cannot_be_read} ... gated repo")


def test_a_licence_that_the_card_of_the_dataset_on_the_hub_rules_out(dataset, recipe):
    dataset.commit(files(card=CARD.replace("[cc-by-4.0]", "cc-by-nc-4.0")))
    assert refusal(recipe, "--publishing.license=mit") == (
        "`publishing.license` must not be a licence for commercial use, but is 'mit', and the training data or the "
        "imported checkpoint has the licence cc-by-nc-4.0; leave `publishing.license` out or write 'cc-by-nc-4.0'."
    )
    # The licence in the recipe takes precedence over the licence in the card.
    assert pinned(recipe, "--publishing.license=mit --data.license=mit").license == "mit"
    dataset.commit(files(card=CARD.replace("[cc-by-4.0]", "[mit, cc-by-4.0]")))
    assert pinned(recipe).license is None


def test_a_cached_dataset_of_the_hub_serves_offline(dataset, recipe, vaswani, monkeypatch):
    commit = dataset.head()
    TranslationTask(pinned(recipe)).load_split("train")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)

    def sentence(*words):
        code, _, said = vaswani("train", recipe.path, f"--output_dir={recipe.folder}", *words)
        assert code == (2 if said else 0)
        return said

    assert sentence("--dataset=alice/none") == (
        "`data.dataset` 'alice/none' must be in the cache while HF_HUB_OFFLINE is set, but is not; run once without HF_HUB_OFFLINE."
    )
    assert sentence(f"--dataset_revision={'0' * 40}") == (
        f"`data`, train split: `dataset_revision` {'0' * 40} of '{dataset.id}' could not be fetched, and the cache "
        f"holds only {commit}; try again when the Hub can be reached."
    )
    assert sentence() == ""
    assert load_recipe(recipe.folder / "recipe.yaml").data.dataset_revision == commit


def test_a_damaged_file_of_a_local_dataset_is_one_sentence(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"translation": {"en": "one"')
    with pytest.raises(InvalidValueError, match="^`dataset` '.*' cannot be read: JSON parse error: [^\n]+$"):
        open_dataset(str(tmp_path), None, split="train", revision=None, streaming=False)


def test_a_folder_is_no_dataset_of_the_hub_even_if_it_is_called_like_one(
    dataset, recipe, tmp_path, monkeypatch
):
    for path, content in files().items():
        (tmp_path / dataset.id / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / dataset.id / path).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    section = pinned(recipe)
    assert (section.dataset, section.dataset_revision) == (f"./{dataset.id}", None)
    record = data_record(section).train
    assert (record.name, record.dataset) == (dataset.id.split("/")[1], None)
