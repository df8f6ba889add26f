"""A step of the search waits for the device once; a training step never waits."""

import copy
from unittest.mock import Mock

import pytest
import torch
from device_waiting import Waiting
from factories import tiny_model
from search_models import PREFIXES, SCORED, SOURCES, batch_of, translator

from vaswani_hf.model import fast_path_vaswani
from vaswani_hf.model.beam_search_vaswani import BeamSearch
from vaswani_hf.model.beams_vaswani import EMPTY_SCORE, exists
from vaswani_hf.model.search_strategies_vaswani import drawn_candidates

PHRASES = [[[7, 8], [4]], [], [[9]], [[5, 5, 6]], []]
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4},
    "the paper's": {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt", "max_length_a": 2},
    "two ends": {"num_beams": 3, "eos_token_id": [2, 22]},
    "early": {"num_beams": 3, "early_stopping": True},
    "sampling": {"num_beams": 3, "do_sample": True},
    "coverage": {"num_beams": 4, "coverage_penalty": 0.2},
    "ensemble": {"num_beams": 4, "ensemble": True},
    "prefixes": {"num_beams": 4, "prefixes": PREFIXES},
    "phrases": {"num_beams": 2, "must_contain": PHRASES, "prefixes": PREFIXES},
    "outputs": {"num_beams": 4, **SCORED, "prefixes": PREFIXES},
    "outputs of greedy search": {"num_beams": 1, **SCORED, "must_contain": [[]] * 4 + [[[9]]]},
}


@pytest.fixture(scope="module")
def models():
    """Two models that the tests do not change."""
    return [translator(seed=seed) for seed in (0, 1)]


def arguments(options, models, most=15, never_ends=False):
    options = {"max_new_tokens": most, **options}
    batch = batch_of(SOURCES, "left", options.pop("prefixes", None))
    if options.get("ensemble"):
        options["ensemble"] = models[1:]
    # With the start token as end token, no search finds an end.
    return batch | options | ({"eos_token_id": 0} if never_ends else {})


@pytest.mark.parametrize(("as_on_a_gpu", "never_ends"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_step_waits_once_at_most(models, name, as_on_a_gpu, never_ends, monkeypatch):
    if as_on_a_gpu:
        monkeypatch.setattr(fast_path_vaswani, "QUEUING_DEVICES", ("cpu",))
    take_step, before, waits = BeamSearch._take_step, [0], []
    waiting = Waiting(monkeypatch)

    def counted(search, logits):
        if search.num_new > 0:
            waits.append(waiting.places.total() - before[0])
        before[0] = waiting.places.total()
        return take_step(search, logits)

    monkeypatch.setattr(BeamSearch, "_take_step", counted)
    given = arguments(SEARCHES[name], models, never_ends=never_ends)
    with waiting:
        models[0].generate(**given)
    assert len(waits) > 5
    # On a CPU each step also reads whether a candidate has ended.
    assert max(waits) <= (1 if as_on_a_gpu else 2), waiting.places


def test_one_beam_that_is_drawn_waits_as_in_transformers(models, monkeypatch):
    totals = []
    for most in (8, 20):
        with Waiting(monkeypatch) as waiting:
            options = {"num_beams": 1, "do_sample": True}
            models[0].generate(**arguments(options, models, most, never_ends=True))
        totals.append(waiting.places.total())
    assert totals[1] - totals[0] <= 20 - 8


@pytest.mark.parametrize("name", SEARCHES)
def test_reading_late_changes_nothing(models, name, monkeypatch):
    # Use float64, because in float32 two beams with nearly equal scores may change places on some processors.
    models = [copy.deepcopy(model).double() for model in models]
    for num_return_sequences in {1, SEARCHES[name]["num_beams"]}:
        for most, never_ends in ((15, False), (25, True)):
            given = arguments(SEARCHES[name], models, most, never_ends)
            given["num_return_sequences"] = num_return_sequences
            found = []
            for devices in (("cuda",), ("cpu",)):
                monkeypatch.setattr(fast_path_vaswani, "QUEUING_DEVICES", devices)
                torch.manual_seed(0)
                outputs = models[0].generate(**given)
                found.append(outputs if isinstance(outputs, torch.Tensor) else outputs.sequences)
            assert torch.equal(*found)


def test_the_search_is_late_only_where_a_step_more_has_no_effect(models, monkeypatch):
    monkeypatch.setattr(fast_path_vaswani, "QUEUING_DEVICES", ("cpu",))
    make, late = BeamSearch.__init__, {}

    def noted(search, *args, **kwargs):
        make(search, *args, **kwargs)
        late[name] = search.reader.is_late

    monkeypatch.setattr(BeamSearch, "__init__", noted)
    others = {
        "processors": {"num_beams": 2, "no_repeat_ngram_size": 2},
        "criteria": {"num_beams": 2, "stopping_criteria": [lambda ids, scores: torch.zeros(len(ids)).bool()]},
    }
    for name, options in (SEARCHES | others).items():  # noqa: B007 - `noted` reads it
        models[0].generate(**arguments(options, models, 6))
    assert {name for name, is_late in late.items() if not is_late} == {
        *("sampling", "outputs", "outputs of greedy search", "processors", "criteria")
    }


def test_drawing_is_that_of_pytorch():
    for number in (2, 6):
        log_probs = torch.randn(3, 2, 11).log_softmax(-1)
        scores = torch.tensor([[0.0, -1.0], [0.0, -2.0], [-3.0, -3.5]])
        search = Mock(num_candidates=number)
        search.beams.scores = scores
        torch.manual_seed(5)
        found = drawn_candidates(search, log_probs)
        torch.manual_seed(5)
        probabilities = (log_probs + scores.unsqueeze(2)).flatten(1).softmax(dim=-1)
        assert torch.equal(found.parents * 11 + found.tokens, torch.multinomial(probabilities, number))
    # There are 22 continuations.
    search.num_candidates = 24
    scores = drawn_candidates(search, log_probs).scores
    assert (scores[:, 22:] == EMPTY_SCORE).all() and exists(scores[:, :22]).all()


PADDED = {
    "right": [[5, 6, 7, 2], [8, 2, 1, 1]],
    "left": [[5, 6, 7, 2], [1, 1, 8, 2]],
    "no": [[5, 6, 2], [8, 9, 2]],
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"position_embedding": "learned"},
        {"norm_position": "pre", "label_smoothing": 0.0},
        {"pad_token_id": 0, "decoder_start_token_id": 0, "label_smoothing": 0.0},
    ],
)
@pytest.mark.parametrize(("targets", "num_items"), [("right", None), ("left", 6), ("no", None)])
def test_training_never_waits_and_computes_the_same(fields, targets, num_items, monkeypatch):
    labels = torch.tensor(PADDED[targets])
    batch = {
        "input_ids": torch.tensor([[5, 9, 2], [7, 2, 1]]),
        "labels": labels.masked_fill(labels == 1, -100),
    }
    if num_items:
        batch["num_items_in_batch"] = torch.tensor(num_items)
    for implementation in ("sdpa", "eager"):
        model = tiny_model(**{"label_smoothing": 0.1} | fields).train()
        model.set_attn_implementation(implementation)
        found = []
        for devices in ((), ("cpu",)):
            monkeypatch.setattr(fast_path_vaswani, "QUEUING_DEVICES", devices)
            model.zero_grad()
            with Waiting(monkeypatch) as waiting:
                loss = model(**batch).loss
                loss.backward()
            found.append([loss, *(parameter.grad for parameter in model.parameters())])
            # The training reads values from the device only if reading does not make the program wait.
            assert (not waiting.places) == bool(devices), waiting.places
        torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
