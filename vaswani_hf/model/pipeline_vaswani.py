"""The translation pipeline, which transformers 5 no longer has: `pipeline("translation", model=...)`.

This file travels with every checkpoint so that the task works without the package; with the package
`vaswani_hf.TranslationPipeline` adds what does not travel. It is a thin adapter of the engine in
`translator_vaswani` and behaves as the pipeline of transformers 4 did, for every model that `AutoModelForSeq2SeqLM` loads.
Differs from it: an empty text is translated to an empty text, lists are sorted by length, texts that are too long for a
Vaswani model are translated in pieces, and a model may have a second tokenizer for the target language.
Letters of shapes: T target length, K translations of one text (`num_return_sequences`).
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Pipeline, PreTrainedTokenizerFast

from .configuration_vaswani import TARGET_FOLDER, eos_token_ids
from .generation_vaswani import is_filled
from .translator_vaswani import (
    TOKENIZING,
    Request,
    TranslationEngine,
    TranslationOptions,
    check_tokenizers,
    checked_text,
    setting_of,
)

TASK = "translation"
DIRECTION = re.compile(r"translation_(.+?)_to_(.+)")
# Arguments of a call that are none of `generate`, by the step that takes them.
_CONSTRAINTS = ("target_prefix", "must_contain")
_TOKENIZE = ("truncation", "src_lang", "tgt_lang")
_BOTH = ("return_scores", "return_alignments")
_POSTPROCESS = ("return_tensors", "return_text", *_BOTH)
_STARTS = ("decoder_start_token_id", "bos_token_id")
# Arguments that the package adds; see `TranslationPipeline.engine`.
_OF_THE_PACKAGE = (*_BOTH, *_CONSTRAINTS, "split_sentences", "repetition_guard", "on_error")


class TranslationPipeline(Pipeline):
    """Translations of texts, by any encoder-decoder model that generates.

    The generation settings are those of the call, else those of the constructor, else those that the checkpoint has
    for the task (`task_specific_params` of T5), else those of its `generation_config`, else 4 beams and at most 256
    tokens; for a Vaswani model at most 50 more than the text has.

    Example:
        >>> translator = pipeline("translation", model="user/vaswani-base-en-de")
        >>> translator("The model reads the whole sentence at once.")
        [{'translation_text': 'Das Modell liest den ganzen Satz auf einmal.'}]
    """

    model: Any
    tokenizer: Any
    _load_tokenizer: Any = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False  # type: ignore
    # Pipeline handles generation settings otherwise from version to version; the engine handles them here.
    _pipeline_calls_generate = False

    def __init__(self, model, tokenizer, *, target_tokenizer=None, task=TASK, local_files_only=False, **kwargs: Any):
        """Takes a model with its tokenizers, as `transformers.pipeline` does, and defaults for calls.

        The task may be "translation_XX_to_YY": then XX and YY are the default of `src_lang` and `tgt_lang`. The target
        tokenizer is by default the one in the subfolder `target_tokenizer` beside `tokenizer`, for a Vaswani model with
        two vocabularies, and `tokenizer` for every other model.

        Raises:
            ValueError: If the model is no encoder-decoder, or the tokenizers are not those of the model.
        """
        if not model.config.is_encoder_decoder:
            raise ValueError(f"`model` must be an encoder-decoder to translate, but {type(model).__name__} is none.")
        if (direction := DIRECTION.fullmatch(task)) and not kwargs.keys() & {"src_lang", "tgt_lang"}:
            kwargs["src_lang"], kwargs["tgt_lang"] = direction.groups()
        self._task_settings = dict((getattr(model.config, "task_specific_params", None) or {}).get(task, {}))
        self._prefix = self._task_settings.pop("prefix", None) or getattr(model.config, "prefix", None) or ""
        super().__init__(model, tokenizer, task=task, **kwargs)  # type: ignore[arg-type]
        self.target_tokenizer: Any = target_tokenizer
        if target_tokenizer is None:
            self.target_tokenizer = _target_tokenizer(model, tokenizer, local_files_only)
        if model.config.model_type == "vaswani":
            check_tokenizers(model, tokenizer, self.target_tokenizer, model.name_or_path)

    def __call__(self, inputs: Any, *others: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Translations of one text or many.

        Args:
            inputs: A text, a sequence of texts, or a generator, dataset or other iterable of texts.
            *others: Nothing; several texts are one list.
            **kwargs: For this call: `batch_size` (texts at most; by default batches of a Vaswani model hold 4096 tokens, those of
                another model one text); `truncation` of the source to the tokenizer's `model_max_length` (bool); `src_lang` and
                `tgt_lang`; `return_tensors` for token ids in place of texts, with `return_text` for both, or a `return_type` of
                "tensors" or "text"; `stop_sequence`, whose first token ends a translation as `</s>` does;
                `clean_up_tokenization_spaces`; with the package imported also `return_scores`, `return_alignments`,
                `split_sentences`, `repetition_guard`, `target_prefix` (a text that each translation begins with, or for a
                sequence a list of them) and `must_contain` (a list of phrases that each translation contains, or for a sequence a
                list of such lists); the rest, such as `num_beams`, `max_new_tokens` and `ensemble`, goes to `generate`.

        Returns:
            For a text the list of its K translations, each a dict with `translation_text` (str) or `translation_token_ids`
            ([T] int64), with scores also `score`, `confidence` and `words`, with alignments `alignment`, as `Translation` has them;
            `unmet_phrases` if the translation lacks phrases of `must_contain`. There are fewer than K if the search finds fewer. For a sequence a list of one such dict per text, or of such lists where K is not 1. For other iterables an iterator of
            such lists, which reads as it goes.

        Raises:
            TypeError: If a text is no str, or texts are several arguments.
            ValueError: If a setting is impossible, or UTF-8 cannot write a text.
        """
        if others:
            raise TypeError(
                f"Texts must be one argument, a list such as `[{inputs!r:.40}, {others[0]!r:.40}]`, but are {1 + len(others)} "
                "arguments."
            )
        _, forward, postprocess = self._sanitize_parameters(**kwargs)
        forward, postprocess = {**self._forward_params, **forward}, {**self._postprocess_params, **postprocess}
        forward["batch_size"] = forward.get("batch_size") or self._batch_size
        if isinstance(inputs, Sized) and not isinstance(inputs, (str, Mapping)) and len(inputs) == 0:
            return []
        if isinstance(inputs, Dataset) and isinstance(inputs, Sized):
            dataset: Any = inputs
            inputs = map(dataset.__getitem__, range(len(dataset)))
        given = {name: forward.pop(name, None) for name in _CONSTRAINTS}
        constraints = {name: value for name, value in given.items() if is_filled(value) and value != ""}
        if constraints:
            inputs = self.constrained_inputs(inputs, **constraints)
        if isinstance(inputs, (str, Mapping, Request)) or not isinstance(inputs, Iterable):
            return next(self._run([inputs], forward, postprocess))
        if isinstance(inputs, Sequence):
            records = list(self._run(inputs, forward, postprocess))
            settings = {**self._task_settings, **forward}
            number = setting_of("num_return_sequences", settings, self.model.generation_config)
            return [of_text[0] for of_text in records] if number in (None, 1) else records
        return self._run(inputs, {**forward, "window": forward["batch_size"] or 1}, postprocess)

    def constrained_inputs(self, inputs: Any, **constraints: Any) -> Any:
        """The inputs of a call as `Request`s with their constraints; `vaswani_hf.TranslationPipeline` makes them.

        Raises:
            ModuleNotFoundError: Always, because the package reads constraints.
        """
        raise _package_needed(min(constraints))

    def engine(self, package_options: Sequence[str], ensemble: Sequence[Any]) -> TranslationEngine:
        """The engine of a call; `vaswani_hf.TranslationPipeline` takes `Translator`, which knows the options of the package.

        Raises:
            ModuleNotFoundError: If there are such options.
        """
        if package_options:
            raise _package_needed(package_options[0])
        return self.make_engine(TranslationEngine, ensemble)

    def make_engine(self, engine_class: type[TranslationEngine], ensemble: Sequence[Any]) -> TranslationEngine:
        """An engine of this class, with the model, the tokenizers and the settings of this pipeline."""
        return engine_class(
            self.model,
            self.tokenizer,
            self.target_tokenizer,
            ensemble,
            prefix=self._prefix,
            task_settings=self._task_settings,
        )

    def _run(self, texts: Iterable[Any], forward: dict[str, Any], postprocess: dict[str, Any]) -> Iterator[Any]:
        texts, window, done = iter(texts), forward.get("window", TranslationOptions.window), 0
        while read := list(islice(texts, window)):
            requests = [self.preprocess(text)["requests"][0] for text in read]
            outputs = self.forward({"requests": requests, "first_line": done + 1}, **forward)
            done += len(read)
            for translations in outputs["translations"]:
                yield self.postprocess({**outputs, "translations": [translations]}, **postprocess)

    def _sanitize_parameters(self, **kwargs):
        if (kind := kwargs.pop("return_type", None)) is not None:
            # An enumeration in transformers 4; that of transformers 5 has other names for texts.
            kind = str(getattr(kind, "name", kind)).upper()
            if kind not in ("TENSORS", "TEXT", "NEW_TEXT", "FULL_TEXT"):
                raise ValueError(f'`return_type` must be "tensors" or "text", but is {kind.lower()!r}.')
            kwargs |= {"return_tensors": kind == "TENSORS", "return_text": kind != "TENSORS"}
        if kwargs.get("split_sentences") and kwargs.get("return_tensors"):
            raise ValueError("`return_tensors` must be left out with `split_sentences`, which joins texts.")
        kwargs.pop("num_workers", None)
        postprocess = {name: kwargs[name] for name in _POSTPROCESS if kwargs.get(name) is not None}
        forward = {name: value for name, value in kwargs.items() if name not in ("return_tensors", "return_text")}
        return {}, forward, postprocess

    def preprocess(self, input_: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"requests": [input_ if isinstance(input_, Request) else Request(checked_text(input_))]}

    def _forward(self, model_inputs, **settings):
        requests, is_ours = model_inputs["requests"], self.model.config.model_type == "vaswani"
        of_package = [n for n in _OF_THE_PACKAGE if settings.get(n) or any(getattr(r, n, None) for r in requests)]
        ensemble = settings.pop("ensemble", None)
        engine = self.engine(of_package, () if ensemble is None else ensemble)
        settings["batch_size"] = settings.get("batch_size") or (None if is_ours else 1)
        decode = {"clean_up_tokenization_spaces": bool(settings.pop("clean_up_tokenization_spaces", False))}
        tokenize = {name: value for name in _TOKENIZE if (value := settings.pop(name, None)) is not None}
        if (stop := settings.pop("stop_sequence", None)) is not None:
            given = {"text_target": checked_text(stop, "A stop sequence"), "add_special_tokens": False}
            with TOKENIZING:
                ids = self.target_tokenizer(**given)["input_ids"]
            if len(ids) > 1:
                warnings.warn("`stop_sequence` has several tokens; the first ends a translation.", stacklevel=2)
            settings["eos_token_id"] = [*ids[:1], *eos_token_ids(self.model.generation_config)]
        options = TranslationOptions.of(**settings, warn_of_limit=True, tokenize=tokenize, decode=decode)
        starts = [setting_of(name, options.generate, self.model.generation_config) for name in _STARTS]
        translations = engine.translations(requests, options, model_inputs.get("first_line", 1))
        return {"translations": list(translations), "start": [i for i in starts if i is not None][:1]}

    def postprocess(  # type: ignore[override]
        self, model_outputs: Any, return_tensors=False, return_text=False, return_scores=False, return_alignments=False
    ) -> list[dict[str, Any]]:
        """The K records of one text, which are in `translations`; token ids begin with the decoder's `start`."""
        records = []
        for translation in model_outputs["translations"][0]:
            ids = [*model_outputs["start"], *translation.token_ids] if translation.token_ids else []
            record = {"translation_token_ids": torch.tensor(ids, dtype=torch.int64)} if return_tensors else {}
            if return_text or not return_tensors:
                record["translation_text"] = translation.text
            if return_scores or return_alignments:
                record |= translation.record(return_scores, return_alignments)
            if unmet := getattr(translation, "unmet_phrases", None):
                record["unmet_phrases"] = unmet
            records.append(record)
        return records

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves the model and its tokenizers so that `pipeline` finds them."""
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(os.path.join(save_directory, TARGET_FOLDER))
        super().save_pretrained(save_directory, **kwargs)


def _package_needed(argument: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"`{argument}` needs the package vaswani_hf, which the code of this checkpoint does without; run `pip install "
        "vaswani_hf`, `import vaswani_hf` and load it again, or leave it out."
    )


def _target_tokenizer(model: Any, tokenizer: Any, local_files_only: bool) -> Any:
    is_shared = model.config.model_type != "vaswani" or model.config.share_encoder_decoder_embeddings
    # Two embeddings may stand over one vocabulary: tokenizers that were saved as a pair say whether they do.
    if is_shared or not tokenizer.init_kwargs.get("separate_vocabs", True):
        return tokenizer
    place: dict[str, Any] = {"subfolder": TARGET_FOLDER, "local_files_only": local_files_only}
    name = tokenizer.name_or_path
    if model.origin is not None and (model.origin / TARGET_FOLDER).is_dir() and name == model.name_or_path:
        # The folder has the model's revision and needs no token of the user's: pipeline() passes on neither.
        name, place = str(model.origin / TARGET_FOLDER), {}
    try:
        # AutoTokenizer would ask for a config.json beside the tokenizer, and in the subfolder there is none.
        return PreTrainedTokenizerFast.from_pretrained(name, **place)
    except (OSError, ValueError) as error:
        raise ValueError(
            "`target_tokenizer` must be given for a model with two vocabularies, because none could be loaded from "
            f"the subfolder `{TARGET_FOLDER}` of {tokenizer.name_or_path!r}."
        ) from error
