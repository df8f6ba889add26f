"""A damaged or missing file of a checkpoint gives an error of one sentence with the file, the fault and the
remedy.
"""

import json

import pytest
from factories import loaded_recipe
from safetensors.torch import load_file, save_file

from vaswani_hf.data.dataset_hub import pin_dataset
from vaswani_hf.publish.model_card import check_card, model_card
from vaswani_hf.tasks import TASKS

load_split = TASKS["translation"].load_split

AGAIN = "copy or download it again."
NO_OBJECT = "must hold a JSON object, but does not: it is damaged; " + AGAIN
NO_FILE = "must be a file, but is a folder; copy or download the checkpoint again."


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


FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "target_tokenizer/tokenizer_config.json",
)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_no_json(hub, repo_id, tiny_checkpoint, vaswani, file):
    folder = tiny_checkpoint(two_vocabularies=True)
    content = (folder / file).read_bytes()
    for how in ("[]", "half"):
        break_file(folder / file, how)
        refuses(vaswani, hub, repo_id, folder, f"{file} of '{folder}' {NO_OBJECT}")
        (folder / file).write_bytes(content)
    break_file(folder / file, "a folder")
    refuses(vaswani, hub, repo_id, folder, f"{file} of '{folder}' {NO_FILE}")


NOT_NAMED = "tokenizer_config.json of '{folder}' must name the `%s` of the tokenizer, but does not; " + AGAIN
MISSING = "'{folder}' must hold the tokenizer of the checkpoint, but has no %s; " + AGAIN


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("tokenizer.json", "{}", "tokenizer.json of '{folder}' describes no tokenizer; " + AGAIN),
        ("tokenizer_config.json", "{}", NOT_NAMED % "pad_token"),
        ("tokenizer_config.json", '{"pad_token": "<pad>"}', NOT_NAMED % "eos_token"),
        ("tokenizer_config.json", "nothing", MISSING % "tokenizer_config.json"),
        ("tokenizer.json", "nothing", MISSING % "tokenizer.json"),
    ],
)
def test_a_damaged_tokenizer(hub, repo_id, tiny_checkpoint, vaswani, file, content, sentence):
    folder = tiny_checkpoint()
    break_file(folder / file, content)
    refuses(vaswani, hub, repo_id, folder, sentence.format(folder=folder))


RECORDS = {
    '{"test": {"bleu": "x"}}': ("results.json", "must hold what `vaswani train` writes, but does not ("),
    '{"training": {"seconds": "x"}}': (
        "results.json",
        "must hold what `vaswani train` writes, but does not (",
    ),
    "steps: 3\n": ("recipe.yaml", "cannot be used: `steps` is no key of a recipe"),
}


@pytest.mark.parametrize("content", RECORDS)
def test_a_record_that_cannot_be_used(hub, repo_id, tiny_checkpoint, vaswani, content):
    folder = tiny_checkpoint()
    file, reason = RECORDS[content]
    (folder / file).write_text(content)
    code, _, sentence = vaswani("push", folder, repo_id)
    assert code == 1 and sentence.startswith(f"The record '{folder / file}' {reason}")
    if file == "results.json":
        assert sentence.endswith("); restore it or remove it.")
    assert ("model", repo_id) not in hub.repositories


def test_results_that_are_null(tiny_checkpoint):
    folder = tiny_checkpoint()
    training = {"seconds": None, "versions": None}
    content = {"training": training, "test": {"bleu": None, "chrf": None}, "data": None}
    (folder / "results.json").write_text(json.dumps(content))
    assert "BLEU" not in str(model_card(folder, "alice/x"))


def test_a_card_that_is_not_utf8(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes("Übersetzer".encode("latin-1"))
    with pytest.raises(ValueError) as caught:
        check_card(path)
    assert str(caught.value) == (
        f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to get a new card."
    )
    path.write_text("Übersetzer", encoding="utf-8")
    check_card(path)


def test_a_damaged_repository(hub, repo_id, tiny_checkpoint, vaswani):
    translate = ("translate", repo_id, "--text", "der Hund")
    repository = hub.create_repository(repo_id)
    sentence = f"`model` must be a checkpoint, but '{repo_id}' has no config.json; check the name, or copy the whole checkpoint again."
    assert vaswani(*translate) == (2, "", sentence)
    repository.commit({"config.json": b'{"model_type": "bert"}'})
    code, _, sentence = vaswani(*translate)
    assert code == 2 and f"but '{repo_id}' has the model type 'bert'" in sentence
    content = {path.name: path.read_bytes() for path in tiny_checkpoint().iterdir()}
    for file in ("tokenizer_config.json", "tokenizer.json"):
        repository.commit(content | {file: b"{"})
        assert vaswani(*translate) == (1, "", f"{file} of '{repo_id}' {NO_OBJECT}")


def test_what_is_no_folder(hub, repo_id, tiny_checkpoint, vaswani, tmp_path):
    nothing, file = tmp_path / "nothere", tiny_checkpoint() / "config.json"
    for path in (nothing, file):
        sentence = f"`model` must be a checkpoint folder, but there is no folder '{path}'; check the name."
        assert vaswani("push", path, repo_id) == (2, "", sentence)
    sentence = f"`model` must be a checkpoint folder or user/name on the Hub, but there is no folder '{file}'; check the name."
    assert vaswani("translate", file, "--text", "der Hund") == (2, "", sentence)
    assert not hub.requests


def test_parameters_are_counted_once(tiny_checkpoint):
    folder = tiny_checkpoint()
    total = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    save_file(load_file(folder / "model.safetensors"), folder / "model-00001-of-00001.safetensors")
    assert f"| parameters | {total:,} |" in str(model_card(folder, "alice/x"))


def recipe_of(dataset, tmp_path):
    data = {"source_language": "en", "target_language": "de", "dataset": dataset}
    return loaded_recipe(tmp_path / "recipe.yaml", data=data)


def test_a_dataset_with_several_licences(hub, repo_id, tmp_path):
    card = b"---\nlicense: [mit, cc-by-nc-4.0]\n---\n"
    hub.create_repository(repo_id, type="dataset").commit({"README.md": card})
    assert pin_dataset(recipe_of(repo_id, tmp_path).data, None).license is None


def test_a_dataset_whose_card_is_damaged(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"translation": {"en": "one", "de": "eins"}}\n')
    (folder / "README.md").write_text("---\nlicense: [mit\nconfigs: {\n---\n")
    with pytest.raises(ValueError) as caught:
        load_split(recipe_of(str(folder), tmp_path).data, "train", 1)
    assert str(caught.value) == (
        f"the card (README.md) of the dataset '{folder}' must begin with YAML between two lines of ---, but the YAML is "
        "damaged; correct the card, or choose another `data.dataset_revision`."
    )
