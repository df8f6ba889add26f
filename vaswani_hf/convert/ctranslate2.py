"""Converts a checkpoint to CTranslate2. Uses CTranslate2's own converter, and adds a loader for
`VaswaniConfig` to the converter.

Importing this file registers the loader, so that `ctranslate2.converters.TransformersConverter` converts
Vaswani checkpoints. The CTranslate2 model differs from the checkpoint in three points:

- The CTranslate2 model stores the sinusoids of all positions in a table. Without the table, CTranslate2 would
  compute other sinusoids: all sines before all cosines, and positions counted from 1.

- The output projection gets a bias that gives `<pad>` a very low logit, so that the probability of `<pad>` is
  0.

- If `d_k` and `d_v` differ, the narrower projections are padded with zeros, because keys and values must have
  the same width in CTranslate2.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from ctranslate2.converters.transformers import BartLoader, TransformersConverter, register_loader
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from torch import nn
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import GENERATION_FILE
from ..checkpoint.tokenizers import Tokenizers, load_tokenizers, save_tokenizers
from ..model.attention_vaswani import VaswaniAttention
from ..model.configuration_vaswani import decoder_start_token_id, eos_token_ids
from ..model.loss_vaswani import EXCLUDED_LOGIT
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.tokenizing_vaswani import has_target_tokenizer
from ..translation.ctranslate2 import CTranslate2Backend
from .comparison import TOLERANCE, largest_difference_of_rows, log_probs_of, report, sample_ids
from .ctranslate2_limits import ACTIVATIONS, EXPRESSIBLE
from .simplify import num_positions, with_scaled_dot


@register_loader("VaswaniConfig")
class VaswaniLoader(BartLoader):
    """Converts a model to a CTranslate2 specification. The base class is `BartLoader`, because the layers of
    this package have the same names as the layers of BART.
    """

    @property
    def architecture_name(self) -> str:
        """Return the name of the Auto class that loads the checkpoint for the converter."""
        return "AutoModelForSeq2SeqLM"

    def __call__(self, model: VaswaniForSeq2SeqLM, tokenizer: PreTrainedTokenizerFast) -> TransformerSpec:
        """Convert a model. The specification shares the memory of the weights with the model, so quantizing
        the specification can change the model. A separate target tokenizer is in a subfolder of the source
        tokenizer's folder.
        """
        EXPRESSIBLE.refuse_others(model.config)
        model = with_scaled_dot(model)
        tokenizers = _with_target(model, tokenizer)
        spec = self.get_model_spec(model)
        _set_vocabularies(spec, model, tokenizers)
        _set_positions(spec, model, num_positions(model, tokenizers))
        spec.config.add_attribute("layer_norm_epsilon", model.config.layer_norm_eps)
        return spec

    def get_model_spec(self, model: VaswaniForSeq2SeqLM) -> TransformerSpec:
        """Convert a model, but not its position tables and its vocabularies."""
        config = model.config
        activation = Activation[ACTIVATIONS[config.activation_function]]
        source = config.shape_of("encoder")
        target = config.shape_of("decoder")
        encoder = TransformerEncoderSpec(
            source.num_layers, source.num_heads, pre_norm=source.has_final_norm, activation=activation
        )
        # `TransformerEncoderSpec` and `TransformerDecoderSpec` create the final LayerNorm only for
        # `pre_norm=True`. Therefore set `pre_norm` to the model's own value after the constructor.
        # CTranslate2 applies the final LayerNorm of a stack even if `pre_norm` is False.
        encoder.pre_norm = source.norm_position == "pre"
        # Make CTranslate2 return the attention weights of the last layer (-1), averaged over all heads (0).
        heads = {"alignment_layer": -1, "alignment_heads": 0}
        decoder = TransformerDecoderSpec(
            target.num_layers,
            target.num_heads,
            pre_norm=target.has_final_norm,
            activation=activation,
            **heads,
        )
        decoder.pre_norm = target.norm_position == "pre"
        self.set_encoder(encoder, model.model.encoder)
        self.set_decoder(decoder, model.model.decoder)
        self.set_linear(decoder.projection, model.lm_head)
        if config.pad_token_id is not None and not model._padding_is_end():
            bias = torch.zeros(config.decoder_vocab_size)
            if model.lm_head.bias is not None:
                bias = model.lm_head.bias.detach().clone()
            bias[config.pad_token_id] = EXCLUDED_LOGIT
            decoder.projection.bias = bias
        return TransformerSpec(encoder, decoder)

    def set_common_layers(self, spec: Any, module: nn.Module) -> None:
        """Copy the embeddings and the final LayerNorm of an encoder or decoder into `spec`, the specification
        of a CTranslate2 model.
        """
        spec.scale_embeddings = module.embed_scale
        self.set_embeddings(
            spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings, module.embed_tokens
        )
        if module.layer_norm is not None:
            self.set_layer_norm(spec.layer_norm, module.layer_norm)

    def set_attention(self, spec: Any, attention: VaswaniAttention, self_attention: bool = False) -> None:
        """Copy the projections and the scaling factor of an attention layer into the specification."""
        super().set_attention(spec, _with_one_width(attention), self_attention)
        spec.queries_scale = attention.scaling


def to_ctranslate2(
    model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers, folder: str | Path, quantization: str | None = None
) -> None:
    """Write a CTranslate2 model with its tokenizers. Convert a copy, because quantizing changes the
    weights.
    """
    with TemporaryDirectory() as checkpoint:
        model.save_pretrained(checkpoint)
        save_tokenizers(*tokenizers, checkpoint)
        TransformersConverter(checkpoint).convert(str(folder), quantization=quantization)
        shutil.copy(Path(checkpoint) / GENERATION_FILE, folder)
    save_tokenizers(*tokenizers, folder)


def export_ctranslate2(
    model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers, folder: Path, quantization: str | None = None
) -> str:
    """Write a CTranslate2 model, and compare its log-probabilities with the log-probabilities of the
    checkpoint.
    """
    to_ctranslate2(model, tokenizers, folder, quantization)
    source_ids, target_ids = sample_ids(model.config)
    log_probs = CTranslate2Backend(folder).log_probs(source_ids, target_ids)
    ended = [[*ids, eos_token_ids(model.config)[0]] for ids in target_ids]
    expected = log_probs_of(model.float(), source_ids, ended, _start_token_id(model))
    tolerance = TOLERANCE if quantization in (None, "float32") else None
    return report(
        "log-probabilities of CTranslate2", largest_difference_of_rows(log_probs, expected), tolerance
    )


def _with_target(model: VaswaniForSeq2SeqLM, tokenizer: PreTrainedTokenizerFast) -> Tokenizers:
    if has_target_tokenizer(tokenizer, model.config.share_encoder_decoder_embeddings):
        return load_tokenizers(tokenizer.name_or_path)
    return tokenizer, tokenizer


def _start_token_id(model: VaswaniForSeq2SeqLM) -> int:
    """Return the id of the decoder's start token. The id in the generation config has precedence over the id
    in the model's config.
    """
    starts = (decoder_start_token_id(config) for config in (model.generation_config, model.config))
    return next((token_id for token_id in starts if token_id is not None), 0)


def _set_vocabularies(spec: TransformerSpec, model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers) -> None:
    config: Any = model.config
    source, target = (
        # A vocabulary of CTranslate2 must have as many tokens as the embedding has rows. The tokenizer of a
        # checkpoint can have more or fewer tokens than the embedding has rows. Therefore leave out tokens
        # without a row, and add a name for each row without a token.
        [tokenizer.convert_ids_to_tokens(i) if i < len(tokenizer) else f"<unused {i}>" for i in range(size)]
        for tokenizer, size in zip(tokenizers, (config.vocab_size, config.decoder_vocab_size), strict=True)
    )
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.decoder_start_token = target[_start_token_id(model)]
    spec.config.eos_token = target[eos_token_ids(config)[0]]
    spec.config.bos_token, spec.config.unk_token = tokenizers[1].bos_token, tokenizers[1].unk_token


def _set_positions(spec: TransformerSpec, model: VaswaniForSeq2SeqLM, rows: int) -> None:
    for layers, stack in ((spec.encoder, model.model.encoder), (spec.decoder, model.model.decoder)):
        with torch.no_grad():
            layers.position_encodings.encodings = stack.position_states(torch.arange(rows))
    # `CTranslate2Backend` reads the maximum input length from the attribute `max_position_embeddings`.
    spec.config.add_attribute("max_position_embeddings", rows)


def _with_one_width(attention: VaswaniAttention) -> Any:
    """Pad the projections of an attention layer with zeros, so that keys and values have the same width. The
    zeros do not change the outputs.
    """
    d_k, d_v = attention.d_k, attention.d_v
    if d_k == d_v:
        return attention
    width = max(d_k, d_v)

    def widened(tensor: Any, old_width: int) -> Any:
        if tensor is None:
            return None
        heads = tensor.unflatten(0, (-1, old_width))
        zeros = heads.new_zeros(heads.shape[0], width - old_width, *heads.shape[2:])
        return torch.cat((heads, zeros), dim=1).flatten(0, 1)

    widths = {"q_proj": d_k, "k_proj": d_k, "v_proj": d_v}
    projections = {name: getattr(attention, name) for name in widths}
    reading = {
        name: SimpleNamespace(weight=widened(p.weight, widths[name]), bias=widened(p.bias, widths[name]))
        for name, p in projections.items()
    }
    out_proj = attention.out_proj
    weight = widened(out_proj.weight.T, d_v).T.contiguous()
    return SimpleNamespace(**reading, out_proj=SimpleNamespace(weight=weight, bias=out_proj.bias))
