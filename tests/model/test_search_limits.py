"""The search with the paper's length penalty, limits per sentence and coverage equals the slow search."""

import json

import pytest
import torch
from factories import tiny_model
from reference_search import SlowSearch, coverage, limit_of, repeated_ngrams, without
from search_models import (
    CACHES,
    EOS,
    PAD,
    PREFIXES,
    SCORED,
    SOURCES,
    START,
    VARIANTS,
    attention_of,
    batch_of,
    check_found,
    log_probs_of,
    new_tokens,
    translator,
)
from transformers import GenerationConfig

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.model.errors_vaswani import InvalidValueError

# The loose limit cuts nearly no translation, and the tight limit cuts many translations.
LOOSE, TIGHT = 5, 1
PAPER = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt"}
PAPER |= {"max_length_a": 1.0, "max_length_b": TIGHT}
NEVER_ENDS = {"suppress_tokens": [EOS]}
# Leave out the model whose start token has the id of the padding of the other models.
SHAPES = {name: fields for name, fields in VARIANTS.items() if name != "padding is zero"}


@pytest.fixture(scope="module")
def models():
    """Two models for the tests that do not change a model."""
    return [translator(seed=seed) for seed in (0, 1)]


@pytest.fixture
def model(models):
    return models[0]


def slow_best(model, sources, prefixes=None, a=1.0, b=TIGHT, log_probs=None, **options):
    """Return the hypotheses of each sentence from the slow search, which by default stops only at the
    limit.
    """
    log_probs = log_probs or log_probs_of(model)
    prefixes = prefixes or [[START]] * len(sources)
    pairs = zip(sources, prefixes, strict=True)
    return [
        SlowSearch(log_probs, limit_of(source, a, b), **options).best(source, prefix)
        for source, prefix in pairs
    ]


def check_against_slow(model, batch, expected, num_best=1, prompt_length=1, **options):
    """Compare tokens and scores of the best hypotheses. `expected` has the hypotheses of each sentence."""
    options = PAPER | options | {"num_return_sequences": num_best}
    wanted = [hypothesis for best in expected for hypothesis in best[:num_best]]
    outputs = model.generate(**batch, **options, **SCORED)
    check_found(outputs, wanted, prompt_length)
    # A search of only the sequences may compute in another way.
    assert torch.equal(model.generate(**batch, **options), outputs.sequences)


PENALTIES = [-1.0, 0.0, 0.6, 2.0]
CASES = [("power", stop, penalty) for stop in (True, False, "never") for penalty in PENALTIES]
CASES += [("gnmt", stop, penalty) for stop in (False, None, "never") for penalty in PENALTIES]
CASES += [("gnmt", True, 0.6), ("gnmt", True, 2.0)]


@pytest.mark.parametrize(("kind", "early_stopping", "length_penalty"), CASES)
def test_limits_per_sentence_equal_the_slow_search(models, kind, early_stopping, length_penalty):
    options = {"length_penalty": length_penalty, "length_penalty_type": kind}
    options["early_stopping"] = early_stopping
    # With "gnmt", the search finds what a search finds that stops only at the limit.
    stop_of_slow = None if kind == "gnmt" and early_stopping is not True else early_stopping
    for model, num_beams, b in zip(models, (4, 7), (LOOSE, TIGHT), strict=True):
        options["num_beams"] = num_beams
        expected = slow_best(model, SOURCES, b=b, **options | {"early_stopping": stop_of_slow})
        for num_best in (1, num_beams):
            check_against_slow(model, batch_of(SOURCES), expected, num_best, **options, max_length_b=b)


@pytest.mark.parametrize("kind", ["gnmt", "power"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6])
def test_the_search_stops_as_soon_as_nothing_can_get_better(kind, length_penalty):
    model = translator()
    options = {"length_penalty": length_penalty, "length_penalty_type": kind, "early_stopping": "never"}
    log_probs = log_probs_of(model)
    calls = []
    model.get_decoder().layers[0].register_forward_hook(lambda *_: calls.append(1))
    stopped_early = 0
    for source in SOURCES:
        slow = SlowSearch(log_probs, limit_of(source, 1.0, 20), **options)
        slow.best(source, [START])
        calls.clear()
        model.generate(**batch_of([source]), **PAPER | options | {"max_length_b": 20})
        assert 0 < len(calls) <= slow.num_steps
        stopped_early += slow.num_steps < slow.limit
    assert stopped_early > 1


@pytest.mark.parametrize("fields", SHAPES.values(), ids=SHAPES)
def test_every_shape_and_cache_equals_the_slow_search(fields):
    model = translator(**fields)
    options = {"length_penalty": 0.6, "length_penalty_type": "gnmt"}
    expected = slow_best(model, SOURCES, PREFIXES, **options)
    for cache in CACHES.values():
        for side, attention in (("left", "eager"), ("right", "sdpa")):
            model.set_attn_implementation(attention)
            batch = batch_of(SOURCES, side, PREFIXES)
            check_against_slow(model, batch, expected, 2, prompt_length=4, **options, **cache)


@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_a_wide_beam_finds_the_best_of_all_sequences(kind):
    model = tiny_model(vocab_size=6)
    sources = [[5, 3, EOS], [4, EOS], [3, 3, 5, EOS]]
    log_probs = without(log_probs_of(model), lambda source, target: {PAD})
    options = {"length_penalty": 1.5, "length_penalty_type": kind, "num_beams": 70}
    searches = [SlowSearch(log_probs, limit_of(source, 1.0, 0), **options) for source in sources]
    best = [
        search.all_hypotheses(source, [START])[:5] for search, source in zip(searches, sources, strict=True)
    ]
    options |= {"max_length_a": 1.0, "max_length_b": 0, "early_stopping": "never"}
    check_against_slow(model, batch_of(sources), best, num_best=5, **options)


def test_processors_criteria_and_ends_equal_the_slow_search(model):
    def stop_at_22(input_ids, scores, **kwargs):
        return input_ids[:, -1] == 22

    options = {"length_penalty": 0.6, "length_penalty_type": "gnmt", "num_beams": 3}
    allowed = without(log_probs_of(model), repeated_ngrams(1))
    ends = {"end_ids": (EOS, 13), "stops": lambda target: target[-1] == 22}
    expected = slow_best(model, SOURCES, b=4, log_probs=allowed, **options, **ends)
    outputs = model.generate(
        **batch_of(SOURCES),
        **PAPER | options | SCORED | {"max_length_b": 4},
        early_stopping="never",
        no_repeat_ngram_size=1,
        eos_token_id=[EOS, 13],
        stopping_criteria=[stop_at_22],
    )
    check_found(outputs, [best[0] for best in expected], end_ids=(EOS, 13, 22))
    assert len({best[0].tokens[-1] for best in expected}) > 1


@pytest.mark.parametrize(("kind", "beta"), [("gnmt", 0.2), ("power", 0.2), ("gnmt", 1.0)])
def test_coverage_equals_the_slow_search(model, kind, beta):
    attention = attention_of(model)
    options = {"length_penalty": 0.6, "length_penalty_type": kind}

    def bonus(source, target):
        return coverage(attention(source, target), beta)

    expected = slow_best(model, SOURCES, **options, bonus=bonus)
    plain = slow_best(model, SOURCES, **options)
    tokens = [[[found.tokens for found in best] for best in found] for found in (plain, expected)]
    assert tokens[0] != tokens[1]
    options |= {"coverage_penalty": beta, "early_stopping": "never"}
    for side, cache in (("left", "dynamic"), ("right", "static"), ("left", "none")):
        check_against_slow(model, batch_of(SOURCES, side), expected, 4, **options, **CACHES[cache])


SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 3},
    "sampling": {"num_beams": 1, "do_sample": True},
    "several samples": {"num_beams": 1, "do_sample": True, "num_return_sequences": 3},
    "beam sampling": {"num_beams": 3, "do_sample": True},
}


LIMITS = [{"max_length_a": a, "max_length_b": b} for a, b in ((1, 2), (0.5, 0), (0.01, 0))]
LIMITS += [{"max_length_a": 1.5}, {"max_length_b": 3}]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("asked", [{}, SCORED], ids=["plain", "scored"])
def test_every_search_goes_to_the_limit_and_no_further(model, search, asked):
    copies = search.get("num_return_sequences", 1)

    def lengths(**limits):
        torch.manual_seed(0)
        found = model.generate(**batch_of(SOURCES), **search, **limits, **NEVER_ENDS, **asked)
        return [len(row) for row in new_tokens(found.sequences if asked else found)]

    for limits in LIMITS:
        expected = [
            limit_of(source, limits.get("max_length_a", 0), limits.get("max_length_b", 0))
            for source in SOURCES
            for _ in range(copies)
        ]
        assert lengths(**limits) == expected, limits
    expected = [min(5, len(source) + 1) for source in SOURCES for _ in range(copies)]
    for together in ({"max_new_tokens": 5}, {"max_length": 6}):
        assert lengths(max_length_a=1.0, max_length_b=1, **together) == expected
        assert lengths(generation_config=GenerationConfig(**together)) == [5] * len(expected)
    # If no length is set, a translation has at most the number of source tokens plus 50 tokens.
    assert lengths() == [len(source) + 50 for source in SOURCES for _ in range(copies)]


@pytest.mark.parametrize("fields", [VARIANTS["padding is zero"], {"eos_token_id": None}], ids=str)
def test_padding_follows_a_translation_without_an_end_token(fields):
    model = tiny_model(**fields)
    pad_id, start = model.config.pad_token_id, model.config.decoder_start_token_id
    batch = batch_of(SOURCES, "left", [[start]] * len(SOURCES), pad_id)
    found = model.generate(**batch, num_beams=2, max_length_a=1.0, max_length_b=0, **NEVER_ENDS)
    for row, source in zip(found, SOURCES, strict=True):
        assert (row[1:] == pad_id).nonzero().flatten().tolist() == [*range(len(source), len(row) - 1)]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_only_real_source_tokens_and_new_tokens_count(model, num_beams):
    options = {"num_beams": num_beams, "max_length_a": 1.0, "max_length_b": 0, **NEVER_ENDS}
    expected = [len(source) for source in SOURCES]
    batch = batch_of(SOURCES, "left")
    mask = {"attention_mask": batch["attention_mask"]}
    inferred = model.generate(input_ids=batch["input_ids"], **options)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    embedded = model.generate(inputs_embeds=embeddings, **mask, **options)
    encoded = model.generate(encoder_outputs=model.get_encoder()(**batch), **mask, **options)
    for found in (inferred, embedded, encoded):
        assert [len(row) for row in new_tokens(found)] == expected
    # A prefix does not count into the limit.
    batch = batch_of(SOURCES, "left", PREFIXES)
    prefixed = model.generate(**batch, **options)
    assert torch.equal(prefixed[:, :4], batch["decoder_input_ids"])
    assert [len(row) for row in new_tokens(prefixed, 4)] == expected
    # A token that the mask hides does not count as a source token.
    mask["attention_mask"][3, -3:] = 0
    hidden = model.generate(input_ids=batch["input_ids"], **mask, **options)
    assert [len(row) for row in new_tokens(hidden)] == [*expected[:3], expected[3] - 3, expected[4]]


@pytest.mark.parametrize(
    "given",
    [{}, {"max_length_a": 1.0, "max_length_b": 50}, {"max_new_tokens": 30}, {"max_length": 40}],
    ids=str,
)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_learned_positions_are_not_overrun(given, num_beams):
    model = translator(position_embedding="learned", max_position_embeddings=16)
    found = model.generate(**batch_of(SOURCES), num_beams=num_beams, **given, **NEVER_ENDS)
    # All positions of the table are used, and the last position predicts one more token.
    assert found.shape[1] in (16, 17) and PAD not in found


def test_a_sentence_of_a_batch_is_translated_as_if_alone():
    model = translator(seed=1)
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 9, 3, 1, 7, 2, 12, 5]
    sources = [[*torch.randint(3, 23, (length,), generator=generator).tolist(), EOS] for length in lengths]
    limits = {"max_length_a": 1.0, "max_length_b": 1}
    searches = [
        {"num_beams": 1, **limits},
        {"num_beams": 1},
        {"num_beams": 5, "length_penalty": 0.6, **limits},
        {"num_beams": 5, "length_penalty": 0.6, "early_stopping": True, "num_return_sequences": 2, **limits},
        {"num_beams": 3},
        {"num_beams": 3, "max_new_tokens": 8, "cache_implementation": "static"},
        {"num_beams": 3, "use_cache": False, **limits},
        {**PAPER, "num_return_sequences": 4},
        {**PAPER, "coverage_penalty": 0.3},
        {**PAPER, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    ]
    for search in searches:
        copies = search.get("num_return_sequences", 1)
        alone = []
        for source in sources:
            alone += new_tokens(model.generate(**batch_of([source]), **search))
        for order in (list(range(8)), [6, 1, 4, 7, 2, 5, 0, 3]):
            batch = batch_of([sources[index] for index in order], "left" if order[0] else "right")
            together = new_tokens(model.generate(**batch, **search))
            expected = [alone[index * copies + copy] for index in order for copy in range(copies)]
            assert together == expected, search


def test_the_paper_search_travels_with_the_checkpoint(tmp_path):
    model, plain = translator(), translator()
    fields = PAPER | {"coverage_penalty": 0.2}
    expected = plain.generate(**batch_of(SOURCES), **fields)
    for name, value in fields.items():
        setattr(model.generation_config, name, value)
    assert torch.equal(model.generate(**batch_of(SOURCES)), expected)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert written | fields == written
    loaded = VaswaniForSeq2SeqLM.from_pretrained(tmp_path)
    assert {name: getattr(loaded.generation_config, name, None) for name in fields} == fields
    assert torch.equal(loaded.generate(**batch_of(SOURCES)), expected)
    # An argument of `generate` takes precedence over the checkpoint, also in a config object.
    changed = {"length_penalty_type": "power", "coverage_penalty": 0.0, "num_beams": 2}
    expected = plain.generate(**batch_of(SOURCES), **fields | changed)
    assert torch.equal(loaded.generate(**batch_of(SOURCES), **changed), expected)
    config = GenerationConfig(**changed)
    assert torch.equal(loaded.generate(**batch_of(SOURCES), generation_config=config), expected)


NEW_FIELDS = ("length_penalty_type", "max_length_a", "max_length_b", "coverage_penalty")


def test_a_fresh_model_keeps_the_defaults_of_transformers(tmp_path):
    model = tiny_model()
    assert model.generation_config.num_beams in (None, 1)
    model.save_pretrained(tmp_path)
    for file in tmp_path.glob("*.json"):
        assert not set(NEW_FIELDS) & set(json.loads(file.read_text(encoding="utf-8"))), file


# transformers checks `early_stopping` too, with another message.
@pytest.mark.parametrize(("name", "value"), [("coverage_penalty", "x"), ("early_stopping", "now")])
def test_a_wrong_setting_is_named_wherever_it_comes_from(tmp_path, name, value):
    model, config = translator(), GenerationConfig(num_beams=2)
    setattr(config, name, value)
    sentence = f"^`{name}` must be .+, but is '{value}'.$"
    for settings in ({"num_beams": 2, name: value}, {"generation_config": config}):
        with pytest.raises(InvalidValueError, match=sentence):
            model.generate(**batch_of(SOURCES), **settings)
    setattr(model.generation_config, name, value)
    with pytest.raises(InvalidValueError, match=sentence):
        model.save_pretrained(tmp_path)
    with pytest.raises(InvalidValueError, match=sentence):
        model.generate(**batch_of(SOURCES))


def test_an_unknown_argument_is_refused_as_ever(model):
    with pytest.raises(ValueError, match=r"model_kwargs.*not used by the model.*max_length_c"):
        model.generate(**batch_of(SOURCES), max_length_c=1)
