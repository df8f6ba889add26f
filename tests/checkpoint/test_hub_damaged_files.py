"""Damaged and missing files of a checkpoint: one sentence with the file, what is wrong and the remedy."""

import json

import pytest
from safetensors.torch import load_file, save_file

from vaswani_hf.data.dataset_hub import pin_dataset
from vaswani_hf.publish.model_card import check_card, model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks import TASKS

load_split = TASKS["translation"].load_split

AGAIN = "copy or download it again."
NO_OBJECT = "must hold a JSON object, but does not: it is damaged; " + AGAIN
NO_FILE = "must be a file, but is a folder; copy or download the checkpoint again."
RECIPE = """
output_dir: out
data: {source_language: en, target_language: de, dataset: DATASET}
training: {max_steps: 2}
"""


def break_file(path, how):
    content = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "half":
        path.write_bytes(content[: len(content) // 2])
    elif how != "nothing":
        path.write_text(how)


def refuses(vaswani, hub, repo_id, folder, sentence):
    assert vaswani("push", folder, repo_id) == (1, "", sentence)
    assert vaswani("translate", folder, "--text", "der Hund") == (1, "", sentence)
    assert ("model", repo_id) not in hub.repositories and not hub.requests


FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize("file", [*FILES, *(f"target_tokenizer/{name}" for name in FILES[:2])])
def test_a_file_that_is_no_json(hub, repo_id, tiny_checkpoint, vaswani, file):
    folder = tiny_checkpoint(two_vocabularies=True)
    content = (folder / file).read_bytes()
    for how in ("{", "[]", "half", "a folder"):
        break_file(folder / file, how)
        refuses(
            vaswani,
            hub,
            repo_id,
            folder,
            f"{file} of '{folder}' {NO_FILE if how == 'a folder' else NO_OBJECT}",
        )
        (folder / file).rmdir() if how == "a folder" else (folder / file).unlink()
        (folder / file).write_bytes(content)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("tokenizer.json", "{}", "tokenizer.json of '{folder}' describes no tokenizer; " + AGAIN),
        (
            "tokenizer_config.json",
            "{}",
            "tokenizer_config.json of '{folder}' must name the `pad_token` of the tokenizer, but does not; "
            + AGAIN,
        ),
        (
            "tokenizer_config.json",
            '{"pad_token": "<pad>"}',
            "tokenizer_config.json of '{folder}' must name the `eos_token` of the tokenizer, but does not; "
            + AGAIN,
        ),
        (
            "tokenizer_config.json",
            "nothing",
            "'{folder}' must hold the tokenizer of the checkpoint, but has no tokenizer_config.json; "
            + AGAIN,
        ),
        (
            "tokenizer.json",
            "nothing",
            "'{folder}' must hold the tokenizer of the checkpoint, but has no tokenizer.json; " + AGAIN,
        ),
    ],
)
def test_a_tokenizer_that_cannot_do_what_it_must(
    hub, repo_id, tiny_checkpoint, vaswani, file, content, sentence
):
    folder = tiny_checkpoint()
    break_file(folder / file, content)
    refuses(vaswani, hub, repo_id, folder, sentence.format(folder=folder))


@pytest.mark.parametrize("content", [{"test": {"bleu": "x"}}, {"training": {"seconds": "x"}}])
def test_results_of_another_kind(hub, repo_id, tiny_checkpoint, vaswani, content):
    folder = tiny_checkpoint()
    (folder / "results.json").write_text(json.dumps(content))
    code, _, sentence = vaswani("push", folder, repo_id)
    assert code == 1 and sentence.startswith(
        f"The record '{folder / 'results.json'}' must hold what `vaswani train` writes, but does not ("
    )
    assert sentence.endswith("); restore it or remove it.") and ("model", repo_id) not in hub.repositories


def test_results_that_are_null(tiny_checkpoint):
    folder = tiny_checkpoint()
    content = {
        "training": {"seconds": None, "versions": None},
        "test": {"bleu": None, "chrf": None},
        "data": None,
    }
    (folder / "results.json").write_text(json.dumps(content))
    assert "BLEU" not in str(model_card(folder, "alice/x"))


def test_a_card_that_is_not_utf8(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes("Übersetzer".encode("latin-1"))
    with pytest.raises(ValueError) as caught:
        check_card(path)
    assert str(caught.value) == (
        f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to have one made."
    )
    path.write_text("Übersetzer", encoding="utf-8")
    check_card(path)


def test_a_recipe_with_an_unknown_key_is_named(hub, repo_id, tiny_checkpoint, vaswani):
    folder = tiny_checkpoint()
    (folder / "recipe.yaml").write_text("steps: 3\n")
    code, _, sentence = vaswani("push", folder, repo_id)
    assert code == 1
    assert sentence.startswith(
        f"The record '{folder / 'recipe.yaml'}' cannot be used: `steps` is no key of a recipe"
    )
    assert ("model", repo_id) not in hub.repositories


def test_a_repository_without_a_checkpoint(hub, repo_id, vaswani):
    repository = hub.create_repository(repo_id)
    sentence = f"'{repo_id}' holds no checkpoint: it has no config.json."
    assert vaswani("translate", repo_id, "--text", "der Hund") == (1, "", sentence)
    repository.commit({"README.md": b"# Nothing\n"})
    assert vaswani("translate", repo_id, "--text", "der Hund") == (1, "", sentence)
    repository.commit({"config.json": b'{"model_type": "bert"}'})
    sentence = (
        f"`model` must be a checkpoint of this package, but '{repo_id}' is one of model type 'bert'; load it with "
        "transformers."
    )
    assert vaswani("translate", repo_id, "--text", "der Hund") == (1, "", sentence)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
def test_a_repository_whose_tokenizer_is_damaged_is_named(hub, repo_id, tiny_checkpoint, vaswani, file):
    content = {path.name: path.read_bytes() for path in tiny_checkpoint().iterdir()}
    hub.create_repository(repo_id).commit(content | {file: b"{"})
    assert vaswani("translate", repo_id, "--text", "der Hund") == (
        1,
        "",
        f"{file} of '{repo_id}' {NO_OBJECT}",
    )


def test_what_is_no_folder(hub, repo_id, tiny_checkpoint, vaswani, tmp_path):
    nothing, file = tmp_path / "nothere", tiny_checkpoint() / "config.json"
    sentence = f"There is no folder '{nothing}'; check the name of the checkpoint."
    assert vaswani("push", nothing, repo_id) == (1, "", sentence)
    sentence = f"There is no folder '{file}'; check the name of the checkpoint."
    assert vaswani("push", file, repo_id) == (1, "", sentence)
    sentence = f"`model` must be a checkpoint folder or user/name on the Hub, but is '{file}'."
    assert vaswani("translate", file, "--text", "der Hund") == (1, "", sentence)
    assert not hub.requests


def test_parameters_are_counted_once(tiny_checkpoint):
    folder = tiny_checkpoint()
    total = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    save_file(load_file(folder / "model.safetensors"), folder / "model-00001-of-00001.safetensors")
    assert f"| parameters | {total:,} |" in str(model_card(folder, "alice/x"))


def test_a_dataset_with_several_licences(hub, repo_id, tmp_path):
    card = b"---\nlicense: [mit, cc-by-nc-4.0]\n---\n"
    hub.create_repository(repo_id, type="dataset").commit({"README.md": card})
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("DATASET", repo_id))
    assert pin_dataset(load_recipe(tmp_path / "recipe.yaml").data, None).license is None


def test_a_dataset_whose_card_is_damaged(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"translation": {"en": "one", "de": "eins"}}\n')
    (folder / "README.md").write_text("---\nlicense: [mit\nconfigs: {\n---\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("DATASET", str(folder)))
    with pytest.raises(ValueError) as caught:
        load_split(load_recipe(tmp_path / "recipe.yaml").data, "train", 1)
    assert str(caught.value) == (
        f"the card (README.md) of the dataset '{folder}' must begin with YAML between two lines of ---, but that is "
        "damaged; correct it, or take another `data.dataset_revision`."
    )
