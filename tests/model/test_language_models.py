"""Models with one stack: slow loops, the search of transformers, and loading with and without the package."""

import pytest
import torch
import yaml
from factories import tiny_config, tiny_model
from reference import Reference
from safetensors.torch import load_file, save_file
from search_models import pad
from sentences import refused, rows
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    StaticCache,
    pipeline,
)
from transformers.generation import GenerationMixin

from vaswani_hf import (
    VaswaniDecoderConfig,
    VaswaniDecoderModel,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSeq2SeqLM,
)
from vaswani_hf.checkpoint.loading import load_model
from vaswani_hf.model.loss_vaswani import IGNORED_LABEL
from vaswani_hf.model.search_strategies_vaswani import SearchStrategies

PAD, EOS = 1, 2
TEXTS = [[0, 5, 9, 4, 7, 13, EOS], [0, 6, 3, EOS], [0, 8]]
SHAPE = {"decoder_layers": 3, "encoder_attention_heads": 4, "decoder_ffn_dim": 28}
VARIANTS = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 24},
    "untied": {"tie_word_embeddings": False},
    "widths": {"d_k": 5, "d_v": 3},
    "general": {"attention_score": "general"},
    "window": {"attention_window": 2},
    "output bias": {"lm_head_bias": True},
    "other positions": {"position_timescales": "tensor2tensor", "position_offset": 2},
    "post-norm with final norm": {"final_norm": True},
}
variants = pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
both = pytest.mark.parametrize("model_class", [VaswaniForCausalLM, VaswaniForMaskedLM])


def make(model_class, **fields):
    """A model whose biases and gains change the outputs."""
    return tiny_model(model_class, **SHAPE | fields)


def reference_logits(model, ids):
    """The logits [T, V] of one text in slow loops: an encoder, or a decoder without cross-attention."""
    stack = model.config.stack
    weights = {
        name.replace("model.", f"model.{stack}.", 1) if name.startswith("model.") else name: value
        for name, value in model.state_dict().items()
    }
    reference = Reference(weights, model.config)
    return reference.linear("lm_head", reference.encode(ids, stack))


@variants
@both
def test_logits_of_a_padded_batch_are_those_of_slow_loops(model_class, fields):
    model = make(model_class, **fields)
    logits = model(pad(TEXTS)).logits
    for row, text in enumerate(TEXTS):
        expected = reference_logits(model, text)
        expected[:, PAD] = logits[row, : len(text), PAD]
        torch.testing.assert_close(logits[row, : len(text)], expected, atol=2e-4, rtol=1e-4)


def test_the_decoder_has_no_attention_to_a_source():
    model = make(VaswaniForCausalLM)
    assert not any("encoder_attn" in name for name, _ in model.named_parameters())
    with pytest.raises(ValueError) as error:
        model(pad(TEXTS), encoder_hidden_states=torch.zeros(3, 2, 16))
    message = "`encoder_hidden_states` must be left out: VaswaniForCausalLM is a decoder without a source."
    assert str(error.value) == message


def test_each_label_is_predicted_from_the_tokens_before_it():
    model, ids = make(VaswaniForCausalLM), pad(TEXTS)
    logits = model(ids).logits
    losses = [
        nn.functional.cross_entropy(logits[row, : len(text) - 1], torch.tensor(text[1:]), reduction="sum")
        for row, text in enumerate(TEXTS)
    ]
    number = sum(len(text) - 1 for text in TEXTS)
    torch.testing.assert_close(model(ids, labels=ids).loss, sum(losses) / number)
    torch.testing.assert_close(model(ids, labels=ids, skip_logits=True).loss, sum(losses) / number)
    # A token does not change the logits of earlier positions.
    changed = ids.clone()
    changed[0, 4:] = 20
    assert torch.equal(model(changed).logits[0, :4], logits[0, :4])


def test_hidden_tokens_are_predicted_from_both_sides():
    model, ids = make(VaswaniForMaskedLM), pad(TEXTS)
    labels = torch.full_like(ids, IGNORED_LABEL)
    labels[0, 3], labels[1, 1] = 4, 6
    logits = model(ids).logits
    expected = nn.functional.cross_entropy(torch.stack([logits[0, 3], logits[1, 1]]), torch.tensor([4, 6]))
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)
    torch.testing.assert_close(model(ids, labels=labels, skip_logits=True).loss, expected)
    changed = ids.clone()
    changed[0, 5] = 20
    assert not torch.allclose(model(changed).logits[0, 3], logits[0, 3])


SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "n-best": {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True},
    "penalty": {"num_beams": 3, "length_penalty": 0.3},
    "never": {"num_beams": 3, "early_stopping": "never"},
    "processor": {"num_beams": 3, "no_repeat_ngram_size": 2},
    "scores": {
        "num_beams": 3,
        "num_return_sequences": 2,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_hidden_states": True,
    },
}


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("variant", ["paper", "learned positions", "window"])
def test_the_search_finds_what_that_of_transformers_finds(variant, settings):
    model, prompts = make(VaswaniForCausalLM, **VARIANTS[variant]), pad(TEXTS, "left")
    # Remove `</s>` from the prompts, because after such a prompt the two searches may end at different steps.
    prompts[prompts == EOS] = 11
    ours = model.generate(prompts, max_new_tokens=12, **settings)
    mask = (prompts != PAD).long()
    theirs = GenerationMixin.generate(model, prompts, attention_mask=mask, max_new_tokens=12, **settings)
    if not settings.get("return_dict_in_generate"):
        assert torch.equal(ours, theirs)
        return
    assert type(ours) is type(theirs) and ours.keys() == theirs.keys()
    for name in ("sequences", "beam_indices", "sequences_scores"):
        torch.testing.assert_close(ours[name], theirs[name])
    transitions = model.compute_transition_scores(ours.sequences, ours.scores, ours.beam_indices)
    lengths = (transitions < 0).sum(dim=1)
    torch.testing.assert_close(transitions.sum(dim=1) / lengths, ours.sequences_scores)


def test_embeddings_sampling_a_static_cache_and_own_limits_work():
    model, ids = make(VaswaniForCausalLM), torch.tensor([[0, 5, 9]])
    expected = model.generate(ids, max_new_tokens=6)
    static = model.generate(ids, max_new_tokens=6, cache_implementation="static")
    assert torch.equal(static, expected)
    cache = StaticCache(model.config, 16)
    assert torch.equal(model(ids, past_key_values=cache).logits, model(ids).logits)
    assert model.generate(ids, do_sample=True, max_new_tokens=6).shape[1] <= 9
    assert model.generate(ids).shape[1] <= 23
    short = make(VaswaniForCausalLM, position_embedding="learned", max_position_embeddings=6)
    assert short.generate(ids, eos_token_id=None).shape[1] == 7


LIMITS = [{}, {"max_length": 9}, {"max_length_a": 1, "max_length_b": 2}]
LIMITS += [{"num_beams": 3, "num_return_sequences": 2, "max_length": 40}]


@pytest.mark.parametrize("settings", LIMITS, ids=str)
def test_embedded_prompts_have_the_settings_and_limits_of_tokens(settings):
    model = make(VaswaniForCausalLM, position_embedding="learned", max_position_embeddings=16)
    model.generation_config.eos_token_id = None
    prompts = torch.randint(4, 23, (2, 5))
    of_tokens = model.generate(prompts, **settings)
    assert of_tokens.shape[1] <= 17
    embedded = model.generate(inputs_embeds=model.get_input_embeddings()(prompts), **settings)
    assert torch.equal(embedded, of_tokens[:, 5:])


REFUSED = """
0 | {} | `input_ids` must have at least one token to continue, such as `<s>`, but is empty.
5 | {coverage_penalty: 0.2} | `coverage_penalty` is for translations and must be left out, but is 0.2.
5 | {must_contain: [[[4]]]} | `must_contain` is for translations and must be left out, but is [[[4]]].
embedded | {length_penalty_type: x, num_beams: 2} | `length_penalty_type` must be "gnmt" or "power", but is 'x'.
embedded | {length_penalty_type: gnmt, num_beams: 2} | `length_penalty_type="gnmt"` needs a prompt of tokens, but the prompt is `inputs_embeds`; pass `input_ids`, or another `length_penalty_type`.
"""


@pytest.mark.parametrize(("prompt", "settings", "message"), rows(REFUSED))
def test_what_a_causal_model_cannot_do_is_refused_by_name(prompt, settings, message):
    given = {"inputs_embeds": torch.zeros(2, 5, 16)}
    if prompt != "embedded":
        given = {"inputs": torch.full((2, int(prompt)), 5)}
    with refused(message):
        make(VaswaniForCausalLM).generate(**given, **yaml.safe_load(settings))


def test_settings_of_translations_are_refused_in_objects_too():
    model = make(VaswaniForCausalLM)
    with refused("`coverage_penalty` is for translations and must be left out, but is 0.2."):
        model.generate(pad(TEXTS), generation_config=GenerationConfig(coverage_penalty=0.2))
    strategies = SearchStrategies(scorer=lambda *args: None)
    with refused(
        "`scorer` of `search` needs a prompt of tokens, but the prompt is `inputs_embeds`; pass `input_ids`."
    ):
        model.generate(inputs_embeds=torch.zeros(2, 5, 16), num_beams=2, search=strategies)


def test_a_masked_model_does_not_generate():
    with refused(
        "`generate` needs a decoder, but VaswaniForMaskedLM is an encoder, which predicts masked tokens: use "
        '`pipeline("fill-mask")`, or `VaswaniForCausalLM` to generate.',
        TypeError,
    ):
        make(VaswaniForMaskedLM).generate(torch.tensor([[0, 5]]))


def test_a_language_model_does_not_translate(tmp_path):
    model = make(VaswaniForCausalLM)
    with pytest.raises(
        ValueError,
        match="must be an encoder-decoder to translate, but VaswaniForCausalLM is no encoder-decoder",
    ):
        pipeline("translation", model=model, tokenizer=object())
    model.save_pretrained(tmp_path)
    with refused(
        "`model` must be a translation model, but 'run' is a causal language model; it is used by "
        '`pipeline("text-generation")`.'
    ):
        load_model(tmp_path, "run")
    with pytest.raises(
        ValueError, match="^`model_type` must be 'vaswani' for VaswaniConfig, but is 'vaswani_decoder'"
    ):
        VaswaniForSeq2SeqLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


AUTO = {
    VaswaniForCausalLM: (AutoModelForCausalLM, VaswaniDecoderModel, VaswaniDecoderConfig),
    VaswaniForMaskedLM: (AutoModelForMaskedLM, VaswaniEncoderModel, VaswaniEncoderConfig),
}


@pytest.mark.parametrize("fields", [{}, VARIANTS["window"]], ids=str)
@both
def test_auto_classes_load_what_was_saved(model_class, fields, tmp_path):
    auto, base_class, config_class = AUTO[model_class]
    model, ids = make(model_class, **fields), pad(TEXTS)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is model_class and type(AutoConfig.from_pretrained(tmp_path)) is config_class
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is base_class
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)
    assert type(auto.from_config(model.config)) is model_class


@both
def test_ties_hold_through_saving_and_resizing(model_class, tmp_path):
    model = make(model_class)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert len([name for name in stored if "embed_tokens" in name or "head" in name]) == 1
    loaded = model_class.from_pretrained(tmp_path)
    loaded.resize_token_embeddings(31)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight and loaded.config.vocab_size == 31
    assert loaded(pad(TEXTS)).logits.shape[-1] == 31


@pytest.mark.parametrize("model_class", [VaswaniForCausalLM, VaswaniForMaskedLM, VaswaniForSeq2SeqLM])
def test_a_table_that_is_missing_under_all_its_names_is_named_and_drawn(model_class, tmp_path):
    model = model_class(tiny_config(**SHAPE))
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (table,) = [name for name in weights if "embed_tokens" in name or "shared" in name or "head" in name]
    del weights[table]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, report = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert table in report["missing_keys"]
    deviation = loaded.get_parameter(table).std().item()
    assert deviation == pytest.approx(16**-0.5, rel=0.2)


def test_a_config_has_the_fields_of_one_stack():
    config = VaswaniDecoderConfig(d_model=16, decoder_attention_heads=2, decoder_layers=3, vocab_size=30)
    assert (config.num_hidden_layers, config.num_attention_heads, config.d_k) == (3, 2, 8)
    assert not [
        name for name in config.to_dict() if name.startswith("encoder_") or name == "decoder_vocab_size"
    ]
    config.vocab_size = 40
    assert config.decoder_vocab_size == 40
    other = VaswaniForMaskedLM(tiny_config(**SHAPE)).config
    assert (other.num_hidden_layers, other.num_attention_heads) == (2, 4)
    two = tiny_config(**SHAPE, share_encoder_decoder_embeddings=False, decoder_vocab_size=19)
    assert VaswaniForCausalLM(two).config.vocab_size == 19 and VaswaniForMaskedLM(two).config.vocab_size == 23
    deep = tiny_config(
        **SHAPE | {"encoder_layers": 3, "decoder_layers": 2, "attention_window": [1, 2, 3, 4, 5]}
    )
    assert VaswaniForMaskedLM(deep).config.attention_window == [1, 2, 3]
    assert VaswaniForCausalLM(deep).config.attention_window == [4, 5]


WRONG_FIELDS = """
{is_encoder_decoder: true} | `is_encoder_decoder` must be False for a model of one stack, but is True.
{decoder_layers: 0} | `decoder_layers` must be a positive integer, but is 0.
{layers: 3} | `layers` is no field of VaswaniDecoderConfig
{auto_class: 1} | `auto_class` is no field of VaswaniDecoderConfig
{added_fields: {}} | `added_fields` is no field of VaswaniDecoderConfig
{d_model: 15} | `d_model` must be a multiple of `decoder_attention_heads` unless
"""


def test_wrong_fields_of_one_stack_are_named():
    for fields, message in rows(WRONG_FIELDS):
        with pytest.raises(ValueError) as error:
            VaswaniDecoderConfig(**yaml.safe_load(fields))
        assert str(error.value).startswith(message)
        assert "the nearest field is `auto" not in str(error.value)
    with pytest.raises(ValueError, match="^`d_model` must be a multiple of `encoder_attention_heads` unless"):
        VaswaniEncoderConfig(vocab_size=30, num_attention_heads=3)
    with pytest.raises(ValueError, match="^`decoder_start_token_id` must be smaller than the target"):
        VaswaniEncoderConfig(vocab_size=30, decoder_start_token_id=30)


@both
def test_gradients_reach_every_weight(model_class):
    model, ids = make(model_class).train(), pad(TEXTS)
    model(ids, labels=ids).loss.backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters()
    )
