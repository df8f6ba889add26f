"""Further arguments of `generate`: samples, prefixes, phrases, ensembles and a stream."""

import itertools

import pytest
import torch
from factories import tiny_model
from reference_search import SlowSearch
from search_models import (
    EOS,
    PREFIXES,
    SCORED,
    SOURCES,
    START,
    batch_of,
    check_found,
    contains,
    log_probs_of,
    new_tokens,
    translator,
)

LIMIT = 9


@pytest.fixture(scope="module")
def model():
    return translator()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "temperature": 1.5, "top_k": 8},
        {"num_beams": 4, "num_return_sequences": 3, "top_p": 0.9, "max_length_a": 1.0, "max_length_b": 2},
        {"num_beams": 1, "num_return_sequences": 4},
    ],
    ids=str,
)
def test_the_seed_decides_what_is_sampled(model, options):
    def sample(seed):
        torch.manual_seed(seed)
        return model.generate(**batch_of(SOURCES), do_sample=True, max_new_tokens=LIMIT, **options)

    copies = options.get("num_return_sequences", 1)
    assert len(sample(0)) == copies * len(SOURCES)
    assert sample(0).tolist() == sample(0).tolist()
    assert len({str(sample(seed).tolist()) for seed in range(4)}) > 1
    new_tokens(sample(0))


def test_samples_are_as_frequent_as_they_are_probable():
    model, source, num_samples = tiny_model(vocab_size=7), [5, 3, EOS], 2000
    probs = torch.tensor(log_probs_of(model)(source, [START])).exp()
    # Beam search draws two tokens without replacement, and returns the token with the higher probability.
    of_two_beams = torch.zeros(7)
    for first, second in itertools.permutations(range(7), 2):
        best = max(first, second, key=lambda token: probs[token])
        of_two_beams[best] += probs[first] * probs[second] / (1 - probs[first])
    for num_beams, expected in ((1, probs), (2, of_two_beams)):
        torch.manual_seed(0)
        options = {"num_beams": num_beams, "do_sample": True, "max_new_tokens": 1, "top_k": 0}
        found = model.generate(**batch_of([source] * num_samples), **options)[:, 1]
        frequencies = torch.bincount(found, minlength=7) / num_samples
        torch.testing.assert_close(frequencies, expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_sentence_goes_on_from_its_prefix(model, num_beams):
    options = {"num_beams": num_beams, "max_new_tokens": LIMIT, "length_penalty": 0.0}
    batch = batch_of(SOURCES, "right", PREFIXES)
    found = model.generate(**batch, **options)
    assert torch.equal(found[:, :4], batch["decoder_input_ids"])
    log_probs = log_probs_of(model)
    slow = SlowSearch(log_probs, LIMIT, num_beams, length_penalty=0.0, early_stopping=num_beams == 1 or None)
    expected = [slow.best(source, prefix)[0] for source, prefix in zip(SOURCES, PREFIXES, strict=True)]
    check_found(found, expected, 4)


PHRASES = [[[9, 4]], [], [[6], [11, 12, 6]], [[5, 6, 7], [5, 6, 8], [20]], [[5, 5, 9], [13]]]
LIMIT_OF_BATCH = {"max_new_tokens": 12}
LIMITS = {"max_length_a": 2.0, "max_length_b": 8}
PHRASE_SEARCHES = {
    "greedy": {"num_beams": 1, **LIMITS},
    "two beams": {"num_beams": 2, **LIMIT_OF_BATCH},
    "paper": {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt", **LIMITS},
    "first to finish": {"num_beams": 4, "early_stopping": True, **LIMIT_OF_BATCH},
    "without cache": {"num_beams": 3, "use_cache": False, **LIMIT_OF_BATCH},
    "coverage": {"num_beams": 2, "coverage_penalty": 0.2, **LIMITS},
}
phrase_searches = pytest.mark.parametrize("search", PHRASE_SEARCHES.values(), ids=PHRASE_SEARCHES)


@phrase_searches
def test_every_phrase_is_in_the_translation(model, search):
    plain = new_tokens(model.generate(**batch_of(SOURCES), **search))
    found = new_tokens(model.generate(**batch_of(SOURCES), **search, must_contain=PHRASES))
    for tokens, phrases in zip(found, PHRASES, strict=True):
        assert all(contains(tokens, phrase) for phrase in phrases), (tokens, phrases)
    # A sentence without phrases keeps its translation, and the plain search does not find the phrases.
    assert found[1] == plain[1]
    assert not any(all(contains(plain[row], phrase) for phrase in PHRASES[row]) for row in (0, 2, 3, 4))
    for row, source in enumerate(SOURCES):
        alone = model.generate(**batch_of([source]), **search, must_contain=[PHRASES[row]])
        assert new_tokens(alone) == [found[row]]


@pytest.mark.parametrize("kind", ["power", "gnmt"])
@pytest.mark.parametrize(
    "given", [{"do_sample": True}, {"must_contain": PHRASES}], ids=["sampling", "phrases"]
)
def test_scores_are_those_of_the_model(model, kind, given):
    torch.manual_seed(0)
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.6, "max_new_tokens": 12}
    outputs = model.generate(**batch_of(SOURCES), **options, **SCORED, length_penalty_type=kind, **given)
    log_probs = log_probs_of(model)
    search = SlowSearch(log_probs, 99, length_penalty=0.6, length_penalty_type=kind)
    found = new_tokens(outputs.sequences)
    for row, tokens in enumerate(found):
        source, phrases = SOURCES[row // 4], PHRASES[row // 4]
        total = sum(log_probs(source, [START, *tokens[:step]])[token] for step, token in enumerate(tokens))
        score = outputs.sequences_scores[row].item()
        assert score == pytest.approx(search.normalized(total, len(tokens)), abs=1e-5)
        assert "do_sample" in given or all(contains(tokens, phrase) for phrase in phrases)
    assert torch.all(outputs.sequences_scores.view(-1, 4).diff() <= 0)
    for first in range(0, len(found), 4):
        assert len(set(map(tuple, found[first : first + 4]))) == 4


@phrase_searches
@pytest.mark.parametrize("asked", [{}, SCORED], ids=["plain", "scored"])
def test_phrases_that_come_by_themselves_change_nothing(model, search, asked):
    plain = model.generate(**batch_of(SOURCES), **search)
    phrases = [[tokens[1:3], tokens[:1]] if len(tokens) > 3 else [] for tokens in new_tokens(plain)]
    assert sum(map(bool, phrases)) > 1
    found = model.generate(**batch_of(SOURCES), **search, **asked, must_contain=phrases)
    assert torch.equal(found.sequences if asked else found, plain)


LISTS = "`must_contain` must .* a list of phrases for each sentence|`must_contain` must have phrases that are lists"
WRONG_PHRASES = [
    ([[[5]], []], r"`must_contain`.*\b5\b.*\b2\b|`must_contain`.*\b2\b.*\b5\b"),
    (
        [[[EOS]], [], [], [], []],
        r"`must_contain` must .* ids of ordinary target tokens, but has \[2\] for sen",
    ),
    (torch.tensor([[[5, 6]]] * 5), LISTS),
    ([torch.tensor([[5, 6]])] * 5, LISTS),
    ([[[torch.tensor(5)]]] * 5, LISTS),
    ({"phrases": [5]}, LISTS),
]


@pytest.mark.parametrize(("phrases", "message"), WRONG_PHRASES, ids=str)
def test_wrong_phrases_are_refused(model, phrases, message):
    with pytest.raises(ValueError, match=f"^({message})"):
        model.generate(**batch_of(SOURCES), num_beams=2, must_contain=phrases)


def test_a_streamer_shows_one_beam(model):
    with pytest.raises(
        ValueError, match="^`streamer` needs `num_beams=1`, because a streamer shows only one"
    ):
        model.generate(**batch_of(SOURCES), num_beams=2, streamer=Recorder())


class Recorder:
    """The tokens that a streamer of transformers is given."""

    def __init__(self):
        self.pieces, self.ended = [], False

    def put(self, value):
        self.pieces.append(value.tolist())

    def end(self):
        self.ended = True


@pytest.mark.parametrize(
    "limit", [{"max_new_tokens": LIMIT}, {"max_length_a": 1.0, "max_length_b": 1}, {}], ids=str
)
def test_greedy_tokens_are_streamed_one_by_one(model, limit):
    for source in SOURCES:
        recorder = Recorder()
        found = model.generate(**batch_of([source]), num_beams=1, **limit, streamer=recorder)
        assert recorder.ended
        assert recorder.pieces == [[[START]], *([token] for token in found[0, 1:].tolist())]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_text_ends_at_a_stop_string(copier, num_beams):
    inputs = copier.source_tokenizer(["drei! eins zwei"], return_tensors="pt")
    options = {"stop_strings": ["eins"], "tokenizer": copier.target_tokenizer}
    ended = copier.backend.model.generate(**inputs, num_beams=num_beams, **options)
    assert copier.target_tokenizer.batch_decode(ended, skip_special_tokens=True) == ["drei! eins"]
