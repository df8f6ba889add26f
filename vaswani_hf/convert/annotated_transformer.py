"""Imports a state dict of "The Annotated Transformer" of Harvard NLP.

The model of "The Annotated Transformer" differs from the paper in four points: pre-norm with a LayerNorm at
the end of each stack; biases in the attention; an output projection with a bias; dropout also in the
attention weights and in the feed-forward networks. LayerNorm divides by the unbiased standard deviation plus
1e-6 in "The Annotated Transformer", and by the biased standard deviation in PyTorch. The biased standard
deviation is sqrt((D - 1) / D) times the unbiased standard deviation. Therefore the import multiplies the
weight of each LayerNorm by sqrt((D - 1) / D). D is the model width.

The state dict does not contain the number of heads. The user must write the number of heads into a file, and
name the file with the option `--config`.
"""

import re
from pathlib import Path

import torch
from pydantic import Field

from ..model.configuration_vaswani import VaswaniConfig
from ..settings.base import Settings
from .import_formats import Imported, ImportFormat, ReadOptions, has_texts, load_facts, refuse
from .unpickling import load_state_dict
from .weights import WeightNames, equal_embeddings, stack_names, timescales_of, weight_fields

_TITLE = "the Annotated Transformer"
_FIRST_WEIGHT = re.compile(r"^(module\.)?decoder\.layers\.0\.src_attn\.linears\.0\.weight$")
_TABLES = ("src_embed.1.pe", "tgt_embed.1.pe")
# "The Annotated Transformer" adds 1e-6 to the standard deviation and nothing to the variance. The imported
# model adds nothing to the standard deviation, and adds an epsilon of 1e-12 to the variance. The epsilon of
# 1e-12 is too small to change the outputs. Leaving out the term 1e-6 changes LayerNorm outputs by less than
# one part in 100,000 if the standard deviation of the features is above 0.1.
_LAYER_NORM_EPS = 1e-12


class AnnotatedTransformerFacts(Settings):
    """The settings that the file of `--config` can contain, with the default values in the code of "The
    Annotated Transformer".
    """

    h: int = Field(ge=1)
    """the number of heads"""
    bos_token_id: int = Field(0, ge=0)
    """the id of the token that starts the decoder"""
    eos_token_id: int = Field(1, ge=0)
    pad_token_id: int = Field(2, ge=0)
    dropout: float = Field(0.1, ge=0, lt=1)


NAMES = WeightNames(
    {
        "src_embed.0.lut.weight": "model.encoder.embed_tokens.weight",
        "tgt_embed.0.lut.weight": "model.decoder.embed_tokens.weight",
        "generator.proj.weight": "lm_head.weight",
        "generator.proj.bias": "lm_head.bias",
        **stack_names(
            {"feed_forward.w_1": "fc1", "feed_forward.w_2": "fc2"},
            {"self_attn": "self_attn", "src_attn": "encoder_attn"},
            {
                "linears.0": "q_proj",
                "linears.1": "k_proj",
                "linears.2": "v_proj",
                "linears.3": "out_proj",
            },
        ),
        # "The Annotated Transformer" names the weight and the bias of a LayerNorm `a_2` and `b_2`.
        **stack_names(
            {"sublayer.0.norm": "self_attn_layer_norm", "sublayer.1.norm": "final_layer_norm"},
            stacks=("encoder",),
            norm="norm",
            weight="a_2",
            bias="b_2",
        ),
        **stack_names(
            {
                "sublayer.0.norm": "self_attn_layer_norm",
                "sublayer.1.norm": "encoder_attn_layer_norm",
                "sublayer.2.norm": "final_layer_norm",
            },
            stacks=("decoder",),
            norm="norm",
            weight="a_2",
            bias="b_2",
        ),
    },
    ignored=_TABLES,
)


def read_annotated_transformer(path: Path, options: ReadOptions) -> Imported:
    """Read a state dict of the class `EncoderDecoder` of "The Annotated Transformer"."""
    facts = load_facts(options.config, AnnotatedTransformerFacts, _TITLE)
    state = load_state_dict(path, _FIRST_WEIGHT)
    _refuse_other_positions(state)
    own = NAMES.to_ours(state, _TITLE)
    is_shared, is_tied = equal_embeddings(own, _TITLE)
    fields = weight_fields(own, _TITLE, is_shared=is_shared, is_tied=is_tied)
    d_model = fields["d_model"]
    for name in own:
        if name.endswith("norm.weight"):
            own[name] = own[name] * ((d_model - 1) / d_model) ** 0.5
    config = VaswaniConfig(
        **fields,
        encoder_attention_heads=facts.h,
        decoder_attention_heads=facts.h,
        dropout=facts.dropout,
        attention_dropout=facts.dropout,
        activation_dropout=facts.dropout,
        norm_position="pre",
        layer_norm_eps=_LAYER_NORM_EPS,
        bos_token_id=facts.bos_token_id,
        pad_token_id=facts.pad_token_id,
        eos_token_id=facts.eos_token_id,
        decoder_start_token_id=facts.bos_token_id,
    )
    return Imported(
        config=config,
        state_dict=own,
        notes=["No tokenizers were written, because the state dict contains no vocabularies."],
    )


def _refuse_other_positions(state: dict[str, torch.Tensor]) -> None:
    for name in _TABLES:
        if name in state and timescales_of(state[name].squeeze(0)) != ("paper", False):
            refuse(
                name,
                tuple(state[name].shape),
                "the position table does not contain the sinusoids of the paper",
            )


ANNOTATED_TRANSFORMER = ImportFormat(
    name="annotated_transformer",
    title="The Annotated Transformer",
    recognise=has_texts("decoder.layers.0.src_attn.linears.0.weight"),
    read=read_annotated_transformer,
    files=("*.pt",),
    keeps="Keeps all weights, including both embeddings and the output projection with its bias.",
    loses=(
        "`<pad>` gets the probability 0. The vocabularies are objects of torchtext, so no tokenizers are "
        "written. The file of `--config` must contain the number of heads (`h`)."
    ),
    options=("config",),
)
