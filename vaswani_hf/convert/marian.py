"""The same function as a MarianMT model, for every tool that reads those.

MarianMT is this architecture with biases in the attention's projections (zero here) and with other sinusoids: all sines
in the first half of the features, all cosines in the second, where Section 3.5 has them in turn. The order of the
features of width D is of no consequence as long as all weights agree on it, so the halves are reached by reordering the
weights alone.

What remains different, because MarianMT is so: it counts positions over padding, so that padding must stand on the
right; it takes no mask from the padding tokens, so that `attention_mask` must be given, as tokenizers give it; and its
tables of positions end, where sinusoids go on. CTranslate2's own converter of MarianMT models refuses the export: it
drops the last token, which it expects to be `<pad>`, and lets the decoder start from zeros where ours starts from an
embedding. The format "ctranslate2" of this package takes its place.
"""

from pathlib import Path

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel
from transformers.utils import logging

from ..checkpoint.tokenizers import save_tokenizers
from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id
from ..model.generation_vaswani import ADDED_SETTINGS
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
    """The limit of `d_k` and `d_v`: the heads of a stack share `d_model`."""

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
        "position_embedding", "sinusoidal", "it computes its positions and loads no table of them"
    ),
    "layer_norm_eps": only("layer_norm_eps", 1e-5, "its LayerNorm has no other epsilon than 1e-05"),
    "d_k": _shared_by_heads("d_k"),
    "d_v": _shared_by_heads("d_v"),
    "decoder_start_token_id": needs_start_token,
    **SCALED_DOT_LIMITS,
}
_OTHER_FIELDS = ("share_encoder_decoder_embeddings", "attention_bias", "max_position_embeddings")
EXPRESSIBLE = Expressible("MarianMT", frozenset([*_SAME_FIELDS, *_OTHER_FIELDS]), _LIMITS)
# Modules whose inputs have D features, so that the columns of their weights are reordered; in others the rows are.
_READS_MODEL_FEATURES = {"shared", "embed_tokens", "q_proj", "k_proj", "v_proj", "fc1", "lm_head"}


def to_marian(model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers | None = None) -> MarianMTModel:
    """A MarianMT model that gives the same logits; the model itself is left as it is."""
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

    The tokenizers stay what they are, and `AutoTokenizer` loads them: MarianTokenizer reads SentencePiece models only.
    """
    to_marian(model, tokenizers).save_pretrained(folder)
    if tokenizers is not None:
        save_tokenizers(*tokenizers, folder)
    written = MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    batch = sample_batch(model.config)
    with torch.no_grad():
        logits, expected = written(**batch).logits, model.float()(**batch).logits
    # Logits behind padding of the decoder are without meaning, and so far down every class has the probability 0: the
    # excluded one, which MarianMT gives a logit that is not ours where its embedding starts the decoder.
    is_real, lowest = batch["decoder_attention_mask"].bool(), EXCLUDED_LOGIT / 2
    difference = logits[is_real].clamp(min=lowest) - expected[is_real].clamp(min=lowest)
    return report("logits of MarianMT", difference.abs().max().item())


def _marian_config(config: VaswaniConfig, num_positions: int) -> MarianConfig:
    return MarianConfig(
        **{name: getattr(config, name) for name in _SAME_FIELDS},
        # MarianMT does not tie the embeddings either where the output projection has a matrix of its own.
        share_encoder_decoder_embeddings=config.share_encoder_decoder_embeddings
        and config.tie_word_embeddings,
        decoder_start_token_id=decoder_start_token_id(config),
        max_position_embeddings=num_positions,
        # By default MarianMT ends every output that reaches the limit with the token 0.
        forced_eos_token_id=None,
    )


def _marian_state(model: VaswaniForSeq2SeqLM) -> dict[str, torch.Tensor]:
    """The weights by MarianMT's names, with all features of width D in MarianMT's order."""
    config = model.config
    first_half = torch.arange(0, config.d_model, 2, device=model.device)
    halves = torch.cat((first_half, first_half + 1))
    # Tied weights come once, under the name of their source, and MarianMT ties them again.
    state = {name: _reordered(name, tensor.detach(), halves) for name, tensor in model.named_parameters()}
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        shared = state.pop("model.shared.weight")
        # Two matrices: weights that nothing ties cannot be saved as one.
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
    """Give the padding class its logit through the bias, and a projection of zeros where that changes nothing else.

    A tied row is an embedding too: of padding, which nobody attends to, as long as no output starts from it. Where one
    does, as in Marian's own models, the logit is about that low, and its probability 0 all the same.
    """
    state["final_logits_bias"][0, config.pad_token_id] = EXCLUDED_LOGIT
    tied_to = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
    name = f"model.{tied_to}.weight" if config.tie_word_embeddings else "lm_head.weight"
    if not config.tie_word_embeddings or config.pad_token_id != decoder_start_token_id(config):
        state[name][config.pad_token_id] = 0


def _generation_config(config: GenerationConfig, num_positions: int) -> GenerationConfig:
    """The settings that transformers' own search knows, after a warning about the others."""
    settings = config.to_dict()
    removed = {name: settings.pop(name, None) for name in ADDED_SETTINGS}
    left_out = [f"{name}={value}" for name, value in removed.items() if value not in (None, 0, "power")]
    if settings.get("max_length") is None and settings.get("max_new_tokens") is None:
        settings["max_length"] = num_positions
    if left_out:
        logger.warning(
            f"The search of transformers does not know {', '.join(left_out)}: the MarianMT checkpoint divides scores by "
            "a power of the length, and its limit is the same for all sentences."
        )
    return GenerationConfig.from_dict(settings)


MARIAN = Format(name="marian", expressible=EXPRESSIBLE, export=export_marian)
