"""A new task needs only one class and one entry in the table. The example is summarisation with ROUGE."""

import dataclasses
import json
from collections import Counter

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


def common_subsequence(left: list[str], right: list[str]) -> int:
    lengths = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for place, other in enumerate(right, 1):
            longest = diagonal + 1 if word == other else max(lengths[place], lengths[place - 1])
            diagonal, lengths[place] = lengths[place], longest
    return lengths[-1]


def rouge(outputs: list[str], references: list[str]) -> dict[str, float]:
    """The mean F1 of common words (ROUGE-1) and of the longest common subsequence (ROUGE-L), in percent."""
    found = {"rouge1": 0.0, "rougeL": 0.0}
    for output, reference in zip(outputs, references, strict=True):
        words, gold = output.split(), reference.split()
        common = {
            "rouge1": (Counter(words) & Counter(gold)).total(),
            "rougeL": common_subsequence(words, gold),
        }
        for name, number in common.items():
            found[name] += 100 * 2 * number / max(1, len(words) + len(gold)) / len(references)
    return found


class Summarization(TranslationTask):
    name = "summarization"
    outputs_file = "test_summaries.txt"
    metrics = {"rougeL": "ROUGE-L", "rouge1": "ROUGE-1"}

    def validation_metrics(self, evaluation):
        return tuple(self.metrics)

    def score_outputs(self, outputs, targets, evaluation):
        return rouge(outputs, targets)

    def score_test_split(self, folder, test, data, evaluation, device):
        translator = Translator.from_pretrained(str(folder), device=device)
        summaries = list(translator.translate(test["source"]))
        scores = rouge(summaries, test["target"]) | {"sentences": len(test)}
        lines = [f"test: ROUGE-1 {scores['rouge1']:.2f} · ROUGE-L {scores['rougeL']:.2f}"]
        return Scores(scores, lines, "".join(f"{summary}\n" for summary in summaries))

    def card_words(self, record, data, test, repo_id):
        return dataclasses.replace(
            super().card_words(record, data, test, repo_id),
            task_type="summarization",
            task_name="Summarization",
            pipeline_tag="summarization",
            description="An encoder-decoder Transformer that summarises texts.",
            work="The model summarises text by text.",
            scores=[f"{title} {test[name]:.2f}" for name, title in self.metrics.items() if name in test],
            examples="texts with summaries",
        )


def test_a_class_and_an_entry_are_a_task(tmp_path, monkeypatch, capsys, vaswani):
    monkeypatch.setitem(TASKS, "summarization", Summarization())
    texts = [f"the {word} sleeps in the {word} garden" for word in ("dog", "cat", "bird")]
    rows = [{"text": text, "summary": f"{text.split()[1]} sleeps"} for text in texts]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"source_language": "text", "target_language": "summary"}
    data |= {f"{split}_pairs": str(file) for split in ("train", "validation", "test")}
    changes = CHANGES | {"output_dir": str(tmp_path / "run")}
    path = write_recipe(tmp_path / "recipe.yaml", changes, task="summarization", data=data)
    results = train(load_recipe(path))
    assert {"rouge1", "rougeL", "sentences"} == results["test"].keys() and results["test"]["sentences"] == 3
    folder = tmp_path / "run"
    assert len((folder / "test_summaries.txt").read_text().splitlines()) == 3
    assert "test_summaries.txt" in json.loads((folder / "manifest.json").read_text())["files"]
    out = capsys.readouterr().out
    assert "· validation rouge1 " in out and "test: ROUGE-1 " in out
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "summaries").write_text("".join(f"{row['summary']}\n" for row in rows))
    command = ["evaluate", folder, "--source", tmp_path / "texts", "--reference", tmp_path / "summaries"]
    code, out, _ = vaswani(*command, "--json")
    scores = json.loads(out)
    assert code == 0 and "bleu" not in scores
    assert [scores[name] for name in ("rouge1", "rougeL")] == pytest.approx(
        [results["test"][name] for name in ("rouge1", "rougeL")]
    )
    assert vaswani(*command)[1].startswith(f"ROUGE-L {scores['rougeL']:.2f}\nROUGE-1 ")
    # The metrics of the results identify the task.
    (folder / "recipe.yaml").unlink()
    card = model_card(folder, "user/name")
    assert card.data.pipeline_tag == "summarization"
    assert [result.metric_type for result in card.data.eval_results] == ["rougeL", "rouge1"]
    assert "that summarises texts." in card.text and "- ROUGE-L " in card.text
    assert 'AutoModelForSeq2SeqLM.from_pretrained("user/name")' in card.text


def test_the_training_curve_shows_the_first_score_of_the_task(monkeypatch):
    monkeypatch.setitem(TASKS, "summarization", Summarization())
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    scores = {"eval_loss": 1.5, "eval_rougeL": 30.0, "eval_rouge1": 40.0}
    plot_training_curve([{"step": 1, "loss": 2.0}, {"step": 2, **scores}], "curve.png")
    _, right = figures[0].axes
    assert right.get_ylabel() == "ROUGE-L"
    (line,) = right.lines
    assert (line.get_label(), line.get_xydata().tolist()) == ("validation ROUGE-L", [[2, 30]])


@pytest.mark.parametrize(
    ("output", "scores"),
    [("the dog", (80, 80)), ("dog the", (80, 40)), ("", (0, 0)), ("dog the cat", (66.7, 33.3))],
)
def test_rouge_counts_common_words(output, scores):
    assert tuple(rouge([output], ["the dog barks"]).values()) == pytest.approx(scores, abs=0.05)
