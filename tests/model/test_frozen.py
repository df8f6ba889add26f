"""A checkpoint of an earlier version keeps its translations, with the package and, by the code inside it, without.

`frozen/checkpoint.tar.gz` was trained and saved by the version before the package had folders (commit ddb8d25), by
`vaswani train configuration/numbers.yaml --max_steps 500 --vocab_size 300 --d_model 32 --encoder_layers 1
--decoder_layers 1 --encoder_ffn_dim 64 --decoder_ffn_dim 64 --average_checkpoints 2 --eval_steps 500`;
`frozen/translations.jsonl` are its translations by `vaswani translate --json` of that version.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from transformers import pipeline

from vaswani_hf.translation import Translator

FROZEN = Path(__file__).parents[1] / "frozen"


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    with tarfile.open(FROZEN / "checkpoint.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def expected() -> list[dict]:
    return [
        json.loads(line) for line in (FROZEN / "translations.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_it_translates_as_it_did(frozen, expected):
    sources = [row["source"] for row in expected]
    translations = list(Translator.from_pretrained(str(frozen)).translate(sources, return_scores=True))
    assert [translation.text for translation in translations] == [row["text"] for row in expected]
    assert [translation.score for translation in translations] == pytest.approx(
        [row["score"] for row in expected], abs=1e-4
    )
    # The config names the pipeline of its code, which the imported package takes the place of.
    records = pipeline("translation", model=str(frozen))(sources)
    assert [record["translation_text"] for record in records] == [row["text"] for row in expected]


def test_its_own_code_still_runs(frozen, expected, tmp_path):
    code = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vaswani_hf":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from transformers import pipeline
translate = pipeline("translation", model=sys.argv[1], trust_remote_code=True)
print(json.dumps([record["translation_text"] for record in translate(json.loads(sys.argv[2]))]))
"""
    sources = [row["source"] for row in expected[:5]]
    command = [sys.executable, "-c", code, str(frozen), json.dumps(sources)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [row["text"] for row in expected[:5]]
