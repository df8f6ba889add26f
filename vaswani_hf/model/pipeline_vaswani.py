"""Defines `TranslationPipeline`, the class of `pipeline("translation", model=...)`. transformers 5 has no
pipeline for the task "translation".

`TranslationPipeline` behaves like the translation pipeline of transformers 4, with these differences:

- An empty text has an empty translation.
- A batch contains texts of similar length, because the pipeline sorts the texts of a list by length.
- If a text is too long for a Vaswani model, the pipeline translates pieces of the text.
- A model can have a second tokenizer for the target language.
- A call accepts all fields of `TranslationOptions` as arguments.

This file is saved with every checkpoint so that the pipeline works without the package.

In tensor shapes, T is the target length and R the number of translations of one text
(`num_return_sequences`).
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, fields
from functools import partial
from itertools import islice, repeat
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import Pipeline, PreTrainedTokenizerFast

from .checks_vaswani import is_filled
from .configuration_vaswani import TARGET_FOLDER, decoder_start_token_id, eos_token_ids, is_vaswani_seq2seq
from .errors_vaswani import InvalidValueError
from .inputs_vaswani import TranslationOptions
from .precedence_vaswani import completed_settings, config_of_call, setting_of
from .requests_vaswani import InvalidInput, Request, check_text, try_parse
from .tokenizing_vaswani import SEPARATE_MARK, TOKENIZING, check_tokenizers, has_target_tokenizer
from .translations_vaswani import Translation
from .translator_vaswani import BaseTranslator

TASK = "translation"
DIRECTION = re.compile(r"translation_(.+?)_to_(.+)")
# The arguments of a pipeline call that determine the keys of the result dicts.
_POSTPROCESS = ("return_tensors", "return_text", "return_scores", "return_alignments")


class TranslationPipeline(Pipeline):
    """Translates texts with any encoder-decoder model that has `generate`.

    Arguments of a call override arguments of the constructor. The file precedence_vaswani lists the other
    sources of search settings, such as the generation config of the checkpoint. Without any setting, the
    search has 4 beams. If no length limit is set, a translation of a Vaswani model has at most 50 tokens more
    than the source, and a translation of any other model has at most 256 tokens.

    Example:
        >>> from vaswani_hf import TranslationPipeline, VaswaniConfig, VaswaniForSeq2SeqLM
        >>> from vaswani_hf.data.tokenizer_training import train_tokenizer
        >>> tokenizer = train_tokenizer(["A dog sleeps.", "Ein Hund schläft."], 280)
        >>> config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
        >>> translate = TranslationPipeline(VaswaniForSeq2SeqLM(config), tokenizer, device="cpu")
        >>> len(translate(["A dog sleeps.", "A dog."], max_new_tokens=5))
        2
    """

    model: Any
    tokenizer: Any
    _load_tokenizer: Any = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False  # type: ignore

    def __init__(
        self, model, tokenizer, *, target_tokenizer=None, task=TASK, local_files_only=False, **kwargs: Any
    ):
        """Create a pipeline from a model and its tokenizers, as `transformers.pipeline` does.

        Args:
            model (PreTrainedModel): An encoder-decoder model.
            tokenizer (PreTrainedTokenizerBase): The tokenizer of the source language.
            target_tokenizer (PreTrainedTokenizerBase, optional): The tokenizer of the target language. If a
                Vaswani model has two vocabularies, the default is the tokenizer in the subfolder
                `target_tokenizer` of the checkpoint. By default, a Vaswani model with one vocabulary and a
                model of another architecture, such as T5, use `tokenizer` for both languages.
            task (str): "translation" or "translation_XX_to_YY". "translation_XX_to_YY" makes XX the default
                of `src_lang`, and YY the default of `tgt_lang`.
            local_files_only (bool): If True, never download the target tokenizer.
            **kwargs: Arguments of `transformers.Pipeline`, and default values for the arguments of later
                calls of the pipeline.

        Raises:
            ValueError: If the model is not an encoder-decoder, or a tokenizer does not fit the model.
        """
        if not model.config.is_encoder_decoder:
            raise InvalidValueError(
                f"`model` must be an encoder-decoder to translate, but {type(model).__name__} is no "
                "encoder-decoder."
            )
        if (direction := DIRECTION.fullmatch(task)) and not kwargs.keys() & {"src_lang", "tgt_lang"}:
            kwargs["src_lang"], kwargs["tgt_lang"] = direction.groups()
        self._task_settings = dict((getattr(model.config, "task_specific_params", None) or {}).get(task, {}))
        self._prefix = self._task_settings.pop("prefix", None) or getattr(model.config, "prefix", None) or ""
        super().__init__(model, tokenizer, task=task, **kwargs)  # type: ignore[arg-type]
        self.target_tokenizer: Any = target_tokenizer
        if target_tokenizer is None:
            self.target_tokenizer = _target_tokenizer(model, tokenizer, local_files_only)
        if is_vaswani_seq2seq(model):
            check_tokenizers(model, tokenizer, self.target_tokenizer, model.name_or_path)

    def __call__(self, inputs: Any, *others: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Translate a text or many texts.

        Args:
            inputs (str or iterable): A text, or a sequence, generator or dataset of texts.
            *others: Not supported. Pass several texts as one list.
            **kwargs: The fields of `TranslationOptions`, such as `split_sentences`, `repetition_guard`,
                `return_scores` and `return_alignments`. By default a batch has at most 4096 source tokens
                with a Vaswani model, and one text with any other model. `target_prefix` is the text with
                which each translation must begin, or a list with one such text per input. `must_contain` is a
                list of phrases that each translation must contain, or a list that contains a list of phrases
                for each input. `truncation=True` cuts each source at the tokenizer's `model_max_length`.
                `src_lang` and `tgt_lang` are the languages for a multilingual model. If the tokenizer has
                tags of target languages, such as ">>deu<<", `tgt_lang="deu"` adds the tag to each text
                without a tag. `return_tensors=True` returns token ids instead of texts. `return_tensors=True`
                together with `return_text=True` returns token ids and texts. `return_type="tensors"` returns
                token ids, and `return_type="text"` returns texts. `stop_sequence` is a text whose first token
                ends a translation, like `</s>`. `clean_up_tokenization_spaces` is an argument of the target
                tokenizer's `decode`. All other arguments, such as `num_beams` and `ensemble`, are passed to
                `generate`.

        Returns:
            list or Iterator: A list of R translations for a text. For a sequence of texts, a list with one
                translation per text; if R is not 1, a list with one list of translations per text. For any
                other iterable of texts, an iterator with one list of translations per text. A text has fewer
                than R translations if the search finds fewer translations. A translation is a dict with
                `translation_text` (str) or `translation_token_ids` ([T] int64). With `return_scores` the dict
                also contains `score`, `confidence` and `words`. With `return_alignments` the dict also
                contains `alignment` (see `Translation`). If the translation lacks phrases of `must_contain`,
                the dict also contains `unmet_phrases`. With `on_error="skip"`, the dict of an
                invalid text also contains `error`.

        Raises:
            TypeError: If a text is not a str, or a call passes several texts as separate arguments.
            ValueError: If a setting has an invalid value, or a text cannot be encoded as UTF-8.
        """
        if others:
            raise TypeError(
                f"Texts must be one argument, a list such as `[{inputs!r:.40}, {others[0]!r:.40}]`, but are "
                f"{1 + len(others)} arguments."
            )
        _, forward, postprocess = self._sanitize_parameters(**kwargs)
        forward = {**self._forward_params, **forward}
        postprocess = {**self._postprocess_params, **postprocess}
        if forward.get("split_sentences") and postprocess.get("return_tensors"):
            raise InvalidValueError(
                "`return_tensors` must be left out with `split_sentences`, because the translated "
                "sentences are joined as texts."
            )
        forward["batch_size"] = forward.get("batch_size") or self._batch_size
        if isinstance(inputs, Sized) and not isinstance(inputs, (str, Mapping)) and len(inputs) == 0:
            return []
        is_map_style = isinstance(inputs, Dataset) and not isinstance(inputs, IterableDataset)
        if is_map_style and isinstance(inputs, Sized):
            dataset: Any = inputs
            inputs = map(dataset.__getitem__, range(len(dataset)))
        target_prefix = forward.pop("target_prefix", None)
        must_contain = forward.pop("must_contain", None)
        if (is_filled(target_prefix) and target_prefix != "") or is_filled(must_contain):
            inputs = constrained_requests(inputs, target_prefix, must_contain)
        if _is_one_text(inputs):
            return next(self._run([inputs], forward, postprocess))
        if isinstance(inputs, Sequence):
            records = list(self._run(inputs, forward, postprocess))
            config = self.model.generation_config
            settings = completed_settings(
                forward, self._task_settings, config, is_vaswani_seq2seq(self.model)
            )
            number = setting_of("num_return_sequences", settings, config)
            return [of_text[0] for of_text in records] if number == 1 else records
        window = forward.get("window") or forward["batch_size"] or 1
        return self._run(inputs, {**forward, "window": window}, postprocess)

    def _run(
        self, texts: Iterable[Any], forward: dict[str, Any], postprocess: dict[str, Any]
    ) -> Iterator[Any]:
        """Translate 1000 texts at a time by default. Yield a list of result dicts for each text."""
        texts = iter(texts)
        done = 0
        while read := list(islice(texts, forward.get("window") or TranslationOptions.window)):
            requests = [self.preprocess(text)["requests"][0] for text in read]
            outputs = self.forward({"requests": requests, "first_line": done + 1}, **forward)
            done += len(read)
            for translations in outputs["translations"]:
                yield self.postprocess({**outputs, "translations": [translations]}, **postprocess)

    def _sanitize_parameters(self, **kwargs):
        if (kind := kwargs.pop("return_type", None)) is not None:
            # Besides "tensors" and "text", `return_type` can be a member of an enumeration, as in
            # transformers 4, or "NEW_TEXT" or "FULL_TEXT", as in transformers 5.
            kind = str(getattr(kind, "name", kind)).upper()
            if kind not in ("TENSORS", "TEXT", "NEW_TEXT", "FULL_TEXT"):
                raise InvalidValueError(
                    f'`return_type` must be "tensors" or "text", but is {kind.lower()!r}.'
                )
            kwargs |= {"return_tensors": kind == "TENSORS", "return_text": kind != "TENSORS"}
        if kwargs.get("min_confidence") is not None:
            raise InvalidValueError(
                "`min_confidence` must be left out, because a pipeline loads no calibration; use "
                "`vaswani_hf.Translator` instead."
            )
        kwargs.pop("num_workers", None)
        postprocess = {name: kwargs[name] for name in _POSTPROCESS if kwargs.get(name) is not None}
        forward = {
            name: value for name, value in kwargs.items() if name not in ("return_tensors", "return_text")
        }
        return {}, forward, postprocess

    def preprocess(self, input_: Any) -> dict[str, Any]:  # type: ignore[override]
        is_parsed = isinstance(input_, (Request, InvalidInput))
        return {"requests": [input_ if is_parsed else try_parse(Request, input_)]}

    def _forward(self, model_inputs, **settings):
        """Convert the arguments of the call to `TranslationOptions`, and call the translator."""
        ensemble = settings.pop("ensemble", None)
        translator = BaseTranslator(
            self.model,
            self.tokenizer,
            self.target_tokenizer,
            () if ensemble is None else ensemble,
            prefix=self._prefix,
            task_settings=self._task_settings,
        )
        if not settings.get("batch_size"):
            settings["batch_size"] = None if is_vaswani_seq2seq(self.model) else 1
        decode = {"clean_up_tokenization_spaces": bool(settings.pop("clean_up_tokenization_spaces", False))}
        truncation = settings.pop("truncation", None)
        tokenize = {} if truncation is None else {"truncation": truncation}
        stop_sequence = settings.pop("stop_sequence", None)
        if stop_sequence is not None:
            end_ids = eos_token_ids(self.model.generation_config)
            settings["eos_token_id"] = [*self._stop_token_ids(stop_sequence), *end_ids]
        # Remove fields of `TranslationOptions` that are None, because None means the default of the field.
        # Keep settings of `generate` that are None, because None overrides the setting of the checkpoint.
        names = {field.name for field in fields(TranslationOptions)}
        settings = {name: value for name, value in settings.items() if value is not None or name not in names}
        options = TranslationOptions.of(**settings, warn_of_limit=True, tokenize=tokenize, decode=decode)
        start = decoder_start_token_id(config_of_call(options.generate, self.model.generation_config))
        translations = translator.translations(
            model_inputs["requests"], options, model_inputs.get("first_line", 1)
        )
        return {"translations": list(translations), "start": [] if start is None else [start]}

    def _stop_token_ids(self, text: Any) -> list[int]:
        check_text(text, "A stop sequence")
        with TOKENIZING:
            token_ids = self.target_tokenizer(text_target=text, add_special_tokens=False)["input_ids"]
        if len(token_ids) > 1:
            warnings.warn(
                "`stop_sequence` has several tokens; only its first token is used, and ends a translation.",
                stacklevel=2,
            )
        return token_ids[:1]

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: Any,
        return_tensors=False,
        return_text=False,
        return_scores=False,
        return_alignments=False,
    ) -> list[dict[str, Any]]:
        """Return the translations of a text as dicts. Token ids begin with the decoder's start token."""
        records = []
        translation: Translation
        for translation in model_outputs["translations"][0]:
            record: dict[str, Any] = {}
            if return_tensors:
                token_ids = [*model_outputs["start"], *translation.token_ids] if translation.token_ids else []
                record["translation_token_ids"] = torch.tensor(token_ids, dtype=torch.int64)
            if return_text or not return_tensors:
                record["translation_text"] = translation.text
            if return_scores:
                record["score"] = translation.score
                record["confidence"] = translation.confidence
                record["words"] = [asdict(word) for word in translation.words or ()]
            if return_alignments:
                record["alignment"] = translation.alignment
            if translation.unmet_phrases:
                record["unmet_phrases"] = translation.unmet_phrases
            if translation.error:
                record["error"] = translation.error
            records.append(record)
        return records

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save the model and its tokenizers as a checkpoint for `pipeline`."""
        if is_vaswani_seq2seq(self.model):
            self.tokenizer.init_kwargs[SEPARATE_MARK] = self.target_tokenizer is not self.tokenizer
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(os.path.join(save_directory, TARGET_FOLDER))
        super().save_pretrained(save_directory, **kwargs)


def _is_one_text(inputs: Any) -> bool:
    return isinstance(inputs, (str, Mapping, Request)) or not isinstance(inputs, Iterable)


def constrained_requests(inputs: Any, target_prefix: Any = None, must_contain: Any = None) -> Any:
    """Return a `Request` for one text, a list of requests for a sequence of texts, and an iterator of
    requests for any other iterable. An `InvalidInput` replaces the request of an invalid text.
    """
    if not isinstance(must_contain, (list, tuple, set, frozenset, type(None))):
        raise TypeError(f"`must_contain` must be a list of phrases, but is a {type(must_contain).__name__}.")
    if not isinstance(target_prefix, (str, list, tuple, type(None))):
        raise TypeError(
            f"`target_prefix` must be a str or a list of str, but is a {type(target_prefix).__name__}."
        )
    is_one_text = _is_one_text(inputs)
    num_texts = len(inputs) if isinstance(inputs, Sequence) and not is_one_text else None
    prefixes = _one_constraint_per_text("target_prefix", target_prefix, str, "", num_texts)
    phrases = _one_constraint_per_text("must_contain", must_contain, (list, tuple), (), num_texts)
    if is_one_text:
        return try_parse(Request, inputs, next(iter(prefixes)), next(iter(phrases)))
    # Use `map` instead of a list comprehension, because the iterable of texts can be endless.
    requests = map(partial(try_parse, Request), inputs, prefixes, phrases)
    return requests if num_texts is None else list(requests)


def _one_constraint_per_text(
    name: str, value: Any, kind: Any, nothing: Any, num_texts: int | None
) -> Iterable[Any]:
    """If `value` is a list with one constraint per text, return the list with each None replaced by
    `nothing`. If `value` is a single constraint, return an endless iterator that repeats the constraint.
    """
    entries = value if isinstance(value, (list, tuple)) else ()
    is_list_of_them = all(entry is None or isinstance(entry, kind) for entry in entries)
    if not entries or not is_list_of_them:
        return repeat(value or nothing)
    if len(entries) != num_texts:
        texts = "one text or a stream" if num_texts is None else f"{num_texts} texts"
        raise InvalidValueError(f"`{name}` must have one entry per text, but has {len(entries)} for {texts}.")
    return [entry or nothing for entry in entries]


def _target_tokenizer(model: Any, tokenizer: Any, local_files_only: bool) -> Any:
    if not is_vaswani_seq2seq(model):
        return tokenizer
    if not has_target_tokenizer(tokenizer, model.config.share_encoder_decoder_embeddings):
        return tokenizer
    place: dict[str, Any] = {"subfolder": TARGET_FOLDER, "local_files_only": local_files_only}
    name = tokenizer.name_or_path
    origin = model.origin if name == model.name_or_path else None
    if origin is not None and (origin / TARGET_FOLDER).is_dir():
        # Load the target tokenizer from the folder of the model, because this folder has the right revision,
        # and reading a folder needs no access token.
        name = str(origin / TARGET_FOLDER)
        place = {}
    elif origin is not None and not os.path.isdir(name):
        place["revision"] = origin.name
    try:
        # Do not use AutoTokenizer, because AutoTokenizer requires a config.json in the tokenizer's folder.
        return PreTrainedTokenizerFast.from_pretrained(name, **place)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            "`target_tokenizer` must be given for a model with two vocabularies, because no target "
            f"tokenizer could be loaded from the subfolder `{TARGET_FOLDER}` of {tokenizer.name_or_path!r}."
        ) from error
