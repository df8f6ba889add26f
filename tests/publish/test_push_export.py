"""Exports are pushed to repositories of their own, with a card that names the model that was exported."""

import json

import pytest
from factories import files_in
from huggingface_hub import HfApi, ModelCard

from vaswani_hf.convert import export
from vaswani_hf.convert.export import EXPORT_FORMATS, format_of_export
from vaswani_hf.publish.staging import stage_repository


@pytest.fixture
def exported(hub, tiny_checkpoint, repo_id, tmp_path):
    """An export of a checkpoint that is on the Hub with a licence, the repository of the checkpoint, and
    a name for the repository of the export.
    """
    stage_repository(tiny_checkpoint(), tmp_path / "staged", repo_id, license="cc-by-4.0")
    hub.create_repository(repo_id).commit(files_in(tmp_path / "staged"))
    export(repo_id, tmp_path / "marian", "marian")
    return tmp_path / "marian", repo_id, f"{repo_id}-marian"


def test_an_export_is_pushed_as_a_repository_of_its_own(hub, exported, vaswani):
    output, base_model, name = exported
    code, out, _ = vaswani("push", output, name, "--base_model", base_model, "--private", "--tag", "v1")
    repository = hub.repository(name)
    checked = f"checked: downloaded at {repository.head()[:7]}, same files\ntagged v1\n"
    assert code == 0 and out.endswith(checked)
    assert repository.private and len(repository.titles()) == 2
    files = repository.files()
    assert {path: files[path] for path in files_in(output)} == files_in(output)
    # The export has the licence file of the checkpoint.
    assert b"cc-by-4.0" in files["LICENSE"]
    assert files["LICENSE"] == hub.repository(base_model).files()["LICENSE"]
    data = HfApi().model_info(name).card_data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == (base_model, "quantized")
    assert (data["license"], data["pipeline_tag"]) == ("cc-by-4.0", "translation")
    assert data["library_name"] == "transformers" and data["tags"] == ["translation", "vaswani", "marian"]
    again = vaswani("push", output, name, "--base_model", base_model)
    assert again[1].startswith("nothing has changed since ")
    # A push deletes the records and the tokenizers of an earlier export, and keeps the files of a user.
    earlier = ("calibration.json", "added_tokens.json", "target_tokenizer/tokenizer.json")
    repository.commit({**dict.fromkeys(earlier, b"{}"), "notes.txt": b"mine"})
    assert vaswani("push", output, name, "--base_model", base_model)[0] == 0
    assert repository.files() == files | {"notes.txt": b"mine"}


def test_a_push_to_ctranslate2_deletes_the_vocabularies_of_an_earlier_export(
    hub, exported, tmp_path, vaswani
):
    _, base_model, name = exported
    (tmp_path / "ctranslate2").mkdir()
    for file in ("model.bin", "source_vocabulary.json", "target_vocabulary.json"):
        (tmp_path / "ctranslate2" / file).write_bytes(b"")
    hub.create_repository(name).commit({"shared_vocabulary.json": b"[]"})
    assert vaswani("push", tmp_path / "ctranslate2", name, "--base_model", base_model)[0] == 0
    files = {"model.bin", "source_vocabulary.json", "target_vocabulary.json"}
    assert {file for file in hub.repository(name).files() if "bin" in file or "vocabulary" in file} == files


def test_the_card_in_an_exported_folder_is_kept(hub, exported, vaswani):
    output, base_model, name = exported
    (output / "README.md").write_text(f"---\nlicense: mit\nbase_model: {base_model}\n---\nBy hand.\n")
    assert vaswani("push", output, name)[0] == 0
    card = ModelCard(hub.repository(name).files()["README.md"].decode())
    assert card.text.strip() == "By hand."
    assert (card.data.license, card.data.base_model_relation) == ("mit", "quantized")


def test_a_wrong_push_of_an_export_is_one_sentence(hub, exported, vaswani):
    output, base_model, name = exported
    before = hub.repository(base_model).head()
    # The repository of the checkpoint is refused even if `--base_model` names another repository.
    code, _, sentence = vaswani("push", output, base_model, "--base_model", "alice/parent")
    assert code == 2 and "must not be the repository of a checkpoint, but" in sentence
    assert hub.repository(base_model).head() == before
    # A pull request overwrites nothing.
    assert vaswani("push", output, base_model, "--base_model", base_model, "--create_pr")[0] == 0
    assert hub.repository(base_model).head() == before
    for words, expected, message in (
        ((), 1, "An export needs the repository of the model that was exported; push the checkpoint first,"),
        (("--license", "mit"), 2, "`--license` is for a checkpoint"),
        (("--base_model", "alice/nothing"), 2, "There is no repository 'alice/nothing'"),
    ):
        code, _, sentence = vaswani("push", output, name, *words)
        assert code == expected and sentence.startswith(message)
    assert ("model", name) not in hub.repositories


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
