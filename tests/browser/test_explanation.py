"""The explanation of a translation: the record of the search, the attention, the words and the runners-up."""

import base64
import copy
import json
import math
import re
from dataclasses import replace

import pytest
import torch

from vaswani_hf.browser.explain import explain
from vaswani_hf.browser.explanation import MAX_PAGE_SIZE, TEMPERATURES, Attention, Tokens, Weights
from vaswani_hf.browser.page import page_of
from vaswani_hf.model.search_strategies_vaswani import coverage_score
from vaswani_hf.model.tokenizing_vaswani import LANGUAGE_TOKENS
from vaswani_hf.model.translator_vaswani import BaseTranslator

TEXT = "one two five three"
KINDS = ("encoder", "decoder", "cross")
SEARCHES = {
    "gnmt": {"num_beams": 3, "length_penalty": 0.6, "length_penalty_type": "gnmt"},
    "power": {"num_beams": 4, "length_penalty": 1.0},
    "coverage": {"num_beams": 3, "coverage_penalty": 0.2},
    "early": {"num_beams": 3, "early_stopping": True},
    "never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
    "short": {"num_beams": 3, "max_new_tokens": 3},
    "greedy": {"num_beams": 1},
}


def path_to(record, node: int) -> list:
    """The nodes of a hypothesis of a record, without the root."""
    path = []
    while node > 0:
        path.append(record.nodes[node])
        node = record.nodes[node].parent
    return path[::-1]


def results_of(record) -> list[tuple[list[int], float]]:
    """The tokens and the scores of the results of a recorded search."""
    best = record.finished[: record.num_beams]
    return [([node.token for node in path_to(record, one.node)], one.score) for one in best]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_the_recorded_search_equals_the_search(word_translator, search):
    explanation = explain(word_translator, TEXT, **search)
    (found,) = word_translator.translate(
        [TEXT], return_scores=True, num_return_sequences=search["num_beams"], **search
    )
    assert explanation.target_text == found.text
    assert explanation.score == pytest.approx(found.score, abs=1e-5)
    # The stopping rule of the recorded search counts fewer results than a search that returns all beams.
    counted = explanation.search.num_counted
    recorded = results_of(explanation.search)[:counted]
    expected = [found, *(found.alternatives or [])][:counted]
    assert [tokens for tokens, _ in recorded] == [one.token_ids for one in expected]
    assert [score for _, score in recorded] == pytest.approx([one.score for one in expected], abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_search_of_another_model_is_recorded(other_translator, num_beams):
    settings = {"num_beams": num_beams, "max_new_tokens": 12, "num_return_sequences": num_beams}
    explanation = explain(other_translator, TEXT, num_beams=num_beams, max_new_tokens=12)
    inputs = other_translator.source_tokenizer([TEXT], return_tensors="pt")
    found = other_translator.model.generate(
        **inputs, **settings, return_dict_in_generate=True, output_scores=True
    )
    recorded = results_of(explanation.search)
    pad = other_translator.model.config.pad_token_id
    rows = [[token for token in row[1:] if token != pad] for row in found.sequences.tolist()]
    assert [tokens for tokens, _ in recorded] == rows
    if num_beams > 1:
        scores = found.sequences_scores.tolist()
        assert [score for _, score in recorded] == pytest.approx(scores, abs=1e-5)


def test_a_search_that_was_not_recorded_is_left_out_with_a_reason(other_translator, monkeypatch):
    generate = other_translator.model.generate
    monkeypatch.setattr(
        other_translator.model, "generate", lambda logits_processor=(), **kwargs: generate(**kwargs)
    )
    explanation = explain(other_translator, TEXT, num_beams=2, max_new_tokens=8)
    assert explanation.search is None
    assert "steps" in explanation.search_note


def test_the_decoder_starts_from_the_token_of_the_call(word_translator):
    explanation = explain(word_translator, TEXT, num_beams=1, max_new_tokens=3, decoder_start_token_id=7)
    assert explanation.decoder_input.tokens[0].id == 7


def test_the_fate_of_each_node(word_translator):
    record = explain(word_translator, TEXT, num_beams=3).search
    last_step = max(node.step for node in record.nodes)
    for step in range(1, last_step + 1):
        states = [node.state for node in record.nodes if node.step == step]
        assert states.count("beam") <= 3
        assert 1 <= states.count("beam") + states.count("finished") <= 6
    for index, node in enumerate(record.nodes):
        children = [child for child in record.nodes if child.parent == index]
        assert bool(children) == (node.normalizers is not None)
        if node.state == "dropped":
            assert node.left == node.step
        if children and node.left is not None:
            assert node.left == max(child.left for child in children)
    assert record.nodes[0].left is None
    for result in record.finished:
        assert record.nodes[result.node].state == "finished"
        assert record.nodes[result.node].left is None


def test_the_normalizers_give_log_probabilities_at_other_temperatures(word_translator):
    explanation = explain(word_translator, TEXT, num_beams=2)
    record = explanation.search
    inputs = word_translator.source_tokenizer([TEXT], return_tensors="pt")
    decoder_input_ids = torch.tensor([[token.id for token in explanation.decoder_input.tokens]])
    with torch.inference_mode():
        logits = word_translator.model(**inputs, decoder_input_ids=decoder_input_ids).logits[0].double()
    path = path_to(record, record.finished[0].node)
    for number, temperature in enumerate(TEMPERATURES):
        log_probs = (logits / temperature).log_softmax(dim=-1)
        for position, node in enumerate(path):
            parent = record.nodes[node.parent]
            expected = log_probs[position, node.token].item()
            # The search excludes the padding token after the softmax.
            assert node.log_prob / temperature - parent.normalizers[number] == pytest.approx(
                expected, abs=2e-3
            )


@pytest.mark.parametrize("target", [None, "eins fünf"])
def test_the_attention_equals_output_attentions(any_translator, target):
    explanation = explain(any_translator, TEXT, target, num_beams=2, max_new_tokens=8)
    target = [token.id for token in explanation.target.tokens]
    start = any_translator.model.generation_config.decoder_start_token_id
    decoder_input = [start, *target[:-1]]
    assert [token.id for token in explanation.decoder_input.tokens] == decoder_input
    inputs = any_translator.source_tokenizer([TEXT], return_tensors="pt")
    assert [token.id for token in explanation.source.tokens] == inputs["input_ids"][0].tolist()
    with torch.inference_mode():
        outputs = any_translator.model(
            **inputs, decoder_input_ids=torch.tensor([decoder_input]), output_attentions=True
        )
    for kind in KINDS:
        expected = torch.cat(getattr(outputs, f"{kind}_attentions"))
        torch.testing.assert_close(decoded(getattr(explanation.attention, kind)), expected, atol=1e-5, rtol=0)


def decoded(weights: Weights) -> torch.Tensor:
    content = torch.frombuffer(bytearray(base64.b64decode(weights.data)), dtype=torch.uint16)
    return content.float().view(*weights.shape) / 65535


def test_each_token_belongs_to_one_word(word_translator):
    explanation = explain(word_translator, TEXT, "eins zwei", num_beams=2)
    for tokens in (explanation.source, explanation.target, explanation.decoder_input):
        covered = [i for word in tokens.words for i in range(word.start, word.stop)]
        assert covered == list(range(len(tokens.tokens)))
    assert [word.text for word in explanation.target.words] == ["eins", "zwei", "</s>"]
    assert [word.text for word in explanation.decoder_input.words] == ["<s>", "eins", "zwei"]
    assert explanation.is_given
    assert explanation.target_text == "eins zwei"


def test_the_probabilities_and_the_score_of_a_given_translation(word_translator):
    explanation = explain(word_translator, TEXT, "eins zwei", num_beams=2)
    (scored,) = word_translator.score([TEXT], ["eins zwei"])
    assert explanation.log_probs == pytest.approx(scored.token_log_probs, abs=1e-5)
    assert explanation.score == pytest.approx(scored.score, abs=1e-5)
    confidences = [word.confidence for word in scored.words]
    probabilities = [choice.probability for choice in explanation.words[: len(confidences)]]
    assert probabilities == pytest.approx(confidences, abs=1e-5)


@pytest.mark.parametrize("target", [None, "eins zwei"])
def test_a_model_with_language_tokens(word_translator, target):
    tokenizer = copy.deepcopy(word_translator.source_tokenizer)
    tokenizer.init_kwargs[LANGUAGE_TOKENS] = {"en": "x", "de": "<unk>"}
    translator = BaseTranslator(word_translator.model, tokenizer, tokenizer)
    languages = {"src_lang": "en", "tgt_lang": "de"}
    explanation = explain(translator, TEXT, target, num_beams=2, **languages)
    (scored,) = translator.score([TEXT], [explanation.target_text], **languages)
    assert explanation.source.tokens[0].text == "x"
    assert [token.text for token in explanation.decoder_input.tokens[:2]] == ["<s>", "<unk>"]
    assert explanation.score == pytest.approx(scored.score, abs=1e-5)
    assert explanation.log_probs == pytest.approx([0.0, *scored.token_log_probs], abs=1e-5)


def best_continuation(translator, begins: list[int]) -> tuple[str, float]:
    """The best translation that begins with these tokens, and its score with the length penalty 1."""
    model, tokenizer = translator.model, translator.target_tokenizer
    start, eos = model.generation_config.decoder_start_token_id, model.generation_config.eos_token_id
    inputs = tokenizer([TEXT], return_tensors="pt")
    sequence = torch.tensor([[start, *begins]])
    if begins[-1] != eos:
        sequence = model.generate(**inputs, decoder_input_ids=sequence, num_beams=3, max_new_tokens=12)
    with torch.inference_mode():
        logits = model(**inputs, decoder_input_ids=sequence[:, :-1]).logits
    log_probs = logits.log_softmax(dim=-1).gather(2, sequence[:, 1:, None])
    return tokenizer.decode(sequence[0], skip_special_tokens=True), log_probs.mean().item()


def test_a_runner_up_is_the_best_translation_with_its_beginning(any_translator):
    explanation = explain(any_translator, TEXT, num_beams=3, max_new_tokens=12)
    checked = 0
    for word, choice in zip(explanation.target.words, explanation.words, strict=True):
        assert len({other.text for other in choice.runners_up} | {word.text}) == len(choice.runners_up) + 1
        for other in choice.runners_up:
            assert word.start <= other.position < word.stop
            assert 0.001 <= other.probability < 1
            begins = [token.id for token in explanation.target.tokens[: other.position]] + [other.token]
            text, score = best_continuation(any_translator, begins)
            assert other.translation == text
            assert other.score == pytest.approx(score, abs=1e-4)
            checked += 1
    assert checked > 0


def test_the_json_of_an_explanation(word_translator):
    explanation = explain(word_translator, "one </script> two", num_beams=2)
    loaded = json.loads(explanation.as_json())
    assert loaded["source_text"] == "one </script> two"
    assert loaded["attention"]["cross"]["shape"] == list(explanation.attention.cross.shape)
    assert loaded["search"]["nodes"][0]["parent"] == -1
    page = page_of(explanation)
    assert page.count("</script>") == 2
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in page


def with_lengths(explanation, num_source: int, num_target: int):
    """An explanation with weights and tokens of other lengths."""
    shape = (2, 4)
    attention = Attention(
        encoder=Weights.of(torch.rand(*shape, num_source, num_source)),
        decoder=Weights.of(torch.rand(*shape, num_target, num_target)),
        cross=Weights.of(torch.rand(*shape, num_target, num_source)),
    )
    source = Tokens([explanation.source.tokens[0]] * num_source, [])
    target = Tokens([explanation.target.tokens[0]] * num_target, [])
    return replace(explanation, attention=attention, source=source, target=target)


def test_a_text_that_is_too_long_for_a_page(word_translator):
    message = r"^`text` must be short enough for a page of 1.5 MB, .* tokens on each side fit"
    # The attention weights of the encoder alone are too large for the page.
    with pytest.raises(ValueError, match=message) as error:
        explain(word_translator, "one " * 500)
    with pytest.raises(ValueError, match="its translation has"):
        explain(word_translator, TEXT, "eins " * 500)
    fitting = int(str(error.value).split("about ")[1].split()[0])
    explanation = explain(word_translator, TEXT, num_beams=2)
    assert len(page_of(with_lengths(explanation, fitting, fitting)).encode()) <= MAX_PAGE_SIZE
    # The attention weights of the encoder fit into the page, but all attention weights together do not fit.
    with pytest.raises(ValueError, match="its translation has 300 tokens"):
        page_of(with_lengths(explanation, fitting, 300))


def with_beams(explanation, num_beams: int):
    """An explanation with more beams. The number of nodes grows with the square of the number of beams."""
    record = explanation.search
    num_nodes = round(len(record.nodes) * (num_beams / record.num_beams) ** 2)
    nodes = (record.nodes * (num_nodes // len(record.nodes) + 1))[:num_nodes]
    return replace(explanation, search=replace(record, nodes=nodes, num_beams=num_beams))


def test_too_many_beams_for_a_page(word_translator):
    explanation = explain(word_translator, TEXT, num_beams=2)
    many = with_beams(explanation, 60)
    fewer = r"^`num_beams` must be small enough for a page of 1.5 MB, but is 60; .* about (\d+) beams fit"
    with pytest.raises(ValueError, match=fewer) as error:
        page_of(many)
    both = r"^`text` and `num_beams` must be .* 300 tokens, .* 9 tokens and `num_beams` is 60; give a shorter text and"
    with pytest.raises(ValueError, match=both):
        page_of(with_lengths(many, 300, 9))
    # A long text and many beams that are only together too large.
    fitting = with_beams(explanation, int(re.match(fewer, str(error.value))[1]))
    for fits in (fitting, with_lengths(explanation, 180, 9)):
        assert MAX_PAGE_SIZE / 2 < len(page_of(fits).encode()) <= MAX_PAGE_SIZE
    either = "^`text` and `num_beams` must be .*; give a shorter text or fewer beams.$"
    with pytest.raises(ValueError, match=either):
        page_of(with_lengths(fitting, 180, 9))


def test_a_text_that_is_too_long_for_the_model(word_translator, monkeypatch):
    monkeypatch.setattr(word_translator.source_tokenizer, "model_max_length", 9)
    message = "^`{}` must have at most 9 tokens, as many as the model has positions, but has {}; give a shorter text.$"
    with pytest.raises(ValueError, match=message.format("text", 21)):
        explain(word_translator, "one" + " one" * 19)
    with pytest.raises(ValueError, match=message.format("target", 21)):
        explain(word_translator, TEXT, "zwei" + " zwei" * 19)


def test_a_coverage_is_recorded_where_the_search_counts_coverage(word_translator):
    record = explain(word_translator, TEXT, num_beams=2, coverage_penalty=0.3).search
    result = record.finished[0]
    node = record.nodes[result.node]
    log_prob = sum(one.log_prob for one in path_to(record, result.node))
    coverage = record.nodes[node.parent].coverage
    assert result.score == pytest.approx(log_prob / node.step + 0.3 * coverage, abs=1e-5)
    assert coverage <= coverage_score(torch.ones(3), None).item()
    assert math.isfinite(coverage)
