"""Exports are pushed to repositories of their own, with a card that names the model that was exported."""

import json

import pytest
from factories import files_in
from huggingface_hub import HfApi, ModelCard

from vaswani_hf.convert import export
from vaswani_hf.convert.export import EXPORT_FORMATS, format_of_export


@pytest.fixture
def base(tiny_checkpoint, repo_id, vaswani):
    """A checkpoint that is on the Hub with a licence: its folder and its repository."""
    folder = tiny_checkpoint()
    assert vaswani("push", folder, repo_id, "--license", "cc-by-4.0")[0] == 0
    return folder, repo_id


def test_an_export_is_pushed_as_a_repository_of_its_own(hub, base, tmp_path, vaswani):
    folder, base_model = base
    output = tmp_path / "marian"
    export(folder, output, "marian")
    name = f"{base_model}-marian"
    code, out, _ = vaswani("push", output, name, "--base_model", base_model, "--private", "--tag", "v1")
    repository = hub.repository(name)
    assert code == 0 and out.endswith(
        f"checked: downloaded at {repository.head()[:7]}, same files\ntagged v1\n"
    )
    assert repository.private and len(repository.titles()) == 2
    files = repository.files()
    assert {path: files[path] for path in files_in(output)} == files_in(output)
    data = HfApi().model_info(name).card_data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == (base_model, "quantized")
    assert (data["license"], data["pipeline_tag"]) == ("cc-by-4.0", "translation")
    assert data["library_name"] == "transformers" and data["tags"] == ["translation", "vaswani", "marian"]
    again = vaswani("push", output, name, "--base_model", base_model)
    assert again[1].startswith("nothing has changed since ")


def test_an_export_has_the_licence_file_of_the_checkpoint(hub, base, tmp_path, vaswani):
    _, base_model = base
    text = hub.repository(base_model).files()["LICENSE"]
    assert b"cc-by-4.0" in text
    output = tmp_path / "marian"
    export(base_model, output, "marian")
    assert (output / "LICENSE").read_bytes() == text
    name = f"{base_model}-marian"
    assert vaswani("push", output, name, "--base_model", base_model)[0] == 0
    assert hub.repository(name).files()["LICENSE"] == text


def test_the_card_in_an_exported_folder_is_kept(hub, base, tmp_path, vaswani):
    folder, base_model = base
    output = tmp_path / "marian"
    export(folder, output, "marian")
    (output / "README.md").write_text(f"---\nlicense: mit\nbase_model: {base_model}\n---\nBy hand.\n")
    name = f"{base_model}-marian"
    assert vaswani("push", output, name)[0] == 0
    card = ModelCard(hub.repository(name).files()["README.md"].decode())
    assert card.text.strip() == "By hand."
    assert (card.data.license, card.data.base_model_relation) == ("mit", "quantized")


def test_a_wrong_push_of_an_export_is_one_sentence(hub, base, tmp_path, vaswani):
    folder, base_model = base
    output = tmp_path / "marian"
    export(folder, output, "marian")
    code, _, sentence = vaswani("push", output, f"{base_model}-marian")
    assert code == 1 and sentence == (
        "An export needs the repository of the model that was exported; push the checkpoint first, and name its repository "
        "with `--base_model user/name`."
    )
    code, _, sentence = vaswani("push", output, f"{base_model}-marian", "--license", "mit")
    assert code == 2 and sentence.startswith("`--license` is for a checkpoint")
    code, _, sentence = vaswani("push", output, f"{base_model}-marian", "--base_model", "alice/nothing")
    assert code == 2 and "alice/nothing" in sentence
    assert ("model", f"{base_model}-marian") not in hub.repositories


def test_each_format_recognises_its_folders(tmp_path, tiny_checkpoint):
    assert format_of_export(tiny_checkpoint()) is None
    for entry in EXPORT_FORMATS.values():
        folder = tmp_path / entry.name
        path = folder / entry.main_file.replace("*", "model")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        if entry.model_type:
            assert format_of_export(folder) is None
            (folder / "config.json").write_text(json.dumps({"model_type": entry.model_type}))
        assert format_of_export(folder) is entry
