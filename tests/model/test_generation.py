"""Decoding: padding, masks and caches change nothing, and no output contains padding."""

import copy

import pytest
import torch
from factories import tiny_model
from reference import Reference
from search_models import CACHES, SCORED, batch_of, close, pad, translator
from search_models import SOURCES as SENTENCES
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

PAD, EOS = 1, 2
SOURCES = [[5, 9, 4, 7, 13, EOS], [4, EOS], [8, 3, 8, EOS]]
PREFIXES = [[0, 5], [0, 6, 8, 3], [0]]
NUM_NEW_TOKENS = 5

VARIANTS = {
    "paper": {},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 16},
    "pre-norm": {"norm_position": "pre", "d_k": 5, "d_v": 3},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19},
}
# The side of the padding, the kind of cache, and the dtype of the masks (None: inferred).
BATCHES = [("left", "dynamic", None), ("right", "static", torch.int64)]
BATCHES += [("left", "none", torch.float32), ("right", "dynamic", torch.bool)]

variants = pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)


def generate(model, **kwargs):
    options = {"max_new_tokens": NUM_NEW_TOKENS, "output_logits": True, "return_dict_in_generate": True}
    return model.generate(**options, do_sample=False, **kwargs)


def alone(model, source: list[int], prefix: list[int], **kwargs):
    """Search for one row without padding, mask and cache."""
    ids = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([prefix])}
    return generate(model, **ids, use_cache=False, **kwargs)


@variants
@pytest.mark.parametrize(("side", "cache", "mask"), BATCHES, ids=str)
def test_a_padded_batch_equals_each_row_alone(fields, side, cache, mask):
    model = tiny_model(**fields)
    batch = {"input_ids": pad(SOURCES, side), "decoder_input_ids": pad(PREFIXES, "left")}
    if mask is not None:
        batch["attention_mask"] = (batch["input_ids"] != PAD).to(mask)
        batch["decoder_attention_mask"] = (batch["decoder_input_ids"] != PAD).to(mask)
    together = generate(model, **batch, min_new_tokens=NUM_NEW_TOKENS, **CACHES[cache])
    for row, (source, prefix) in enumerate(zip(SOURCES, PREFIXES, strict=True)):
        single = alone(model, source, prefix, min_new_tokens=NUM_NEW_TOKENS)
        new = slice(-NUM_NEW_TOKENS, None)
        assert together.sequences[row, new].tolist() == single.sequences[0, new].tolist()
        close(torch.stack(together.logits)[:, row], torch.stack(single.logits)[:, 0])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_use_cache_none_means_true(num_beams):
    options = {"input_ids": pad(SOURCES), "num_beams": num_beams, "max_new_tokens": NUM_NEW_TOKENS}
    model = tiny_model()
    assert torch.equal(model.generate(**options, use_cache=None), model.generate(**options))


@variants
@pytest.mark.parametrize(
    ("cache_class", "lengths"), [(DynamicCache, [3, 1, 2]), (StaticCache, [1] * 6)], ids=str
)
def test_cached_steps_equal_full_decoding(fields, cache_class, lengths):
    model = tiny_model(**fields)
    target = torch.tensor([[0, 6, 8, 3, 5, 7], [1, 1, 0, 4, 4, 9]])
    batch = batch_of(SOURCES[:2])
    mask = (target != PAD).long()
    expected = model(**batch, decoder_input_ids=target, decoder_attention_mask=mask).logits
    sizes = ({}, {}) if cache_class is DynamicCache else ({"max_cache_len": 6}, {"max_cache_len": 6})
    cache = EncoderDecoderCache(*(cache_class(config=model.config, **size) for size in sizes))
    start = 0
    for length in lengths:
        stop = start + length
        given = {"decoder_input_ids": target[:, start:stop], "decoder_attention_mask": mask[:, :stop]}
        outputs = model(**batch, **given, past_key_values=cache, use_cache=True)
        kept = mask[:, start:stop].bool()
        close(outputs.logits[kept], expected[:, start:stop][kept])
        start = stop


def test_a_static_decoding_step_compiles_into_one_graph():
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    target = torch.tensor([[0, 6, 8, 3]])
    with torch.no_grad():
        states = model.get_encoder()(torch.tensor([SOURCES[0]]))
        expected = model(encoder_outputs=states, decoder_input_ids=target).logits
        cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=6) for _ in range(2)))
        step = torch.compile(model, fullgraph=True, backend="aot_eager")
        for position in range(4):
            ids = target[:, position : position + 1]
            given = {"encoder_outputs": states, "decoder_input_ids": ids, "past_key_values": cache}
            close(step(**given, use_cache=True).logits[:, 0], expected[:, position])


@variants
def test_greedy_search_equals_the_reference(fields):
    model = tiny_model(**fields)
    reference = Reference(model.state_dict(), model.config)
    ended = model.generate(pad(SOURCES, "right"), max_new_tokens=8, do_sample=False)
    for row, source in enumerate(SOURCES):
        expected = reference.greedy(source, 0, EOS, max_new_tokens=8, excluded_class=PAD)
        assert ended[row, 1 : 1 + len(expected)].tolist() == expected
        assert set(ended[row, 1 + len(expected) :].tolist()) <= {PAD}


def model_that_prefers_padding(**fields):
    """A model whose logit of the padding class would always be by far the largest logit."""
    model = tiny_model(norm_position="pre", tie_word_embeddings=False, **fields)
    with torch.no_grad():
        model.get_decoder().layer_norm.weight.zero_()
        model.get_decoder().layer_norm.bias.fill_(1.0)
        model.lm_head.weight[PAD] = 100.0
    return model


SEARCHES = [{}, {"num_beams": 4}, {"do_sample": True}, {"num_beams": 2, "do_sample": True}]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_padding_is_never_generated(search):
    model = model_that_prefers_padding(eos_token_id=None)
    torch.manual_seed(0)
    assert PAD not in model.generate(pad(SOURCES, "right"), max_new_tokens=20, **search)
    # If the padding token is not excluded, every token of the output is padding:
    model.config.pad_token_id = None
    sequences = model.generate(pad(SOURCES, "right"), max_new_tokens=20, **search)
    assert torch.all(sequences[:, 1:] == PAD)


def test_padding_has_no_probability():
    model = model_that_prefers_padding()
    source, target = torch.tensor([SOURCES[0]]), torch.tensor([[0, 6, 8, 3]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = copy.deepcopy(model).to(dtype)(input_ids=source, decoder_input_ids=target).logits
        assert logits.isfinite().all()
        assert torch.all(logits.softmax(dim=-1)[..., PAD] == 0)
    # In training the padding class keeps a probability, because a smoothed loss must stay finite.
    assert torch.all(model.train()(input_ids=source, decoder_input_ids=target).logits[..., PAD] > 0)


SHARED_IDS = {
    "start is the end": {"decoder_start_token_id": EOS},
    "start is padding": {"decoder_start_token_id": PAD},
    "padding is one of the ends": {"pad_token_id": EOS, "eos_token_id": [EOS, 20]},
    "one id for all": {"pad_token_id": EOS, "decoder_start_token_id": EOS, "bos_token_id": EOS},
}


@pytest.mark.parametrize("fields", SHARED_IDS.values(), ids=SHARED_IDS)
def test_special_tokens_may_share_an_id(fields):
    model = tiny_model(**fields)
    config = model.config
    source = pad(SOURCES, "left", config.pad_token_id)
    together = generate(model, input_ids=source, min_new_tokens=NUM_NEW_TOKENS)
    # If padding and `</s>` have the same id, the search can still produce `</s>`.
    for row, tokens in enumerate(SOURCES):
        single = alone(model, tokens, [config.decoder_start_token_id], min_new_tokens=NUM_NEW_TOKENS)
        assert together.sequences[row].tolist() == single.sequences[0].tolist()
        close(torch.stack(together.logits)[:, row], torch.stack(single.logits)[:, 0])
    assert torch.all(torch.stack(together.logits)[..., EOS] > -100)


def test_the_first_end_counts_where_padding_has_its_id():
    # In training with smoothed targets no class is excluded, so two models with different padding ids agree.
    losses = []
    for pad_id, label in ((EOS, EOS), (PAD, -100)):
        labels = pad([[6, 8, EOS], [6, 8, 3, 9, EOS]], value=label)
        model = tiny_model(pad_token_id=pad_id, label_smoothing=0.1).train()
        losses.append(model(input_ids=pad(SOURCES[:2], value=pad_id), labels=labels).loss)
    close(*losses)


def test_generation_continues_from_a_cache():
    model = tiny_model()
    source = pad(SOURCES, "right")
    tokens = {"min_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    full = model.generate(source, max_new_tokens=6, **tokens)
    part = model.generate(source, max_new_tokens=4, **tokens | {"min_new_tokens": 4})
    rest = model.generate(
        source,
        decoder_input_ids=part.sequences,
        decoder_attention_mask=torch.ones_like(part.sequences),
        past_key_values=part.past_key_values,
        max_new_tokens=2,
        **tokens | {"min_new_tokens": 2},
    )
    assert torch.equal(rest.sequences, full.sequences)


def test_assisted_generation_finds_what_greedy_search_finds():
    model = tiny_model()
    source = torch.tensor([SOURCES[0]])
    greedy = generate(model, input_ids=source).sequences
    assistant, seen = tiny_model(d_k=3), []
    assistant.get_encoder().register_forward_pre_hook(
        lambda _, inputs, kwargs: seen.append(kwargs.get("input_ids", inputs[0] if inputs else None)),
        with_kwargs=True,
    )
    assert torch.equal(generate(model, input_ids=source, assistant_model=assistant).sequences, greedy)
    assert torch.equal(seen[0], source)
    assert torch.equal(generate(model, input_ids=source, prompt_lookup_num_tokens=2).sequences, greedy)


def test_a_checkpoint_s_length_can_be_taken_back():
    model = tiny_model()
    model.lm_head.weight.data[EOS] -= 10
    model.generation_config.max_length = 5
    source = torch.tensor([SOURCES[0]])
    assert model.generate(source).shape[1] == 5
    for beams in (1, 2):
        assert model.generate(source, max_length=None, num_beams=beams).shape[1] == 1 + len(SOURCES[0]) + 50
        assert model.generate(source, max_length=None, max_length_b=3, num_beams=beams).shape[1] == 4


ABSENT = ("custom_generate", "streamer", "synced_gpus", "assistant_model", "min_new_tokens")


def test_none_is_the_default_and_replaces_a_setting_of_the_checkpoint(caplog):
    model, batch = translator(), batch_of(SENTENCES)
    options = {"num_beams": 3, "max_new_tokens": 6, **SCORED}
    expected = model.generate(**batch, **options)
    greedy = model.generate(**batch, max_new_tokens=6)
    fields = {"length_penalty_type": "gnmt", "coverage_penalty": 0.3, "max_length": 9}
    fields |= {"num_return_sequences": 2, "length_penalty": 3.0}
    model.generation_config.update(allow_custom_entries=True, num_beams=2, **fields)
    for cache in (None, "dynamic"):
        absent = dict.fromkeys((*fields, *ABSENT)) | {"cache_implementation": cache}
        found = model.generate(**batch, **options, **absent)
        assert torch.equal(found.sequences, expected.sequences)
        assert torch.equal(found.sequences_scores, expected.sequences_scores)
        found = model.generate(**batch, max_new_tokens=6, num_beams=None, **absent)
        assert torch.equal(found, greedy)
    assert not caplog.records
