"""The worked numbers against those of the notes, and against plain arithmetic that shares no code with the package."""

import math
import re

import pytest


@pytest.fixture(scope="module")
def worked(script):
    return script("worked_numbers")


def rounded(numbers, digits=2):
    return [round(float(number), digits) for number in numbers]


def softmax(scores):
    exponentials = [math.exp(score) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def close(numbers):
    return pytest.approx(numbers, abs=1e-6)


def test_attention_is_that_of_the_notes_but_for_their_rounding(worked):
    found = {name: tensor[0].tolist() for name, tensor in worked.attention_example().items()}
    assert rounded(found["scores"]) == [0.66, 0.45]
    assert rounded(found["scaled"]) == [0.38, 0.26]
    assert rounded(found["weights"]) == [0.53, 0.47]
    # The notes have 0.44, because they use rounded weights: 0.53 * 0.2 + 0.47 * 0.7 = 0.435.
    assert rounded(found["context"]) == [0.82, 0.30, 0.43]
    scores = [0.5 * 0.8 + 0.6 * 0.4 + 0.1 * 0.2, 0.5 * 0.4 + 0.6 * 0.3 + 0.1 * 0.7]
    weights = softmax([score / math.sqrt(3) for score in scores])
    assert found["scores"] == close(scores)
    assert found["scaled"] == close([score / math.sqrt(3) for score in scores])
    assert found["weights"] == close(weights)
    columns = zip((1.2, 0.3, 0.2), (0.4, 0.3, 0.7), strict=True)
    assert found["context"] == close([weights[0] * one + weights[1] * two for one, two in columns])


def test_masked_softmax_is_one(worked):
    found = worked.masked_softmax_example()
    weights = found["weights"].tolist()
    table = [[0.2, 0.1, 0.1], [0.4, 0.3, 0.7], [0.9, 0.2, 0.3]]
    for row, scores in enumerate(table):
        seen = scores[: row + 1]
        assert found["masked"][row].tolist() == close(seen + [-math.inf] * (2 - row))
        assert weights[row] == close(softmax(seen) + [0.0] * (2 - row))
        assert sum(weights[row]) == close(1.0)
    # The notes have the wrong values 0.7 and 0.3.
    assert rounded(weights[1]) == [0.52, 0.48, 0.0]


@pytest.mark.parametrize(("form", "gold", "other"), [("t2t", 0.9, 0.1 / 3), ("torch", 0.925, 0.025)])
def test_label_smoothing_is_what_the_hand_computes(worked, form, gold, other):
    found = worked.smoothing_example(form)
    assert found["target"][0].tolist() == close([gold, other, other, other])
    assert found["target"].sum().item() == close(1.0)
    # The probabilities are powers of 1/2, so the loss is a multiple of ln 2.
    loss = (gold * 1 + other * (2 + 3 + 3)) * math.log(2)
    assert found["products"].sum().item() == close(loss)
    assert found["loss"].item() == close(loss)


def test_layer_normalization_is_what_the_hand_computes(worked):
    found = worked.layer_norm_example()
    divisor = math.sqrt((1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4 + 1e-5)
    assert (found["mean"].item(), found["variance"].item()) == close((2.5, 1.25))
    assert found["normalized"][0].tolist() == close([number / divisor for number in (-1.5, -0.5, 0.5, 1.5)])


def test_the_schedule_peaks_at_the_end_of_warmup(worked):
    found = worked.schedule_example()
    assert max(found, key=found.get) == 4000
    assert found[4000] == pytest.approx(1 / math.sqrt(512 * 4000)) == pytest.approx(6.99e-4, abs=5e-7)
    assert found[1] == pytest.approx(found[4000] / 4000)
    # Half the rate at half the steps of warmup, and again at four times as many.
    assert found[2000] == pytest.approx(found[4000] / 2) == pytest.approx(found[16000])


def test_sinusoids_and_the_map_between_them(worked):
    encodings = worked.sinusoids(worked.torch.arange(20), 4).tolist()
    for position, encoding in enumerate(encodings):
        slow = position / 100
        assert encoding == close([math.sin(position), math.cos(position), math.sin(slow), math.cos(slow)])
    for shift in (1, 2, 7):
        matrix = worked.rotation(shift, 4).tolist()
        sines, cosines = (math.sin(shift), math.sin(shift / 100)), (math.cos(shift), math.cos(shift / 100))
        assert matrix[0] == close([cosines[0], sines[0], 0, 0])
        assert matrix[1] == close([-sines[0], cosines[0], 0, 0])
        assert matrix[2] == close([0, 0, cosines[1], sines[1]])
        assert matrix[3] == close([0, 0, -sines[1], cosines[1]])
        for position in range(20 - shift):
            moved = [sum(a * b for a, b in zip(row, encodings[position], strict=True)) for row in matrix]
            assert moved == close(encodings[position + shift])


def test_the_page_shows_every_intermediate_and_where_the_notes_are_wrong(worked):
    text = worked.page()
    for row in (
        ("scores q·k", "0.6600", "0.4500"),
        ("scaled by 1/sqrt(3)", "0.3811", "0.2598"),
        ("weights, their softmax", "0.5303", "0.4697"),
        ("context", "0.8242", "0.3000", "0.4349"),
        ("position 2", "0.4000", "0.3000", "-inf"),
        ("position 2", "1.4918", "1.3499", "0.0000", "2.8417"),
        ("position 2", "0.5250", "0.4750", "0.0000"),
        ("target t", "0.9000", "0.0333", "0.0333", "0.0333"),
        ("target t", "0.9250", "0.0250", "0.0250", "0.0250"),
        ("layer norm", "-1.3416", "-0.4472", "0.4472", "1.3416"),
        ("step 4000", "1.581139e-02", "1.581139e-02", "6.987712e-04"),
        ("PE(3)", "0.1411", "-0.9900", "0.0300", "0.9996"),
    ):
        assert f"| {' | '.join(row)} |" in text
    assert "the second row is 0.7 0.3, but the softmax of 0.4 and 0.3 is\n0.52 0.48." in text
    assert "The last number is 0.4349, which rounds to 0.43." in text
    # The product M PE(1) equals PE(3).
    made, meant = (
        re.search(rf"^\| {re.escape(name)} (.*)$", text, re.MULTILINE)[1] for name in ("M PE(1)", "PE(3)")
    )
    assert made == meant
