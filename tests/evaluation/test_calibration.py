"""The calibration of a checkpoint, and the option `min_confidence`."""

import json
import math
from random import Random

import pytest

from vaswani_hf.cli import main
from vaswani_hf.evaluation.calibration import fit_calibration, reliability
from vaswani_hf.model.translations_vaswani import Translation
from vaswani_hf.translation.calibration import Calibration
from vaswani_hf.translation.translator import Translator


def test_a_fitted_calibration_finds_the_probabilities_of_the_data():
    rng = Random(1)
    translations, good = [], []
    for _ in range(4000):
        log_probs = [-rng.random()] * rng.randrange(3, 12)
        translations.append(Translation("", token_log_probs=log_probs))
        good.append(rng.random() < math.exp(2 * log_probs[0]))
    fitted = fit_calibration(translations[:2000], good[:2000])
    results = reliability(fitted, translations[2000:], good[2000:])
    assert results.calibration_error < 5
    assert sum(point.sentences for point in results.curve) == 2000
    # If a calibration always reports full confidence, its error is the share of bad translations.
    sure = reliability(Calibration([100.0, 0.0, 0.0, 0.0]), translations, good)
    assert sure.calibration_error == pytest.approx(100 * (1 - sum(good) / 4000))


def test_a_calibration_is_written_checked_and_withholds_translations(
    copier_checkpoint, copied_words, vaswani, tmp_path, capsys
):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(copier_checkpoint, folder)
    rng = Random(1)
    sources = [" ".join(rng.choices(copied_words, k=3)) for _ in range(100)]
    (tmp_path / "source").write_text("\n".join(sources) + "\n")
    # Half of the references are other texts, so that half of the translations are bad.
    references = [source if row % 2 else "xyz" for row, source in enumerate(sources)]
    (tmp_path / "reference").write_text("\n".join(references) + "\n")
    files = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    code, _, error = vaswani("evaluate", str(folder), *files, "--calibration", "check")
    assert code != 0 and "write the file with `--calibration fit`" in error
    code, _, error = vaswani("translate", str(folder), "--text", sources[0], "--min_confidence", "0.5")
    assert code != 0 and "`min_confidence` needs the calibration of the checkpoint" in error
    code, out, error = vaswani("evaluate", str(folder), *files, "--calibration", "fit", "--json")
    assert code == 0, error
    written = json.loads((folder / "calibration.json").read_text())
    assert json.loads(out) == {
        **{name: value for name, value in written.items() if name != "weights"},
        "written": str(folder / "calibration.json"),
    }
    assert (folder / "calibration.png").stat().st_size > 0
    code, out, _ = vaswani("evaluate", str(folder), *files, "--calibration", "check")
    assert code == 0 and "calibration error" in out

    translator = Translator.from_pretrained(str(folder), "cpu")
    (scored,) = translator.translate(sources[:1], return_scores=True)
    assert scored.text == sources[0]
    assert 0.2 < scored.calibrated_confidence < 0.8
    (kept, *_) = translator.translate(sources[:1], min_confidence=0.1)
    assert kept.text == sources[0] and kept.error is None
    (withheld,) = translator.translate(sources[:1], min_confidence=0.95)
    assert withheld.text == ""
    assert withheld.calibrated_confidence == scored.calibrated_confidence
    assert withheld.error.endswith("is below 0.95")
    lines = tmp_path / "lines"
    lines.write_text(f"{sources[0]}\n\n")
    words = ["translate", str(folder), "--input", str(lines), "--min_confidence"]
    assert vaswani(*words, "0.1")[1] == f"{sources[0]}\n\n"
    assert main([*words, "0.95"]) == 1
    out, error = capsys.readouterr()
    assert out == "\n\n"
    assert "vaswani: All lines that are not blank were skipped, 1 of 2; the first error: " in error
    # The translation of a blank line is empty, and its confidence is 1.
    (blank,) = translator.translate([" "], min_confidence=1.0)
    assert (blank.text, blank.error, blank.calibrated_confidence) == ("", None, 1.0)

    for damaged in ("{}", '{"weights": [1.0]}', '{"weights": [NaN, 1, 1, 1]}'):
        (folder / "calibration.json").write_text(damaged)
        with pytest.raises(ValueError, match="calibration.json' is damaged; write it again"):
            Translator.from_pretrained(str(folder), "cpu")
    assert vaswani("evaluate", str(folder), *files, "--calibration", "fit")[0] == 0
    assert json.loads((folder / "calibration.json").read_text()) == written
