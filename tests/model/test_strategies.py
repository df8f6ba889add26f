"""Strategies that `generate(search=...)` receives, in float32: the slow search with the same rules finds the same."""

import pytest
import torch
from reference_search import SlowSearch, without
from search_models import EOS, PAD, SCORED, SOURCES, START, batch_of, log_probs_of, new_tokens, translator

from vaswani_hf.model.beam_search_vaswani import Candidates, SearchStrategies, best_candidates

LIMIT = 7


@pytest.fixture(scope="module")
def model(tiny_config):
    return translator(tiny_config).float()


def slow_best(slow):
    return [slow.best(source, [START])[0] for source in SOURCES]


def searched(model, strategies, **options):
    options |= {"num_beams": 3, "max_new_tokens": LIMIT}
    return model.generate(**batch_of(SOURCES), search=strategies, **options)


def reward_per_token(log_probs, length, coverage=None):
    """A scorer that wants long translations."""
    return log_probs + 0.8 * length


class RewardingSlowSearch(SlowSearch):
    def normalized(self, total, length):
        return total + 0.8 * length


@pytest.mark.parametrize("options", [{}, SCORED], ids=["plain", "scored"])
def test_a_scorer_decides_which_translation_is_the_best(model, options):
    log_probs = without(log_probs_of(model), lambda source, target: {PAD})
    slow = RewardingSlowSearch(log_probs, LIMIT, num_beams=3, early_stopping=False)
    expected = slow_best(slow)
    found = searched(model, SearchStrategies(scorer=reward_per_token), early_stopping=False, **options)
    assert new_tokens(found.sequences if options else found) == [hypothesis.tokens for hypothesis in expected]
    plain = searched(model, None, early_stopping=False)
    assert new_tokens(plain) != [hypothesis.tokens for hypothesis in expected]
    if options:
        scores = torch.tensor([hypothesis.score for hypothesis in expected])
        torch.testing.assert_close(found.sequences_scores, scores, atol=1e-5, rtol=1e-5)


class FirstFinished:
    """A stopping rule: the first translation that ends is the result."""

    def may_improve(self, search, finished, best):
        return finished[:, 0] < -1e8

    def is_full(self, search, finished):
        return torch.zeros(len(finished), dtype=torch.bool)


class FirstFinishedSlowSearch(SlowSearch):
    def is_over(self, running, pool):
        return bool(pool)


def test_a_stopping_rule_decides_when_a_sentence_ends(model):
    log_probs = without(log_probs_of(model), lambda source, target: {PAD})
    expected = slow_best(FirstFinishedSlowSearch(log_probs, LIMIT, num_beams=3, length_penalty=2.0))
    found = searched(model, SearchStrategies(stopping_rule=FirstFinished()), length_penalty=2.0)
    assert new_tokens(found) == [hypothesis.tokens for hypothesis in expected]
    assert new_tokens(searched(model, None, length_penalty=2.0)) != new_tokens(found)


def odd_candidates(search, log_probs):
    """A candidate selection without even tokens, apart from `</s>`."""
    is_even = torch.arange(log_probs.shape[2]) % 2 == 0
    is_even[EOS] = False
    candidates = best_candidates(search, log_probs.masked_fill(is_even, -1e9))
    return Candidates(candidates.scores, candidates.parents, candidates.tokens)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_candidate_selection_decides_what_goes_on(model, num_beams):
    even = [token for token in range(0, 23, 2) if token != EOS]
    batch, options = batch_of(SOURCES), {"num_beams": num_beams, "max_new_tokens": LIMIT}
    expected = model.generate(**batch, **options, suppress_tokens=even)
    found = model.generate(**batch, **options, search=SearchStrategies(candidates=odd_candidates))
    assert torch.equal(found, expected)
    assert not torch.equal(found, model.generate(**batch, **options))


def test_ensembles_and_phrases_are_strategies_too(model, tiny_config):
    ensemble = [translator(tiny_config, seed=1).float()]
    phrases = [[[9, 4]], [], [[6]], [], []]
    both = {"ensemble": ensemble, "must_contain": phrases}
    expected = model.generate(**batch_of(SOURCES), num_beams=3, max_new_tokens=LIMIT, **both)
    assert torch.equal(searched(model, SearchStrategies(**both)), expected)


@pytest.mark.parametrize(
    ("strategies", "options", "message"),
    [
        (
            SearchStrategies(candidates=odd_candidates, must_contain=[[[9]]]),
            {},
            "`must_contain` has a candidate selection and a stopping rule of its own; leave out `candidates` of `search`.",
        ),
        (
            SearchStrategies(scorer=reward_per_token),
            {"num_beams": 1, "do_sample": True},
            "`scorer` of `search` needs a search, but `do_sample` is given; leave it out or set `num_beams` above 1.",
        ),
        (reward_per_token, {}, "`search` must be a SearchStrategies, but is a function."),
    ],
)
def test_contradictions_are_named(model, strategies, options, message):
    with pytest.raises(ValueError) as raised:
        model.generate(**batch_of(SOURCES[:1]), **{"num_beams": 2} | options, search=strategies)
    assert str(raised.value) == message
