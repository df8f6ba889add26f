"""Further arguments of `generate`: samples, prefixes, phrases, ensembles and a stream."""

import itertools

import pytest
import torch
from reference_search import SlowSearch, without
from search_models import (
    EOS,
    PAD,
    PREFIXES,
    SOURCES,
    START,
    batch_of,
    log_probs_of,
    translator,
)

SCORED = {"return_dict_in_generate": True, "output_scores": True}
LIMIT = 9


@pytest.fixture(scope="module")
def model(tiny_config):
    return translator(tiny_config)


def new_tokens(sequences, prompt_length=1):
    """The tokens of each row up to its end, and nothing but padding behind it."""
    rows = []
    for row in sequences[:, prompt_length:].tolist():
        length = row.index(EOS) + 1 if EOS in row else row.index(PAD) if PAD in row else len(row)
        assert set(row[length:]) <= {PAD}
        rows.append(row[:length])
    return rows


# Sampling


SAMPLING = [
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 3, "temperature": 1.5, "top_k": 8},
    {"num_beams": 3, "top_p": 0.9, "max_length_a": 1.0, "max_length_b": 2, "length_penalty_type": "gnmt"},
    {"num_beams": 1, "num_return_sequences": 4},
]


@pytest.mark.parametrize("options", SAMPLING, ids=str)
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
    outputs = model.generate(
        **batch_of(SOURCES),
        **options,
        **SCORED,
        length_penalty_type=length_penalty_type,
        max_new_tokens=LIMIT,
    )
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


def test_samples_are_as_frequent_as_they_are_probable(tiny_model):
    model = tiny_model(vocab_size=7)
    source, num_samples = [5, 3, EOS], 2000
    expected = torch.tensor(log_probs_of(model)(source, [START])).exp()
    torch.manual_seed(0)
    options = {"do_sample": True, "max_new_tokens": 1, "top_k": 0}
    found = model.generate(**batch_of([source]), **options, num_return_sequences=num_samples)
    torch.testing.assert_close(share_of(found[:, 1], 7), expected, atol=0.04, rtol=0)


def test_beams_are_sampled_as_often_as_they_are_probable(tiny_model):
    model = tiny_model(vocab_size=7)
    source, num_samples = [5, 3, EOS], 2000
    probs = torch.tensor(log_probs_of(model)(source, [START])).exp().tolist()
    # Two are drawn without being put back, and the better one wins.
    expected = torch.zeros(7)
    for first, second in itertools.permutations(range(7), 2):
        best = max(first, second, key=lambda token: probs[token])
        expected[best] += probs[first] * probs[second] / (1 - probs[first])
    torch.manual_seed(0)
    options = {"num_beams": 2, "do_sample": True, "max_new_tokens": 1, "top_k": 0}
    found = model.generate(**batch_of([source] * num_samples), **options)
    torch.testing.assert_close(share_of(found[:, 1], 7), expected, atol=0.04, rtol=0)


def test_samples_are_diverse(model):
    torch.manual_seed(0)
    options = {"do_sample": True, "num_return_sequences": 6, "max_new_tokens": LIMIT}
    found = model.generate(**batch_of(SOURCES), **options)
    for samples in found.view(len(SOURCES), 6, -1).tolist():
        assert len(set(map(tuple, samples))) > 2


# Prefixes


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


# Phrases


PHRASES = [[[9, 4]], [], [[6], [11, 12, 6]], [[5, 6, 7], [5, 6, 8], [20]], [[5, 5, 9], [13]]]
PHRASE_SEARCHES = {
    "greedy": {"num_beams": 1},
    "two beams": {"num_beams": 2},
    "power": {"num_beams": 5, "length_penalty": 0.6},
    "paper": {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt"},
    "first to finish": {"num_beams": 4, "early_stopping": True},
    "without cache": {"num_beams": 3, "use_cache": False},
}
phrase_searches = pytest.mark.parametrize("search", PHRASE_SEARCHES.values(), ids=PHRASE_SEARCHES)


def contains(tokens, phrase):
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens)))


@phrase_searches
@pytest.mark.parametrize("limit", [{"max_new_tokens": 12}, {"max_length_a": 2.0, "max_length_b": 8}], ids=str)
def test_every_phrase_is_in_the_translation(model, search, limit):
    options = {**search, **limit}
    plain = new_tokens(model.generate(**batch_of(SOURCES), **options))
    found = new_tokens(model.generate(**batch_of(SOURCES), **options, must_contain=PHRASES))
    for tokens, phrases in zip(found, PHRASES, strict=True):
        assert all(contains(tokens, phrase) for phrase in phrases), (tokens, phrases)
    # Sentences without a demand do not change, and the phrases of the others were not there by themselves.
    assert found[1] == plain[1]
    assert not any(all(contains(plain[row], phrase) for phrase in PHRASES[row]) for row in (0, 2, 3, 4))
    for row, source in enumerate(SOURCES):
        alone = model.generate(**batch_of([source]), **options, must_contain=[PHRASES[row]])
        assert new_tokens(alone) == [found[row]]


@pytest.mark.parametrize("num_beams", [1, 2, 3])
def test_phrases_of_one_sentence_are_nothing_to_the_others(tiny_config, num_beams):
    generator = torch.Generator().manual_seed(0)

    def words(number):
        return torch.randint(3, 23, (number,), generator=generator).tolist()

    sources = [[*words(number % 6 + 1), EOS] for number in range(16)]
    phrases = [[words(number % 3 + 1)] for number in range(16)]
    neighbour, its_phrases = [*words(4), EOS], [words(1) for _ in range(6)]
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_length_a": 1.0,
        "max_length_b": 12,
    }
    for fields in ({}, {"seed": 1}, {"norm_position": "pre", "d_k": 5, "d_v": 3}):
        model = translator(tiny_config, **fields)
        alone = model.generate(**batch_of(sources), **options, must_contain=phrases)
        together = model.generate(
            **batch_of([*sources, neighbour]), **options, must_contain=[*phrases, its_phrases]
        )
        assert new_tokens(together)[: len(alone)] == new_tokens(alone)


def test_phrases_that_just_fit_are_there(model):
    phrases = [[[5, 6, 7], [8, 9, 10]]] * len(SOURCES)
    for num_beams in (1, 4):
        found = model.generate(
            **batch_of(SOURCES), num_beams=num_beams, max_new_tokens=7, must_contain=phrases
        )
        for tokens in new_tokens(found):
            assert all(contains(tokens, phrase) for phrase in phrases[0])


@pytest.mark.parametrize("length_penalty_type", ["power", "gnmt"])
def test_the_score_with_phrases_is_that_of_the_model(model, length_penalty_type):
    options = {"num_beams": 5, "num_return_sequences": 3, "length_penalty": 0.6, "max_new_tokens": 12}
    outputs = model.generate(
        **batch_of(SOURCES),
        **options,
        **SCORED,
        length_penalty_type=length_penalty_type,
        must_contain=PHRASES,
    )
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


def test_phrases_in_a_wide_beam_find_the_best_of_all_that_have_them(tiny_model):
    model = tiny_model(vocab_size=6)
    source, phrases = [5, 3, EOS], [[4, 3], [5]]
    log_probs = without(log_probs_of(model), lambda source, target: {PAD})
    slow = SlowSearch(log_probs, 4, length_penalty=0.6)
    every = slow.all_hypotheses(source, [START])
    best = next(found for found in every if all(contains(found.tokens, phrase) for phrase in phrases))
    assert best != every[0]
    options = {"num_beams": 150, "max_new_tokens": 4, "length_penalty": 0.6, "early_stopping": "never"}
    outputs = model.generate(**batch_of([source]), **options, **SCORED, must_contain=[phrases])
    assert new_tokens(outputs.sequences) == [best.tokens]
    assert outputs.sequences_scores.item() == pytest.approx(best.score, abs=1e-5)


def test_phrases_that_do_not_fit_are_refused(model):
    too_long = [[], [], [[5, 6, 7], [8, 9, 10]], [], []]
    for num_beams in (1, 3):
        with pytest.raises(ValueError, match=r"must_contain.*\b[67]\b.*\b4\b|must_contain.*\b4\b.*\b[67]\b"):
            model.generate(**batch_of(SOURCES), num_beams=num_beams, max_new_tokens=4, must_contain=too_long)
        # The third sentence has four tokens.
        limits = {"max_length_a": 1.0, "max_length_b": 0}
        with pytest.raises(ValueError, match=r"must_contain.*\b[67]\b.*\b4\b|must_contain.*\b4\b.*\b[67]\b"):
            model.generate(**batch_of(SOURCES), num_beams=num_beams, **limits, must_contain=too_long)


def test_phrases_are_given_for_each_sentence(model):
    with pytest.raises(ValueError, match=r"`must_contain`.*\b5\b.*\b2\b|`must_contain`.*\b2\b.*\b5\b"):
        model.generate(**batch_of(SOURCES), num_beams=3, must_contain=[[[5]], []])


def test_an_ensemble_does_not_sample_without_beams(model):
    with pytest.raises(ValueError, match="`ensemble`"):
        model.generate(**batch_of(SOURCES), do_sample=True, num_beams=1, ensemble=[model])


# Streaming


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


def test_beams_cannot_be_streamed(model):
    with pytest.raises(ValueError, match="streamer"):
        model.generate(**batch_of(SOURCES[:1]), num_beams=2, streamer=Recorder())


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_text_ends_at_a_stop_string(copier, num_beams):
    inputs = copier.source_tokenizer(["drei! eins zwei"], return_tensors="pt")
    ended = copier.backend.model.generate(
        **inputs, num_beams=num_beams, stop_strings=["eins"], tokenizer=copier.target_tokenizer
    )
    assert copier.target_tokenizer.batch_decode(ended, skip_special_tokens=True) == ["drei! eins"]
