"""Beam search with the power penalty gives the results and outputs of transformers, with less computation."""

import pytest
import torch
from factories import tiny_model
from reference import Reference
from reference_search import SlowSearch
from search_models import (
    CACHES,
    EOS,
    OTHER_VOCABULARY,
    PAD,
    PREFIXES,
    SCORED,
    SOURCES,
    START,
    VARIANTS,
    TransformersSearch,
    batch_of,
    close,
    log_probs_of,
    translator,
)
from transformers.modeling_outputs import BaseModelOutput

LIMIT = 7
PLAIN = {"return_dict_in_generate": False, "output_scores": False}


early_stoppings = pytest.mark.parametrize("early_stopping", [True, False, "never"], ids=str)


@pytest.fixture
def model():
    return translator()


def searched(model, batch, **options):
    """Return sequences and scores; `options` may contain any argument of `generate`."""
    defaults = {"num_beams": 4, "max_new_tokens": LIMIT, "early_stopping": "never", "do_sample": False}
    return model.generate(**batch, **defaults | SCORED | options)


def check_against_transformers(model, batch, **options):
    """Compare sequences and scores with transformers, whose outputs are returned."""
    expected = searched(TransformersSearch(model), batch, **options)
    outputs = searched(model, batch, **options)
    assert torch.equal(outputs.sequences, expected.sequences)
    close(outputs.sequences_scores, expected.sequences_scores)
    assert torch.equal(outputs.beam_indices, expected.beam_indices)
    # A search of only the sequences may compute in another way.
    plain = searched(model, batch, **options | PLAIN)
    assert torch.equal(plain, expected.sequences)
    return expected


PENALTIES = [-1.0, 0.0, 0.6, 2.0]
# Every pair of beam size and penalty, and every pair of penalty and way to stop, occurs.
TRIPLES = [(k, [True, False, "never"][(k + i) % 3], p) for k in (2, 3, 4, 8) for i, p in enumerate(PENALTIES)]


@pytest.mark.parametrize(("num_beams", "early_stopping", "length_penalty"), TRIPLES)
def test_every_beam_size_penalty_and_way_to_stop(num_beams, early_stopping, length_penalty):
    model = translator(seed=num_beams % 3)
    options = {"num_beams": num_beams, "early_stopping": early_stopping, "length_penalty": length_penalty}
    batch = batch_of(SOURCES)
    expected = check_against_transformers(model, batch, **options, num_return_sequences=num_beams).sequences
    # If only the best translation is requested, the search may stop earlier.
    best = searched(model, batch, **options, **PLAIN)
    assert torch.equal(best, expected[::num_beams, : best.shape[1]])
    assert set(expected[::num_beams, best.shape[1] :].unique().tolist()) <= {PAD}


@early_stoppings
def test_the_slow_search_is_transformers_own(model, early_stopping):
    # Other tests use the slow search for penalties that transformers does not have.
    oracle, log_probs = TransformersSearch(model), log_probs_of(model)
    for num_beams in (2, 5):
        for length_penalty in PENALTIES:
            options = {"early_stopping": early_stopping, "length_penalty": length_penalty}
            options["num_beams"] = num_beams
            slow = SlowSearch(log_probs, LIMIT, **options)
            outputs = searched(oracle, batch_of(SOURCES), **options, num_return_sequences=2)
            expected = [hypothesis for source in SOURCES for hypothesis in slow.best(source, [START])[:2]]
            close(outputs.sequences_scores, torch.tensor([hypothesis.score for hypothesis in expected]))
            for row, hypothesis in zip(outputs.sequences[:, 1:].tolist(), expected, strict=True):
                assert row[: len(hypothesis.tokens)] == hypothesis.tokens
                assert set(row[len(hypothesis.tokens) :]) <= {PAD}


@pytest.mark.parametrize("length_penalty", [0.6, -1.0])
def test_beam_search_equals_the_paper_in_slow_loops(length_penalty):
    # The slow reference model makes the test independent of our model.
    model = translator()
    reference = Reference(model.state_dict(), model.config)
    slow = SlowSearch(
        lambda source, target: reference.log_probs(source, target, excluded_class=PAD)[-1].tolist(),
        limit=4,
        num_beams=2,
        length_penalty=length_penalty,
    )
    with torch.no_grad():
        expected = [slow.best(source, [START])[0] for source in SOURCES[:3]]
    outputs = searched(
        model, batch_of(SOURCES[:3]), num_beams=2, max_new_tokens=4, length_penalty=length_penalty
    )
    close(outputs.sequences_scores, torch.tensor([hypothesis.score for hypothesis in expected]))
    for row, hypothesis in zip(outputs.sequences[:, 1:].tolist(), expected, strict=True):
        assert row[: len(hypothesis.tokens)] == hypothesis.tokens


# The tests of limits per sentence combine all shapes with all caches.
WAYS = {name: (fields, {}) for name, fields in VARIANTS.items()}
WAYS |= {"static cache": ({}, CACHES["static"]), "no cache": ({}, CACHES["none"])}
ways = pytest.mark.parametrize(("fields", "cache"), WAYS.values(), ids=WAYS)


@ways
def test_every_shape_cache_and_attention_equals_transformers(fields, cache):
    model = translator(**fields)
    pad_id, start = model.config.pad_token_id, model.config.decoder_start_token_id
    prefixes = [[start, *prefix[1:]] for prefix in PREFIXES]
    for attention, side, given in (("eager", "left", prefixes), ("sdpa", "right", None)):
        model.set_attn_implementation(attention)
        options = {"length_penalty": 0.6, "num_return_sequences": 2, **cache}
        check_against_transformers(model, batch_of(SOURCES, side, given, pad_id), **options)


# A large vocabulary is searched in chunks, and a small one may have too few classes.
SIZES = {f"{number} classes": {"vocab_size": number} for number in (21, 23, 400, 401)}


@pytest.mark.parametrize("fields", SIZES.values(), ids=SIZES)
def test_random_weights_equal_transformers(fields):
    model = tiny_model(**fields)
    pad_id = model.config.pad_token_id
    for size, num_beams in ((1, 5), (3, 2), (5, 5)):
        batch = batch_of(SOURCES[:size], pad_id=pad_id)
        check_against_transformers(model, batch, num_beams=num_beams, num_return_sequences=num_beams)


@pytest.mark.parametrize(
    ("num_beams", "prefixes"), [(2, PREFIXES), (5, None)], ids=["prefixes", "no prefixes"]
)
def test_long_outputs_equal_transformers(model, num_beams, prefixes):
    # The outputs are longer than the memory that a tree reserves, and end at very different steps.
    options = {"num_beams": num_beams, "max_new_tokens": 75, "length_penalty": 0.0, "num_return_sequences": 2}
    batch = batch_of(SOURCES, "left", prefixes)
    check_against_transformers(model, batch, **options, min_new_tokens=70, no_repeat_ngram_size=3)
    check_against_transformers(model, batch, **options, stopping_criteria=[stop_late], suppress_tokens=[EOS])


def stop_late(input_ids, scores, **kwargs):
    sentence = torch.arange(len(input_ids)) * len(SOURCES) // len(input_ids)
    return input_ids.shape[1] >= torch.tensor([20, 37, 70, 5, 53])[sentence]


def test_the_source_may_come_embedded_or_encoded(model):
    batch = batch_of(SOURCES)
    expected = check_against_transformers(model, batch).sequences
    mask = {"attention_mask": batch["attention_mask"]}
    embedded = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"])} | mask
    assert torch.equal(check_against_transformers(model, embedded).sequences, expected)
    states = model.get_encoder()(**batch).last_hidden_state
    for options in ({}, {"return_dict_in_generate": False, "output_scores": False}):
        found = searched(model, {"encoder_outputs": BaseModelOutput(states)} | mask, **options)
        assert torch.equal(found if isinstance(found, torch.Tensor) else found.sequences, expected)


def allowed_per_sentence(batch_id, target):
    """Allow different tokens for each sentence, and different tokens after an even and an odd token."""
    return [EOS, *range(3 + batch_id + int(target[-1]) % 2, 23, 1 + batch_id % 2)]


class FavourByRow:
    """Add values that depend on the row, like processors that are made for one batch of beams."""

    def __init__(self, num_rows):
        generator = torch.Generator().manual_seed(3)
        self.bias = torch.randn(num_rows, 23, generator=generator)

    def __call__(self, input_ids, scores):
        return scores + self.bias * input_ids.shape[1]


PROCESSORS = {
    "minimum": {"min_new_tokens": 4},
    "minimum with the prefix": {"min_length": 6},
    "no repeated token": {"no_repeat_ngram_size": 1, "num_beams": 3},
    "no pair of the source": {"encoder_no_repeat_ngram_size": 1},
    "repetition penalty": {"repetition_penalty": 1.7},
    "forced first": {"forced_bos_token_id": 9},
    "forced last": {"forced_eos_token_id": EOS},
    "suppressed first": {"begin_suppress_tokens": [7, 14, EOS]},
    "renormalized": {"suppress_tokens": [14], "renormalize_logits": True},
    "allowed per sentence": {"prefix_allowed_tokens_fn": allowed_per_sentence},
    "two ends": {"eos_token_id": [EOS, 22]},
    "three ends": {"eos_token_id": [7, EOS, 22], "num_beams": 3},
    "all at once": {
        "min_new_tokens": 2,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.2,
        "eos_token_id": [2, 22],
    },
}


@pytest.mark.parametrize("options", PROCESSORS.values(), ids=PROCESSORS)
def test_logits_processors_equal_transformers(model, options):
    both = {"early_stopping": "never", "num_return_sequences": 3}
    check_against_transformers(model, batch_of(SOURCES, "left", PREFIXES), **options, **both)
    both["early_stopping"] = False
    changed = check_against_transformers(model, batch_of(SOURCES), **options, **both)
    plain = searched(TransformersSearch(model), batch_of(SOURCES), **both)
    assert changed.sequences.tolist() != plain.sequences.tolist(), (
        "The option must change these translations."
    )


@ways
def test_greedy_search_equals_transformers(fields, cache):
    model = translator(**fields)
    oracle, config = TransformersSearch(model), model.config
    prefixes = [[config.decoder_start_token_id, *prefix[1:]] for prefix in PREFIXES]
    for batch in (
        batch_of(SOURCES, "right", None, config.pad_token_id),
        batch_of(SOURCES, "left", prefixes, config.pad_token_id),
    ):
        for options in (
            {},
            {"eos_token_id": [EOS, 22]},
            {"min_new_tokens": 4},
            {"stopping_criteria": [stop_behind(15)]},
        ):
            options = {"max_new_tokens": LIMIT, "num_beams": 1, **options, **cache}
            assert torch.equal(model.generate(**batch, **options), oracle.generate(**batch, **options))


@pytest.mark.parametrize(("early_stopping", "num_return_sequences"), [(True, 1), (False, 3), ("never", 1)])
def test_a_processor_by_row_sees_the_row_of_its_sentence(model, early_stopping, num_return_sequences):
    processor = FavourByRow(len(SOURCES) * 4)
    options = {"early_stopping": early_stopping, "num_return_sequences": num_return_sequences}
    expected = check_against_transformers(model, batch_of(SOURCES), **options, logits_processor=[processor])
    processor.bias = processor.bias.roll(4, dims=0)
    rolled = searched(TransformersSearch(model), batch_of(SOURCES), **options, logits_processor=[processor])
    assert expected.sequences.tolist() != rolled.sequences.tolist()


def test_a_user_s_rule_is_asked_of_paths_that_there_are(model):
    seen = set()

    def allowed(sentence, path):
        path = (sentence, *path.tolist())
        # A grammar or a trie only knows paths that extend an allowed path by one token.
        assert len(path) == 2 or path[:-1] in seen
        seen.add(path)
        return list(range(3, 15)) + [EOS]

    for options in ({"num_beams": 3, "early_stopping": True}, {"num_beams": 1}):
        seen.clear()
        model.generate(**batch_of(SOURCES), max_new_tokens=14, prefix_allowed_tokens_fn=allowed, **options)
        assert len(seen) > len(SOURCES)


def stop_behind(token):
    def criterion(input_ids, scores, **kwargs):
        return (input_ids[:, -1] == token) & torch.tensor(input_ids.shape[1] > 2)

    return criterion


def stop_everything_at(length):
    def criterion(input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= length)

    return criterion


def stop_by_sentence(input_ids, scores, **kwargs):
    """The candidates of a sentence are in consecutive rows, and each sentence has its own limit."""
    sentence = torch.arange(len(input_ids)) * len(SOURCES) // len(input_ids)
    return input_ids.shape[1] - 1 >= torch.tensor([4, 1, 3, 6, 2])[sentence]


CRITERIA = {
    "by token": [stop_behind(15), stop_behind(7)],
    "all at once": [stop_everything_at(5)],
    "by sentence": [stop_by_sentence],
}


@early_stoppings
@pytest.mark.parametrize("criteria", CRITERIA.values(), ids=CRITERIA)
def test_stopping_criteria_equal_transformers(model, criteria, early_stopping):
    options = {"early_stopping": early_stopping, "length_penalty": 0.6, "num_return_sequences": 2}
    expected = check_against_transformers(model, batch_of(SOURCES), **options, stopping_criteria=criteria)
    plain = searched(TransformersSearch(model), batch_of(SOURCES), **options)
    assert expected.sequences.tolist() != plain.sequences.tolist()


def test_stopping_criteria_see_the_scores_where_those_are_asked_for(model):
    seen = {"ours": [], "theirs": []}

    def criterion(name):
        def stop(input_ids, scores, **kwargs):
            seen[name].append(torch.stack(scores))
            return torch.zeros(len(input_ids), dtype=torch.bool)

        return stop

    searched(model, batch_of(SOURCES), stopping_criteria=[criterion("ours")])
    searched(TransformersSearch(model), batch_of(SOURCES), stopping_criteria=[criterion("theirs")])
    assert len(seen["ours"]) == len(seen["theirs"]) > 2
    for ours, theirs in zip(seen["ours"], seen["theirs"], strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("limit", [4, LIMIT])
def test_what_is_not_allowed_does_not_fill_up_the_results(model, limit):
    # Only one translation is allowed, so the other results are missing.
    path = [14, 21, 8, EOS]

    def one_path(batch_id, target):
        return [path[min(len(target), len(path)) - 1]]

    given = {"prefix_allowed_tokens_fn": one_path, "max_new_tokens": limit}
    expected = searched(TransformersSearch(model), batch_of(SOURCES), **given)
    for num_return_sequences in (1, 3):
        options = given | {"num_return_sequences": num_return_sequences}
        outputs = searched(model, batch_of(SOURCES), **options)
        close(outputs.sequences_scores[::num_return_sequences], expected.sequences_scores)
        assert torch.all(outputs.sequences_scores.view(len(SOURCES), -1)[:, 1:] < -1e7)
        plain = searched(model, batch_of(SOURCES), **options, **PLAIN)
        for sequences in (outputs.sequences, plain):
            assert sequences[::num_return_sequences, 1:5].tolist() == [path] * len(SOURCES)
            assert set(sequences[:, 1:].unique().tolist()) <= {*path, PAD}


def test_a_model_without_an_end_equals_transformers():
    check_against_transformers(tiny_model(eos_token_id=None), batch_of(SOURCES), num_return_sequences=3)


@pytest.mark.parametrize(
    ("cache", "early_stopping"),
    list(zip(CACHES.values(), (False, "never", "never"), strict=True)),
    ids=CACHES,
)
def test_outputs_of_every_step_are_transformers_own(model, cache, early_stopping):
    model.set_attn_implementation("eager")
    asked = {"output_logits": True, "output_attentions": True, "output_hidden_states": True}
    for prefixes in (None, PREFIXES):
        batch = batch_of(SOURCES, "left", prefixes)
        options = {
            "early_stopping": early_stopping,
            "num_beams": 3,
            "num_return_sequences": 2,
            **cache,
            **asked,
        }
        expected = searched(TransformersSearch(model), batch, **options)
        outputs = searched(model, batch, **options)
        assert type(outputs) is type(expected)
        for name in expected:
            if name not in ("past_key_values", "cache"):
                torch.testing.assert_close(outputs[name], expected[name], atol=1e-5, rtol=1e-5)
        assert len(outputs.scores) == len(expected.scores)
        assert outputs.scores[0].shape == (len(SOURCES) * 3, model.config.vocab_size)
        ours, theirs = outputs.past_key_values, expected.past_key_values
        assert type(ours) is type(theirs)
        if theirs is not None:
            torch.testing.assert_close(tensors_of(ours), tensors_of(theirs), atol=1e-5, rtol=1e-5)


def tensors_of(cache):
    layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return [(layer.keys, layer.values) for layer in layers]


@pytest.mark.parametrize(("fields", "length_penalty"), [({}, 0.0), (OTHER_VOCABULARY, 0.6)])
def test_transition_scores_add_up_to_the_scores(fields, length_penalty):
    model = translator(**fields)
    options = {"length_penalty": length_penalty, "num_return_sequences": 3}
    outputs = searched(model, batch_of(SOURCES), **options)
    transitions = model.compute_transition_scores(outputs.sequences, outputs.scores, outputs.beam_indices)
    lengths = (outputs.beam_indices >= 0).sum(dim=1)
    close(transitions.sum(dim=1) / lengths**length_penalty, outputs.sequences_scores)
    # The transition scores equal the log-probabilities from one forward pass over the finished translations.
    log_probs = log_probs_of(model)
    for row, tokens in enumerate(outputs.sequences.tolist()):
        for step in range(int(lengths[row])):
            expected = log_probs(SOURCES[row // 3], tokens[: step + 1])[tokens[step + 1]]
            assert transitions[row, step].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_compiled_model_generates_the_same(model):
    options = {**PLAIN, "num_return_sequences": 2}
    expected = searched(model, batch_of(SOURCES), **options)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model.compile(backend=backend, dynamic=True)
    assert torch.equal(searched(model, batch_of(SOURCES), **options), expected)
    assert graphs


def rows_through(module):
    """A list to which each call of the module appends its number of rows."""
    rows = []
    module.register_forward_hook(
        lambda _, inputs, output: rows.append(inputs[0].shape[0] * inputs[0].shape[1])
    )
    return rows


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cross_attention_is_computed_once_per_sentence(model, cache):
    layers = model.get_decoder().layers
    names = ("k_proj", "v_proj")
    rows = [rows_through(getattr(layer.encoder_attn, name)) for layer in layers for name in names]
    searched(model, batch_of(SOURCES), **PLAIN, num_beams=6, **CACHES[cache])
    longest = max(map(len, SOURCES))
    assert rows == [[len(SOURCES) * longest]] * len(rows)


def test_finished_sentences_leave_the_batch(model):
    num_beams = 4
    options = {"num_beams": num_beams, "early_stopping": True, "max_new_tokens": 14}
    rows = rows_through(model.get_decoder().layers[0].fc1)
    num_steps = []
    for source in SOURCES:
        rows.clear()
        searched(model, batch_of([source]), **options, **PLAIN)
        num_steps.append(len(rows))
    # The sentences must end at different steps, because otherwise no sentence is removed before the end.
    assert len(set(num_steps)) > 2
    rows.clear()
    searched(model, batch_of(SOURCES), **options, **PLAIN)
    assert len(rows) == max(num_steps)
    for step, num_rows in enumerate(rows):
        assert num_rows <= num_beams * sum(steps > step for steps in num_steps)
    # The outputs of each step have all rows, including the rows of removed sentences.
    outputs = searched(model, batch_of(SOURCES), **options)
    assert {len(scores) for scores in outputs.scores} == {num_beams * len(SOURCES)}
