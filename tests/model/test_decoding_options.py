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


@pytest.mark.parametrize("length_penalty_type", ["power", "gnmt"])
def test_scores_of_beam_sampling_are_those_of_the_model(model, length_penalty_type):
    torch.manual_seed(0)
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.6, "do_sample": True}
    options |= {"length_penalty_type": length_penalty_type, "max_new_tokens": LIMIT}
    outputs = model.generate(**batch_of(SOURCES), **options, **SCORED)
    check_scores(model, outputs, [source for source in SOURCES for _ in range(4)], length_penalty_type, 0.6)
    for nbest in outputs.sequences_scores.view(-1, 4):
        assert torch.all(nbest.diff() <= 0)
    for nbest in outputs.sequences.view(len(SOURCES), 4, -1).tolist():
        assert len(set(map(tuple, nbest))) == 4


def check_scores(model, outputs, sources, length_penalty_type, length_penalty):
    """Each score is the sum of the model's own log-probabilities, over the length penalty."""
    log_probs = log_probs_of(model)
    search = SlowSearch(log_probs, 99, length_penalty=length_penalty, length_penalty_type=length_penalty_type)
    rows = new_tokens(outputs.sequences)
    for source, tokens, score in zip(sources, rows, outputs.sequences_scores.tolist(), strict=True):
        total = sum(log_probs(source, [START, *tokens[:step]])[token] for step, token in enumerate(tokens))
        assert score == pytest.approx(search.normalized(total, len(tokens)), abs=1e-5)


def share_of(first_tokens, num_classes):
    return torch.bincount(first_tokens, minlength=num_classes) / len(first_tokens)


def test_samples_are_as_frequent_as_they_are_probable():
    model = tiny_model(vocab_size=7)
    source, num_samples = [5, 3, EOS], 2000
    expected = torch.tensor(log_probs_of(model)(source, [START])).exp()
    torch.manual_seed(0)
    options = {"do_sample": True, "max_new_tokens": 1, "top_k": 0}
    found = model.generate(**batch_of([source]), **options, num_return_sequences=num_samples)
    torch.testing.assert_close(share_of(found[:, 1], 7), expected, atol=0.04, rtol=0)


def test_beams_are_sampled_as_often_as_they_are_probable():
    model = tiny_model(vocab_size=7)
    source, num_samples = [5, 3, EOS], 2000
    probs = torch.tensor(log_probs_of(model)(source, [START])).exp().tolist()
    # Two tokens are drawn without replacement, and the token with the higher probability becomes the result.
    expected = torch.zeros(7)
    for first, second in itertools.permutations(range(7), 2):
        best = max(first, second, key=lambda token: probs[token])
        expected[best] += probs[first] * probs[second] / (1 - probs[first])
    torch.manual_seed(0)
    options = {"num_beams": 2, "do_sample": True, "max_new_tokens": 1, "top_k": 0}
    found = model.generate(**batch_of([source] * num_samples), **options)
    torch.testing.assert_close(share_of(found[:, 1], 7), expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_sentence_goes_on_from_its_prefix(model, num_beams):
    options = {"num_beams": num_beams, "max_new_tokens": LIMIT, "length_penalty": 0.0}
    batch = batch_of(SOURCES, "right", PREFIXES)
    found = model.generate(**batch, **options)
    assert torch.equal(found[:, :4], batch["decoder_input_ids"])
    log_probs = log_probs_of(model)
    slow = SlowSearch(log_probs, LIMIT, num_beams, length_penalty=0.0, early_stopping=num_beams == 1 or None)
    expected = [slow.best(source, prefix)[0].tokens for source, prefix in zip(SOURCES, PREFIXES, strict=True)]
    assert new_tokens(found, 4) == expected


PHRASES = [[[9, 4]], [], [[6], [11, 12, 6]], [[5, 6, 7], [5, 6, 8], [20]], [[5, 5, 9], [13]]]
PHRASE_SEARCHES = {
    "greedy": {"num_beams": 1},
    "two beams": {"num_beams": 2},
    "paper": {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt"},
    "first to finish": {"num_beams": 4, "early_stopping": True},
    "without cache": {"num_beams": 3, "use_cache": False},
}
phrase_searches = pytest.mark.parametrize("search", PHRASE_SEARCHES.values(), ids=PHRASE_SEARCHES)


@phrase_searches
@pytest.mark.parametrize("limit", [{"max_new_tokens": 12}, {"max_length_a": 2.0, "max_length_b": 8}], ids=str)
def test_every_phrase_is_in_the_translation(model, search, limit):
    options = {**search, **limit}
    plain = new_tokens(model.generate(**batch_of(SOURCES), **options))
    found = new_tokens(model.generate(**batch_of(SOURCES), **options, must_contain=PHRASES))
    for tokens, phrases in zip(found, PHRASES, strict=True):
        assert all(contains(tokens, phrase) for phrase in phrases), (tokens, phrases)
    # A sentence without phrases keeps its translation, and the plain search does not find the phrases.
    assert found[1] == plain[1]
    assert not any(all(contains(plain[row], phrase) for phrase in PHRASES[row]) for row in (0, 2, 3, 4))
    for row, source in enumerate(SOURCES):
        alone = model.generate(**batch_of([source]), **options, must_contain=[PHRASES[row]])
        assert new_tokens(alone) == [found[row]]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_phrases_of_one_sentence_are_nothing_to_the_others(num_beams):
    generator = torch.Generator().manual_seed(0)

    def words(number):
        return torch.randint(3, 23, (number,), generator=generator).tolist()

    sources = [[*words(number % 6 + 1), EOS] for number in range(16)]
    phrases = [[words(number % 3 + 1)] for number in range(16)]
    neighbour, its_phrases = [*words(4), EOS], [words(1) for _ in range(6)]
    options = {"num_beams": num_beams, "num_return_sequences": num_beams}
    options |= {"max_length_a": 1.0, "max_length_b": 12}
    model = translator()
    alone = model.generate(**batch_of(sources), **options, must_contain=phrases)
    phrases.append(its_phrases)
    together = model.generate(**batch_of([*sources, neighbour]), **options, must_contain=phrases)
    assert new_tokens(together)[: len(alone)] == new_tokens(alone)


@pytest.mark.parametrize("length_penalty_type", ["power", "gnmt"])
def test_the_score_with_phrases_is_that_of_the_model(model, length_penalty_type):
    options = {"num_beams": 5, "num_return_sequences": 3, "length_penalty": 0.6, "max_new_tokens": 12}
    options |= {"length_penalty_type": length_penalty_type, "must_contain": PHRASES}
    outputs = model.generate(**batch_of(SOURCES), **options, **SCORED)
    check_scores(model, outputs, [source for source in SOURCES for _ in range(3)], length_penalty_type, 0.6)
    for row, tokens in enumerate(new_tokens(outputs.sequences)):
        assert all(contains(tokens, phrase) for phrase in PHRASES[row // 3])


@phrase_searches
@pytest.mark.parametrize("asked", [{}, SCORED], ids=["plain", "scored"])
def test_phrases_that_come_by_themselves_change_nothing(model, search, asked):
    options = {**search, "max_new_tokens": 12}
    plain = model.generate(**batch_of(SOURCES), **options)
    phrases = [[tokens[1:3], tokens[:1]] if len(tokens) > 3 else [] for tokens in new_tokens(plain)]
    assert sum(map(bool, phrases)) > 1
    found = model.generate(**batch_of(SOURCES), **options, **asked, must_contain=phrases)
    assert torch.equal(found.sequences if asked else found, plain)


def test_phrases_that_just_fit_are_there_and_more_are_refused(model):
    phrases = [[], [], [[5, 6, 7], [8, 9, 10]], [], []]
    for num_beams in (1, 3):
        options = {"num_beams": num_beams, "must_contain": phrases}
        found = new_tokens(model.generate(**batch_of(SOURCES), **options, max_new_tokens=7))[2]
        assert all(contains(found, phrase) for phrase in phrases[2])
        # The third sentence has four tokens, so both limits are four tokens.
        for limit in ({"max_new_tokens": 4}, {"max_length_a": 1.0, "max_length_b": 0}):
            with pytest.raises(
                ValueError, match="these phrases have 6 tokens, and the .* room for at most 4"
            ):
                model.generate(**batch_of(SOURCES), **options, **limit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_beams": 3, "must_contain": [[[5]], []]},
            r"`must_contain`.*\b5\b.*\b2\b|`must_contain`.*\b2\b.*\b5\b",
        ),
        (
            {"num_beams": 2, "must_contain": [[[EOS]], [], [], [], []]},
            r"`must_contain` must .* ids of ordinary target tokens, but has \[2\] for sentence 0.",
        ),
        ({"do_sample": True, "num_beams": 1, "ensemble": True}, "`ensemble`"),
        ({"num_beams": 2, "streamer": True}, "streamer"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_together_are_refused(model, options, message):
    options = {**options, **({"ensemble": [model]} if "ensemble" in options else {})}
    options = {**options, **({"streamer": Recorder()} if "streamer" in options else {})}
    with pytest.raises(ValueError, match=message):
        model.generate(**batch_of(SOURCES), **options)


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
