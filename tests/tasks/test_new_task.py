"""A new task needs only one class and one entry in the table. The example is summarisation."""

import dataclasses
import json

import pytest
from factories import write_recipe
from matplotlib.figure import Figure

from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks import TASKS, Scores
from vaswani_hf.tasks.translation import TranslationTask
from vaswani_hf.training import train
from vaswani_hf.training.run_results import plot_training_curve
from vaswani_hf.translation import Translator

CHANGES = {
    "tokenizer.vocab_size": 300,
    "training.max_steps": 2,
    "training.warmup_steps": 1,
    "training.eval_steps": 1,
    "training.source_tokens_per_batch": 500,
    "training.target_tokens_per_batch": 500,
}


def words_and_lengths(outputs: list[str], references: list[str]) -> dict[str, float]:
    """The share of reference words that the outputs have, and the mean length of outputs, in percent."""
    pairs = [(output.split(), gold.split()) for output, gold in zip(outputs, references, strict=True)]
    total = sum(len(gold) for _, gold in pairs)
    common = sum(len(set(words) & set(gold)) for words, gold in pairs)
    return {"words": 100 * common / total, "length": 100 * sum(len(words) for words, _ in pairs) / total}


class Summarization(TranslationTask):
    name = "summarization"
    outputs_file = "test_summaries.txt"
    metrics = {"words": "Words", "length": "Length"}
    card_words = dataclasses.replace(
        TranslationTask.card_words,
        task_type="summarization",
        task_name="Summarization",
        pipeline_tag="summarization",
        work="The model summarises text by text.",
        examples="texts with summaries",
    )

    def validation_metrics(self):
        return tuple(self.metrics)

    def score_outputs(self, outputs, targets):
        return words_and_lengths(outputs, targets)

    def score_test_split(self, folder, test, device):
        translator = Translator.from_pretrained(str(folder), device=device)
        summaries = list(translator.translate(test["source"]))
        scores = words_and_lengths(summaries, test["target"]) | {"sentences": len(test)}
        lines = [f"test: Words {scores['words']:.2f}"]
        return Scores(scores, lines, "".join(f"{summary}\n" for summary in summaries))

    @classmethod
    def card_description(cls, record, data):
        return "An encoder-decoder Transformer that summarises texts."

    @classmethod
    def card_scores(cls, test):
        return [f"{title} {test[name]:.2f}" for name, title in cls.metrics.items() if name in test]


def test_a_class_and_an_entry_are_a_task(tmp_path, monkeypatch, capsys, vaswani):
    monkeypatch.setitem(TASKS, "summarization", Summarization)
    texts = [f"the {word} sleeps in the {word} garden" for word in ("dog", "cat", "bird")]
    rows = [{"text": text, "summary": f"{text.split()[1]} sleeps"} for text in texts]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"source_language": "text", "target_language": "summary"}
    data |= {f"{split}_pairs": str(file) for split in ("train", "validation", "test")}
    changes = CHANGES | {"output_dir": str(tmp_path / "run")}
    path = write_recipe(tmp_path / "recipe.yaml", changes, task="summarization", data=data)
    results = train(load_recipe(path))
    assert {"words", "length", "sentences"} == results["test"].keys() and results["test"]["sentences"] == 3
    folder = tmp_path / "run"
    assert len((folder / "test_summaries.txt").read_text().splitlines()) == 3
    assert "test_summaries.txt" in json.loads((folder / "manifest.json").read_text())["files"]
    out = capsys.readouterr().out
    assert "· validation length " in out and "test: Words " in out
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "summaries").write_text("".join(f"{row['summary']}\n" for row in rows))
    command = ["evaluate", folder, "--source", tmp_path / "texts", "--reference", tmp_path / "summaries"]
    code, out, _ = vaswani(*command, "--json")
    scores = json.loads(out)
    assert code == 0 and "bleu" not in scores
    for name in ("words", "length"):
        assert scores[name] == pytest.approx(results["test"][name])
    assert vaswani(*command)[1].startswith(f"Words {scores['words']:.2f}\nLength ")
    # The metrics of the results identify the task.
    (folder / "recipe.yaml").unlink()
    card = model_card(folder, "user/name")
    assert card.data.pipeline_tag == "summarization"
    assert [result.metric_type for result in card.data.eval_results] == ["words", "length"]
    assert "that summarises texts." in card.text and "- Words " in card.text
    assert 'AutoModelForSeq2SeqLM.from_pretrained("user/name")' in card.text


def test_the_training_curve_shows_the_first_score_of_the_task(monkeypatch):
    monkeypatch.setitem(TASKS, "summarization", Summarization)
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    scores = {"eval_loss": 1.5, "eval_words": 30.0, "eval_length": 40.0}
    plot_training_curve([{"step": 1, "loss": 2.0}, {"step": 2, **scores}], "curve.png")
    _, right = figures[0].axes
    assert right.get_ylabel() == "Words"
    (line,) = right.lines
    assert (line.get_label(), line.get_xydata().tolist()) == ("validation Words", [[2, 30]])
