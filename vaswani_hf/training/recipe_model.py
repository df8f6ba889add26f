"""Creates the model that a recipe describes, prepares the model for training, counts its parameters, and
warns if the model or its vocabulary is too large for the corpus.
"""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, set_seed

from ..checkpoint.tokenizers import SHARED_IDS_MARK
from ..data.columns import pair_lengths
from ..data.corpus import Corpus
from ..model.checks_vaswani import nearest_name
from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..optimization.section import AnyTraining
from ..settings.sections import ModelSettings, TokenizerSettings

# A run warns if the training data has fewer than `LEAST_TOKENS_PER_ENTRY` tokens for each entry of the
# vocabulary. With the recipe for Multi30k, the training data has about 80 tokens for each entry of the
# vocabulary.
LEAST_TOKENS_PER_ENTRY = 25
# A run warns if the layers have more than `MOST_PARAMETERS_PER_TOKEN` parameters for each token of the
# training data. The layers in the recipe for Multi30k have 1.6 parameters per training token. The layers of
# the paper's parser for the Wall Street Journal (Section 6.3) have about 30 parameters per training token.
MOST_PARAMETERS_PER_TOKEN = 40
# A vocabulary of at most `SMALL_VOCABULARY` tokens gets no warning, because 256 tokens of each vocabulary are
# single bytes.
SMALL_VOCABULARY = 1000
# Maps a substring of parameter names to the part of a layer that contains these parameters.
PARTS = {"_attn.": "attention", ".fc": "feed_forward", "layer_norm": "norms"}


def planned_config(model: ModelSettings, tokenizer: TokenizerSettings) -> VaswaniConfig:
    """Return the config of a recipe's model, with vocabularies of the sizes in the section `tokenizer`."""
    return model.make_config(
        vocab_size=tokenizer.vocab_size,
        decoder_vocab_size=tokenizer.planned_target_size,
        share_encoder_decoder_embeddings=tokenizer.has_one_vocabulary,
    )


def planned_model(config: VaswaniConfig, model_class: type[PreTrainedModel] = VaswaniForSeq2SeqLM) -> Any:
    """Return a model with tied weights on the meta device, where weights take no memory."""
    with torch.device("meta"):
        return model_class(config)


def build_model(
    model: ModelSettings,
    model_class: type[PreTrainedModel],
    corpus: Corpus,
    search: dict[str, Any],
    seed: int,
) -> Any:
    """Build the untrained model of a run on the CPU. `search` has the search settings of the recipe."""
    set_seed(seed)
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    # Also check `SHARED_IDS_MARK`, because the tokenizers of an imported model can be separate objects with
    # one vocabulary.
    has_one_vocabulary = source is target or target.init_kwargs.get(SHARED_IDS_MARK, False)
    config = model.make_config(
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=has_one_vocabulary,
        bos_token_id=target.bos_token_id,
        pad_token_id=target.pad_token_id,
        eos_token_id=target.eos_token_id,
    )
    built: Any = model_class(config)
    if not search:
        return built
    built.generation_config = GenerationConfig.from_model_config(config)
    # Without `allow_custom_entries`, `update` ignores search settings that transformers does not define.
    built.generation_config.update(allow_custom_entries=True, **search)
    return built


def prepare_for_training(
    model: PreTrainedModel, training: AnyTraining, recomputation: AbstractContextManager | None = None
) -> None:
    """Freeze the weights in `training.frozen`. With `training.gradient_checkpointing`, let the backward pass
    compute the activations of the layers again, in the context `recomputation` if it is given.
    """
    for weight in frozen_weights(model, training.frozen):
        weight.requires_grad_(False)
    if training.gradient_checkpointing:
        # In transformers 5.23, `gradient_checkpointing_enable` was renamed to
        # `activation_checkpointing_enable`.
        enable = getattr(model, "activation_checkpointing_enable", None)
        options = None
        if recomputation is not None:
            options = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), recomputation)}
        (enable or model.gradient_checkpointing_enable)(options)


def frozen_weights(model: nn.Module, names: list[str]) -> list[nn.Parameter]:
    """Return the weights of the modules and parameters in `names`, such as "encoder" or
    "decoder.embed_tokens". A tied weight belongs to all modules that use the weight.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))
    known = {".".join(name.split(".")[:part]) for name in weights for part in range(1, name.count(".") + 2)}
    found: dict[int, nn.Parameter] = {}
    for name in names:
        full = f"model.{name}" if f"model.{name}" in known else name
        if full not in known:
            nearest = nearest_name(name, sorted(part.removeprefix("model.") for part in known))
            raise InvalidValueError(
                f"`training.frozen` must name parts of the model, but has {name!r}; the nearest part is "
                f"{nearest!r}."
            )
        found |= {id(weight): weight for key, weight in weights.items() if f"{key}.".startswith(f"{full}.")}
    if names and all(id(weight) in found for weight in weights.values()):
        raise InvalidValueError(f"`training.frozen` must not name all weights of the model, but is {names}.")
    return [*found.values()]


@dataclass(frozen=True, kw_only=True)
class StackParameters:
    """The number of parameters in all layers of an encoder or decoder: in total, and for each kind of
    module.
    """

    total: int
    attention: int
    feed_forward: int
    norms: int


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The numbers of parameters. A tied parameter counts once. `embeddings` counts the parameters of the
    embeddings and of the output projection.
    """

    total: int
    embeddings: int
    encoder: StackParameters | None
    decoder: StackParameters | None


def parameters_by_part(model: PreTrainedModel) -> Parameters:
    """Return the numbers of parameters of a model and of its parts."""
    only_stack = getattr(model.config, "stack", None)
    sizes: Counter[str] = Counter()
    stacks: dict[str, Counter[str]] = {"encoder": Counter(), "decoder": Counter()}
    for name, parameter in model.named_parameters():
        part = next((part for piece, part in PARTS.items() if piece in name), "embeddings")
        sizes[part] += parameter.numel()
        if part != "embeddings":
            stacks[only_stack or name.split(".")[1]][part] += parameter.numel()
    of_stacks = {
        stack: StackParameters(total=found.total(), **{part: found[part] for part in PARTS.values()})
        for stack, found in stacks.items()
        if only_stack in (None, stack)
    }
    return Parameters(
        total=sizes.total(),
        embeddings=sizes["embeddings"],
        encoder=of_stacks.get("encoder"),
        decoder=of_stacks.get("decoder"),
    )


def size_warnings(
    model: PreTrainedModel, corpus: Corpus, settings: ModelSettings, tokenizer: TokenizerSettings
) -> list[str]:
    """Return warnings about a vocabulary or a model that is far too large for the corpus. Return no warnings
    if the run starts from another model, or if the training data is a stream.
    """
    if settings.init_from is not None or not isinstance(corpus.train, Dataset):
        return []
    source_lengths, target_lengths = pair_lengths(corpus.train)
    num_source = int(source_lengths.sum())
    num_target = int(target_lengths.sum())
    num_tokens = corpus.count_train_tokens()
    # Maps the recipe key of each vocabulary size to two numbers: the size, and the number of tokens in the
    # training texts.
    vocabularies = {"tokenizer.vocab_size": (tokenizer.vocab_size, num_tokens)}
    if not tokenizer.has_one_vocabulary:
        vocabularies["tokenizer.vocab_size"] = (tokenizer.vocab_size, num_source)
        vocabularies["tokenizer.target_vocab_size"] = (tokenizer.planned_target_size, num_target)
    warnings = []
    for key, (size, count) in vocabularies.items():
        if size > SMALL_VOCABULARY and count < LEAST_TOKENS_PER_ENTRY * size:
            warnings.append(
                f"`{key}` is {size:,} and far too large for the corpus, because the training data has only "
                f"{count:,} tokens, {count / size:.2g} for each token of the vocabulary, and fewer than "
                f"{LEAST_TOKENS_PER_ENTRY} are too few to learn from; give a smaller number, or add training "
                "data."
            )
    parameters = parameters_by_part(model)
    in_layers = parameters.total - parameters.embeddings
    if in_layers > MOST_PARAMETERS_PER_TOKEN * num_tokens:
        warnings.append(
            f"the model is far too large for the corpus, because its layers have {in_layers:,} parameters, "
            f"{in_layers / num_tokens:,.0f} for each of the {num_tokens:,} tokens of the training data, and "
            f"more than {MOST_PARAMETERS_PER_TOKEN} are too many; use fewer layers, a smaller "
            "`model.d_model` or more training data."
        )
    return warnings
