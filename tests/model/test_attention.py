"""The contract of attention: the fast paths of the search, the normal path and teacher forcing give equal
results.

The contract holds for every field of the config that changes the computation, and for attention classes of
these tests.
"""

import pytest
import torch
from factories import CHANGED_FIELDS, tiny_model
from search_models import EOS, PREFIXES, SCORED, SOURCES, START, batch_of, pad
from torch import nn
from transformers import GenerationConfig

from vaswani_hf import register_attention, register_position_encoding
from vaswani_hf.model.attention_vaswani import AttentionRecorder, VaswaniAttention
from vaswani_hf.model.decoding_vaswani import RowDecoder, TreeAttentionDecoder

# Fields that have an effect only in training, or that select what is returned.
WITHOUT_EFFECT = """
    dropout attention_dropout activation_dropout label_smoothing label_smoothing_form use_cache
    initializer_range bos_token_id eos_token_id decoder_start_token_id
""".split()
FIELDS = {name: fields for name, fields in CHANGED_FIELDS.items() if name not in WITHOUT_EFFECT}


class NearbyDistances(VaswaniAttention):
    """An attention of a user: scores are distances, and self-attention reaches at most two tokens."""

    def scores(self, query, key):
        return -(query.unsqueeze(3) - key.unsqueeze(2)).abs().sum(dim=-1)

    def local_mask(self, query_positions, key_positions):
        return (query_positions - key_positions).abs() <= 2


class OtherForward(VaswaniAttention):
    """An attention whose `forward` changes the values."""

    def forward(self, *args, **kwargs):
        output, weights = super().forward(*args, **kwargs)
        return 1.5 * output.tanh(), weights


class RampPositions(nn.Module):
    """A position encoding of a user: a learned direction times the position, for at most 24 positions."""

    def __init__(self, config):
        super().__init__()
        self.direction = nn.Linear(1, config.d_model)
        self.register_buffer("ramp", torch.arange(24.0) / 24)

    def forward(self, position_ids):
        assert position_ids.dim() == 2
        return self.direction(self.ramp[position_ids][..., None])


register_attention("nearby", NearbyDistances)
register_attention("other_forward", OtherForward)
register_position_encoding("ramp", RampPositions)

# More values of fields with several possible values.
VALUES = {
    "other scores and mask": {"attention_score": "nearby"},
    "other scores of the source": {"cross_attention_score": "nearby", "attention_window": 3},
    "other forward": {"attention_score": "other_forward"},
    "no positions": {"position_embedding": "none"},
    "other positions": {"position_embedding": "ramp"},
    "dot": {"attention_score": "dot"},
    "dot_mean": {"attention_score": "dot_mean", "d_k": 5},
    "general": {"attention_score": "general", "d_k": 5, "attention_bias": True},
    "general source": {"cross_attention_score": "general"},
    "one window per layer": {"attention_window": [1, 4]},
    "windows here and there": {"attention_window": [None, 2, 0, None]},
    "a window of additive scores": {"attention_window": 2, "attention_score": "additive"},
}


# The cases that change the computation, and not only the sizes or the weights.
WAYS = [
    *("default", "decoder_layers", "norm_position", "position_embedding", "max_position_embeddings"),
    *("attention_score", "cross_attention_score", "attention_window", "pad_token_id", *VALUES),
]


ALL = {"default": {}} | FIELDS | VALUES


@pytest.fixture(params=ALL)
def model(request):
    # Use float64, because in float32 the outputs differ by up to 3.4e-5 between processors.
    return tiny_model(**ALL[request.param]).double()


def inputs_of(model, with_prefixes):
    pad_id, start = model.config.pad_token_id, model.config.decoder_start_token_id
    prefixes = [[start, *prefix[1:]] for prefix in PREFIXES] if with_prefixes else None
    return batch_of(SOURCES, "left", prefixes, pad_id)


def close(actual, expected):
    # Scores and recorded weights are float32, so compare without the dtype.
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5, check_dtype=False)


def decoders(model, batch, num_beams, **settings):
    """A decoder of each kind over the same sentences."""
    config = GenerationConfig(num_beams=num_beams, use_cache=True, is_assistant=False, **settings)
    encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    kwargs = {"encoder_outputs": encoded, "attention_mask": batch["attention_mask"], "use_cache": True}
    if "decoder_attention_mask" in batch:
        kwargs["decoder_attention_mask"] = batch["decoder_attention_mask"].repeat_interleave(num_beams, dim=0)
    return TreeAttentionDecoder(model, config, dict(kwargs)), RowDecoder(model, config, dict(kwargs))


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "num_beams", "with_prefixes"),
    [*((name, 3, True) for name in ALL), *((name, 1, False) for name in WAYS[::3])],
    indirect=["model"],
)
def test_tree_rows_and_teacher_forcing_give_the_same_logits_and_coverage(model, num_beams, with_prefixes):
    batch = inputs_of(model, with_prefixes)
    start = torch.full((len(SOURCES), 1), model.config.decoder_start_token_id)
    prompt = batch.get("decoder_input_ids", start)
    generator = torch.Generator().manual_seed(0)
    tree, rows = decoders(model, batch, num_beams, coverage_penalty=0.2)
    sequences = prompt.unsqueeze(1).expand(-1, num_beams, -1)
    logits = [decoder.start(prompt.repeat_interleave(num_beams, dim=0)) for decoder in (tree, rows)]
    close(*(value.expand(-1, num_beams, -1) for value in logits))
    # Take 18 steps, so that the decoder prunes the tree and removes sentences.
    for step in range(18):
        parents = torch.randint(num_beams, (len(sequences), num_beams), generator=generator)
        tokens = torch.randint(3, 23, (len(sequences), num_beams, 1), generator=generator)
        sequences = sequences.gather(1, parents.unsqueeze(2).expand(-1, -1, sequences.shape[2]))
        sequences = torch.cat((sequences, tokens), dim=2)
        actual, expected = (decoder.step(sequences, parents) for decoder in (tree, rows))
        close(actual, expected)
        close(tree.coverage, rows.coverage)
        if step == 9:
            staying = torch.tensor([0, 2, 3])
            for decoder in (tree, rows):
                decoder.select(staying)
            sequences, batch = sequences[staying], {name: value[staying] for name, value in batch.items()}
    forced = {name: value.repeat_interleave(num_beams, dim=0) for name, value in batch.items()}
    if with_prefixes:
        added = torch.ones(len(forced["decoder_attention_mask"]), 18, dtype=torch.int64)
        forced["decoder_attention_mask"] = torch.cat((forced["decoder_attention_mask"], added), dim=1)
    forced["decoder_input_ids"] = sequences.flatten(0, 1)
    close(actual.flatten(0, 1), model(**forced).logits[:, -1])


@torch.no_grad()
def test_watched_weights_are_the_models_own_attentions(model):
    batch = inputs_of(model, True)
    recorder = AttentionRecorder(range(model.config.decoder_layers))
    watched = model(**batch, attention_recorder=recorder).logits
    model.set_attn_implementation("eager")
    outputs = model(**batch, output_attentions=True)
    # Ignore padding positions, because their outputs differ between the implementations.
    real = batch["decoder_attention_mask"].bool()
    close(watched[real], outputs.logits[real])
    assert sorted(recorder.weights) == list(range(model.config.decoder_layers))
    for layer, attention in enumerate(outputs.cross_attentions):
        close(recorder.weights[layer][real], attention.mean(dim=1)[real])


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        *((name, {"cache_implementation": "static"}) for name in WAYS),
        *((name, {"coverage_penalty": 0.3}) for name in WAYS[::3]),
    ],
    indirect=["model"],
)
def test_the_search_finds_the_same_on_every_way(model, settings):
    batch = inputs_of(model, False)
    options = {"num_beams": 3, "max_new_tokens": 8, "early_stopping": "never", "num_return_sequences": 2}
    searched = {name: value for name, value in settings.items() if name != "cache_implementation"}
    plain = model.generate(**batch, **options, **searched)
    recorded = model.generate(**batch, **options, **settings, **SCORED, output_attentions=True)
    width = min(plain.shape[1], recorded.sequences.shape[1])
    assert torch.equal(plain[:, :width], recorded.sequences[:, :width])
    scores = []
    for row, source in enumerate(s for s in range(len(SOURCES)) for _ in range(2)):
        target = recorded.sequences[row]
        length = next((i + 1 for i, t in enumerate(target.tolist()) if t == EOS and i > 0), len(target))
        forced = {name: batch[name][source : source + 1] for name in ("input_ids", "attention_mask")}
        log_probs = model(**forced, decoder_input_ids=target[None, : length - 1]).logits.log_softmax(dim=-1)
        scores.append(log_probs[0].gather(1, target[1:length, None]).sum() / (length - 1))
    if "coverage_penalty" not in settings:
        close(recorded.sequences_scores, torch.stack(scores))


@torch.no_grad()
def test_neighbourhoods_reach_encoder_and_decoder():
    near = tiny_model(encoder_layers=1, decoder_layers=1, attention_score="nearby")
    sources, targets = pad([SOURCES[3]]), pad([[START, 5, 6, 7, 8, 9, 10]])
    outputs = near(input_ids=sources, decoder_input_ids=targets, output_attentions=True)
    for weights, is_causal in ((outputs.encoder_attentions[0], False), (outputs.decoder_attentions[0], True)):
        distance = torch.arange(weights.shape[-1])[:, None] - torch.arange(weights.shape[-1])
        hidden = (distance.abs() > 2) | ((distance < 0) & is_causal)
        assert weights[..., hidden].max() == 0 and weights[..., ~hidden].min() > 0
    assert (outputs.cross_attentions[0] > 0).all()


def test_shortcuts_are_declared_and_not_guessed(monkeypatch):
    def shortcuts(model):
        layer = model.get_decoder().layers[0]
        return layer.self_attn.supports_fused_kernel, layer.supports_fast_path, model.supports_fast_path

    model = tiny_model()
    assert shortcuts(model) == (True, True, True)
    # If a method that a fast path replaces is overridden, the fast path is not used.
    declared = {"scores": (False, True), "forward": (True, False), "keys_and_values": (True, False)}
    for name, expected in declared.items():
        with monkeypatch.context() as patch:
            patch.setattr(VaswaniAttention, name, lambda *args, **kwargs: None)
            assert shortcuts(model)[:2] == expected
        with monkeypatch.context() as patch:
            patch.setattr(model.get_decoder().layers[0].self_attn, name, lambda *args, **kwargs: None)
            assert shortcuts(model)[:2] == expected
    for owner in (model, type(model)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, "prepare_inputs_for_generation", lambda *args, **kwargs: None)
            assert shortcuts(model) == (True, True, False)
    handle = model.get_decoder().layers[0].fc1.register_forward_hook(lambda *args: None)
    assert shortcuts(model) == (True, False, True)
    handle.remove()
    handle = model.get_decoder().register_forward_hook(lambda *args: None)
    assert shortcuts(model) == (True, True, False)
    handle.remove()
    # transformers does not remove the hooks that record outputs.
    model(input_ids=pad(SOURCES), decoder_input_ids=pad(SOURCES), output_attentions=True)
    assert model.get_decoder().layers[0].self_attn._forward_hooks
    assert shortcuts(model) == (True, True, True)
