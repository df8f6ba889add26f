"""Scores of given translations equal the scores of the search and of slow loops; confidences and
alignments.
"""

import math
import os
import random

import pytest
import torch
from factories import tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vaswani_hf.data.tokenizer_training import train_tokenizer
from vaswani_hf.model.backend_vaswani import Hypothesis, Segment, token_log_probs, without_padding
from vaswani_hf.model.inputs_vaswani import TranslationOptions
from vaswani_hf.model.segmenter_vaswani import SegmentTokenizer
from vaswani_hf.model.text_rules_vaswani import (
    align_words,
    shift_alignment,
    target_word_indices,
    token_texts,
    words_at,
)
from vaswani_hf.model.translations_vaswani import Translation, Word, join_translations
from vaswani_hf.translation import Translator

TEXTS = ["eins zwei", "der Hund läuft über die Straße", "ja? nein"]


def slow_log_probs(model, source: list[int], target: list[int]) -> list[float]:
    """Score one token at a time, each with a separate forward pass."""
    read, log_probs = [0], []
    for token in target:
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([read])).logits[0, -1]
        log_probs.append(logits.log_softmax(-1)[token].item())
        read.append(token)
    return log_probs


@torch.no_grad()
def test_token_log_probs_are_those_of_one_sentence_and_one_token_at_a_time(copier):
    tokenizer = copier.source_tokenizer
    targets = [TEXTS[1], "größer. ja?", "eins"]
    scored = list(copier.score(TEXTS, targets))
    for source, target, translation in zip(TEXTS, targets, scored, strict=True):
        ids = tokenizer(target)["input_ids"]
        expected = slow_log_probs(copier.model, tokenizer(source)["input_ids"], ids)
        assert translation.token_log_probs == pytest.approx(expected, abs=1e-4)
        assert translation.tokens == token_texts(ids, tokenizer) and translation.tokens[-1] == "</s>"
        assert translation.log_prob == pytest.approx(sum(expected), abs=1e-3)
        assert translation.confidence == pytest.approx(math.exp(sum(expected) / len(expected)), abs=1e-5)


def test_tokens_are_text_and_bytes_of_divided_characters_are_escaped():
    tokenizer = train_tokenizer(["zwölf zwölf Hund"] * 3, 275)
    tokenizer.add_tokens([AddedToken("«Ö»", normalized=False)])
    text = "zwölf 日 Hund\\n «Ö»"
    ids = tokenizer(text)["input_ids"]
    assert "ĠzwÃ¶lf" in tokenizer.convert_ids_to_tokens(ids)
    assert token_texts([len(tokenizer)], tokenizer) == [""]
    tokens = token_texts(ids, tokenizer)
    assert tokens == [" zwölf", " ", r"\xe6", r"\x97", r"\xa5", *tokens[5:-2], "«Ö»", "</s>"]
    assert "".join(tokens[5:-2]) == " Hund\\n "
    # In other vocabularies, the entries are text already, so their text does not change.
    words = Tokenizer(models.WordLevel({"<unk>": 0, "▁Ã¤": 1, "<0xC3>": 2}, unk_token="<unk>"))
    words.decoder = decoders.Metaspace()
    assert token_texts([1, 2], PreTrainedTokenizerFast(tokenizer_object=words)) == ["▁Ã¤", "<0xC3>"]


SEARCHES = {
    "power": {"length_penalty": 0.6},
    "no penalty": {"length_penalty": 0.0},
    "gnmt": {"length_penalty": 0.6, "length_penalty_type": "gnmt"},
    "coverage": {"length_penalty": 1.2, "length_penalty_type": "gnmt", "coverage_penalty": 0.3},
}


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize(
    "prefixes", [["", "", ""], ["der", "", "größer. ja? nein"]], ids=["free", "prefixes"]
)
def test_scores_are_those_that_the_search_reported(copier, babbler, settings, prefixes):
    tokenizer = copier.source_tokenizer
    ends = set()
    for translator in (copier, babbler):
        model = translator.model
        inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
        ids = [
            tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else [] for prefix in prefixes
        ]
        longest = max(map(len, ids))
        start = torch.tensor([[1] * (longest - len(prefix)) + [0] + prefix for prefix in ids])
        search = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 7, **settings}
        found = model.generate(
            **inputs, decoder_input_ids=start, return_dict_in_generate=True, output_scores=True, **search
        )
        rows = [
            ids[i // 3] + without_padding(row[longest + 1 :], [2], 1)
            for i, row in enumerate(found.sequences.tolist())
        ]
        ends |= {row[-1] == 2 for row in rows}
        hypotheses = [[Hypothesis(row, len(ids[i // 3]))] for i, row in enumerate(rows)]
        segments = [Segment(text, tokenizer(text)["input_ids"], []) for text in TEXTS for _ in range(3)]
        options = TranslationOptions(return_scores=True, generate=settings)
        translations = translator.segment_search.score(segments, hypotheses, options)
        scores = [scored.score for (scored,) in translations]
        assert scores == pytest.approx(found.sequences_scores.tolist(), abs=1e-4)
        # The translator gives the same scores, although its batches have another order.
        options = {"target_prefixes": prefixes, **search}
        translated = list(translator.translate(TEXTS, **options))
        flat = [t.score for first in translated for t in (first, *first.alternatives)]
        assert flat == pytest.approx(found.sequences_scores.tolist(), abs=1e-4)
    assert ends == {True, False}


def test_the_probabilities_of_an_ensemble_are_averaged(copier, babbler):
    ensemble = Translator(copier.model, copier.source_tokenizer, copier.target_tokenizer, [babbler.model])
    first, second = list(copier.score(TEXTS, TEXTS)), list(babbler.score(TEXTS, TEXTS))
    for one, other, both in zip(first, second, ensemble.score(TEXTS, TEXTS), strict=True):
        for a, b, mean in zip(one.token_log_probs, other.token_log_probs, both.token_log_probs, strict=True):
            assert math.exp(mean) == pytest.approx((math.exp(a) + math.exp(b)) / 2, abs=1e-5)
    settings = {"num_beams": 3, "max_new_tokens": 30, "length_penalty": 0.6, "coverage_penalty": 0.2}
    (translation,) = ensemble.translate([TEXTS[1]], return_scores=True, **settings)
    (again,) = ensemble.score([TEXTS[1]], [translation.text], length_penalty=0.6, coverage_penalty=0.2)
    (alone,) = copier.score([TEXTS[1]], [translation.text], length_penalty=0.6, coverage_penalty=0.2)
    assert again.score == pytest.approx(translation.score, abs=1e-4) != alone.score


def test_attention_is_the_mean_over_heads_of_the_last_layers():
    model = tiny_model(decoder_layers=3)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1]])}
    inputs["attention_mask"] = (inputs["input_ids"] != 1).long()
    decoder_input_ids, labels = torch.tensor([[0, 4, 9], [0, 5, 2]]), torch.tensor([[4, 9, 2], [5, 2, 1]])
    before = model.config._attn_implementation
    log_probs, attention = token_log_probs([model], inputs, decoder_input_ids, labels, 2)
    assert model.config._attn_implementation == before == "sdpa"
    model.set_attn_implementation("eager")
    outputs = model(**inputs, decoder_input_ids=decoder_input_ids, output_attentions=True)
    expected = torch.stack([weights.mean(1) for weights in outputs.cross_attentions[-2:]], dim=1)
    torch.testing.assert_close(attention, expected, rtol=0, atol=1e-5)
    chosen = outputs.logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(log_probs[:, :2], chosen[:, :2], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        (TEXTS, {"length_penalty": "much"}, "`length_penalty` must be a finite number, but is 'much'."),
        (TEXTS, {"num_beams": 3}, "`score` takes no argument `num_beams`."),
        (TEXTS[:2], {}, ""),
    ],
)
def test_impossible_settings_are_named(copier, targets, settings, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        list(copier.score(TEXTS, targets, **settings))


def test_a_pair_longer_than_the_model_s_positions_is_named(copier):
    tokenizer = copier.source_tokenizer
    model = tiny_model(vocab_size=len(tokenizer), position_embedding="learned", max_position_embeddings=9)
    translator = Translator(model, tokenizer, tokenizer)
    assert len(list(translator.score(["eins"], ["eins"]))) == 1
    with pytest.raises(ValueError) as raised:
        list(translator.score(["eins", "eins"], ["eins", TEXTS[1]]))
    length = len(tokenizer(TEXTS[1])["input_ids"])
    assert str(raised.value) == (
        f"Pair 2 must have at most 9 tokens on each side, as many as the model has positions, but has {length}."
    )


def test_empty_texts_have_scores_too(copier):
    empty, whole = copier.score(["", "ja?"], ["", "  ja? "])
    assert empty.tokens == ["</s>"] and empty.words == [] and empty.log_prob < 0
    assert whole.text == "ja?"


def test_the_confidence_of_a_word_is_the_product_over_its_tokens(copier):
    (translation,) = copier.score(["die Straße"], ["die Straße"])
    words, indices = target_word_indices(
        copier.target_tokenizer("die Straße")["input_ids"], copier.target_tokenizer
    )
    assert words == ["die", "Straße"] and indices.count(1) > 1 and indices[-1] == -1
    for number, word in enumerate(translation.words):
        log_probs = [
            log_prob
            for log_prob, index in zip(translation.token_log_probs, indices, strict=True)
            if index == number
        ]
        assert word.confidence == pytest.approx(math.exp(sum(log_probs)))


def test_forced_words_are_certain_and_do_not_count(copier):
    (translation,) = copier.translate(["größer. zwei"], target_prefixes=["größer."], return_scores=True)
    assert translation.text.startswith("größer. ")
    assert translation.words[0] == Word("größer.", 1.0)
    assert all(word.confidence < 1 for word in translation.words[1:])
    assert f"größer.{''.join(translation.tokens)}" == f"{translation.text}</s>"


def test_a_copying_model_aligns_each_word_with_itself(copier, copied_words):
    texts = [" ".join(copied_words[i : i + 4]) for i in range(len(copied_words) - 4)]
    translations = list(copier.translate(texts, return_alignments=True))
    copied = [t for t, text in zip(translations, texts, strict=True) if t.text == text]
    assert len(copied) >= 0.8 * len(texts)
    assert sum(t.alignment == "0-0 1-1 2-2 3-3" for t in copied) >= 0.9 * len(copied)
    # Given translations can be aligned, too.
    (given,) = copier.score(texts[:1], texts[:1], return_alignments=True)
    assert given.alignment == translations[0].alignment


def test_words_of_tokens_that_are_parts_of_characters(copier):
    tokenizer = train_tokenizer(["x"], 260)
    text = "  Łódź 日本\tö "
    options = TranslationOptions(return_alignments=True)
    (segment,) = SegmentTokenizer(tokenizer, prefix="").tokenize([text], options, max_length=1024)
    source = segment.words
    words, target = target_word_indices(segment.token_ids, tokenizer)
    assert words == ["Łódź", "日本", "ö"]
    # Each token is a byte; white space belongs to the next word, and at the end of a text to no word.
    letters = [0] * len("Łódź".encode()) + [1] + [1] * len("日本".encode()) + [2] + [2] * len("ö".encode())
    assert target == [0, 0, 0, *letters, -1, -1]
    assert source == target


def test_attention_becomes_pairs_of_words():
    attention = torch.tensor(
        [
            # The last column, `</s>` of the source, belongs to no word; the attention to a word is the
            # maximum over its tokens.
            [0.25, 0.25, 0.30, 0.20, 0.9],
            [0.20, 0.20, 0.20, 0.10, 0.0],
            [0.50, 0.10, 0.10, 0.30, 0.0],
            [0.00, 0.00, 0.10, 0.70, 0.0],
            [0.90, 0.00, 0.00, 0.00, 0.0],
        ]
    )
    assert align_words(attention, [0, 0, 1, 2, -1], [0, 0, 1, 1, -1]) == [(1, 0), (2, 1)]
    assert align_words(attention, [-1] * 5, [0, 0, 1, 1, -1]) == []
    assert align_words(attention, [0, 0, 1, 2, -1], [-1] * 5) == []


def test_parts_are_joined():
    parts = [
        Translation(
            "a b", -1.0, -2.0, 0.0, ["a", "b"], [-0.5, -1.5], [Word("a", 0.6), Word("b", 0.2)], "1-0 0-1"
        ),
        Translation("", -0.5, -1.0, 0.0, ["</s>"], [-1.0], [], ""),
        Translation("c", -3.0, -3.0, 0.0, ["c"], [-3.0], [Word("c", 0.1)], "3-0"),
    ]
    joined = join_translations(parts, ["", "\n\n", " ", " "])
    assert joined.text == "a b\n\n c "
    assert (joined.score, joined.log_prob, joined.confidence) == (-4.5, -6.0, pytest.approx(math.exp(-6 / 4)))
    assert [word.word for word in joined.words] == ["a", "b", "c"]
    assert joined.alignment == "1-0 0-1 3-2"
    # The words of the separators are words of the translation.
    joined = join_translations(parts, ["! ", " ", " 😀 !! ", ""])
    assert joined.text == "! a b  😀 !! c"
    assert [word.word for word in joined.words] == joined.text.split()
    assert [word.confidence for word in joined.words] == [1.0, 0.6, 0.2, 1.0, 1.0, 0.1]
    assert joined.alignment == "1-1 0-2 3-5"
    assert shift_alignment("2-0 14-3", 1) == "2-1 14-4"
    unscored = [Translation("a", token_ids=[5]), Translation("b", token_ids=[6])]
    assert join_translations(unscored, ["", " ", ""]) == Translation("a b", token_ids=[5, 6])


def test_parts_without_white_space_between_them_share_a_word():
    parts = [
        Translation(
            "a b。", -1.0, token_log_probs=[], words=[Word("a", 0.5), Word("b。", 0.8)], alignment="0-0 1-1"
        ),
        Translation("", -1.0, token_log_probs=[], words=[], alignment=""),
        Translation("c。", -1.0, token_log_probs=[], words=[Word("c。", 0.5)], alignment="1-0"),
        Translation(
            "d e", -1.0, token_log_probs=[], words=[Word("d", 0.1), Word("e", 0.9)], alignment="2-0 3-1"
        ),
    ]
    joined = join_translations(parts, ["", "", "", "😀！", ""])
    assert joined.text == "a b。c。😀！d e"
    assert joined.words == [Word("a", 0.5), Word("b。c。😀！d", pytest.approx(0.04)), Word("e", 0.9)]
    assert joined.alignment == "0-0 1-1 2-1 3-2"


def slow_word_indices(token_ids, tokenizer):
    """Compute `target_word_indices` in a slow way: decode every beginning of the text completely."""
    text, special = tokenizer.decode(token_ids, skip_special_tokens=True), set(tokenizer.all_special_ids)
    begun = [tokenizer.decode(token_ids[:i], skip_special_tokens=True) for i in range(len(token_ids))]
    starts = [len(os.path.commonprefix([text, beginning])) for beginning in begun]
    own = [-1 if i in special else start for i, start in zip(token_ids, starts, strict=True)]
    return text.split(), words_at(text, own)


def tokenizers_of_all_kinds():
    text = ["Łódź und 日本 größer. Mr. Öl, 100 % (ja!) x\ty", "zwei drei vier zweiundzwanzig"] * 20
    kinds = {
        "metaspace": (
            models.BPE(unk_token="<unk>"),
            trainers.BpeTrainer,
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
        ),
        "unigram": (
            models.Unigram(),
            trainers.UnigramTrainer,
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
        ),
        "wordpiece": (
            models.WordPiece(unk_token="<unk>"),
            trainers.WordPieceTrainer,
            pre_tokenizers.Whitespace(),
            decoders.WordPiece(),
        ),
    }
    yield pytest.param(train_tokenizer(text, 280), id="bytes")
    for name, (model, trainer, pre_tokenizer, decoder) in kinds.items():
        backend = Tokenizer(model)
        backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
        known = {"unk_token": "<unk>"} if name == "unigram" else {}
        backend.train_from_iterator(text, trainer(vocab_size=90, special_tokens=["</s>", "<unk>"], **known))
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
        yield pytest.param(fast, id=name)


@pytest.mark.parametrize("tokenizer", list(tokenizers_of_all_kinds()))
def test_words_of_any_tokens_are_found_in_linear_time(tokenizer, monkeypatch):
    generator = random.Random(1)
    sequences = [generator.choices(range(len(tokenizer)), k=generator.randrange(1, 40)) for _ in range(100)]
    for token_ids in sequences:
        assert target_word_indices(token_ids, tokenizer) == slow_word_indices(token_ids, tokenizer)
    decoded, decode = [], tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda ids, **kwargs: decoded.append(len(ids)) or decode(ids, **kwargs)
    )
    text = " ".join(["zwei drei größer"] * 100)
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert target_word_indices(token_ids, tokenizer)[0] == text.split()
    assert sum(decoded) < 12 * len(token_ids)
