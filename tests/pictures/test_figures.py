"""All pictures of a checkpoint, and `vaswani figures`."""

import json

import pytest
import torch

from vaswani_hf.model.errors_vaswani import InvalidValueError
from vaswani_hf.model.loss_vaswani import target_probabilities
from vaswani_hf.pictures.attention import Tokens, pair_attention, word_weights
from vaswani_hf.pictures.attention_lines import _verdict
from vaswani_hf.pictures.equations import draw_positions, draw_schedule, draw_targets, loss_of_probability
from vaswani_hf.pictures.figures import RunLog, _short_texts, _verb_relation, draw_figures
from vaswani_hf.pictures.training_curve import draw_training_curve

TEXTS = [
    "der Hund läuft über die Straße",
    "der Hund weiß größer",
    "nein",
    "die Straße läuft über der Hund",
] * 2
VERBS = {"läuft": frozenset({"straße", "hund"})}
PRONOUNS = {"weiß": frozenset({"der"}), "über": frozenset({"hund", "straße"})}
RUN_LOG = RunLog(
    [
        {"step": 10, "loss": 5.0, "learning_rate": 0.1},
        {"step": 20, "loss": 4.0, "eval_loss": 4.5, "eval_bleu": 10.0, "learning_rate": 0.2},
    ],
    "constant",
    lambda step: 0.01 * step,
)
OF_HEADS = {"verb_to_complement", "pronoun_to_antecedent", "two_heads"}
OF_RUN = {"schedule", "training_curve"}
OTHERS = {"heads_encoder", "heads_decoder", "heads_cross", "positions_paper", "positions", "smoothed_targets"}


def test_all_pictures(copier, tmp_path):
    """All pictures are written as PNG and SVG, and figures.json has the numbers of all pictures."""
    lines = []
    draw_figures(
        copier,
        TEXTS,
        tmp_path / "out",
        verbs=VERBS,
        pronouns=PRONOUNS,
        least_distance=2,
        run_log=RUN_LOG,
        report=lines.append,
    )
    names = OF_HEADS | OTHERS | OF_RUN
    content = json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    assert content.keys() == names
    assert {line.partition(":")[0] for line in lines} == names
    for name in names:
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "out" / f"{name}.svg").read_bytes().startswith(b"<?xml")
        assert content[name]["caption"]
    pronoun = content["pronoun_to_antecedent"]["numbers"]
    assert len(pronoun["trained"]) == len(pronoun["untrained"]) == 2
    example = pronoun["example"]
    assert example["words"][example["query"]] in PRONOUNS
    assert example["words"][example["key"]].lower() in PRONOUNS[example["words"][example["query"]]]
    # The weight in the example is the weight that the model returns.
    head = pronoun["trained"][0]
    text = next(text for text in TEXTS if text.split() == example["words"][:-1])
    attention = pair_attention(copier, text, text)
    weights = word_weights(attention.encoder, attention.source, attention.source)
    weight = weights[head["layer"] - 1, head["head"] - 1, example["query"], example["key"]].item()
    assert head["weight_in_example"] == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize(("num_texts", "distance"), [(10, 3), (9, 2)])
def test_few_pairs_lower_the_distance(num_texts, distance):
    """The first of the distances 4, 3 and 2 with at least 10 pairs in both halves, or else 2."""
    # The particle "off" is 4 words and 3 words after "take".
    half = [Tokens([], [], words=["take", "your", "big", "hands", "off"], word_of_token=[])] * 20
    other_half = [Tokens([], [], words=["take", "your", "hands", "off"], word_of_token=[])] * num_texts
    relation = _verb_relation({"take": frozenset({"off"})}, (4, 3, 2), (half, other_half))
    assert relation.least_distance == distance


@pytest.mark.parametrize(("weight", "sentence"), [(0.31, ""), (0.29, " No trained head prefers these pairs")])
def test_no_head_prefers_the_pairs(weight, sentence):
    """The caption says that no head prefers the pairs if all heads give other words similar weights."""
    heads = [
        {"mean_weight": 0.1, "mean_weight_same_distance": 0.1},
        {"mean_weight": weight, "mean_weight_same_distance": 0.2},
    ]
    assert _verdict(heads).startswith(sentence)
    assert bool(_verdict(heads)) == bool(sentence)


@pytest.fixture
def no_files(monkeypatch):
    """Write figures.json only, to save time."""
    monkeypatch.setattr("vaswani_hf.pictures.figures.save", lambda figure, path: None)


def test_empty_texts(copier, tmp_path):
    with pytest.raises(ValueError, match="`texts` must hold text, but has only empty lines"):
        draw_figures(copier, ["", " "], tmp_path / "out")


def test_a_model_with_language_tokens_is_refused(copier, tmp_path, monkeypatch):
    monkeypatch.setattr(copier.segment_tokenizer, "languages", {"en": 5})
    with pytest.raises(InvalidValueError, match="but has language tokens; use `vaswani look` with"):
        draw_figures(copier, TEXTS, tmp_path / "out")


def test_a_text_that_cannot_be_drawn_is_refused_before_the_measurement(copier, tmp_path):
    lines = []
    with pytest.raises(
        InvalidValueError, match=r"`text` must have at most \d+ tokens, because .*, but has 202;"
    ):
        draw_figures(copier, TEXTS, tmp_path / "out", text="nein " * 200, report=lines.append)
    assert lines == []


def test_long_texts_are_left_out(copier, monkeypatch):
    monkeypatch.setattr(type(copier.segmenter), "max_length", 4)
    lines = []
    assert _short_texts(copier, ["nein", "ja?", " ".join(TEXTS)], lines.append) == ["nein", "ja?"]
    assert lines == ["texts with more than 4 tokens are left out: 1 of 3"]
    with pytest.raises(ValueError, match="`texts` must hold a text of at most 4 tokens"):
        _short_texts(copier, [" ".join(TEXTS)], lines.append)


def test_positions():
    """The dot products are those of the encodings."""
    encodings = torch.arange(12.0).reshape(3, 4)
    picture = draw_positions("positions", encodings, "")
    assert picture.numbers["products_with_position_0"] == [14.0, 38.0, 62.0]
    image = picture.figure.axes[0].images[0].get_array()
    assert torch.equal(torch.tensor(image), encodings)


def test_schedule():
    """The line shows the learning rates of all steps, and the crosses show the learning rates in the log."""
    picture = draw_schedule(RUN_LOG.rate, RUN_LOG.num_steps, RUN_LOG.metrics, RUN_LOG.schedule)
    line, crosses = picture.figure.axes[0].lines
    assert list(line.get_xdata()) == list(range(1, 21))
    assert line.get_ydata()[-1] == pytest.approx(0.2)
    assert list(crosses.get_ydata()) == [0.1, 0.2]
    assert picture.numbers["highest_rate"] == pytest.approx(0.2)


@pytest.mark.parametrize("form", ["t2t", "torch"])
def test_targets(form):
    """The heat map shows the target probabilities. The smoothed loss is lowest at the target probability."""
    picture = draw_targets(0.1, form)
    targets = torch.tensor(picture.figure.axes[0].images[0].get_array())
    gold, other = target_probabilities(0.4, form, 6)
    torch.testing.assert_close(targets.diagonal(), torch.full((6,), gold))
    torch.testing.assert_close(targets[0, 1:], torch.full((5,), other))
    torch.testing.assert_close(targets.sum(dim=-1), torch.ones(6))
    lowest = picture.numbers["probability_of_lowest_loss"]
    assert lowest["0"] == pytest.approx(0.998)
    for value in ("0.1", "0.4"):
        assert lowest[value] == pytest.approx(target_probabilities(float(value), form, 6)[0], abs=0.005)
    assert loss_of_probability(0.5, 0.0, form) == pytest.approx(0.693147, abs=1e-5)


def test_training_curve():
    """The curve has the losses and the score of the log."""
    figure = draw_training_curve(RUN_LOG.metrics)
    assert [list(line.get_ydata()) for axes in figure.axes for line in axes.lines] == [
        [5.0, 4.0],
        [4.5],
        [10.0],
    ]
    # A line of one point is invisible without a marker.
    assert [line.get_marker() for axes in figure.axes for line in axes.lines] == ["None", "o", "o"]
    assert draw_training_curve([{"step": 1}]) is None


def test_command(vaswani, copier_checkpoint, tmp_path, no_files):
    """The command draws the pictures of a checkpoint without a record of a run, and names the missing
    pictures.
    """
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    code, out, _ = vaswani(
        "figures",
        copier_checkpoint,
        tmp_path / "out",
        "--texts",
        tmp_path / "texts.txt",
        *("--verbs", "läuft:Straße,Hund", "--least_distance", 2, "--text", "eins zwei"),
    )
    assert code == 0
    assert out.count("\n") == 1 + len(OTHERS | {"two_heads"}) + 2
    pronouns, run = [line for line in out.splitlines() if "left out" in line]
    assert pronouns.startswith("pronoun_to_antecedent is left out, because")
    assert pronouns.endswith("with `--pronouns`")
    assert run == "schedule and training_curve are left out, because the checkpoint has no record of a run"
    content = json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    assert content.keys() == OTHERS | {"two_heads", "verb_to_complement"}
    assert content["heads_encoder"]["numbers"]["rows"][-1] == "</s>"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--texts", "missing.txt"], 2, "`--texts` must be an existing file, but is missing.txt."),
        (["--texts", "empty.txt"], 2, "`--texts` must hold text, but empty.txt is empty."),
        ([], 2, "`--texts` must be given, because the checkpoint has no recipe; give `--texts`."),
        (
            ["--texts", "texts.txt", "--text", "!"],
            2,
            "`text` must contain a word, but is '!'; give another text.",
        ),
        (["--texts", "texts.txt", "--layer", 9], 2, "`layer` must be from 1 to 1, but is 9."),
        (["--pronouns", "she"], 2, "`--pronouns` must have entries such as wears:shirt,hat, but has 'she'."),
    ],
)
def test_bad_input(vaswani, copier_checkpoint, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "texts.txt").write_text("nein\nja?\n", encoding="utf-8")
    assert vaswani("figures", copier_checkpoint, "out", *words)[::2] == (code, message)
    assert not (tmp_path / "out").exists()


def test_existing_output(vaswani, copier_checkpoint, tmp_path):
    """The command refuses an existing folder that is not empty, and keeps the files of the folder."""
    (tmp_path / "texts.txt").write_text("nein\nja?\n", encoding="utf-8")
    code, _, message = vaswani("figures", copier_checkpoint, tmp_path, "--texts", tmp_path / "texts.txt")
    assert code == 2
    assert "exists and is not an empty folder" in message
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]
