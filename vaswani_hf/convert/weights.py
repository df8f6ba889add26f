"""Converts weights between this package and other libraries: renames weights, and reorders features.

Each format has one table of weight names for both its import and its export. The argument `state` of the
functions maps weight names of this package to weights.

In shapes, D is the model width.
"""

import re
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass

import torch

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import sinusoids
from .import_formats import refuse, require

EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
STACKS = ("encoder", "decoder")
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Modules whose weights have one column for each of the D features of the model. The weights and biases of
# LayerNorm, `out_proj` and `fc2` have one row for each of the D features.
_READS_MODEL_FEATURES = {
    "shared",
    "embed_tokens",
    "embed_positions",
    "q_proj",
    "k_proj",
    "v_proj",
    "fc1",
    "lm_head",
}


@dataclass(frozen=True)
class WeightNames:
    """Maps the weight names of a format to the weight names of this package. `{}` stands for the number of a
    layer, counted from 0.

    Attributes:
        names (Mapping): Maps each name of the format to the name in `VaswaniForSeq2SeqLM`. A tensor that
            contains several weights of the same shape, concatenated along the first dimension, maps to a
            tuple of names.
        ignored (tuple): The names of tensors that an import ignores, such as a table of sinusoids.
    """

    names: Mapping[str, str | tuple[str, ...]]
    ignored: tuple[str, ...] = ()

    def to_ours(self, state: Mapping[str, torch.Tensor], title: str) -> dict[str, torch.Tensor]:
        """Return float32 weights with the names of this package. Raise a ValueError for an unknown name."""
        ours: dict[str, torch.Tensor] = {}
        for name, tensor in state.items():
            layer, pattern = _without_number(name)
            if name in self.ignored or pattern in self.ignored:
                continue
            target = self.names.get(name) or self.names.get(pattern)
            if target is None:
                raise ValueError(
                    f"The weight {name} is not a weight of {title}; take the weights and the config from one "
                    "checkpoint."
                )
            targets = (target,) if isinstance(target, str) else target
            if len(tensor) % len(targets):
                raise ValueError(
                    f"The weight {name} must have a multiple of {len(targets)} rows, but has "
                    f"{len(tensor)} rows; take the weights and the config from one checkpoint."
                )
            for part, own in zip(tensor.chunk(len(targets)), targets, strict=True):
                ours[own.format(layer)] = part.float()
        return ours

    def to_theirs(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights with the names of the format, without weights that the format does not have."""
        theirs = {}
        num_layers = max(_num_layers(state, stack) for stack in STACKS)
        for name, target in self.names.items():
            targets = (target,) if isinstance(target, str) else target
            for number in range(num_layers if "{}" in name else 1):
                own_names = [own.format(number) for own in targets]
                if all(own in state for own in own_names):
                    tensors = [state[own] for own in own_names]
                    theirs[name.format(number)] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return theirs


# The type of `WeightNames.names`.
Names = dict[str, str | tuple[str, ...]]


def stack_names(
    modules: Mapping[str, str | tuple[str, ...]],
    attentions: Mapping[str, str] | None = None,
    projections: Mapping[str, str] | None = None,
    *,
    stacks: Iterable[str] = STACKS,
    prefix: str = "",
    layer: str = "layers.{}",
    norm: str | None = None,
    weight: str = "weight",
    bias: str | None = "bias",
) -> Names:
    """Map the weight names of the encoder and the decoder to the names of this package. The weight names of
    the format must also contain "encoder" and "decoder".

    Args:
        modules (Mapping): Maps the format's names of the modules in a layer to the names of this package. The
            name of a joint projection, such as one matrix for queries, keys and values, maps to a tuple of
            names (see `parts`).
        attentions (Mapping, optional): Maps the format's names of the attention layers to the names of this
            package.
        projections (Mapping, optional): Maps the format's names of the projections in each attention layer to
            the names of this package.
        stacks (Iterable): The stacks whose weight names are mapped, by default the encoder and the decoder.
        prefix (str): The part of a weight name before "encoder" or "decoder", such as "model.".
        layer (str): The name that the format gives to a layer of a stack, with `{}` for the layer number.
        norm (str, optional): The name that the format gives to the LayerNorm at the end of a
            stack.
        weight (str): The name that the format gives to the weight of a module.
        bias (str, optional): The name that the format gives to the bias of a module; None if the modules have
            no bias.
    """
    of_layer = dict(modules)
    for attention, own_attention in (attentions or {}).items():
        for projection, own_projection in (projections or {}).items():
            of_layer[f"{attention}.{projection}"] = f"{own_attention}.{own_projection}"
    names: Names = {}
    for stack in stacks:
        for kind, own_kind in ((weight, "weight"), (bias, "bias")):
            if kind is None:
                continue
            for theirs, own in of_layer.items():
                own_modules = (own,) if isinstance(own, str) else own
                if stack == "encoder" and own_modules[0].startswith("encoder_attn"):
                    # Only the decoder has cross-attention.
                    continue
                names[f"{prefix}{stack}.{layer}.{theirs}.{kind}"] = tuple(
                    f"model.{stack}.layers.{{}}.{module}.{own_kind}" for module in own_modules
                )
            if norm is not None:
                names[f"{prefix}{stack}.{norm}.{kind}"] = f"model.{stack}.layer_norm.{own_kind}"
    return names


def parts(attention: str, letters: str) -> tuple[str, ...]:
    """Return the names of the parts of a joint projection. The letters "qkv" stand for queries, keys and
    values. `attention` is the name of the attention layer in this package.
    """
    return tuple(f"{attention}.{letter}_proj" for letter in letters)


def joint_names(attentions: Mapping[str, str]) -> Names:
    """Map the joint projection of `torch.nn.MultiheadAttention` to the three projections of this package.
    `attentions` maps the format's names of the attention layers to the names of this package.
    """
    modules = {theirs: parts(own, "qkv") for theirs, own in attentions.items()}
    return stack_names(modules, weight="in_proj_weight", bias="in_proj_bias")


def same_names(prefix: str = "") -> Names:
    """Map the weight names of a format to the names of this package. The weight names of the format equal the
    names of this package, except for the text `prefix` before "encoder" or "decoder".
    """
    norms = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
    return stack_names(
        {name: name for name in ("fc1", "fc2", *norms)},
        {name: name for name in ("self_attn", "encoder_attn")},
        {name: name for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
        prefix=prefix,
        norm="layer_norm",
    )


def _without_number(name: str) -> tuple[str, str]:
    """Return the layer number in a weight name, and the name with `{}` instead of the number. If the name
    contains no layer number, return "" as the number.
    """
    found = re.search(r"(?<=\.)\d+(?=\.)", name)
    if found is None:
        return "", name
    return found.group(), f"{name[: found.start()]}{{}}{name[found.end() :]}"


def weight_fields(
    state: Mapping[str, torch.Tensor], title: str, *, is_shared: bool, is_tied: bool
) -> dict[str, int | bool]:
    """Return the config fields that follow from the weights: the sizes (such as `d_model`), which weights are
    tied, and whether the output projection and the attention have biases. `state` contains weights under the
    names of this package. Raise a ValueError if a weight is missing.

    If `is_shared` is True, the source and the target have one embedding, and `state` needs only the source
    embedding. If `is_tied` is True, the output projection is the target embedding. If a checkpoint has no
    settings for `is_shared` and `is_tied`, the caller computes both values with the function
    `equal_embeddings`.
    """
    source = _required(state, EMBEDDINGS[0], title)
    target = source if is_shared else _required(state, EMBEDDINGS[1], title)
    encoder_fc1 = _required(state, "model.encoder.layers.0.fc1.weight", title)
    decoder_fc1 = _required(state, "model.decoder.layers.0.fc1.weight", title)
    return {
        "vocab_size": len(source),
        "decoder_vocab_size": len(target),
        "d_model": source.shape[1],
        "encoder_layers": _num_layers(state, "encoder"),
        "decoder_layers": _num_layers(state, "decoder"),
        "encoder_ffn_dim": len(encoder_fc1),
        "decoder_ffn_dim": len(decoder_fc1),
        "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": is_tied,
        "lm_head_bias": "lm_head.bias" in state,
        "attention_bias": "model.encoder.layers.0.self_attn.q_proj.bias" in state,
    }


def _required(state: Mapping[str, torch.Tensor], name: str, title: str) -> torch.Tensor:
    if name not in state:
        raise ValueError(
            f"The checkpoint of {title} lacks the weight that corresponds to {name}; take all weights "
            "from one checkpoint."
        )
    return state[name]


def _num_layers(state: Mapping[str, torch.Tensor], stack: str) -> int:
    prefix = f"model.{stack}.layers."
    numbers = [int(name.removeprefix(prefix).split(".")[0]) for name in state if name.startswith(prefix)]
    return max(numbers, default=-1) + 1


def equal_embeddings(state: Mapping[str, torch.Tensor], title: str) -> tuple[bool, bool]:
    """Return two bools: whether the source embedding equals the target embedding, and whether the output
    projection equals the target embedding. Compare the values of the weights, because a checkpoint can
    contain tied weights as separate tensors. `state` contains weights under the names of this package. Raise
    a ValueError if a weight is missing.
    """
    source, target, output = (_required(state, name, title) for name in (*EMBEDDINGS, "lm_head.weight"))
    return torch.equal(source, target), torch.equal(output, target)


def require_vocabulary_sizes(
    files: Iterable[str], vocabularies: Iterable[Sized], config: VaswaniConfig
) -> None:
    """Raise an `UnsupportedError` if a vocabulary file does not have as many tokens as the model."""
    num_tokens = (config.vocab_size, config.decoder_vocab_size)
    for file, tokens, size in zip(files, vocabularies, num_tokens, strict=True):
        require(f"tokens of {file}", len(tokens), size, f"the model has {size:,} tokens")


def position_fields(state: Mapping[str, torch.Tensor], has_positions: bool) -> dict[str, str | int]:
    """Return the config fields about the positions. If `state` has position tables, the positions are
    learned.
    """
    table = state.get(POSITION_TABLES[0])
    if table is not None:
        return {"position_embedding": "learned", "max_position_embeddings": len(table)}
    return {"position_embedding": "sinusoidal" if has_positions else "none"}


def norm_fields(
    state: Mapping[str, torch.Tensor], of_encoder: str, of_decoder: str
) -> dict[str, str | bool | None]:
    """Return the config fields about the LayerNorms. `of_encoder` and `of_decoder` are the positions of the
    LayerNorms, "pre" or "post". Raise an `UnsupportedError` if this package cannot express the LayerNorms.
    """
    encoder_ends, decoder_ends = (
        f"model.{stack}.layer_norm.weight" in state for stack in ("encoder", "decoder")
    )
    final_norm = None
    if (encoder_ends, decoder_ends) != (of_encoder == "pre", of_decoder == "pre"):
        final_norm = encoder_ends
        if encoder_ends != decoder_ends:
            stack = "encoder" if encoder_ends else "decoder"
            reason = "either both the encoder and the decoder must end with a LayerNorm, or neither"
            refuse("final LayerNorm", f"only in the {stack}", reason)
    return {
        "norm_position": of_encoder,
        "norm_position_of_decoder": None if of_encoder == of_decoder else of_decoder,
        "final_norm": final_norm,
    }


def add_biases(state: dict[str, torch.Tensor]) -> None:
    """Add missing biases with the value 0. LayerNorms and feed-forward networks always have biases. Either
    all projections of the attention layers have biases, or none.
    """
    has_attention_bias = any(name.endswith("_proj.bias") for name in state)
    for name, weight in list(state.items()):
        module, _, kind = name.rpartition(".")
        needs_bias = module.endswith(("fc1", "fc2", "norm")) or (
            module.endswith("_proj") and has_attention_bias
        )
        if kind == "weight" and needs_bias:
            state.setdefault(f"{module}.bias", torch.zeros(len(weight)))


def to_interleaved(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reorder the features so that sines and cosines alternate, as in Section 3.5 of the paper. In `state`,
    all sines come before all cosines. The order of the D features does not matter if all weights use the same
    order.
    """
    return _reordered(state, (2, -1))


def to_halves(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reorder the features so that all sines come before all cosines: the inverse of `to_interleaved`."""
    return _reordered(state, (-1, 2))


def _reordered(state: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Reorder the D features: write the features row by row into a matrix of shape `shape`, and read the
    matrix column by column.
    """
    reordered = {}
    for name, tensor in state.items():
        module, kind = name.split(".")[-2:]
        axis = 1 if module in _READS_MODEL_FEATURES else 0
        if axis == 0 or kind == "weight":
            order = torch.arange(tensor.shape[axis], device=tensor.device).view(shape).T.flatten()
            tensor = tensor.index_select(axis, order)
        reordered[name] = tensor
    return reordered


# The tolerance is larger than the rounding error of libraries that compute the angles of the sinusoids in
# float32. At position 5,000, the rounding error of such an angle is about 1e-3 radians.
_TABLE_TOLERANCE = 2e-3


def timescales_of(table: torch.Tensor) -> tuple[str, bool] | None:
    """Recognise the sinusoids in a position table [L, D]. Return the value of the config field
    `position_timescales`, and whether all sines come before all cosines. Return None if the position table
    does not contain sinusoids.
    """
    length, d_model = table.shape
    if d_model % 2:
        return None
    for timescales in ("paper", "tensor2tensor"):
        expected = sinusoids(torch.arange(length), d_model, timescales)
        halves = torch.cat((expected[:, 0::2], expected[:, 1::2]), dim=1)
        for layout, is_halves in ((expected, False), (halves, True)):
            if torch.allclose(table.float(), layout, rtol=0, atol=_TABLE_TOLERANCE):
                return timescales, is_halves
    return None
