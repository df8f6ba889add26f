"""The search for heads that relate words."""

import pytest
import torch
from factories import tiny_model, tiny_tokenizer

from vaswani_hf.pictures.attention import read_tokens, word_weights
from vaswani_hf.pictures.head_search import (
    Head,
    Occurrence,
    Statistics,
    best_heads,
    encoder_weights,
    measure,
    measured_head,
    most_different_heads,
    untrained,
)
from vaswani_hf.pictures.relations import (
    default_pronouns,
    default_verbs,
    pronoun_relation,
    read_partners,
    verb_relation,
)

SENTENCE = "a man wearing a red shirt and a hat sees his dog".split()


def test_complement_is_the_first_partner_that_is_far_enough():
    verbs = {"wearing": frozenset({"shirt", "hat"})}
    assert list(verb_relation(verbs, 3).pairs(SENTENCE)) == [(2, 5)]
    assert list(verb_relation(verbs, 4).pairs(SENTENCE)) == [(2, 8)]
    assert not list(verb_relation(verbs, 7).pairs(SENTENCE))


def test_antecedent_is_the_last_partner_before():
    pronouns = {"his": frozenset({"man", "hat"})}
    assert list(pronoun_relation(pronouns, 2).pairs(SENTENCE)) == [(10, 8)]
    assert list(pronoun_relation(pronouns, 3).pairs(SENTENCE)) == [(10, 1)]
    assert list(pronoun_relation(pronouns, 2).pairs([word.title() for word in SENTENCE]))


def test_lists_of_words():
    """The default lists are in lower case. There are lists for English and German."""
    for language in ("en", "de"):
        for partners in (default_verbs(language), default_pronouns(language)):
            for word, of_word in partners.items():
                assert word == word.lower()
                assert all(partner == partner.lower() for partner in of_word)
    assert default_verbs("fr") is None and default_pronouns("") is None
    assert read_partners(["Wears: Shirt, hat"], "--verbs") == {"wears": {"shirt", "hat"}}


@pytest.mark.parametrize(
    ("language", "captions", "everyday"),
    [
        ("en", "a man wears a big blue hat and his dog", "Tom wants to lend his sister a book"),
        (
            "de",
            "ein mann trägt einen großen blauen hut und sein hund",
            "Tom möchte seiner Schwester ein Buch leihen",
        ),
    ],
)
def test_lists_fit_captions_and_everyday_sentences(language, captions, everyday):
    verbs = verb_relation(default_verbs(language), 4)
    pronouns = pronoun_relation(default_pronouns(language), 2)
    for sentence in (captions, everyday):
        words = sentence.split()
        assert len(list(verbs.pairs(words))) == 1
        assert len(list(pronouns.pairs(words))) == 1


@pytest.mark.parametrize("entry", ["wears", "wears:", ":shirt", "wears:,"])
def test_bad_entry(entry):
    with pytest.raises(ValueError, match="`--verbs` must have entries such as wears:shirt,hat, but has"):
        read_partners([entry], "--verbs")


@pytest.fixture(scope="module")
def sentences():
    tokenizer = tiny_tokenizer([" ".join(SENTENCE)] * 2, 300)
    texts = ["a man sees a dog", "his dog sees a hat and a man wearing a red shirt", "a dog"]
    return [read_tokens(text, tokenizer) for text in texts], tiny_model(vocab_size=len(tokenizer))


@pytest.mark.parametrize("pad_token_id", [1, None])
def test_weights_of_a_batch(sentences, monkeypatch, pad_token_id):
    """The weights of a sentence in a padded batch are those of the sentence alone."""
    tokens, model = sentences
    monkeypatch.setattr(model.config, "pad_token_id", pad_token_id)
    batch = dict(encoder_weights(model, tokens))
    assert sorted(batch) == [0, 1, 2]
    for index, sentence in enumerate(tokens):
        with torch.no_grad():
            outputs = model(
                torch.tensor([sentence.ids]), decoder_input_ids=torch.tensor([[0]]), output_attentions=True
            )
        expected = word_weights(torch.cat(outputs.encoder_attentions), sentence, sentence)
        torch.testing.assert_close(batch[index], expected, atol=1e-6, rtol=1e-4)


def test_statistics_by_loops(sentences):
    """The statistics are those that loops compute from the weights."""
    tokens, model = sentences
    relation = verb_relation({"wearing": frozenset({"shirt"})}, 2)
    statistics = measure(model, tokens, [relation])
    (found,) = statistics.occurrences[relation.name]
    words = tokens[1].words
    assert (found.sentence, words[found.query], words[found.key]) == (1, "wearing", "shirt")
    weights = dict(encoder_weights(model, tokens))[1]
    distance = found.key - found.query
    for layer in range(2):
        for head in range(2):
            rows = weights[layer, head]
            assert found.weights[layer, head] == rows[found.query, found.key]
            assert bool(found.is_largest[layer, head]) == (rows[found.query].argmax() == found.key)
            at_distance = [rows[query, query + distance] for query in range(len(words) - distance)]
            torch.testing.assert_close(found.same_distance[layer, head], torch.stack(at_distance).mean())
        first, second = weights[layer]
        distances = [(a - b).abs().sum() / 2 for a, b in zip(first, second, strict=True)]
        torch.testing.assert_close(statistics.distances[1][layer, 0, 1], torch.stack(distances).mean())
        differs = [float(a.argmax() != b.argmax()) for a, b in zip(first, second, strict=True)]
        torch.testing.assert_close(
            statistics.disagreements[1][layer, 0, 1], torch.tensor(sum(differs) / len(differs))
        )


def _occurrence(weights: list[list[float]]) -> Occurrence:
    matrix = torch.tensor(weights)
    return Occurrence(0, 0, 4, matrix, matrix > 0.5, matrix / 2)


def test_best_heads():
    """The best heads have the largest mean weights, not the largest single weight."""
    found = [_occurrence([[0.9, 0.4], [0.5, 0.1]]), _occurrence([[0.0, 0.4], [0.6, 0.1]])]
    assert best_heads(found, 2) == [Head(1, 0), Head(0, 0)]
    assert measured_head(found, Head(1, 0)) == pytest.approx(
        {"layer": 2, "head": 1, "mean_weight": 0.55, "share_largest": 0.5, "mean_weight_same_distance": 0.275}
    )


def test_most_different_heads():
    distances = torch.zeros(2, 3, 3)
    distances[1, 0, 2] = distances[1, 2, 0] = 0.4
    distances[0, 0, 1] = distances[0, 1, 0] = 0.3
    assert most_different_heads(Statistics({}, {0: distances})) == (Head(1, 0), Head(1, 2))


def test_untrained_model(sentences):
    """Each call returns the same untrained model with other weights, and keeps the random state."""
    model = sentences[1]
    state = torch.get_rng_state()
    first, second = untrained(model), untrained(model)
    assert torch.equal(state, torch.get_rng_state())
    for own, a, b in zip(model.parameters(), first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(own, a)
