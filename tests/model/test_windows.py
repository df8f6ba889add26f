"""Restricted self-attention equals a band mask, needs linear time and memory, and caches r positions."""

import pytest
import torch
from factories import tiny_config, tiny_model
from search_models import EOS, SOURCES, START, batch_of
from sentences import refused
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import (
    AttentionInterface,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
)

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.model import attention_vaswani
from vaswani_hf.model.attention_vaswani import VaswaniAttention, attention_class
from vaswani_hf.model.decoding_vaswani import TreeAttentionDecoder
from vaswani_hf.model.masks_vaswani import (
    Blocks,
    additive_mask,
    cross_attention_masks,
    self_attention_masks,
)
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.training.recipe_model import prepare_for_training

WIDTHS = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


def attention_of(window, is_causal=False, **fields):
    torch.manual_seed(0)
    config = VaswaniConfig(**WIDTHS, attention_window=window, **fields)
    config._attn_implementation = (
        "eager" if fields.get("attention_score", "dot").startswith("additive") else "sdpa"
    )
    attention = attention_class(config)(config, 2, 0, is_causal=is_causal)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return attention


def band(length, window, is_causal):
    """Return the band mask [T, T] (bool), computed by loops."""
    return torch.tensor(
        [
            [abs(query - key) <= window and (key <= query or not is_causal) for key in range(length)]
            for query in range(length)
        ]
    )


def padding(length, side):
    mask = torch.ones(2, length, dtype=torch.int64)
    if side == "right":
        mask[0, length - length // 3 :] = 0
    elif side == "left":
        mask[0, : length // 3] = 0
    elif side == "between":
        mask[0, length // 3 : length // 2] = 0
    return mask


SIZES = [(1, 3), (5, 0), (66, 1), (67, 1), (190, 1), (192, 64), (193, 64), (321, 321)]


@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    ("length", "window", "score", "side"),
    [
        *((length, window, "general", side) for length, window in SIZES for side in ("left", "right")),
        *((67, 1, "additive", side) for side in ("none", "left")),
    ],
)
def test_it_equals_full_attention_under_a_band(length, window, is_causal, side, score):
    restricted = attention_of(window, is_causal, attention_score=score)
    full = attention_of(None, is_causal, attention_score=score)
    states, mask = torch.randn(2, length, 16), padding(length, side)
    visible = band(length, window, is_causal) & mask[:, None].bool()
    results = []
    for attention, given in (
        (restricted, self_attention_masks([restricted], states, mask)[0]),
        (full, additive_mask(visible[:, None], states.dtype)),
    ):
        inputs = states.clone().requires_grad_()
        output, _ = attention(inputs, attention_mask=given)
        ((output * mask.unsqueeze(2)) ** 2).mean().backward()
        results.append((output * mask.unsqueeze(2), inputs.grad, *(p.grad for p in attention.parameters())))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_long_sequences_are_cut_into_blocks_and_short_ones_are_not():
    attention = attention_of(10)
    for length in (84, 85):
        (mask,) = self_attention_masks([attention], torch.randn(2, length, 16), None)
        assert isinstance(mask, Blocks) == (length == 85)
    recorded = self_attention_masks([attention], torch.randn(2, 85, 16), None, is_recorded=True)[0]
    assert recorded.shape == (1, 1, 85, 85)


@torch.no_grad()
def test_padding_between_tokens_does_not_count_as_a_neighbour():
    model = tiny_model(attention_window=2)
    tokens = torch.randint(3, 23, (1, 160))
    mask = padding(160, "between")[:1]
    kept = tokens[mask.bool()][None]
    states = model.get_encoder()(tokens, mask).last_hidden_state
    alone = model.get_encoder()(kept, torch.ones_like(kept)).last_hidden_state
    torch.testing.assert_close(states[mask.bool()][None], alone, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """Return the largest number of elements that the result of an operation has."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for value in tree_flatten(output)[0]:
            if isinstance(value, torch.Tensor):
                self.numbers = max(self.numbers, value.untyped_storage().nbytes() // value.element_size())
        return output


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nothing_grows_with_the_square_of_the_length(implementation):
    model = tiny_model(attention_window=4, decoder_layers=1).train()
    model.set_attn_implementation(implementation)
    largest = {}
    for length in (1024, 4096):
        tokens = torch.randint(3, 23, (1, length))
        with Largest() as seen:
            states = model.get_encoder()(tokens, torch.ones_like(tokens)).last_hidden_state
            # Pass a source of one token, because cross-attention attends to the whole source.
            decoder = model.get_decoder()
            decoded = decoder(input_ids=tokens, encoder_hidden_states=states[:, :1]).last_hidden_state
            (states.sum() + decoded.sum()).backward()
        largest[length] = seen.numbers
    assert largest[4096] <= 4.1 * largest[1024]
    assert largest[4096] < 4096 * 4096 / 8


@torch.no_grad()
@pytest.mark.parametrize(
    "settings",
    [{}, {"do_sample": True, "top_k": 1, "cache_implementation": "dynamic"}, {"num_beams": 3}],
    ids=str,
)
def test_padded_prompts_go_on_as_alone(settings):
    model = tiny_model(attention_window=2)
    prefixes = [[START, 5, 9, 4, 7], [START, 6], [START, 8, 3, 8], [START]]
    batch = batch_of(SOURCES[:4], "left", prefixes)
    outputs = model.generate(**batch, **settings, max_new_tokens=7, return_dict_in_generate=True)
    # The cache keeps as many positions as the window.
    layers = outputs.past_key_values.self_attention_cache.layers
    assert [layer.keys.shape[2] for layer in layers] == [2, 2]
    found, width = outputs.sequences, batch["decoder_input_ids"].shape[1]
    for row, prefix in enumerate(prefixes):
        given = {"decoder_input_ids": torch.tensor([prefix]), **settings}
        alone = model.generate(torch.tensor([SOURCES[row]]), **given, max_new_tokens=7)
        own = found[row, width:].tolist()
        own = own[: own.index(EOS) + 1] if EOS in own else own
        assert alone[0, len(prefix) :].tolist()[: len(own)] == own


@torch.no_grad()
def test_a_cache_behind_padding_at_the_end_of_a_prompt_keeps_the_neighbours():
    model = tiny_model(attention_window=3)
    source, tokens = torch.tensor([SOURCES[0]]), torch.randint(3, 23, (1, 6))
    expected = model(input_ids=source, decoder_input_ids=tokens).logits[:, -1]
    prompt = torch.cat((tokens[:, :5], torch.ones(1, 4).long()), dim=1)
    mask = torch.tensor([[1] * 5 + [0] * 4])
    inputs = {"input_ids": source, "use_cache": True}
    cache = model(**inputs, decoder_input_ids=prompt, decoder_attention_mask=mask).past_key_values
    mask = torch.cat((mask, torch.ones(1, 1).long()), dim=1)
    more = {"decoder_input_ids": tokens[:, 5:], "decoder_attention_mask": mask, "past_key_values": cache}
    torch.testing.assert_close(model(**inputs, **more).logits[:, 0], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_cache_holds_as_many_positions_as_the_window():
    model = tiny_model(attention_window=[3, None])
    source, target = torch.tensor([SOURCES[0]]), torch.randint(3, 23, (1, 12))
    expected = model(input_ids=source, decoder_input_ids=target).logits
    cache = None
    for first, end in ((0, 1), (1, 2), (2, 7), (7, 8), (8, 12)):
        outputs = model(
            input_ids=source, decoder_input_ids=target[:, first:end], past_key_values=cache, use_cache=True
        )
        cache = outputs.past_key_values
        torch.testing.assert_close(outputs.logits, expected[:, first:end], atol=1e-5, rtol=1e-5)
    assert [layer.keys.shape[2] for layer in cache.self_attention_cache.layers] == [3, 12]
    assert [layer.keys.shape[2] for layer in cache.cross_attention_cache.layers] == [len(SOURCES[0])] * 2
    # A cache that the caller creates stores all tokens, and gives the same logits.
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for step in range(12):
        outputs = model(input_ids=source, decoder_input_ids=target[:, step : step + 1], past_key_values=cache)
        torch.testing.assert_close(outputs.logits[:, 0], expected[:, step], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("windows", [(None, 2), (2, 3)])
def test_an_assistant_with_a_window_goes_back_in_its_cache(windows):
    model, assistant = (tiny_model(attention_window=window) for window in windows)
    # The assistant has random weights, so most guesses of the assistant are wrong.
    for parameter in assistant.parameters():
        parameter.copy_(torch.randn_like(parameter))
    model.generation_config.eos_token_id = None
    inputs, settings = torch.tensor([SOURCES[0]]), {"max_new_tokens": 14}
    expected = model.generate(inputs, **settings)
    assert torch.equal(model.generate(inputs, assistant_model=assistant, **settings), expected)


@torch.no_grad()
def test_the_search_tree_drops_what_no_window_reaches():
    model = tiny_model(attention_window=[2, 5])
    encoded = model.get_encoder()(torch.tensor(SOURCES[:1]))
    config = GenerationConfig(num_beams=3, use_cache=True)
    decoder = TreeAttentionDecoder(model, config, {"encoder_outputs": encoded})
    decoder.start(torch.full((3, 1), START))
    sequences, lengths = torch.full((1, 3, 1), START), []
    parents = torch.arange(3)[None]
    for _ in range(200):
        sequences = torch.cat((sequences, torch.randint(3, 23, (1, 3, 1))), dim=2)
        if decoder.tree.is_nearly_full:
            decoder.tree.num_living = int(decoder.tree.living().sum(dim=1).max())
        logits = decoder.step(sequences, parents)
        lengths.append(decoder.tree.keys[0].shape[2])
    # The limit holds for three beams without common tokens.
    assert max(lengths) <= 3 * (5 + 1 + 2 * 16 + 1)
    expected = model(encoder_outputs=encoded, decoder_input_ids=sequences[:, 0]).logits[:, -1]
    torch.testing.assert_close(logits[:, 0], expected, atol=1e-5, rtol=1e-5)


SCORE = '`attn_implementation` must be "eager" for the attention score "additive", but is'
WINDOW = (
    "`attn_implementation` must be eager, sdpa, flex_attention or flash if `attention_window` is set, but is"
)


@pytest.mark.parametrize(
    ("implementation", "field", "value", "message"),
    [
        ("sdpa", "attention_score", "additive", SCORE),
        ("some_kernel", "cross_attention_score", "additive", SCORE),
        ("some_kernel", "attention_window", [None, 2], WINDOW),
    ],
)
def test_an_implementation_that_cannot_compute_the_config_is_refused(implementation, field, value, message):
    AttentionInterface.register("some_kernel", lambda *args, **kwargs: None)
    model = tiny_model(**{field: value})
    before = model.config._attn_implementation
    assert before == ("sdpa" if message is WINDOW else "eager")
    with refused(f"{message} {implementation!r}."):
        VaswaniForSeq2SeqLM._from_config(tiny_config(**{field: value}), attn_implementation=implementation)
    with refused(f"{message} {implementation!r}."):
        model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == before


def test_flash_kernels_are_told_the_window():
    seen = []

    def kernel(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
        seen.append((module.is_causal, sliding_window, attention_mask))
        return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

    AttentionInterface.register("flash_that_listens", kernel)
    model = tiny_model(attention_window=3)
    model.config._attn_implementation = "flash_that_listens"
    mask = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
    tokens = torch.randint(3, 23, (2, 10))
    model(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens)
    # transformers counts the query's own token as a part of the window; cross-attention has no window.
    assert [window for _, window, _ in seen] == [4, 4, 4, None, 4, None]
    assert all(torch.equal(mask.bool(), given) for _, _, given in seen[:2])


@torch.no_grad()
def test_beams_that_share_a_source_need_no_flex_attention():
    states, source = torch.randn(6, 1, 16), torch.randn(3, 5, 16)
    mask = torch.tensor([[1] * 5, [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    outputs = []
    torch.manual_seed(0)
    attention = VaswaniAttention(tiny_config(), 2, 0, is_cross=True)
    for implementation in ("sdpa", "flex_attention"):
        attention.config._attn_implementation = implementation
        given = cross_attention_masks([attention], states, mask, source)[0]
        outputs.append(attention(states, source, attention_mask=given)[0])
    assert torch.equal(*outputs)


def test_a_window_is_trained_with_gradient_checkpointing_and_dropout():
    tokens = torch.randint(3, 23, (2, 150))
    losses = []
    for is_checkpointed in (False, True):
        model = tiny_model(attention_window=4, dropout=0.1, attention_dropout=0.1).train()
        prepare_for_training(model, EncoderDecoderTraining(gradient_checkpointing=is_checkpointed))
        torch.manual_seed(1)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        losses.append((loss, *(parameter.grad for parameter in model.parameters())))
    for actual, expected in zip(*losses, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("implementation", "length"), [("eager", 20), ("sdpa", 20), ("sdpa", 150)])
@pytest.mark.parametrize("kind", ["float64", "float16", "autocast"])
def test_rows_of_padding_leave_gradients_finite_in_every_dtype(implementation, length, kind):
    model = tiny_model(attention_window=3).train()
    model.set_attn_implementation(implementation)
    model.to({"float64": torch.float64, "float16": torch.float16}.get(kind, torch.float32))
    tokens = torch.randint(3, 23, (3, length))
    tokens[0, length // 3 :] = tokens[1, 1:] = 1
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        mask = (tokens != 1).long()
        masks = {"attention_mask": mask, "decoder_attention_mask": mask}
        model(input_ids=tokens, labels=tokens, **masks).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


class EvenDistances(VaswaniAttention):
    """An attention that defines its own `local_mask`."""

    def local_mask(self, query_positions, key_positions):
        return (query_positions - key_positions) % 2 == 0


@torch.no_grad()
@pytest.mark.parametrize("length", [12, 150])
def test_a_neighbourhood_of_ones_own_holds_within_the_window(monkeypatch, length):
    monkeypatch.setitem(attention_vaswani._BUILT_IN, "scaled_dot", EvenDistances)
    model = tiny_model(attention_window=4, encoder_layers=1, decoder_layers=1)
    states, attention = torch.randn(1, length, 16), model.get_encoder().layers[0].self_attn
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = additive_mask(((distance.abs() <= 4) & (distance % 2 == 0))[None, None], states.dtype)
    given = self_attention_masks([attention], states, None)[0]
    assert isinstance(given, Blocks) == (length > 100)
    expected = attention(states, attention_mask=mask)[0]
    torch.testing.assert_close(attention(states, attention_mask=given)[0], expected, atol=1e-5, rtol=1e-5)
    tokens = torch.randint(3, 23, (1, length))
    tokens[:, 0] = START
    model.generation_config.eos_token_id = None
    found = model.generate(tokens[:, :9], decoder_input_ids=tokens, num_beams=2, max_new_tokens=5)
    forced = model(input_ids=tokens[:, :9], decoder_input_ids=found[:, :-1]).logits.log_softmax(-1)
    settings = {"num_beams": 2, "max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True}
    outputs = model.generate(tokens[:, :9], decoder_input_ids=tokens, **settings)
    assert torch.equal(outputs.sequences, found)
    new = found.shape[1] - length
    score = forced[0, -new:].gather(1, found[0, -new:, None]).sum() / new
    torch.testing.assert_close(outputs.sequences_scores[0], score, atol=1e-5, rtol=1e-5)


def test_flex_attention_gets_a_mask_of_positions_where_padding_lies_between_tokens():
    states, mask = torch.randn(2, 30, 16), padding(30, "between")
    masks = []
    for implementation in ("sdpa", "flex_attention"):
        config = tiny_config(attention_window=2)
        config._attn_implementation = implementation
        masks.append(self_attention_masks([VaswaniAttention(config, 2, 0)], states, mask)[0])
    assert torch.equal(masks[1], additive_mask(masks[0], torch.float32))


def test_blocks_move_to_another_device():
    blocks = self_attention_masks([attention_of(3)], torch.randn(2, 200, 16), None)[0]
    moved = blocks.to("meta", non_blocking=True)
    assert (moved.mask.device.type, moved.mask.shape, moved.num_before) == ("meta", blocks.mask.shape, 3)


def test_a_window_of_any_size_is_one():
    tokens = torch.randint(3, 23, (1, 9))
    for score in ("scaled_dot", "additive"):
        model, full = (tiny_model(attention_window=window, attention_score=score) for window in (2**70, None))
        logits = full(input_ids=tokens, decoder_input_ids=tokens).logits
        torch.testing.assert_close(model(input_ids=tokens, decoder_input_ids=tokens).logits, logits)


@torch.no_grad()
def test_large_scores_of_padding_stay_finite_in_float16():
    model = tiny_model(attention_window=2, encoder_layers=1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    mask = torch.zeros(1, 200, dtype=torch.int64)
    mask[:, :5] = 1
    states = model.half().get_encoder()(torch.randint(3, 23, (1, 200)), mask).last_hidden_state
    assert states.isfinite().all()


def test_new_scores_begin_with_the_spread_of_scaled_dot_products():
    torch.manual_seed(0)
    spreads = {}
    for name in ("scaled_dot", "general", "additive_linear", "additive"):
        fields = {"d_k": 64, "encoder_attention_heads": 16, "decoder_attention_heads": 16}
        config = tiny_config(attention_score=name, **fields)
        attention: VaswaniAttention = VaswaniForSeq2SeqLM(config).get_encoder().layers[0].self_attn
        query, key = torch.randn(2, 16, 20, 64), torch.randn(2, 16, 20, 64)
        query = attention.projected(query) if name == "general" else query
        spreads[name] = attention.scores(query, key).std().item()
    assert all(0.8 < spread < 1.2 for spread in spreads.values()), spreads


def test_tensor_parallelism_refuses_scores_with_parameters(tmp_path, monkeypatch):
    for name, score in (("plain", None), ("learned", "general")):
        tiny_model(cross_attention_score=score).save_pretrained(tmp_path / name)
    monkeypatch.setattr(VaswaniForSeq2SeqLM, "_tp_size", 2)
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "plain")
    message = (
        "`tp_plan` must be left out, because score functions with parameters are not split between devices."
    )
    with refused(message):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "learned")
