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
    check_found,
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


@early_stoppings
@pytest.mark.parametrize(("num_beams", "length_penalty"), list(zip((2, 3, 4, 8), PENALTIES, strict=True)))
def test_every_penalty_and_way_to_stop_equals_transformers(num_beams, early_stopping, length_penalty):
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
            check_found(outputs, expected)


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
    options = {"num_beams": 2, "max_new_tokens": 4, "length_penalty": length_penalty}
    check_found(searched(model, batch_of(SOURCES[:3]), **options), expected)


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
@pytest.mark.parametrize(
    "fields", [*({"vocab_size": n} for n in (21, 400, 401)), {"eos_token_id": None}], ids=str
)
def test_random_weights_equal_transformers(fields):
    for size, num_beams in ((1, 5), (5, 3)):
        options = {"num_beams": num_beams, "num_return_sequences": num_beams}
        check_against_transformers(tiny_model(**fields), batch_of(SOURCES[:size]), **options)


def stop_at(*lengths):
    """A criterion that stops each sentence at its own length. Each sentence has consecutive rows."""

    def criterion(input_ids, scores, **kwargs):
        sentence = torch.arange(len(input_ids)) * len(SOURCES) // len(input_ids)
        return input_ids.shape[1] >= torch.tensor(lengths)[sentence]

    return criterion


def test_long_outputs_equal_transformers(model):
    # The outputs are longer than the memory that a tree reserves, and end at very different steps.
    options = {"max_new_tokens": 75, "length_penalty": 0.0, "num_return_sequences": 2}
    batch = batch_of(SOURCES, "left", PREFIXES)
    check_against_transformers(
        model, batch, **options, num_beams=2, min_new_tokens=70, no_repeat_ngram_size=3
    )
    options |= {"stopping_criteria": [stop_at(20, 37, 70, 5, 53)], "suppress_tokens": [EOS]}
    check_against_transformers(model, batch_of(SOURCES), **options, num_beams=5)


def test_the_source_may_come_embedded_or_encoded(model):
    batch = batch_of(SOURCES)
    expected = check_against_transformers(model, batch).sequences
    mask = {"attention_mask": batch["attention_mask"]}
    embedded = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"])} | mask
    assert torch.equal(check_against_transformers(model, embedded).sequences, expected)
    encoded = {"encoder_outputs": BaseModelOutput(model.get_encoder()(**batch).last_hidden_state)} | mask
    assert torch.equal(searched(model, encoded).sequences, expected)
    assert torch.equal(searched(model, encoded, **PLAIN), expected)


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
    "minimum with the prefix": {"min_length": 6},
    "no repeated token": {"no_repeat_ngram_size": 1, "num_beams": 3},
    "no pair of the source": {"encoder_no_repeat_ngram_size": 1},
    "forced first": {"forced_bos_token_id": 9},
    "forced last": {"forced_eos_token_id": EOS},
    "suppressed first": {"begin_suppress_tokens": [7, 14, EOS]},
    "renormalized": {"suppress_tokens": [14], "renormalize_logits": True},
    "allowed per sentence": {"prefix_allowed_tokens_fn": allowed_per_sentence},
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
    pad_id, start = model.config.pad_token_id, model.config.decoder_start_token_id
    batch = batch_of(SOURCES, "left", [[start, *prefix[1:]] for prefix in PREFIXES], pad_id)
    for options in (
        {"eos_token_id": [EOS, 22]},
        {"stopping_criteria": [stop_behind(15)], "min_new_tokens": 4},
    ):
        options = {"max_new_tokens": LIMIT, "num_beams": 1, **options, **cache}
        expected = TransformersSearch(model).generate(**batch, **options)
        assert torch.equal(model.generate(**batch, **options), expected)


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


CRITERIA = {
    "by token": [stop_behind(15), stop_behind(7)],
    "all at once": [stop_at(5, 5, 5, 5, 5)],
    "by sentence": [stop_at(5, 2, 4, 7, 3)],
}


@early_stoppings
@pytest.mark.parametrize("name", CRITERIA)
def test_stopping_criteria_equal_transformers(model, name, early_stopping):
    criteria = CRITERIA[name]
    options = {"early_stopping": early_stopping, "length_penalty": 0.6, "num_return_sequences": 2}
    expected = check_against_transformers(model, batch_of(SOURCES), **options, stopping_criteria=criteria)
    plain = searched(TransformersSearch(model), batch_of(SOURCES), **options)
    assert expected.sequences.tolist() != plain.sequences.tolist()


def test_stopping_criteria_see_the_scores_where_those_are_asked_for(model):
    def scores_seen(model):
        seen = []

        def stop(input_ids, scores, **kwargs):
            seen.append(torch.stack(scores))
            return torch.zeros(len(input_ids), dtype=torch.bool)

        searched(model, batch_of(SOURCES), stopping_criteria=[stop])
        return seen

    ours, theirs = scores_seen(model), scores_seen(TransformersSearch(model))
    assert len(ours) == len(theirs) > 2
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize(
    ("cache", "early_stopping"),
    list(zip(CACHES.values(), (False, "never", "never"), strict=True)),
    ids=CACHES,
)
def test_outputs_of_every_step_are_transformers_own(model, cache, early_stopping):
    model.set_attn_implementation("eager")
    asked = {"output_logits": True, "output_attentions": True, "output_hidden_states": True}
    options = {"early_stopping": early_stopping, "num_beams": 3, "num_return_sequences": 2} | cache | asked
    for prefixes in (None, PREFIXES):
        batch = batch_of(SOURCES, "left", prefixes)
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


def test_transition_scores_add_up_to_the_scores():
    model = translator(**OTHER_VOCABULARY)
    outputs = searched(model, batch_of(SOURCES), length_penalty=0.6, num_return_sequences=3)
    transitions = model.compute_transition_scores(outputs.sequences, outputs.scores, outputs.beam_indices)
    lengths = (outputs.beam_indices >= 0).sum(dim=1)
    close(transitions.sum(dim=1) / lengths**0.6, outputs.sequences_scores)


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
    # `Seq2SeqTrainer` passes labels.
    searched(model, batch_of(SOURCES) | {"labels": batch_of(SOURCES)["input_ids"]}, **options, **PLAIN)
    assert len(rows) == max(num_steps)
    for step, num_rows in enumerate(rows):
        assert num_rows <= num_beams * sum(steps > step for steps in num_steps)
    # The outputs of each step have all rows, including the rows of removed sentences.
    outputs = searched(model, batch_of(SOURCES), **options)
    assert {len(scores) for scores in outputs.scores} == {num_beams * len(SOURCES)}
