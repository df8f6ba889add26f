"""Ensembles with models of other classes, in float32: the slow search over the mean of the probabilities finds the same."""

import pytest
import torch
from reference_search import SlowSearch, averaged, without
from search_models import EOS, PAD, SCORED, SOURCES, START, batch_of, log_probs_of, translator
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from vaswani_hf import VaswaniForCausalLM

LIMIT = 6
SHAPE = {
    **{
        "vocab_size": 23,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "max_position_embeddings": 16,
    },
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20),
    **{
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": START,
        "bos_token_id": 0,
        "dropout": 0.0,
    },
}
SEARCHES = {
    "greedy": {"num_beams": 1, "length_penalty": 0.0, "early_stopping": True},
    "beams": {"num_beams": 3, "length_penalty": 0.6, "early_stopping": "never"},
}


def random_model(kind, config_kind, **fields):
    torch.manual_seed(0)
    model = kind(config_kind(**SHAPE | fields)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def marian(**fields):
    return random_model(MarianMTModel, MarianConfig, **fields)


@pytest.fixture(scope="module")
def model(tiny_config):
    return translator(tiny_config).float()


def own(row):
    return [token for token in row[1:] if token != PAD]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize(
    ("use_cache", "asked"), [(True, {}), (False, SCORED)], ids=["plain", "scored, no cache"]
)
def test_a_model_of_another_class_searches_with_ours(model, tiny_config, search, use_cache, asked):
    bart = random_model(BartForConditionalGeneration, BartConfig)
    others = [marian(), translator(tiny_config, seed=1), bart]
    mean = averaged([log_probs_of(member) for member in (model, *others)])
    slow = SlowSearch(without(mean, lambda source, target: {PAD}), LIMIT, **search)
    expected = [slow.best(source, [START])[0] for source in SOURCES]
    options = {**search, **asked, "max_new_tokens": LIMIT, "use_cache": use_cache, "ensemble": others}
    # A penalty without beams would be warned of.
    options = {**options, "length_penalty": None} if search["num_beams"] == 1 else options
    outputs = model.generate(**batch_of(SOURCES), **options)
    rows = (outputs.sequences if asked else outputs).tolist()
    assert [own(row) for row in rows] == [hypothesis.tokens for hypothesis in expected]
    if asked and search["num_beams"] > 1:
        scores = torch.tensor([hypothesis.score for hypothesis in expected])
        torch.testing.assert_close(outputs.sequences_scores, scores, atol=1e-5, rtol=1e-5)


def test_sentences_leave_an_ensemble_without_a_change_to_the_others(model):
    options = {"num_beams": 4, "max_new_tokens": 12, "ensemble": [marian()]}
    together = model.generate(**batch_of(SOURCES), **options, must_contain=[[[9]], [], [], [[5, 6]], []])
    for row, (source, phrases) in enumerate(zip(SOURCES, [[[9]], [], [], [[5, 6]], []], strict=True)):
        alone = model.generate(**batch_of([source]), **options, must_contain=[phrases])
        assert own(alone[0].tolist()) == own(together[row].tolist())


def test_no_translation_is_longer_than_the_positions_of_a_member(model):
    options = {"num_beams": 2, "ensemble": [marian()], "max_new_tokens": 40, "min_new_tokens": 38}
    assert model.generate(**batch_of(SOURCES), **options).shape[1] == SHAPE["max_position_embeddings"] + 1


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (
            lambda model: [marian(vocab_size=25)],
            "of one vocabulary, but `vocab_size` is 25 in ensemble[0] and 23 in",
        ),
        (
            lambda model: [marian(eos_token_id=3)],
            "of one vocabulary, but `eos_token_id` is 3 in ensemble[0] and 2 in",
        ),
        (
            lambda model: [VaswaniForCausalLM(model.config)],
            "encoder-decoder models, but ensemble[0] is a VaswaniForCa",
        ),
        (lambda model: ["marian"], "a list of models that generate, but ensemble[0] is a str."),
        (
            lambda model: [marian(max_position_embeddings=5)],
            "models with positions for all tokens, but ensemble[0] has 5 and the source has 8 tokens.",
        ),
        (
            lambda model: model,
            "a list of models, but is a VaswaniForSeq2SeqLM; write `ensemble=[…]` around one model.",
        ),
    ],
)
def test_what_cannot_search_with_ours_is_named(model, member, message):
    with pytest.raises(ValueError) as raised:
        model.generate(**batch_of(SOURCES), num_beams=2, ensemble=member(model))
    assert message in str(raised.value) and str(raised.value).startswith("`ensemble` must be ")


def test_the_coverage_is_that_of_our_models(model):
    message = r"^`coverage_penalty` must be left out with ensemble\[0\], a MarianMTModel: "
    with pytest.raises(ValueError, match=message):
        model.generate(**batch_of(SOURCES), num_beams=2, coverage_penalty=0.2, ensemble=[marian()])


@pytest.mark.parametrize(
    "phrases",
    [torch.tensor([[[5, 6]]] * 5), [torch.tensor([[5, 6]])] * 5, [[[torch.tensor(5)]]] * 5, {"phrases": [5]}],
    ids=str,
)
def test_phrases_are_lists(model, phrases):
    message = "^`must_contain` must .* a list of phrases for each sentence|for each sentence a list"
    with pytest.raises(ValueError, match=message):
        model.generate(**batch_of(SOURCES), num_beams=2, must_contain=phrases)
