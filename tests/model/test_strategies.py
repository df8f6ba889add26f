"""Searches with strategies and ensembles equal the slow search with the same rules or mean probabilities."""

import pytest
import torch
import yaml
from factories import TINY_CONFIG
from reference_search import SlowSearch, averaged, without
from search_models import (
    EOS,
    PAD,
    SCORED,
    SOURCES,
    START,
    batch_of,
    check_found,
    log_probs_of,
    new_tokens,
    translator,
)
from sentences import contains, refused, rows
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from vaswani_hf import VaswaniConfig, VaswaniForCausalLM, VaswaniForSeq2SeqLM
from vaswani_hf.model.beams_vaswani import Candidates
from vaswani_hf.model.search_strategies_vaswani import SearchStrategies, best_candidates

LIMIT = 7


@pytest.fixture(scope="module")
def model():
    return translator().float()


def slow_best(slow):
    return [slow.best(source, [START])[0] for source in SOURCES]


def searched(model, strategies, **options):
    options = {"num_beams": 3, "max_new_tokens": LIMIT} | options
    return model.generate(**batch_of(SOURCES), search=strategies, **options)


def reward_per_token(log_probs, length, coverage=None):
    """A scorer that prefers long translations."""
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
    check_found(found, expected)
    plain = searched(model, None, early_stopping=False)
    assert new_tokens(plain) != [hypothesis.tokens for hypothesis in expected]


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
    check_found(found, expected)
    assert new_tokens(searched(model, None, length_penalty=2.0)) != new_tokens(found)


class NeverStops(FirstFinished):
    """A stopping rule that never ends a search."""

    def may_improve(self, search, finished, best):
        return torch.ones(len(finished), dtype=torch.bool)


@pytest.mark.parametrize("options", [{}, SCORED], ids=["plain", "scored"])
def test_no_step_follows_after_all_candidates_have_ended(model, options):
    lengths = []

    def stop(input_ids, scores, **kwargs):
        lengths.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] >= 4)

    searched(model, SearchStrategies(stopping_rule=NeverStops()), stopping_criteria=[stop], **options)
    assert max(lengths) == 4


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


NOT_OURS = """
{num_beams: 1, do_sample: true} | but `do_sample` is given; remove `do_sample`.
{custom_generate: greedy} | but `custom_generate` is given; remove `custom_generate`.
{num_beams: 1, prompt_lookup_num_tokens: 2} | but other arguments or settings select the decoding method 'assisted_generation' of transformers; remove these arguments or settings.
"""


@pytest.mark.parametrize(("options", "reason"), rows(NOT_OURS))
def test_a_strategy_needs_our_search(model, options, reason):
    with refused(f"`scorer` of `search` needs greedy or beam search, {reason}"):
        searched(model, SearchStrategies(scorer=reward_per_token), **yaml.safe_load(options))


def test_contradictions_are_named(model):
    with refused(
        "`candidates` of `search` must not be given with `must_contain`, because `must_contain` sets `candidates`; "
        "remove one of the two."
    ):
        searched(model, SearchStrategies(candidates=odd_candidates, must_contain=[[[9]]]))
    with refused("`search` must be a SearchStrategies, but is a function."):
        searched(model, reward_per_token)


SHAPE = TINY_CONFIG | {"encoder_layers": 1, "max_position_embeddings": 16, "bos_token_id": START}
SHAPE |= {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": START}
SEARCHES = {
    "greedy": {"num_beams": 1, "length_penalty": 0.0, "early_stopping": True},
    "beams": {"num_beams": 3, "length_penalty": 0.6, "early_stopping": "never"},
}


def random_model(kind=MarianMTModel, config_kind=MarianConfig, **fields):
    torch.manual_seed(0)
    model = kind(config_kind(**SHAPE | fields)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize(
    ("use_cache", "asked"), [(True, {}), (False, SCORED)], ids=["plain", "scored, no cache"]
)
def test_a_model_of_another_class_searches_with_ours(model, search, use_cache, asked):
    bart = random_model(BartForConditionalGeneration, BartConfig)
    others = [random_model(), translator(seed=1), bart]
    mean = averaged([log_probs_of(member) for member in (model, *others)])
    slow = SlowSearch(without(mean, lambda source, target: {PAD}), LIMIT, **search)
    expected = slow_best(slow)
    options = {**search, **asked, "max_new_tokens": LIMIT, "use_cache": use_cache, "ensemble": others}
    # Remove the length penalty, because transformers would warn about a length penalty with one beam.
    options = {**options, "length_penalty": None} if search["num_beams"] == 1 else options
    check_found(model.generate(**batch_of(SOURCES), **options), expected)


def test_sentences_leave_an_ensemble_without_a_change_to_the_others(model):
    options = {"num_beams": 4, "max_new_tokens": 12}
    ensemble, phrases = [random_model()], [[[9]], [], [], [[5, 6]], []]
    # An ensemble and phrases may also be fields of the strategies.
    together = searched(model, SearchStrategies(ensemble=ensemble, must_contain=phrases), **options)
    for row, source in enumerate(SOURCES):
        alone = model.generate(
            **batch_of([source]), **options, ensemble=ensemble, must_contain=[phrases[row]]
        )
        assert new_tokens(alone) == new_tokens(together[row : row + 1])


def test_learned_positions_of_a_member_limit_the_length(model):
    no_table = VaswaniForSeq2SeqLM(VaswaniConfig(**SHAPE, position_embedding="none")).eval()
    for member, limit in ((random_model(), SHAPE["max_position_embeddings"]), (no_table, 40)):
        options = {"num_beams": 2, "ensemble": [member], "max_new_tokens": 40, "min_new_tokens": 40}
        assert model.generate(**batch_of(SOURCES), **options).shape[1] == limit + 1


OTHER_FIELDS = """
{vocab_size: 25} | of one vocabulary, but `vocab_size` is 25 in ensemble[0] and 23 in
{eos_token_id: 3} | of one vocabulary, but `eos_token_id` is 3 in ensemble[0] and 2 in
{max_position_embeddings: 5} | positions for all tokens, but ensemble[0] has 5 positions and the source has 8 tokens.
"""


def test_what_cannot_search_with_ours_is_named(model):
    wrong = [
        ([VaswaniForCausalLM(model.config)], "encoder-decoder models, but ensemble[0] is a VaswaniForCa"),
        (["marian"], "a list of models that generate, but ensemble[0] is a str."),
        (model, "a list of models, but is a VaswaniForSeq2SeqLM; pass one model as `ensemble=[model]`."),
    ]
    for fields, message in rows(OTHER_FIELDS):
        wrong.append(([random_model(**yaml.safe_load(fields))], message))
    for ensemble, message in wrong:
        with pytest.raises(ValueError) as raised:
            model.generate(**batch_of(SOURCES), num_beams=2, ensemble=ensemble)
        assert contains(str(raised.value), f"`ensemble` must be ... {message}")
    # Models of other classes record no attention for the coverage.
    with pytest.raises(
        ValueError, match=r"^`coverage_penalty` must be left out with ensemble\[0\], a MarianM"
    ):
        model.generate(**batch_of(SOURCES), num_beams=2, coverage_penalty=0.2, ensemble=[random_model()])
