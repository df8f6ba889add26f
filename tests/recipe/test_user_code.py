"""The key `model.code` and the option `--code`: which files are executed, and when."""

import pickle

import pytest
from factories import write_recipe

from vaswani_hf.checkpoint.manifest import read_manifest
from vaswani_hf.model.extension_vaswani import ATTENTIONS
from vaswani_hf.recipe import load_recipe
from vaswani_hf.recipe.published import published_recipe
from vaswani_hf.training.resume import refuse_another_run

CODE = """
from vaswani_hf import VaswaniAttention, register_attention


class {name}(VaswaniAttention):
    pass


register_attention("{name}", {name})
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The path of a recipe that names a file beside itself; the registry forgets its classes after the
    test.
    """
    monkeypatch.setattr(ATTENTIONS, "classes", dict(ATTENTIONS.classes))
    monkeypatch.setattr("vaswani_hf.user_code._executed", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.py").write_text(CODE.format(name="Mine"))
    keys = {"model.code": "mine.py", "model.attention_score": "Mine"}
    return write_recipe(tmp_path / "folder" / "recipe.yaml", keys)


def test_the_file_is_relative_to_the_recipe_and_on_the_command_line_to_the_current_folder(recipe, tmp_path):
    assert load_recipe(recipe).model.code == str(tmp_path / "folder" / "mine.py")
    assert ATTENTIONS.classes.pop("Mine").__name__ == "Mine"
    (tmp_path / "extending.yaml").write_text("extends: folder/recipe.yaml")
    assert load_recipe(tmp_path / "extending.yaml").model.attention_score == "Mine"
    (tmp_path / "other.py").write_text(CODE.format(name="Other"))
    words = ["--code", "other.py", "--attention_score=Other"]
    found = load_recipe(recipe, words).model
    assert (found.code, found.attention_score) == (str(tmp_path / "other.py"), "Other")


def test_a_record_never_executes_its_file(recipe, tmp_path):
    loaded = load_recipe(recipe)
    recorded = tmp_path / "recorded.yaml"
    for text in (loaded.to_yaml(), published_recipe(loaded).to_yaml()):
        recorded.write_text(text)
        (tmp_path / "folder" / "mine.py").write_text("raise SystemExit")
        assert load_recipe(recorded, is_recorded=True).model.attention_score == "Mine"
    assert published_recipe(loaded).model.code == "mine.py"
    # Another process gets the recipe without executing the file.
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    ATTENTIONS.classes.pop("Mine")
    with pytest.raises(ValueError, match="but is 'Mine'; to use an added name, import its Python file"):
        load_recipe(recorded, is_recorded=True)


def test_a_resumed_run_may_name_another_file(recipe, tmp_path):
    loaded = load_recipe(recipe)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    moved = loaded.replace(
        model=loaded.model.replace(code="moved.py"),
        output_dir=str(tmp_path / "run"),
        training=loaded.training.replace(resume=True),
    )
    recorded = loaded.replace(output_dir=str(tmp_path / "run"))
    refuse_another_run(moved, recorded)
    # A model with another attention function is another model, so the run is refused.
    other = moved.replace(model=moved.model.replace(code=None, attention_score="dot"))
    with pytest.raises(ValueError, match="attention_score"):
        refuse_another_run(other, recorded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "^`model.code` must be an existing Python file, but is '.*mine.py'.$"),
        (
            "1 / 0",
            "^`model.code` is '.*mine.py', but the file fails with ZeroDivisionError: division by zero",
        ),
        ("import no_such_module", "fails with ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_file_that_cannot_be_executed_is_named(recipe, content, message):
    path = recipe.parent / "mine.py"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_recipe(recipe)


@pytest.mark.usefixtures("quick_workers")
def test_train_and_translate_with_the_file(recipe, few_numbers, tmp_path, vaswani, monkeypatch):
    run = tmp_path / "run"
    words = ["--output_dir", run, "--max_steps", "2", "--position_embedding", "none"]
    assert vaswani("train", recipe, *words)[0] == 0
    assert {"mine.py", "registered_vaswani.py"} <= read_manifest(run)["files"].keys()
    ATTENTIONS.classes.pop("Mine")
    code, _, message = vaswani("translate", run, "--text", "seven")
    assert code == 2 and "but is 'Mine'; to use an added name, import its Python file" in message
    code = ("--code", run / "mine.py")
    assert vaswani("translate", run, "--text", "seven", *code)[0] == 0
    (tmp_path / "texts").write_text("seven\nsix\nfive\n")
    words = ("translate", run, "--input", tmp_path / "texts", "--window", 1, "--device", "cpu", *code)
    expected = vaswani(*words)
    assert expected[0] == 0 and vaswani(*words, "--workers", 2) == expected
    # MarianMT cannot contain an attention function that a user defines.
    exported = tmp_path / "exported"
    exit_code, _, message = vaswani("export", run, exported, "--format", "marian", *code)
    assert exit_code == 2 and "which MarianMT cannot express" in message
    assert not exported.exists()
