"""Texts that are not in the source language of a model, with the detector of py3langid."""

import shutil

import pytest
from factories import write_recipe

pytest.importorskip("py3langid", reason="needs py3langid: pip install '.[language_check]'")

from vaswani_hf.model.requests_vaswani import Request  # noqa: E402
from vaswani_hf.translation.language_check import LanguageCheck, check_of_checkpoint, load_detector  # noqa: E402

ENGLISH = "The children are playing in the garden behind the house."
GERMAN = "Die Kinder spielen im Garten hinter dem Haus."


@pytest.fixture(scope="module")
def detector():
    return load_detector()


@pytest.mark.parametrize(
    ("text", "is_copied"), [(ENGLISH, False), (GERMAN, True), ("42 %", False), ("OK", False), ("", False)]
)
def test_a_text_in_another_language_is_marked(detector, text, is_copied):
    check = LanguageCheck("en", "pass", detector)
    assert check(Request(text, "Ein", ("x",))) == Request(text, "Ein", ("x",), is_copied)


@pytest.mark.parametrize(
    ("text", "src_lang", "tgt_lang", "is_copied"),
    [
        (GERMAN, None, None, True),
        (GERMAN, None, "de", True),
        (GERMAN, None, "fr", True),
        (GERMAN, None, "en", False),
        (GERMAN, "de", None, False),
        (ENGLISH, None, "en", True),
        (f">>en<< {GERMAN}", None, None, False),
        (f" >>en<< {ENGLISH}", None, None, True),
        (f">>de<< {GERMAN}", None, "en", True),
        (">>en<< OK", None, None, False),
    ],
)
def test_the_direction_decides_the_source_language(
    copier_checkpoint, tmp_path, text, src_lang, tgt_lang, is_copied
):
    shutil.copytree(copier_checkpoint, tmp_path, dirs_exist_ok=True)
    write_recipe(tmp_path / "recipe.yaml")
    check = check_of_checkpoint(str(tmp_path), "pass", src_lang, tgt_lang)
    assert check(Request(text)) == Request(text, is_copied=is_copied)


def test_a_text_in_another_language_is_refused(detector):
    check = LanguageCheck("en", "refuse", detector)
    with pytest.raises(
        ValueError, match=r"^The text must be in the language en, but seems to be in the language de\.$"
    ):
        check(Request(GERMAN))


def test_an_unknown_language(detector):
    with pytest.raises(
        ValueError, match="`--language_check` must be left out, .* does not know the language 'xx'"
    ):
        LanguageCheck("xx", "pass", detector)


def test_the_command_copies_or_skips_texts(vaswani, copier_checkpoint, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(copier_checkpoint, checkpoint)
    code, _, error = vaswani("translate", checkpoint, "--text", "eins", "--language_check", "pass")
    assert (code, error) == (
        2,
        f"`--language_check` needs `--src_lang`, because '{checkpoint}' does not record its languages.",
    )
    check = check_of_checkpoint(str(checkpoint), "pass", "en", None)
    assert [check(Request(text)).is_copied for text in (GERMAN, "eins")] == [True, False]
    write_recipe(checkpoint / "recipe.yaml")
    (tmp_path / "texts").write_text(f"eins\n{GERMAN}\n", encoding="utf-8")
    words = ["translate", checkpoint, "--input", tmp_path / "texts"]
    code, output, _ = vaswani(*words, "--language_check", "pass")
    assert (code, output.splitlines()) == (0, ["eins", GERMAN])
    code, _, error = vaswani(*words, "--language_check", "refuse")
    assert code == 1
    assert error.startswith(f"Line 2 of {tmp_path / 'texts'}: The text must be in the language en")
    code, output, _ = vaswani("translate", checkpoint, "--text", GERMAN, "--language_check", "pass")
    assert (code, output) == (0, f"{GERMAN}\n")
