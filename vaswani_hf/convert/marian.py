"""Converts a checkpoint to and from a MarianMT model of transformers that computes the same function.

The architectures of MarianMT and of this package differ in two points. The attention projections of MarianMT
have biases; the export sets the biases to zero if the checkpoint has no biases. In the sinusoids of MarianMT,
the first half of the features are sines and the second half are cosines. In Section 3.5 of the paper, sines
and cosines alternate. The order of the features does not matter if all weights use the same order.
Therefore the export reorders the rows or columns of the weights to MarianMT's order of features.

The exported model differs from the checkpoint in three points. MarianMT counts padding tokens as positions,
so texts must be padded on the right. MarianMT does not mask padding tokens automatically, so the caller must
pass `attention_mask`. The position table of MarianMT has a fixed length.

CTranslate2 cannot convert the exported MarianMT model. The converter of CTranslate2 for MarianMT drops the
last token of the vocabulary, and starts the decoder from zeros instead of the embedding of a token. Use the
format "ctranslate2" of this package to convert a checkpoint to CTranslate2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from ..checkpoint.files import (
    CONFIG_FILE,
    FILES_OF_BOTH_TOKENIZERS,
    GENERATION_FILE,
    TOKENIZER_FILES,
    WEIGHTS_FILE,
    DamagedFileError,
    read_json_object,
)
from ..checkpoint.loading import load_with_report, refuse_load_faults
from ..checkpoint.search_settings import SupportedSettings
from ..checkpoint.tokenizers import Tokenizers, load_tokenizers, save_tokenizers
from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id
from ..model.inputs_vaswani import ADDED_SETTINGS
from ..model.loss_vaswani import EXCLUDED_LOGIT
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM, sinusoids
from ..model.translator_vaswani import BaseTranslator
from .comparison import largest_difference, report, sample_batch
from .export_formats import (
    SCORE_PER_TOKEN,
    ExportFormat,
    Expressible,
    Limit,
    TranslatorEngine,
    needs_start_token,
    one_of,
)
from .import_formats import (
    Imported,
    ImportFormat,
    ReadOptions,
    has_model_type,
    languages_of_settings,
    refuse,
    require_activation,
)
from .sentencepiece_models import fast_tokenizer, read_sentencepiece
from .simplify import SCALED_DOT_LIMITS, num_positions, with_scaled_dot
from .weights import POSITION_TABLES, WeightNames, same_names, to_halves, to_interleaved
from .word_tokenizers import SpecialTokens, tokenizer_pair

_SAME_FIELDS = """
    vocab_size decoder_vocab_size d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads
    encoder_ffn_dim decoder_ffn_dim dropout attention_dropout activation_dropout activation_function scale_embedding
    tie_word_embeddings use_cache bos_token_id pad_token_id eos_token_id
""".split()


def shared_by_heads(name: str) -> Limit:
    """Return a function that checks the config field `name` (`d_k` or `d_v`). The field must be `d_model`
    divided by the number of heads. In MarianMT and Marian, each head has the width `d_model` divided by the
    number of heads.
    """

    def limit(config: VaswaniConfig) -> str | None:
        for stack in ("encoder", "decoder"):
            heads = config.shape_of(stack).num_heads
            width = getattr(config, name) or config.d_model // heads
            if width * heads != config.d_model:
                return f"in the {stack} of MarianMT, the {heads} heads divide the d_model of {config.d_model} equally"
        return None

    return limit


def _post_norm_decoder(config: VaswaniConfig) -> str | None:
    if config.shape_of("decoder").norm_position == "post":
        return None
    return "MarianMT has no LayerNorm before its sub-layers"


_LIMITS: dict[str, Limit] = {
    "norm_position": one_of("norm_position", ("post",), "MarianMT has no LayerNorm before its sub-layers"),
    "norm_position_of_decoder": _post_norm_decoder,
    "final_norm": one_of("final_norm", (None, False), "MarianMT has no LayerNorm after its last layer"),
    "position_embedding": one_of(
        "position_embedding",
        ("sinusoidal",),
        "MarianMT computes its position embeddings and cannot load a position table",
    ),
    "layer_norm_eps": one_of(
        "layer_norm_eps", (1e-5,), "the epsilon of MarianMT's LayerNorm is always 1e-05"
    ),
    "d_k": shared_by_heads("d_k"),
    "d_v": shared_by_heads("d_v"),
    "decoder_start_token_id": needs_start_token,
    **SCALED_DOT_LIMITS,
}
_OTHER_FIELDS = (
    "share_encoder_decoder_embeddings",
    "attention_bias",
    "max_position_embeddings",
    "lm_head_bias",
    "zero_start_embedding",
)
EXPRESSIBLE = Expressible("MarianMT", frozenset([*_SAME_FIELDS, *_OTHER_FIELDS]), _LIMITS)

_SOURCE_SPM, _TARGET_SPM = "source.spm", "target.spm"

# MarianMT and this package have the same weight names, except for the name of the output bias.
NAMES = WeightNames(
    {
        "model.shared.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight": "model.decoder.embed_tokens.weight",
        **same_names("model."),
        "lm_head.weight": "lm_head.weight",
        "final_logits_bias": "lm_head.bias",
    },
    ignored=POSITION_TABLES,
)


def to_marian(model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers | None = None) -> MarianMTModel:
    """Create a MarianMT model with the same logits. The function does not change `model`."""
    EXPRESSIBLE.refuse_others(model.config)
    model = with_scaled_dot(model)
    config = marian_config(model.config, num_positions(model, tokenizers))
    marian = MarianMTModel.from_pretrained(None, config=config, state_dict=_marian_state(model))
    marian.generation_config = _generation_config(model, config.max_position_embeddings)
    return marian.to(model.device).eval()


def export_marian(
    model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers | None, folder: Path, quantization: str | None = None
) -> str:
    """Write the MarianMT model and the tokenizers. A user must load the exported tokenizers with
    `AutoTokenizer`, because MarianTokenizer reads only SentencePiece models.
    """
    to_marian(model, tokenizers).save_pretrained(folder)
    if tokenizers is not None:
        save_tokenizers(*tokenizers, folder)
    written = MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    batch = sample_batch(model.config)
    with torch.no_grad():
        logits, expected = written(**batch).logits, model.float()(**batch).logits
    if model.config.zero_start_embedding:
        # Exclude `<pad>` in the logits of MarianMT too, because MarianMT excludes `<pad>` only in the search,
        # by the setting `bad_words_ids`.
        logits[..., model.config.pad_token_id] = EXCLUDED_LOGIT
    difference = largest_difference(logits, expected, batch["decoder_attention_mask"])
    return report("logits of MarianMT", difference)


def marian_config(config: VaswaniConfig, num_positions: int) -> MarianConfig:
    """Return the config of a MarianMT model with `num_positions` positions."""
    return MarianConfig(
        **{name: getattr(config, name) for name in _SAME_FIELDS},
        # MarianMT cannot share embeddings without a tied output projection.
        share_encoder_decoder_embeddings=config.share_encoder_decoder_embeddings
        and config.tie_word_embeddings,
        decoder_start_token_id=decoder_start_token_id(config),
        max_position_embeddings=num_positions,
        # Set no `forced_eos_token_id`. By default, MarianMT replaces the last token by token 0 if a
        # translation reaches the length limit.
        forced_eos_token_id=None,
    )


def _marian_state(model: VaswaniForSeq2SeqLM) -> dict[str, torch.Tensor]:
    """Return the weights with MarianMT's names and MarianMT's order of features: sines before cosines."""
    config = model.config
    # `named_parameters` lists tied weights only once. MarianMT ties the weights again after loading.
    own = {name: tensor.detach() for name, tensor in model.named_parameters()}
    state = NAMES.to_theirs(to_halves(own))
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        shared = state.pop("model.shared.weight")
        # Store a copy for each stack, because safetensors cannot save two weights that share memory.
        state |= {f"model.{stack}.embed_tokens.weight": shared.clone() for stack in ("encoder", "decoder")}
    for name, tensor in list(state.items()):
        if "_attn." in name and not config.attention_bias:
            state[name.removesuffix("weight") + "bias"] = tensor.new_zeros(tensor.shape[0])
    bias = state.get("final_logits_bias")
    if bias is None:
        bias = model.lm_head.weight.new_zeros(config.decoder_vocab_size)
    state["final_logits_bias"] = bias.clone().unsqueeze(0)
    if not model._padding_is_end() and config.pad_token_id is not None and not config.zero_start_embedding:
        _exclude_padding(state, config)
    return state


def _exclude_padding(state: dict[str, torch.Tensor], config: VaswaniConfig) -> None:
    """Give `<pad>` a very low output bias, so that the probability of `<pad>` is 0. Also set the output
    projection's row of `<pad>` to zero. If `<pad>` is the start token, do not change the row of `<pad>` in a
    tied output projection, because this row is also the decoder's start embedding.
    """
    state["final_logits_bias"][0, config.pad_token_id] = EXCLUDED_LOGIT
    tied_to = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
    name = f"model.{tied_to}.weight" if config.tie_word_embeddings else "lm_head.weight"
    if not config.tie_word_embeddings or config.pad_token_id != decoder_start_token_id(config):
        state[name][config.pad_token_id] = 0


def _generation_config(model: VaswaniForSeq2SeqLM, num_positions: int) -> GenerationConfig:
    """Return the search settings that transformers supports. If the decoder starts from zeros, also forbid
    `<pad>` in translations.
    """
    own = model.generation_config.to_dict()
    settings = {name: value for name, value in own.items() if name not in ADDED_SETTINGS}
    if settings.get("max_length") is None and settings.get("max_new_tokens") is None:
        settings["max_length"] = num_positions
    if model.config.zero_start_embedding:
        # The generation config can lack `pad_token_id`.
        settings["bad_words_ids"] = [*(settings.get("bad_words_ids") or []), [model.config.pad_token_id]]
    return GenerationConfig.from_dict(settings)


def read_marian_mt(path: Path, options: ReadOptions) -> Imported:
    """Read a MarianMT checkpoint of transformers, such as an OPUS-MT model."""
    require_activation(path)
    marian, load_report = load_with_report(MarianMTModel, path, dtype=torch.float32)
    # Raise an error for a missing weight, because transformers initializes missing weights without an error.
    refuse_load_faults(load_report, path)
    marian.eval()
    state = marian.state_dict()
    pad = marian.config.pad_token_id
    bias = state["final_logits_bias"].squeeze(0)
    state["final_logits_bias"] = bias
    start_row = marian.get_decoder().embed_tokens.weight[pad]
    starts_from_zeros = marian.config.decoder_start_token_id == pad and not bool(start_row.any())
    # Remove the shared embedding of a model without tied weights, because such a model does not use the
    # shared embedding.
    is_shared = marian.config.share_encoder_decoder_embeddings and marian.config.tie_word_embeddings
    if not is_shared:
        state.pop("model.shared.weight", None)
    config = VaswaniConfig(
        **{name: getattr(marian.config, name) for name in _SAME_FIELDS},
        share_encoder_decoder_embeddings=is_shared,
        decoder_start_token_id=marian.config.decoder_start_token_id,
        max_position_embeddings=marian.config.max_position_embeddings,
        attention_bias=True,
        lm_head_bias=bool(bias.any()),
        zero_start_embedding=starts_from_zeros,
        position_timescales=options.timescales or "paper",
    )
    if config.position_timescales != "paper":
        _replace_sinusoids(marian, config)
    if not config.lm_head_bias:
        del state["final_logits_bias"]
    own = to_interleaved(NAMES.to_ours(state, "MarianMT"))

    def logits(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return marian(**batch).logits

    tokenizers, facts = _read_tokenizers(path, config)
    notes = []
    if tokenizers is None:
        notes.append(
            "No tokenizers were written, because the source has neither SentencePiece models nor tokenizer.json."
        )
    return Imported(
        config=config,
        state_dict=own,
        generation_config=_imported_generation_config(marian.generation_config, pad),
        tokenizers=tokenizers,
        facts=facts,
        notes=notes,
        logits=logits,
    )


def _replace_sinusoids(marian: MarianMTModel, config: VaswaniConfig) -> None:
    """Write the sinusoids of `config` into MarianMT. MarianMT computes only the paper's timescales."""
    position_ids = torch.arange(config.max_position_embeddings)
    table = sinusoids(position_ids, config.d_model, config.position_timescales)
    halves = torch.cat((table[:, 0::2], table[:, 1::2]), dim=1)
    for stack in (marian.get_encoder(), marian.get_decoder()):
        stack.embed_positions.weight.data = halves


def _read_tokenizers(path: Path, config: VaswaniConfig) -> tuple[Tokenizers | None, dict[str, str]]:
    """Return the tokenizers and the languages of a MarianMT folder. If the folder has no tokenizers, return
    None and an empty dict.
    """
    old = sorted(file.name for file in path.glob("*.bpe"))
    if old:
        refuse(
            "tokenizer",
            old[0],
            "tokenizers with Moses and BPE cannot be converted to fast tokenizers; use a model with .spm "
            "files",
        )
    if not (path / _SOURCE_SPM).is_file():
        # `vaswani export` writes fast tokenizers.
        has_fast = (path / TOKENIZER_FILES[0]).is_file()
        return load_tokenizers(path) if has_fast else None, {}
    settings = {}
    if (path / TOKENIZER_FILES[1]).is_file():
        settings = read_json_object(path, TOKENIZER_FILES[1], path)
    names = ["vocab.json", "target_vocab.json" if settings.get("separate_vocabs", False) else "vocab.json"]
    vocabularies = [_read_vocabulary(path, name) for name in names]
    tokenizers = []
    for file, name, ids in zip((_SOURCE_SPM, _TARGET_SPM), names, vocabularies, strict=True):
        by_id = {number: token for token, number in ids.items()}
        start_id = decoder_start_token_id(config)
        if start_id not in by_id:
            raise DamagedFileError(
                f"{name} of '{path}' must contain a token with the id {start_id}, but does not"
            )
        special = SpecialTokens(
            pad=_text_of(settings.get("pad_token", "<pad>")),
            start=by_id[start_id],
            end=_text_of(settings.get("eos_token", "</s>")),
            unknown=_text_of(settings.get("unk_token", "<unk>")),
        )
        for token in special:
            if token not in ids:
                raise DamagedFileError(f"{name} of '{path}' must contain the token {token}, but does not")
        length = settings.get("model_max_length", 512)
        tokenizers.append(
            fast_tokenizer(read_sentencepiece(path / file), ids, special, model_max_length=length)
        )
    return tokenizer_pair(tokenizers, vocabularies), languages_of_settings(settings)


def _read_vocabulary(path: Path, name: str) -> dict[str, int]:
    ids = read_json_object(path, name, path)
    if not all(isinstance(number, int) for number in ids.values()):
        raise DamagedFileError(f"{name} of '{path}' must map each token to an id, but does not")
    return ids


def _text_of(token: Any) -> str:
    """Return the text of a special token. In tokenizer_config.json, a special token is a string or a dict (an
    `AddedToken`).
    """
    return token["content"] if isinstance(token, dict) else token


def _imported_generation_config(config: GenerationConfig, pad: int) -> GenerationConfig:
    settings = config.to_dict()
    if settings.get("bad_words_ids") == [[pad]]:
        # Delete `bad_words_ids`, because the imported model already gives `<pad>` the probability 0.
        settings["bad_words_ids"] = None
    return GenerationConfig.from_dict(settings)


class MarianEngine(TranslatorEngine):
    """Runs an exported MarianMT model with the search of transformers."""

    # The search of transformers has only one type of length penalty, and no coverage penalty.
    search = SCORE_PER_TOKEN

    def load(self, folder: Path) -> BaseTranslator:
        model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
        if model.generation_config.bad_words_ids:
            # Give `<pad>` the probability 0, as in the model of this package.
            model.final_logits_bias[0, model.config.pad_token_id] = EXCLUDED_LOGIT
        return BaseTranslator(model, *load_tokenizers(folder))

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        settings = {name: SCORE_PER_TOKEN[name] for name in ("length_penalty", "early_stopping")}
        return list(self.translator.translate(texts, num_beams=num_beams, **settings))


MARIAN = ExportFormat(
    name="marian",
    main_file=WEIGHTS_FILE,
    library_name="transformers",
    expressible=EXPRESSIBLE,
    settings=SupportedSettings(
        EXPRESSIBLE.title,
        vars(GenerationConfig()),
        left_out=None,
        search="the search of MarianMT divides scores by a power of the length, and has one length limit for all sentences",
    ),
    export=export_marian,
    engine=MarianEngine,
    model_type="marian",
    optional_files=FILES_OF_BOTH_TOKENIZERS,
)
MARIAN_MT = ImportFormat(
    name="marian_mt",
    title="MarianMT of transformers",
    recognise=has_model_type("marian"),
    read=read_marian_mt,
    files=(
        CONFIG_FILE,
        GENERATION_FILE,
        WEIGHTS_FILE,
        "pytorch_model.bin",
        "*.spm",
        "vocab.json",
        "target_vocab.json",
        *FILES_OF_BOTH_TOKENIZERS,
    ),
    keeps=(
        "Keeps the weights, the output bias, the zero vector that the decoder starts from, the token ids, "
        "the segmentation of texts, the tags of target languages, and the default options of the search."
    ),
    loses=(
        "`<pad>` gets the probability 0, while MarianMT gives `<pad>` a small probability. Models with "
        "Moses and BPE tokenizers are refused. If a SentencePiece piece of several characters is missing "
        "in `vocab.json`, the imported tokenizers never use the piece. MarianMT reads the tag of a target "
        "language only at the beginning of a text; the imported tokenizers read the tag everywhere. The "
        "imported tokenizers can lose a combining character after a compatibility character, such as a "
        "ligature."
    ),
    options=("timescales",),
)
