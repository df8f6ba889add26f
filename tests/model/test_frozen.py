"""A checkpoint of an earlier version keeps its translations, and saved checkpoints run without the package.

`frozen/checkpoint.tar.gz` was trained and saved by the version before the package had folders (commit
ddb8d25), by `vaswani train configuration/numbers.yaml --max_steps 500 --vocab_size 300 --d_model 32
--encoder_layers 1 --decoder_layers 1 --encoder_ffn_dim 64 --decoder_ffn_dim 64 --average_checkpoints 2
--eval_steps 500`; `frozen/translations.jsonl` are its translations by `vaswani translate --json` of that
version.
"""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch
from factories import tiny_config
from transformers import pipeline

from vaswani_hf import VaswaniForCausalLM, VaswaniForMaskedLM
from vaswani_hf.translation import Translator

FROZEN = Path(__file__).parents[1] / "frozen"
PROMPT = [[0, 5, 9, 4]]
TEXTS = ["eins nein", "der Hund läuft. ja? nein"]
EVERY_OPTION = {
    **{"return_scores": True, "return_alignments": True, "split_sentences": True, "repetition_guard": True},
    **{"target_prefix": "der", "must_contain": ["Hund"], "num_beams": 3, "window": 2},
}
# Python runs these lines in a process in which the package cannot be imported.
WITHOUT_THE_PACKAGE = """
import json, sys
# Python raises ModuleNotFoundError for a module that is None.
sys.modules["vaswani_hf"] = None
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, pipeline
given = json.loads(sys.argv[1])
def translated(name, **options):
    translate = pipeline("translation", model=given[name], device="cpu", trust_remote_code=True)
    return translate(given[name + " texts"], **options)
found = {"frozen": translated("frozen"), "copier": translated("copier", **given["options"])}
ids = torch.tensor(given["prompt"])
for auto in (AutoModelForCausalLM, AutoModelForMaskedLM):
    model = auto.from_pretrained(given[auto.__name__], trust_remote_code=True)
    found[auto.__name__] = model(ids).logits.tolist()
    base = AutoModel.from_pretrained(given[auto.__name__], trust_remote_code=True)
    assert type(base).__name__.endswith("Model")
    if auto is AutoModelForCausalLM:
        found["generated"] = model.generate(ids, num_beams=3, max_new_tokens=5).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    with tarfile.open(FROZEN / "checkpoint.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def expected() -> list[dict]:
    lines = (FROZEN / "translations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def language_models() -> dict:
    torch.manual_seed(0)
    return {
        "AutoModelForCausalLM": VaswaniForCausalLM(tiny_config()).eval(),
        "AutoModelForMaskedLM": VaswaniForMaskedLM(tiny_config()).eval(),
    }


@pytest.fixture(scope="module")
def without_the_package(
    frozen, expected, copier_checkpoint, language_models, tmp_path_factory, fresh_python
) -> dict:
    """The outputs of each checkpoint in a process that cannot import the package."""
    folder = tmp_path_factory.mktemp("saved")
    pipeline("translation", model=copier_checkpoint, device="cpu").save_pretrained(folder / "copier")
    given = {"frozen": frozen, "frozen texts": [row["source"] for row in expected[:5]], "prompt": PROMPT}
    given |= {"copier": folder / "copier", "copier texts": TEXTS, "options": EVERY_OPTION}
    for name, model in language_models.items():
        model.save_pretrained(folder / name)
        given[name] = folder / name
    command = [fresh_python, "-c", WITHOUT_THE_PACKAGE, json.dumps(given, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_checkpoint_of_an_earlier_version_translates_as_it_did(frozen, expected):
    sources = [row["source"] for row in expected]
    translations = list(Translator.from_pretrained(str(frozen)).translate(sources, return_scores=True))
    assert [translation.text for translation in translations] == [row["text"] for row in expected]
    assert [translation.score for translation in translations] == pytest.approx(
        [row["score"] for row in expected], abs=1e-4
    )
    # `pipeline` uses the pipeline of the imported package, and not of the checkpoint.
    records = pipeline("translation", model=str(frozen))(sources)
    assert [record["translation_text"] for record in records] == [row["text"] for row in expected]


def test_the_code_of_an_earlier_version_still_runs(without_the_package, expected):
    found = [record["translation_text"] for record in without_the_package["frozen"]]
    assert found == [row["text"] for row in expected[:5]]


def test_every_option_works_without_the_package(without_the_package, copier_checkpoint):
    here = pipeline("translation", model=copier_checkpoint, device="cpu")(TEXTS, **EVERY_OPTION)
    for record, expected in zip(without_the_package["copier"], here, strict=True):
        assert record["score"] == pytest.approx(expected["score"], abs=1e-5)
        assert record["translation_text"] == expected["translation_text"]
        assert record["alignment"] == expected["alignment"]
        assert record.keys() == expected.keys()


def test_the_code_of_language_models_travels_with_them(without_the_package, language_models):
    ids = torch.tensor(PROMPT)
    for name, model in language_models.items():
        torch.testing.assert_close(torch.tensor(without_the_package[name]), model(ids).logits)
    generated = language_models["AutoModelForCausalLM"].generate(ids, num_beams=3, max_new_tokens=5)
    assert without_the_package["generated"] == generated.tolist()
