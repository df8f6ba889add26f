"""The translation pipeline, which transformers 5 no longer has: `pipeline("translation", model=...)`.

It behaves as the one of transformers 4 did, for every model that `AutoModelForSeq2SeqLM` loads. Differs from it: an
empty text is translated to an empty text, and a model may have a second tokenizer for the target language.

Letters of shapes: B batch, S source length, T target length, K translations of one text (`num_return_sequences`).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    Pipeline,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    pipelines,
)
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import logging

logger = logging.get_logger(__name__)

TASK = "translation"
TARGET_FOLDER = "target_tokenizer"
_DIRECTION = re.compile(r"translation_(.+?)_to_(.+)")
# Those of the pipeline of transformers 4, for what neither the user nor the checkpoint sets.
_DEFAULTS = {"max_new_tokens": 256, "num_beams": 4}
_LENGTHS = {"max_new_tokens", "max_length"}


class TranslationPipeline(Pipeline):
    """Translations of texts, by any encoder-decoder model that generates.

    The generation settings are those of the call, else those of the constructor, else those that the checkpoint has
    for the task (`task_specific_params` of T5), else those of its `generation_config`, else 4 beams and at most 256
    tokens.

    Example:
        >>> translator = pipeline("translation", model="user/vaswani-base-en-de")
        >>> translator("The model reads the whole sentence at once.")
        [{'translation_text': 'Das Modell liest den ganzen Satz auf einmal.'}]
    """

    model: Any
    tokenizer: Any
    prefix: str

    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False
    # What Pipeline does with generation settings differs from version to version: they are handled here.
    _pipeline_calls_generate = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        task: str = TASK,
        local_files_only: bool = False,
        **kwargs: Any,
    ):
        """Takes a model with its tokenizers; `transformers.pipeline` calls this.

        Args:
            model: An encoder-decoder model.
            tokenizer: Of the source language; of both, where the vocabulary is joint.
            target_tokenizer: Of the target language. By default the one in the subfolder `target_tokenizer` beside
                `tokenizer`, for a Vaswani model with two vocabularies, and `tokenizer` for every other model. To be
                given with a `revision` or `token` of the user's, which `transformers.pipeline` does not pass on.
            task: "translation", or "translation_XX_to_YY": then XX and YY are the default of `src_lang` and `tgt_lang`.
            local_files_only: Whether to look for the target tokenizer in the cache only.
            **kwargs: What every pipeline takes, such as `device` and `batch_size`, and defaults for calls.

        Raises:
            ValueError: If the model is no encoder-decoder, or has two vocabularies and there is one tokenizer.
        """
        if not model.config.is_encoder_decoder:
            raise ValueError(
                f"`model` must be an encoder-decoder model to translate, but {type(model).__name__} is none."
            )
        direction = _DIRECTION.fullmatch(task)
        if direction and "src_lang" not in kwargs and "tgt_lang" not in kwargs:
            kwargs["src_lang"], kwargs["tgt_lang"] = direction.groups()
        settings = dict((getattr(model.config, "task_specific_params", None) or {}).get(task, {}))
        self.prefix = settings.pop("prefix", None) or getattr(model.config, "prefix", None) or ""
        set_by_checkpoint = {**model.generation_config.to_diff_dict(), **settings}
        self._default_settings = {**settings, **_missing(_DEFAULTS, set_by_checkpoint)}
        super().__init__(model, tokenizer, task=task, **kwargs)  # type: ignore[arg-type]
        if target_tokenizer is None and _has_target_tokenizer(model, tokenizer):
            target_tokenizer = _load_target_tokenizer(model, tokenizer, local_files_only)
        self.target_tokenizer = target_tokenizer if target_tokenizer is not None else tokenizer

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Translations of one text or many.

        Args:
            inputs: A text, a sequence of texts, or a generator, dataset or other iterable of texts.
            **kwargs: For this call: `batch_size`; `truncation` of the source to the `model_max_length` of the
                tokenizer (bool); `src_lang` and `tgt_lang` for tokenizers of many languages; `return_tensors` for
                token ids in place of texts, together with `return_text` for both; `clean_up_tokenization_spaces`;
                the rest, such as `num_beams` and `max_new_tokens`, goes to `generate`.

        Returns:
            For a text the list of its K translations, each a dict with `translation_text` (str) or
            `translation_token_ids` ([T] int64). For a sequence a list with one such dict per text, or with one such
            list where K is not 1. For other iterables an iterator of such lists, which reads as it goes.

        Raises:
            TypeError: If a text is no str.
        """
        if isinstance(inputs, (str, Mapping)):
            return super().__call__(inputs, **kwargs)
        if isinstance(inputs, Sized) and len(inputs) == 0:
            return []
        if isinstance(inputs, Sequence):
            results = super().__call__(list(inputs), **kwargs)
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        if isinstance(inputs, Iterable) and not isinstance(inputs, Dataset):
            # Pipeline streams generators and torch datasets, and takes another iterable for a single input.
            inputs = (text for text in inputs)
        return super().__call__(inputs, **kwargs)

    def _sanitize_parameters(
        self,
        truncation=None,
        src_lang=None,
        tgt_lang=None,
        return_tensors=None,
        return_text=None,
        clean_up_tokenization_spaces=None,
        **generate_kwargs,
    ):
        preprocess = {"truncation": truncation, "src_lang": src_lang, "tgt_lang": tgt_lang}
        postprocess = {
            "return_tensors": return_tensors,
            "return_text": return_text,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        return _given(preprocess), generate_kwargs, _given(postprocess)

    def preprocess(  # type: ignore[override]
        self, input_: Any, truncation: bool | str = False, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> dict[str, Any]:
        """The model's inputs for a text.

        Args:
            input_: The text, a str.
            truncation: As the tokenizer takes it.
            src_lang: The language of the text, for a tokenizer of many languages.
            tgt_lang: The language of the translation, for a tokenizer of many languages.

        Returns:
            `input_ids` and `attention_mask` [1, S] int64, `is_empty` [1] bool, and what the tokenizer adds.

        Raises:
            TypeError: If `input_` is no str.
        """
        if not isinstance(input_, str):
            raise TypeError(f"A text to translate must be a str, but one is of type {type(input_).__name__}.")
        settings = {"return_tensors": "pt", "truncation": truncation}
        if hasattr(self.tokenizer, "_build_translation_inputs"):
            languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
            inputs = dict(self.tokenizer._build_translation_inputs(input_, **languages, **settings))
        else:
            inputs = dict(self.tokenizer(self.prefix + input_, **settings))
        # Tokenizers give them by default, and generate() refuses them.
        inputs.pop("token_type_ids", None)
        return {**inputs, "is_empty": torch.tensor([not input_.strip()])}

    def _forward(self, input_tensors, **generate_kwargs):
        is_empty = input_tensors.pop("is_empty").tolist()
        config = generate_kwargs.get("generation_config")
        if config is None:
            config = self.model.generation_config
            generate_kwargs = {**generate_kwargs, **_missing(self._default_settings, generate_kwargs)}
        num_translations = generate_kwargs.get("num_return_sequences", config.num_return_sequences) or 1
        translations = iter(())
        if not all(is_empty):
            inputs = _select([row for row, empty in enumerate(is_empty) if not empty], input_tensors)
            _warn_if_limit_is_short(inputs["input_ids"].shape[1], {**_given(vars(config)), **generate_kwargs})
            output_ids = self.model.generate(**{**inputs, **generate_kwargs})
            translations = iter(output_ids.view(-1, num_translations, output_ids.shape[1]))
        nothing = torch.zeros(num_translations, 0, dtype=torch.int64)
        return {"output_ids": [nothing if empty else next(translations) for empty in is_empty]}

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """The translations of one text.

        Args:
            model_outputs: `output_ids` [1, K, T] int64.
            return_tensors: Whether to give token ids.
            return_text: Whether to give the text beside the token ids; without these there is always text.
            clean_up_tokenization_spaces: Whether to take out the spaces before punctuation.

        Returns:
            K dicts.
        """
        records = []
        for output_ids in model_outputs["output_ids"][0]:
            record = {"translation_token_ids": output_ids} if return_tensors else {}
            if return_text or not return_tensors:
                record["translation_text"] = self.target_tokenizer.decode(
                    output_ids,
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
            records.append(record)
        return records

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves the model and its tokenizers so that `pipeline` finds them.

        Args:
            save_directory: The folder, made if it does not exist.
            **kwargs: Passed to the model's and the source tokenizer's `save_pretrained`.
        """
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(os.path.join(save_directory, TARGET_FOLDER))
        super().save_pretrained(save_directory, **kwargs)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _missing(defaults: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults for what is not set; either maximum length stands for both, which generate() must not get at once."""
    settled = _LENGTHS | settings.keys() if _LENGTHS & settings.keys() else settings.keys()
    return {name: value for name, value in defaults.items() if name not in settled}


def _select(rows: list[int], inputs: Mapping[str, Any]) -> dict[str, Any]:
    # Collating makes a list of what is no tensor: the id of the target language, the same in the whole batch.
    return {
        name: value[rows] if isinstance(value, torch.Tensor) else value[0] if isinstance(value, list) else value
        for name, value in inputs.items()
    }


def _warn_if_limit_is_short(source_length: int, settings: Mapping[str, Any]) -> None:
    limit = settings.get("max_new_tokens", settings.get("max_length"))
    # The share of transformers 4.
    if limit is not None and source_length > 0.9 * limit:
        logger.warning(
            f"A text has {source_length} tokens, and its translation can have no more than {limit}; "
            "if it is cut off, give a larger `max_new_tokens`."
        )


def _has_target_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    if model.config.model_type != "vaswani" or model.config.share_encoder_decoder_embeddings:
        return False
    # Two embeddings may stand over one vocabulary: tokenizers that were saved as a pair say whether they do.
    return tokenizer.init_kwargs.get("separate_vocabs", True)


def _load_target_tokenizer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, local_files_only: bool
) -> PreTrainedTokenizerBase:
    try:
        # Not by AutoTokenizer: it asks for a config.json beside the tokenizer, and in the subfolder there is none.
        return PreTrainedTokenizerFast.from_pretrained(
            tokenizer.name_or_path,
            subfolder=TARGET_FOLDER,
            # The model's commit, where transformers keeps it: its newer versions do not.
            revision=getattr(model.config, "_commit_hash", None) or "main",
            local_files_only=local_files_only,
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            "`target_tokenizer` must be given for a model with two vocabularies, because none could be loaded from "
            f"the subfolder `{TARGET_FOLDER}` of {tokenizer.name_or_path!r}."
        ) from error


def register_translation_pipeline() -> None:
    """Makes `pipeline("translation")` and `pipeline("translation_XX_to_YY")` work where transformers lacks the task.

    Does nothing where transformers has it, or after the first call.
    """
    if TASK in PIPELINE_REGISTRY.supported_tasks:
        return
    # pipeline() refuses what is listed there before it asks the registry; older versions have no such list.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    # With it Pipeline.save_pretrained would write `custom_pipelines` into the config of any model that translates,
    # T5 for example, and pipeline() would then demand `trust_remote_code` for that checkpoint.
    del TranslationPipeline._registered_impl  # type: ignore[attr-defined]
    check_task = PIPELINE_REGISTRY.check_task

    def check_task_with_direction(task: str) -> tuple[str, dict, Any]:
        return check_task(TASK if _DIRECTION.fullmatch(task) else task)

    PIPELINE_REGISTRY.check_task = check_task_with_direction  # type: ignore[method-assign]


__all__ = ["TranslationPipeline", "register_translation_pipeline"]
