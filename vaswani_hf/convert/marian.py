"""Converts a checkpoint to a MarianMT model that computes the same function.

MarianMT has the same architecture as this package, with two differences. The attention projections of
MarianMT have biases; this export sets the biases to zero. The sinusoids of MarianMT have all sines in the
first half of the features and all cosines in the second half, while Section 3.5 alternates sines and cosines.
The order of the D features of the model does not matter if all weights use the same order. Therefore it is
enough to reorder the weights.

The exported model differs from the checkpoint in three points. MarianMT counts padding tokens when it numbers
the positions, so padding must be on the right. MarianMT does not derive a mask from padding tokens, so the
caller must pass `attention_mask`. The position table of MarianMT has a fixed length.

CTranslate2 cannot convert the exported MarianMT model. The converter of CTranslate2 for MarianMT drops the
last token of the vocabulary, and starts the decoder from zeros instead of the embedding of a token. Use the
format "ctranslate2" of this package to convert a checkpoint to CTranslate2.
"""

from pathlib import Path

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from transformers.utils import logging

from ..checkpoint.tokenizers import save_tokenizers
from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id
from ..model.inputs_vaswani import ADDED_SETTINGS
from ..model.modeling_vaswani import EXCLUDED_LOGIT, VaswaniForSeq2SeqLM
from .formats import Expressible, Format, Limit, Tokenizers, needs_start_token, only, report, sample_batch
from .simplify import SCALED_DOT_LIMITS, num_positions, with_scaled_dot

logger = logging.get_logger(__name__)

_SAME_FIELDS = """
    vocab_size decoder_vocab_size d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads
    encoder_ffn_dim decoder_ffn_dim dropout attention_dropout activation_dropout activation_function scale_embedding
    tie_word_embeddings use_cache bos_token_id pad_token_id eos_token_id
""".split()


def _shared_by_heads(name: str) -> Limit:
    """Return a limit for `d_k` or `d_v`, because in MarianMT each head has the width `d_model` / number of
    heads.
    """

    def limit(config: VaswaniConfig) -> str | None:
        for stack in ("encoder", "decoder"):
            heads = getattr(config, f"{stack}_attention_heads")
            width = getattr(config, name) or config.d_model // heads
            if width * heads != config.d_model:
                return f"the {heads} heads of its {stack} share the d_model of {config.d_model} among them"
        return None

    return limit


_LIMITS: dict[str, Limit] = {
    "norm_position": only("norm_position", "post", "it has no LayerNorm before its sub-layers"),
    "position_embedding": only(
        "position_embedding", "sinusoidal", "it computes its position embeddings and cannot load a table"
    ),
    "layer_norm_eps": only("layer_norm_eps", 1e-5, "the epsilon of its LayerNorm is always 1e-05"),
    "d_k": _shared_by_heads("d_k"),
    "d_v": _shared_by_heads("d_v"),
    "decoder_start_token_id": needs_start_token,
    **SCALED_DOT_LIMITS,
}
_OTHER_FIELDS = ("share_encoder_decoder_embeddings", "attention_bias", "max_position_embeddings")
EXPRESSIBLE = Expressible("MarianMT", frozenset([*_SAME_FIELDS, *_OTHER_FIELDS]), _LIMITS)
# In the modules of this set, the weights have the D features of the model as columns, so the columns are
# reordered. In all other modules, the rows of the weights are reordered.
_READS_MODEL_FEATURES = {"shared", "embed_tokens", "q_proj", "k_proj", "v_proj", "fc1", "lm_head"}


def to_marian(model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers | None = None) -> MarianMTModel:
    """Create a MarianMT model that computes the same logits. The function does not change `model`."""
    EXPRESSIBLE.refuse_others(model.config)
    model = with_scaled_dot(model)
    config = _marian_config(model.config, num_positions(model, tokenizers))
    marian = MarianMTModel.from_pretrained(None, config=config, state_dict=_marian_state(model))
    marian.generation_config = _generation_config(model.generation_config, config.max_position_embeddings)
    return marian.to(model.device).eval()


def export_marian(
    model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers | None, folder: Path, quantization: str | None = None
) -> str:
    """Write the MarianMT model and the tokenizers to a folder.

    Load the written tokenizers with `AutoTokenizer`. The tokenizers are not converted to MarianTokenizer,
    because MarianTokenizer reads only SentencePiece models.
    """
    to_marian(model, tokenizers).save_pretrained(folder)
    if tokenizers is not None:
        save_tokenizers(*tokenizers, folder)
    written = MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    batch = sample_batch(model.config)
    with torch.no_grad():
        logits, expected = written(**batch).logits, model.float()(**batch).logits
    # Do not compare the logits at padding positions. Clamp very low logits, because MarianMT may give the
    # excluded padding class a different very low logit. The probability of the padding class is 0 in both
    # models.
    is_real, lowest = batch["decoder_attention_mask"].bool(), EXCLUDED_LOGIT / 2
    difference = logits[is_real].clamp(min=lowest) - expected[is_real].clamp(min=lowest)
    return report("logits of MarianMT", difference.abs().max().item())


def _marian_config(config: VaswaniConfig, num_positions: int) -> MarianConfig:
    return MarianConfig(
        **{name: getattr(config, name) for name in _SAME_FIELDS},
        # Share the embeddings only if the output projection is tied too, because MarianMT supports no other
        # combination.
        share_encoder_decoder_embeddings=config.share_encoder_decoder_embeddings
        and config.tie_word_embeddings,
        decoder_start_token_id=decoder_start_token_id(config),
        max_position_embeddings=num_positions,
        # Turn off the default of MarianMT, which ends every output that reaches the length limit with the
        # token 0.
        forced_eos_token_id=None,
    )


def _marian_state(model: VaswaniForSeq2SeqLM) -> dict[str, torch.Tensor]:
    """Return the weights under the names that MarianMT uses, with the D features in the order of MarianMT."""
    config = model.config
    first_half = torch.arange(0, config.d_model, 2, device=model.device)
    halves = torch.cat((first_half, first_half + 1))
    # `named_parameters` lists tied weights only once. MarianMT ties the weights again when it loads them.
    state = {name: _reordered(name, tensor.detach(), halves) for name, tensor in model.named_parameters()}
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        shared = state.pop("model.shared.weight")
        # Copy the embedding for each stack, because safetensors cannot save two weights that share memory.
        state |= {f"model.{stack}.embed_tokens.weight": shared.clone() for stack in ("encoder", "decoder")}
    for name, tensor in list(state.items()):
        if "_attn." in name and not config.attention_bias:
            state[name.removesuffix("weight") + "bias"] = tensor.new_zeros(tensor.shape[0])
    state["final_logits_bias"] = tensor.new_zeros(1, config.decoder_vocab_size)
    if not model._padding_is_end() and config.pad_token_id is not None:
        _exclude_padding(state, config)
    return state


def _reordered(name: str, tensor: torch.Tensor, halves: torch.Tensor) -> torch.Tensor:
    if name.split(".")[-2] not in _READS_MODEL_FEATURES:
        return tensor[halves]
    return tensor[:, halves] if name.endswith("weight") else tensor


def _exclude_padding(state: dict[str, torch.Tensor], config: VaswaniConfig) -> None:
    """Give the padding class a very low bias, so that its probability is 0. If the decoder never reads the
    row of the padding class in the output projection, set this row to zero.

    If the embeddings are tied, the row is also the embedding of `<pad>`. Usually no position attends to
    padding, so the row can be zero. If the decoder starts from `<pad>`, as in models of the Marian toolkit,
    the decoder reads the row, so the row is kept. If the row is kept, the logit of the padding class is not
    exactly the bias, but the probability is still 0.
    """
    state["final_logits_bias"][0, config.pad_token_id] = EXCLUDED_LOGIT
    tied_to = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
    name = f"model.{tied_to}.weight" if config.tie_word_embeddings else "lm_head.weight"
    if not config.tie_word_embeddings or config.pad_token_id != decoder_start_token_id(config):
        state[name][config.pad_token_id] = 0


def _generation_config(config: GenerationConfig, num_positions: int) -> GenerationConfig:
    """Return a generation config with only the settings that the search of transformers supports. A warning
    lists the removed settings.
    """
    settings = config.to_dict()
    removed = {name: settings.pop(name, None) for name in ADDED_SETTINGS}
    left_out = [f"{name}={value}" for name, value in removed.items() if value not in (None, 0, "power")]
    if settings.get("max_length") is None and settings.get("max_new_tokens") is None:
        settings["max_length"] = num_positions
    if left_out:
        logger.warning(
            f"The search of transformers does not support {', '.join(left_out)}: for the MarianMT "
            "checkpoint, the search divides scores by a power of the length, and uses one length limit for "
            "all sentences."
        )
    return GenerationConfig.from_dict(settings)


MARIAN = Format(name="marian", expressible=EXPRESSIBLE, export=export_marian)
