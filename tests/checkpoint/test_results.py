"""The file results.json: what `write_results` writes, and what `read_results` reads."""

import json
import math

from vaswani_hf.checkpoint.results import (
    ExampleRecord,
    Results,
    ScoresRecord,
    TrainingRecord,
    read_results,
    write_results,
)


def test_the_file_has_the_keys_that_were_given_and_no_others(tmp_path):
    results = Results(
        training=TrainingRecord(steps=3, epochs=None),
        # A task may have a score that `ScoresRecord` does not declare.
        test=ScoresRecord(bleu=1.5, perplexity=math.inf, rouge1=0.5),
        examples=[ExampleRecord(source="a", output="b", confidence=0.5, words=[("b", 0.5)])],
        finished_with=None,
    )
    write_results(tmp_path, results)
    content = {
        "training": {"steps": 3, "epochs": None},
        "test": {"bleu": 1.5, "perplexity": None, "rouge1": 0.5},
        "examples": [{"source": "a", "output": "b", "confidence": 0.5, "words": [["b", 0.5]]}],
        "finished_with": None,
    }
    assert json.loads((tmp_path / "results.json").read_text()) == content
    assert read_results(tmp_path).as_json() == content


def test_a_missing_file_has_no_keys(tmp_path):
    results = read_results(tmp_path)
    assert results.as_json() == {}
    # `finished_with` is null only if the scoring was interrupted.
    assert results.finished_with == {}
