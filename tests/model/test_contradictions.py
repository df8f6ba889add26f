"""Contradicting settings give an error with both settings, or the best translation without phrases."""

import logging
import math

import pytest
import torch
import yaml
from factories import tiny_model
from reference_search import SlowSearch, repeated_ngrams, without
from search_models import EOS, PAD, SCORED, SOURCES, START, batch_of, contains, log_probs_of, translator
from sentences import contains as contains_parts
from sentences import rows

from vaswani_hf.model.phrases_vaswani import PhraseError
from vaswani_hf.model.search_errors_vaswani import NoTranslationError

NEVER = {"num_beams": 150, "max_new_tokens": 4, "length_penalty": 0.6, "early_stopping": "never"}


def own(row):
    return [token for token in row[1:] if token != PAD]


@pytest.fixture(scope="module")
def model():
    return translator()


def generate(model, phrases, **options):
    """The translation of the first sentence."""
    return model.generate(**batch_of(SOURCES[:1]), must_contain=[phrases], **{"num_beams": 2, **options})


CONTRADICTIONS = """
[[5, 6, 7]] | {bad_words_ids: [[4], [6, 7]]} | `bad_words_ids` forbids the tokens [6, 7] in this phrase; remove
[[5, 6]] | {suppress_tokens: [3, 6]} | `suppress_tokens` forbids the token 6 in this phrase; remove the phrase or the setting.
[[5, 6, 5, 6]] | {no_repeat_ngram_size: 2} | `no_repeat_ngram_size` is 2 and forbids [5, 6] twice, as in
[[5, 6], [7, 8]] | {max_new_tokens: 3} | these phrases have 4 tokens, and ... at most 3; give a larger `max_new_tokens` or fewer
[[5, 6], [7, 8, 9, 4, 3]] | {max_length_a: 1.0, max_length_b: 0} | these phrases have 7 tokens, and ... at most 6
[[5, 6, 7], [8], [6, 7, 9], [9, 5]] | {max_new_tokens: 5} | these phrases have 9 tokens, and ... at most 5;
[[5, 6, 7]] | {max_new_tokens: 3, forced_eos_token_id: 2} | have 3 tokens, and ... at most 2 before `forced_eos_token_id`;
"""


@pytest.mark.parametrize(("phrases", "options", "parts"), rows(CONTRADICTIONS))
def test_a_certain_contradiction_names_both_sides(model, phrases, options, parts):
    for num_beams in (1, 3):
        with pytest.raises(PhraseError) as raised:
            generate(model, yaml.safe_load(phrases), num_beams=num_beams, **yaml.safe_load(options))
        start = f"`must_contain` has {phrases[1:-1]} for sentence 0 of the batch, but ... "
        assert contains_parts(str(raised.value), start + parts)


def test_only_the_forbidden_phrase_is_named(model):
    with pytest.raises(PhraseError, match=r"has \[5, 6\] for sentence 0"):
        generate(model, [[9], [5, 6]], bad_words_ids=[[6]])


FITTING = """
[[5, 6], [7, 8]] | {max_new_tokens: 5, forced_eos_token_id: 2}
[[5, 6, 7], [8, 9, 10]] | {max_new_tokens: 7}
[[5, 6, 7], [8], [6, 7, 9], [9, 5]] | {max_new_tokens: 6}
"""


@pytest.mark.parametrize(("phrases", "options"), rows(FITTING))
def test_phrases_that_just_fit_are_there(model, phrases, options):
    phrases = yaml.safe_load(phrases)
    for num_beams in (1, 3):
        (row,) = generate(model, phrases, num_beams=num_beams, **yaml.safe_load(options)).tolist()
        assert all(contains(row, phrase) for phrase in phrases)


# If each token may occur only once, no translation can contain all three phrases.
CIRCLE = [[3, 4], [4, 5], [5, 3]]


@pytest.mark.parametrize("asked", [{}, SCORED], ids=["plain", "scored"])
def test_the_best_translation_with_the_most_phrases_is_found(asked):
    model, source = tiny_model(vocab_size=6), [5, 3, EOS]
    log_probs = without(log_probs_of(model), lambda source, target: {PAD})
    slow = SlowSearch(log_probs, 4, length_penalty=0.6)
    every = [
        found
        for found in slow.all_hypotheses(source, [START])
        if len(set(found.tokens)) == len(found.tokens) and START not in found.tokens
    ]
    for phrases in (CIRCLE, CIRCLE[::-1], [CIRCLE[1], CIRCLE[0], CIRCLE[2]]):
        assert not any(all(contains(found.tokens, phrase) for phrase in phrases) for found in every)
        best = next(found for found in every if all(contains(found.tokens, phrase) for phrase in phrases[:2]))
        options = {**NEVER, **asked, "no_repeat_ngram_size": 1, "must_contain": [phrases]}
        outputs = model.generate(**batch_of([source]), **options)
        (row,) = (outputs.sequences if asked else outputs).tolist()
        assert own(row) == best.tokens
        if asked:
            assert outputs.sequences_scores.item() == pytest.approx(best.score, abs=1e-5)
            assert outputs.unmet_phrases == [[[phrases[2]]]]


def test_a_sentence_with_unmet_phrases_changes_no_other(model):
    phrases = [[[9]], CIRCLE, [], [[5, 6]], [[7]]]
    options = {"num_beams": 3, "no_repeat_ngram_size": 1, "max_new_tokens": 8}
    outputs = model.generate(**batch_of(SOURCES), **options, **SCORED, must_contain=phrases)
    assert [len(unmet) for (unmet,) in outputs.unmet_phrases] == [0, 1, 0, 0, 0]
    plain = model.generate(**batch_of(SOURCES), **options, must_contain=phrases)
    assert torch.equal(plain, outputs.sequences)
    for row, source in enumerate(SOURCES):
        alone = model.generate(**batch_of([source]), **options, must_contain=[phrases[row]])
        assert own(alone[0].tolist()) == own(outputs.sequences[row].tolist())


def test_unmet_phrases_are_told(model, caplog):
    with caplog.at_level(logging.WARNING):
        generate(model, CIRCLE, no_repeat_ngram_size=1)
    (record,) = caplog.records
    assert record.getMessage() == (
        "`must_contain` has [5, 3] for sentence 0 of the batch, but no translation with all phrases was found "
        "under `no_repeat_ngram_size` = 1; the translation lacks the named phrases."
    )
    caplog.clear()
    generate(model, CIRCLE, no_repeat_ngram_size=1, warn_of_unmet_phrases=False)
    generate(model, CIRCLE[:2], no_repeat_ngram_size=1)
    assert not caplog.records


EVERY = list(range(23))
TOO_LONG = {"no_repeat_ngram_size": 1, "min_new_tokens": 40, "max_new_tokens": 50}
SEARCHES = [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 3, **SCORED}, {"do_sample": True}]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_settings_that_forbid_every_translation_are_named(model, search):
    torch.manual_seed(0)
    with pytest.raises(NoTranslationError, match=r"`suppress_tokens` = \[0, 1, 2"):
        model.generate(**batch_of(SOURCES), **search, suppress_tokens=EVERY)
    words = "`no_repeat_ngram_size` = 1, `min_new_tokens` = 40; change these settings."
    with pytest.raises(NoTranslationError, match=words):
        model.generate(**batch_of(SOURCES), **search, **TOO_LONG)


@pytest.mark.parametrize("asked", [{}, SCORED], ids=["plain", "scored"])
def test_where_there_are_fewer_translations_the_others_are_none(model, asked):
    suppressed = [token for token in EVERY if token not in (EOS, PAD, 5)]
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 2, "suppress_tokens": suppressed}
    outputs = model.generate(**batch_of(SOURCES[:2]), **options, **asked)
    rows = (outputs.sequences if asked else outputs).view(2, 4, -1).tolist()
    for of_sentence in rows:
        assert {tuple(own(row)) for row in of_sentence[:3]} == {(EOS,), (5, EOS), (5, 5)}
        assert own(of_sentence[3]) == []
    if asked:
        scores = outputs.sequences_scores.view(2, 4)
        assert scores[:, :3].min() > -1e3 and scores[:, 3].tolist() == [-math.inf, -math.inf]


def test_a_greedy_translation_that_ends_in_time_is_no_contradiction(model):
    options = {"num_beams": 1, "max_new_tokens": 30, "no_repeat_ngram_size": 1}
    log_probs = without(log_probs_of(model), repeated_ngrams(1))
    slow = SlowSearch(log_probs, 30, num_beams=1, length_penalty=0.0, early_stopping=True)
    found = model.generate(**batch_of(SOURCES), **options).tolist()
    assert [own(row) for row in found] == [slow.best(source, [START])[0].tokens for source in SOURCES]
