"""Streams of lines: order, windows, over-long lines, constraints, records, loops, ensembles, evaluation."""

import copy
import itertools
from itertools import count, islice

import pytest
import sacrebleu
import torch
from factories import save_checkpoint, stacks, tiny_config, tiny_model, tiny_tokenizer
from sentences import refused
from tokenizers.processors import TemplateProcessing
from transformers import set_seed

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.evaluation.evaluate import evaluate, negative_log_likelihood, perplexity
from vaswani_hf.model.backend_vaswani import Hypothesis, PyTorchBackend
from vaswani_hf.model.inputs_vaswani import TranslationOptions
from vaswani_hf.model.requests_vaswani import Request
from vaswani_hf.model.segment_search_vaswani import batches_by_length
from vaswani_hf.model.tokenizing_vaswani import tags_of
from vaswani_hf.translation import Translator

LINES = ["one two three", "", "four five three two one four five three", "two", "   ", "three one"]


@pytest.fixture(scope="module")
def translator():
    set_seed(0)
    tokenizer = tiny_tokenizer(["one two three four five", "eins zwei drei vier"], 280, model_max_length=40)
    sizes = {"d_model": 32, **stacks(layers=1, ffn_dim=32)}
    # A tied random model repeats its input token.
    config = tiny_config(vocab_size=len(tokenizer), tie_word_embeddings=False, **sizes)
    model = VaswaniForSeq2SeqLM(config).eval()
    # Increase the influence of the source, so that translations of different texts differ.
    with torch.no_grad():
        model.model.decoder.layers[0].encoder_attn.out_proj.weight.mul_(10)
    return Translator(model, tokenizer, tokenizer)


@pytest.fixture(scope="module")
def checkpoint(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return str(save_checkpoint(folder, translator.model, translator.source_tokenizer))


def alone(translator, line):
    inputs = translator.source_tokenizer(line, return_tensors="pt")
    output = translator.model.generate(**inputs, max_new_tokens=8)
    return " ".join(translator.target_tokenizer.decode(output[0], skip_special_tokens=True).split("\n"))


def test_each_line_is_translated_as_if_it_were_alone_and_in_order(translator):
    expected = [alone(translator, line) if line.strip() else "" for line in LINES]
    assert len(set(expected)) > 2
    settings = {"num_beams": 1, "max_new_tokens": 8}
    for window, budget in ((1, 4096), (2, 20), (100, 50), (100, 4096)):
        found = translator.translate(LINES, window=window, tokens_per_batch=budget, **settings)
        assert list(found) == expected
    # The translator reads only the lines of one window.
    lines = itertools.chain(LINES, count())
    assert list(islice(translator.translate(lines, window=2, **settings), 2)) == expected[:2]
    assert next(lines) == LINES[2]


def test_a_line_that_is_too_long_is_translated_in_pieces_cut_between_words(translator, caplog):
    line = " ".join(["three", "four"] * 40)
    ((segments, separators),) = translator.segmenter.layouts([Request(line)], TranslationOptions())
    assert len(segments) > 1 and separators == ["", *[" "] * (len(segments) - 1), ""]
    assert max(len(segment.token_ids) for segment in segments) <= translator.segmenter.max_length == 40
    decode = translator.source_tokenizer.decode
    texts = [segment.text for segment in segments]
    assert texts == [decode(segment.token_ids, skip_special_tokens=True) for segment in segments]
    assert " ".join(map(str.strip, texts)) == line
    caplog.clear()
    _, translation = translator.translate(["one", line], max_new_tokens=4)
    assert caplog.records[-1].getMessage().startswith("Line 2 has ")
    assert translation == " ".join(translator.translate(texts, max_new_tokens=4))


def test_a_window_is_tokenised_in_one_call(translator, monkeypatch):
    texts = [*LINES, "one. Two three! four?", " ".join(["three", "four"] * 40), "two."]
    for split in (False, True):
        options = TranslationOptions(split_sentences=split, return_alignments=True)
        together = translator.segmenter.layouts(list(map(Request, texts)), options)
        alone = [translator.segmenter.layouts([Request(text)], options)[0] for text in texts]
        assert together == alone
        words = {word for segments, _ in together for segment in segments for word in segment.words}
        assert len(words) > 6
    kind, calls = type(translator.source_tokenizer), []
    encode = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, *a, **k: calls.append(a) or encode(self, *a, **k))
    list(translator.translate(texts, split_sentences=True, max_new_tokens=2))
    list(translator.score(texts, texts[:-2] + texts[:2]))
    # The tokenizer is called once for the sentences to translate, once for the sources, and once for the
    # targets.
    assert len(calls) == 3


def test_a_word_longer_than_a_piece_is_cut_as_well(translator):
    ((segments, _),) = translator.segmenter.layouts([Request("x" * 500)], TranslationOptions())
    assert max(len(segment.token_ids) for segment in segments) == 40
    ids = [token_id for segment in segments for token_id in segment.token_ids[:-1]]
    assert ids == translator.source_tokenizer("x" * 500)["input_ids"][:-1]


class LoopingBackend(PyTorchBackend):
    """A model that repeats one word unless `no_repeat_ngram_size` is set."""

    def search(self, segments, with_attention=False, **settings):
        self.calls.append(([segment.text for segment in segments], settings))
        repeated = " ".join(["eins"] * min(settings.get("no_repeat_ngram_size", 99), 9))
        texts = [repeated if "one" in segment.text else "zwei" for segment in segments]
        return [[Hypothesis(self.tokenizer(text)["input_ids"], 0)] for text in texts]


@pytest.fixture
def looper(translator):
    backend = LoopingBackend(translator.model)
    looper = Translator(backend, translator.source_tokenizer, translator.target_tokenizer)
    looper.backend.calls, looper.backend.tokenizer = [], translator.target_tokenizer
    return looper


def test_loops_are_translated_once_more_and_nothing_else_is(looper):
    long = "two one a b c d e f g h i j"
    lines = ["two", "one", "", long]
    translated = list(looper.translate(lines, num_beams=2, repetition_guard=True))
    assert translated == ["zwei", "eins eins", "", "eins eins eins"]
    assert (["one"], {"num_beams": 2, "no_repeat_ngram_size": 2}) in looper.backend.calls
    assert ([long], {"num_beams": 2, "no_repeat_ngram_size": 3}) in looper.backend.calls
    assert len(looper.backend.calls) == 3


def test_the_guard_is_asked_for_and_knows_good_reasons(looper):
    repeated, guard = [" ".join(["eins"] * 9)], {"repetition_guard": True}
    assert list(looper.translate(["one"])) == repeated
    # A translation may repeat words that the source, the prefix or a phrase repeats.
    assert list(looper.translate(["one one one one one"], **guard)) == repeated
    assert list(looper.translate(["one"], target_prefixes=["eins " * 5], **guard)) == repeated
    assert list(looper.translate(["one"], must_contain=[["eins " * 5]], **guard)) == repeated
    assert len(looper.backend.calls) == 4


def test_a_loop_that_stays_stays_as_it_was(looper, monkeypatch):
    monkeypatch.setattr("vaswani_hf.model.segment_search_vaswani.ngram_size_without_loops", lambda source: 5)
    assert list(looper.translate(["one"], repetition_guard=True)) == [" ".join(["eins"] * 9)]
    assert len(looper.backend.calls) == 2


def test_long_texts_are_translated_sentence_by_sentence(copier):
    text = "  eins zwei, drei! ja? nein\n\n der Hund größer.\n"
    assert list(copier.translate([text, "", " \n"], split_sentences=True)) == [text, "", " \n"]
    sentences = ["eins zwei, drei!", "ja?", "nein", "der Hund größer."]
    settings = {"return_alignments": True, "num_beams": 2, "num_return_sequences": 2}
    (whole,) = copier.translate([text], split_sentences=True, **settings)
    parts = list(copier.translate(sentences, **settings))
    assert whole.text == text
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-4)
    assert [word.word for word in whole.words] == text.split()
    assert whole.alignment == " ".join(f"{i}-{i}" for i in range(8))
    log_probs = [log_prob for part in parts for log_prob in part.token_log_probs]
    assert whole.token_log_probs == pytest.approx(log_probs, abs=1e-4)
    (other,) = whole.alternatives
    others = [part.alternatives[0].text for part in parts]
    assert other.text.split() == " ".join(others).split()


def test_the_direction_of_a_text_is_that_of_its_sentences_and_pieces(translator):
    texts = ["one two three four five. eins zwei drei vier."] * 2
    tokenizer = tiny_tokenizer(texts, 290, tags=(">>en<<",), model_max_length=9)
    (tag_id,) = tags_of(tokenizer).values()
    tagged = Translator(translator.model, tokenizer, tokenizer)
    lines = ["one two three. Four five one two three four. Two five."]
    lines.append(f" >>en<< {lines[0]}")
    # A text with a tag is split like a text without a tag, but the tag is an additional token.
    options = TranslationOptions(split_sentences=True, return_alignments=True)
    (plain, _), (found, between) = tagged.segmenter.layouts([Request(line) for line in lines], options)
    assert [segment.token_ids[0] for segment in found] == [tag_id] * len(found)
    assert len(found) > 3 and max(len(segment.token_ids) for segment in found) <= 9
    assert len(between) == len(found) + 1
    joined = [
        [i for segment in of for i in segment.token_ids if i not in (tag_id, tokenizer.eos_token_id)]
        for of in (plain, found)
    ]
    assert joined[0] == joined[1]
    # The tag counts as one word of the text.
    words = [[word for segment in of for word in segment.words if word >= 0] for of in (plain, found)]
    assert words[1] == [0, *(word + 1 for word in words[0])]
    assert max(words[1]) == len(lines[1].split()) - 1
    for limit in range(3, 12):
        tokenizer.model_max_length = limit
        ((whole, _),) = tagged.segmenter.layouts([Request(lines[1])], TranslationOptions())
        assert [segment.token_ids[0] for segment in whole] == [tag_id] * len(whole) and len(whole) > 2
        assert max(len(segment.token_ids) for segment in whole) <= limit
    for split_sentences in (True, False):
        assert list(tagged.translate([" >>en<< "], split_sentences=split_sentences)) == [""]
    (copied,) = tagged.translate_requests([Request(" >>en<< eins ", is_copied=True)], options)
    assert copied.text == "eins "
    # The tokenizers of OpenNMT-py add no `</s>` to a source.
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    ((pieces, _),) = tagged.segmenter.layouts([Request(lines[0])], TranslationOptions())
    assert len(pieces) > 1
    assert [i for piece in pieces for i in piece.token_ids] == tokenizer(lines[0]).input_ids


@pytest.mark.parametrize("text", ["😀", " !! \n", "…"])
def test_a_text_without_letters_and_digits_is_copied(translator, text):
    assert list(translator.translate([text], split_sentences=True)) == [text]
    (copied,) = translator.translate([text], return_scores=True, return_alignments=True)
    assert (copied.text, copied.score, copied.alignment) == (text.strip(), 0.0, "")
    assert [(word.word, word.confidence) for word in copied.words] == [(text.strip(), 1.0)]
    # With a target prefix or phrases, the text is translated.
    for request in (Request(text, "eins"), Request(text, must_contain=["eins"])):
        for split_sentences in (True, False):
            options = TranslationOptions(split_sentences=split_sentences)
            (layout,) = translator.segmenter.layouts([request], options)
            assert [segment.text for segment in layout.segments] == [text.strip()]


def layout_with_words(translator, request):
    """The sentences of a request with a tag of the target language, and the word indices of each sentence."""
    tokenizer = tiny_tokenizer(["one two three four five。"] * 2, 290, tags=(">>en<<",))
    options = TranslationOptions(split_sentences=True, return_alignments=True)
    (layout,) = Translator(translator.model, tokenizer, tokenizer).segmenter.layouts([request], options)
    return layout, [{word for word in segment.words if word >= 0} for segment in layout.segments]


@pytest.mark.parametrize("tag", ["", ">>en<< "])
def test_the_word_indices_of_a_text_count_the_words_of_copied_sentences(translator, tag):
    text = f"{tag}?! One two. 😀 !! Five"
    layout, words = layout_with_words(translator, Request(text))
    assert [segment.text for segment in layout.segments] == [f"{tag}One two.", f"{tag}Five"]
    assert layout.separators == ["?! ", " 😀 !! ", ""]
    expected = [text.split().index(word) for word in ("One", "two.", "Five")]
    assert words == [{*([0] if tag else []), *expected[:2]}, {expected[2]}]
    constrained, _ = layout_with_words(translator, Request(text, must_contain=["x"]))
    assert len(constrained.segments) == 4


@pytest.mark.parametrize("tag", ["", ">>en<< ", ">>en<<"])
def test_sentences_without_white_space_between_them_share_a_word(translator, tag):
    layout, words = layout_with_words(translator, Request(f"{tag}One two。😀！three four。five。 one"))
    assert len(layout.segments) == 4
    first = int(tag.endswith(" "))
    tag_word = {0} if tag else set()
    assert words == [{first, first + 1} | tag_word, {first + 1, first + 2}, {first + 2}, {first + 3}]


def test_the_prefix_of_a_text_is_that_of_its_first_sentence(copier):
    request = Request("ja?\neins zwei, drei! Öl", "Mr.", ("Straße", "Öl"))
    ((segments, _),) = copier.segmenter.layouts([request], TranslationOptions(split_sentences=True))
    assert [segment.text for segment in segments] == ["ja?", "eins zwei, drei!", "Öl"]
    assert [bool(segment.prefix) for segment in segments] == [True, False, False]
    assert [len(segment.phrases) for segment in segments] == [0, 1, 1]
    constraints = {"target_prefixes": ["Mr."], "must_contain": [["Straße"]]}
    (translation,) = copier.translate([request.text], **constraints, split_sentences=True, num_beams=4)
    assert translation.startswith("Mr.") and "Straße" in translation


def test_alignments_of_a_text_in_pieces_count_words_of_the_text(copier):
    line = " ".join(["eins nein"] * 60)
    (translation,) = copier.translate([line], return_alignments=True)
    pairs = [tuple(map(int, pair.split("-"))) for pair in translation.alignment.split()]
    assert [target for _, target in pairs] == list(range(len(translation.words)))
    assert max(source for source, _ in pairs) >= 30


def test_a_tag_that_the_translator_adds_is_no_word_of_the_text():
    """A model of both directions with random weights. Tags in the user's text are ordinary words."""
    tokenizer = tiny_tokenizer(vocab_size=300, tags=(">>en<<",))
    set_seed(0)
    both = Translator(
        VaswaniForSeq2SeqLM(tiny_config(vocab_size=len(tokenizer))).eval(), tokenizer, tokenizer
    )
    text = "one two. three drei? eins zwei"
    for options in ({}, {"split_sentences": True}):
        options |= {"return_alignments": True, "max_new_tokens": 12}
        (written,) = both.translate([f">>en<< {text}"], **options)
        (added,) = both.translate([text], tgt_lang="en", **options)
        assert added.text == written.text
        expected, found = (
            dict(reversed(pair.split("-")) for pair in one.alignment.split()) for one in (written, added)
        )
        # If the translator adds the tag, words that were aligned with the written tag are aligned with a word
        # of the text.
        shifted = {target: str(int(source) - 1) for target, source in expected.items() if source != "0"}
        assert shifted and shifted == {target: found[target] for target in shifted}
    options = {"return_alignments": True, "tokenize": {"tgt_lang": "en"}}
    (scored,) = both._score_pairs(iter([(text, added.text)]), TranslationOptions(**options))
    assert max(int(pair.split("-")[0]) for pair in scored.alignment.split()) < len(text.split())


def test_records_come_where_they_are_asked_for(copier):
    plain, scored = next(copier.translate(["ja?"])), next(copier.translate(["ja?"], return_scores=True))
    assert (plain, scored.text, scored.alignment, scored.alternatives) == ("ja?", "ja?", None, None)
    assert next(copier.translate(["ja?"], return_alignments=True)).alignment == "0-0"
    several = next(copier.translate(["ja?"], num_beams=3, num_return_sequences=3))
    assert len(several.alternatives) == 2 and several.score > several.alternatives[0].score
    empty = next(copier.translate([""], num_beams=2, num_return_sequences=2, return_alignments=True))
    assert (empty.text, empty.confidence, empty.alignment, len(empty.alternatives)) == ("", 1.0, "", 1)


def test_a_seed_draws_the_same_wherever_the_windows_begin(translator):
    settings = {"do_sample": True, "seed": 3, "window": 2, "max_new_tokens": 8, "num_beams": 1}
    lines = ["one two", "three", "four", "five one"]
    drawn = list(translator.translate(lines, **settings))
    assert drawn == list(translator.translate(lines, **settings))
    assert drawn != list(translator.translate(lines, **settings | {"seed": 4}))
    assert len(set(translator.translate(["one"] * 6, **settings))) > 2
    options, requests = TranslationOptions.of(**settings), [Request(line) for line in lines[2:]]
    assert list(translator.translate_requests(requests, options, 3)) == drawn[2:]


ITERABLE = "must be a list or another iterable of texts, but is of type str."
HALF = "must hold text, but holds '\\ud800', a lone surrogate, which UTF-8 cannot write."


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.translate("seven"), f"`lines` {ITERABLE}"),
        (lambda t: t.translate(["seven"], target_prefixes="si"), f"`target_prefixes` {ITERABLE}"),
        (lambda t: t.score("a", ["a"]), f"`sources` {ITERABLE}"),
        (lambda t: t.score(["a"], "a"), f"`targets` {ITERABLE}"),
        (
            lambda t: t.translate(["a", 3], window=1),
            "Line 2: A text to translate must be a str, but is of type int.",
        ),
        (lambda t: t.translate(["a", "\ud800"], window=1), f"Line 2: A text to translate {HALF}"),
        (lambda t: t.score(["a"], [3]), "Line 1 of `targets` must be a str, but is of type int."),
        (lambda t: t.score(["a", "b"], ["c", "\ud800"]), f"Line 2 of `targets` {HALF}"),
        (
            lambda t: t.translate(["a", "b"], must_contain=[None, 3]),
            "`must_contain` must hold a list of phrases per line, but for line 2 it is of type int.",
        ),
        (
            lambda t: t.translate(["a"], must_contain=[torch.tensor([3])]),
            "Line 1: A phrase of `must_contain` must be a str, but is of type Tensor.",
        ),
        (
            lambda t: t.translate(["a"], must_contain=["ab"]),
            "`must_contain` must hold a list of phrases per line, but for line 1 it is of type str.",
        ),
        (
            lambda t: t.translate(["a", "b"], target_prefixes=["a"], window=1),
            "`target_prefixes` must hold one entry per line, but ends before line 2.",
        ),
        (
            lambda t: t.translate(["a", "b"], must_contain=[[]] * 3),
            "`must_contain` must hold one entry per line, but has more entries than the 2 lines.",
        ),
    ],
)
def test_what_is_no_text_or_does_not_fit_the_lines_is_named(translator, call, message):
    given = []
    with refused(message, (TypeError, ValueError)):
        given.extend(call(translator))
    # The translations of earlier lines are returned before the error.
    if message.startswith("Line 2"):
        assert len(list(islice(call(translator), 1))) == 1


def test_coverage_in_float64_with_padding(copier):
    model = copy.deepcopy(copier.model).double()
    double = Translator(model, copier.source_tokenizer, copier.target_tokenizer)
    options = {"num_beams": 4, "coverage_penalty": 0.3, "return_scores": True, "num_return_sequences": 2}
    texts = ["ja?", "der Hund läuft über die Straße", "nein eins"]
    found = (translator.translate(texts, **options) for translator in (double, copier))
    for mine, other in zip(*found, strict=True):
        assert mine.text == other.text and mine.score == pytest.approx(other.score, abs=1e-5)


def test_a_bad_line_costs_no_other(translator):
    lines = ["one", 3, "two three", "\ud800", "", "four"]
    good = [line for line in lines if isinstance(line, str) and line != "\ud800"]
    expected = iter(list(translator.translate(good)))
    for line, found in zip(lines, translator.translate(lines, on_error="skip"), strict=True):
        if line in good:
            assert found == next(expected)
        else:
            assert found.text == "" and found.error.startswith(
                f"Line {lines.index(line) + 1}: A text to translate must"
            )
    scored = list(translator.score(["one", None], ["a", "b"], on_error="skip"))
    assert scored[0].error is None and scored[0].score == next(translator.score(["one"], ["a"])).score
    assert scored[1].error == "Line 2 of `sources` must be a str, but is of type NoneType."


def test_a_line_that_the_search_refuses_costs_no_other(translator):
    """A model whose errors do not name the bad sentence of a batch."""
    lines = ["one", "two", "three", "four", "five"]
    phrases = [None, None, ["eins " * 30], None, None]
    options = {"must_contain": phrases, "num_beams": 2, "max_new_tokens": 9}
    found = list(translator.translate(lines, on_error="skip", **options))
    assert "at most 9; give a larger `max_new_tokens`" in found[2].error
    good = translator.translate(lines[:2] + lines[3:], num_beams=2, max_new_tokens=9)
    assert [*found[:2], *found[3:]] == list(good)
    given = []
    with pytest.raises(ValueError, match="has room for at most 9") as raised:
        given.extend(translator.translate(lines, **options))
    assert raised.value.line_number == 3


def test_line_breaks_are_translations_of_line_breaks_only(translator, monkeypatch):
    """A model may write a line break, but the translation of a line stays one line."""
    ids = translator.target_tokenizer("one\ntwo")["input_ids"]
    monkeypatch.setattr(translator.model, "generate", lambda **given: torch.tensor([[0, *ids]]))
    assert list(translator.translate(["three"])) == ["one two"]
    assert list(translator.translate(["three\nfour"])) == ["one\ntwo"]


def test_an_ensemble_has_one_vocabulary(copier_checkpoint, checkpoint):
    both = Translator.from_pretrained(copier_checkpoint, "cpu", ensemble=[copier_checkpoint])
    assert list(both.translate(["eins ja?"])) == ["eins ja?"]
    message = f"'{copier_checkpoint}', but '{checkpoint}' has another vocabulary .320 and 280 entries"
    with pytest.raises(
        ValueError, match=f"^`ensemble` must hold checkpoints with the vocabulary of {message}"
    ):
        Translator.from_pretrained(copier_checkpoint, "cpu", ensemble=[checkpoint])


def test_batches_hold_each_piece_once_within_the_budget():
    pieces = [[0] * length for length in (3, 9, 1, 4, 4, 20)]
    batches = list(batches_by_length(pieces, 10))
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    assert batches[0] == [5]
    assert all(len(b) == 1 or len(b) * max(len(pieces[i]) for i in b) <= 10 for b in batches)


def test_scores_are_sacrebleu_s_and_the_perplexity_is_per_token(translator):
    sources, references = ["one two", "three"], ["eins zwei", "drei "]
    results = evaluate(translator, sources, references, max_new_tokens=5)
    expected = sacrebleu.BLEU().corpus_score(results["translations"], [["eins zwei", "drei"]])
    assert results["bleu"] == pytest.approx(expected.score)
    nats = tokens = 0
    for source, target in zip(sources, references, strict=True):
        inputs = translator.source_tokenizer(source, return_tensors="pt")
        labels = translator.target_tokenizer(text_target=target.strip(), return_tensors="pt")["input_ids"]
        nats += translator.model(**inputs, labels=labels).loss.item() * labels.numel()
        tokens += labels.numel()
    assert results["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert results["perplexity"] == pytest.approx(perplexity(nats / tokens), rel=1e-5)
    other = copy.deepcopy(translator.model)
    torch.nn.init.normal_(other.lm_head.weight)
    tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
    ensemble = Translator(translator.model, *tokenizers, ensemble=[other])
    nats = -sum(scored.log_prob for scored in ensemble.score(sources, references))
    found = evaluate(ensemble, sources, references, max_new_tokens=5)
    assert found["loss"] == pytest.approx(nats / tokens, rel=1e-5) != results["loss"]
    options = {"return_scores": True, "num_return_sequences": 2, "tokens_per_batch": None}
    assert evaluate(translator, sources, references, max_new_tokens=5, **options)["bleu"] == results["bleu"]
    with pytest.raises(ValueError, match="^`on_error` must not be skip, because"):
        evaluate(translator, sources, references, on_error="skip")
    # The value is checked before the model is loaded.
    with pytest.raises(ValueError, match="^`tokenize` must be one of "):
        evaluate("no model", sources, references, tokenize="14a")


def test_the_likelihood_is_neither_smoothed_nor_dropped_out_and_leaves_the_mode_alone(translator):
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 8, 2, -100]])}
    expected = translator.model(**batch).loss.item() * 3
    translator.model.config.label_smoothing = 0.5
    translator.model.train()
    assert negative_log_likelihood(translator.model, [batch]) == (pytest.approx(expected, rel=1e-6), 3)
    assert translator.model.training
    with pytest.raises(AttributeError):
        negative_log_likelihood(translator.model, [None])
    assert translator.model.training
    translator.model.eval()
    translator.model.config.label_smoothing = 0.0


@pytest.mark.parametrize(
    ("text", "model_max_length", "needed"), [("one two", 1, 2), (">>de<< one two", 2, 3)]
)
def test_a_limit_without_room_for_a_token_is_refused(text, model_max_length, needed):
    tokenizer = tiny_tokenizer(["one two"], 270, tags=(">>de<<",), model_max_length=model_max_length)
    translator = Translator(tiny_model(vocab_size=len(tokenizer)).eval(), tokenizer, tokenizer)
    message = f"^The model can read at most {model_max_length} tokens, but a piece of line 1 needs at least {needed} tokens"
    with pytest.raises(ValueError, match=message):
        list(translator.translate([text]))
