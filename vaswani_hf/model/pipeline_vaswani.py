"""The translation pipeline, which transformers 5 no longer has: `pipeline("translation", model=...)`.

It behaves as the one of transformers 4 did, for every model that `AutoModelForSeq2SeqLM` loads. Differs from it: an
empty text is translated to an empty text, a model may have a second tokenizer for the target language, and there are
scores, word alignments, constraints, long texts and a guard against loops.

Letters of shapes: B batch, S source length, T target length, K translations of one text (`num_return_sequences`).
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
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

from .alignment_vaswani import source_word_indices
from .configuration_vaswani import PACKAGE_PARTS, TARGET_FOLDER
from .constraints_vaswani import (
    assign_phrases,
    constraint_arguments,
    phrase_token_ids,
    prefix_token_ids,
    translation_token_ids,
)
from .repetition_vaswani import is_loop, ngram_size_without_loops
from .scoring_vaswani import Hypothesis, Scorer, Translation, join_translations, scoring_config
from .sentences_vaswani import split_sentences

logger = logging.get_logger(__name__)

TASK = "translation"
_DIRECTION = re.compile(r"translation_(.+?)_to_(.+)")
# Those of the pipeline of transformers 4, for what neither the user nor the checkpoint sets.
_DEFAULTS = {"max_new_tokens": 256, "num_beams": 4}
_LENGTHS = {"max_new_tokens", "max_length"}
# Settings of a call that are none of `generate`, by the step that takes them.
_PREPROCESS = ("truncation", "src_lang", "tgt_lang", "target_prefix", "must_contain", "return_alignments")
_FORWARD = ("return_scores", "return_alignments", "repetition_guard")
_POSTPROCESS = (
    "return_tensors",
    "return_text",
    "clean_up_tokenization_spaces",
    "split_sentences",
    "return_scores",
    "return_alignments",
)


@dataclass(frozen=True)
class _Request:
    """A text with what is asked of its translation alone; None where it is what is asked of all."""

    text: str
    target_prefix: str | None = None
    must_contain: Sequence[str] | None = None


@dataclass(frozen=True)
class _Source:
    """What `_forward` knows of a text beside its tensors."""

    text: str
    prefix: list[int]
    phrases: list[list[int]]
    # Of each token the word that it belongs to, where alignments are asked for.
    words: list[int] | None


@dataclass(frozen=True)
class _Found:
    """The K translations of a text."""

    output_ids: torch.Tensor  # [K, T] int64
    hypotheses: list[Hypothesis]
    scored: list[Translation] | None = None


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
                `tokenizer`, for a Vaswani model with two vocabularies, and `tokenizer` for every other model.
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
        defaults = dict(_DEFAULTS)
        if model.config.model_type == "vaswani":
            # Its `generate` has a default of its own for each sentence.
            del defaults["max_new_tokens"]
        self._default_settings = {**settings, **_missing(defaults, set_by_checkpoint)}
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
                `return_scores`; `return_alignments`, for Vaswani models; `target_prefix`, a text that each
                translation begins with, or for a sequence a list of them; `must_contain`, a list of phrases that each
                translation contains, or for a sequence a list of such lists; `split_sentences`, to translate long
                texts sentence by sentence, line breaks and spaces kept; `repetition_guard`, to translate once more
                what has fallen into a loop; the rest, such as `num_beams` and `max_new_tokens`, goes to `generate`.

        Returns:
            For a text the list of its K translations, each a dict with `translation_text` (str) or
            `translation_token_ids` ([T] int64); with scores also `score` (what beam search reports), `confidence`
            (the geometric mean of the probabilities of the tokens, `</s>` included) and `words`, dicts with `word` and
            `confidence` (the product over its tokens); with alignments `alignment`, for each word of the translation
            the one that it was translated from ("0-0 2-1", source word - target word). For a sequence a list with one
            such dict per text, or with one such list where K is not 1. For other iterables an iterator of such lists,
            which reads as it goes.

        Raises:
            TypeError: If a text is no str.
        """
        inputs = _with_own_constraints(inputs, kwargs)
        if kwargs.get("split_sentences", self._postprocess_params.get("split_sentences")):
            return self._translate_split(inputs, kwargs)
        if isinstance(inputs, (str, Mapping)):
            return super().__call__(inputs, **kwargs)
        if isinstance(inputs, Sized) and len(inputs) == 0:
            return []
        if isinstance(inputs, Sequence):
            return _flat(super().__call__(list(inputs), **kwargs))
        if isinstance(inputs, Iterable) and not isinstance(inputs, Dataset):
            # Pipeline streams generators and torch datasets, and takes another iterable for a single input.
            inputs = (text for text in inputs)
        return super().__call__(inputs, **kwargs)

    def _translate_split(self, inputs: Any, kwargs: dict[str, Any]) -> Any:
        """What `__call__` gives, with each sentence translated by itself."""
        if isinstance(inputs, (str, Mapping)):
            return next(self._translate_each_split([inputs], kwargs))
        texts = (inputs[i] for i in range(len(inputs))) if isinstance(inputs, Dataset) else iter(inputs)
        translations = self._translate_each_split(texts, kwargs)
        return _flat(list(translations)) if isinstance(inputs, Sequence) else translations

    def _translate_each_split(self, texts: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        layouts: deque[tuple[list[_Request], list[str]]] = deque()

        def sentences() -> Iterator[_Request]:
            for text in texts:
                layouts.append(self._split(text, kwargs))
                yield from layouts[-1][0]

        settings = {**self._postprocess_params, **kwargs}
        wanted = {name: bool(settings.get(name)) for name in ("return_scores", "return_alignments")}
        found: list[list[Translation]] = []
        for translations in super().__call__(sentences(), **kwargs):
            found.append(translations)
            requests, separators = layouts[0]
            if len(found) == len(requests):
                layouts.popleft()
                num_words = [0]
                for request in requests:
                    num_words.append(num_words[-1] + len(request.text.split()))
                joined = [join_translations(parts, separators, num_words) for parts in zip(*found, strict=True)]
                yield [_record(translation, **wanted) for translation in joined]
                found = []

    def _split(self, text: Any, kwargs: dict[str, Any]) -> tuple[list[_Request], list[str]]:
        """The sentences of a text, at least one, and what stands around them."""
        request = text if isinstance(text, _Request) else _Request(_checked(text))
        settings = {**self._preprocess_params, **kwargs}
        prefix = request.target_prefix if request.target_prefix is not None else settings.get("target_prefix")
        phrases = request.must_contain if request.must_contain is not None else settings.get("must_contain")
        sentences, separators = split_sentences(request.text)
        if not sentences:
            return [_Request("", "", ())], ["", ""]
        phrases_of = assign_phrases(phrases or (), sentences)
        requests = [_Request(*pair) for pair in zip(sentences, [""] * len(sentences), phrases_of, strict=True)]
        return [replace(requests[0], target_prefix=prefix or ""), *requests[1:]], separators

    def _sanitize_parameters(self, **kwargs):
        if kwargs.get("split_sentences") and kwargs.get("return_tensors"):
            raise ValueError("`return_tensors` must be left out with `split_sentences`, which joins texts.")
        preprocess, forward, postprocess = (
            {name: kwargs[name] for name in names if kwargs.get(name) is not None}
            for names in (_PREPROCESS, _FORWARD, _POSTPROCESS)
        )
        generate = {name: kwargs[name] for name in kwargs.keys() - {*_PREPROCESS, *_FORWARD, *_POSTPROCESS}}
        return preprocess, {**forward, **generate}, postprocess

    def preprocess(  # type: ignore[override]
        self, input_: Any, target_prefix: str = "", must_contain: Sequence[str] = (), **settings: Any
    ) -> dict[str, Any]:
        """The model's inputs for a text.

        Args:
            input_: The text, a str.
            target_prefix: What its translation begins with.
            must_contain: Phrases that its translation contains.
            **settings: `truncation`, as the tokenizer takes it; `src_lang` and `tgt_lang`, for a tokenizer of many
                languages; `return_alignments`.

        Returns:
            `input_ids` and `attention_mask` [1, S] int64, `is_empty` [1] bool, what the tokenizer adds, and `source`.

        Raises:
            TypeError: If `input_` is no str.
            ValueError: If a phrase is empty.
        """
        request = input_ if isinstance(input_, _Request) else _Request(_checked(input_))
        prefix = target_prefix if request.target_prefix is None else request.target_prefix
        phrases = must_contain if request.must_contain is None else request.must_contain
        with_alignment = settings.pop("return_alignments", False)
        inputs = self._encode(request.text, **settings)
        source = _Source(
            request.text,
            prefix_token_ids(prefix, self.target_tokenizer),
            [phrase_token_ids(phrase, self.target_tokenizer) for phrase in phrases],
            self._words(request.text, inputs["input_ids"].shape[1]) if with_alignment else None,
        )
        return {**inputs, "is_empty": torch.tensor([not request.text.strip()]), "source": source}

    def _encode(
        self, text: str, truncation: bool | str = False, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> dict[str, Any]:
        settings = {"return_tensors": "pt", "truncation": truncation}
        if hasattr(self.tokenizer, "_build_translation_inputs"):
            languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
            inputs = dict(self.tokenizer._build_translation_inputs(text, **languages, **settings))
        else:
            inputs = dict(self.tokenizer(self.prefix + text, **settings))
        # Tokenizers give them by default, and generate() refuses them.
        inputs.pop("token_type_ids", None)
        return inputs

    def _words(self, text: str, num_tokens: int) -> list[int]:
        """The word of each of the tokens, of which the last is `</s>` even where others were cut off."""
        encoded = self.tokenizer(
            self.prefix + text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )
        words = source_word_indices(self.prefix + text, encoded["offset_mapping"], encoded["special_tokens_mask"])
        before = len(self.prefix.split())
        return [word - before if word >= before else -1 for word in [*words[: num_tokens - 1], -1]]

    def _forward(
        self, input_tensors, return_scores=False, return_alignments=False, repetition_guard=False, **generate_kwargs
    ):
        sources = input_tensors.pop("source")
        # Collating makes lists of what is no tensor, and is left out for one text.
        sources = sources if isinstance(sources, list) else [sources]
        is_empty = input_tensors.pop("is_empty").tolist()
        if generate_kwargs.get("generation_config") is None:
            generate_kwargs = {**generate_kwargs, **_missing(self._default_settings, generate_kwargs)}
        rows = [row for row, empty in enumerate(is_empty) if not empty]
        found = {}
        if rows:
            inputs = _select(rows, input_tensors)
            found = dict(
                zip(rows, self._generate(inputs, [sources[row] for row in rows], generate_kwargs), strict=True)
            )
        if repetition_guard:
            found |= self._without_loops(found, sources, input_tensors, generate_kwargs)
        if rows and (return_scores or return_alignments):
            hypotheses = [found[row].hypotheses for row in rows]
            words = [sources[row].words for row in rows]
            for row, scored in zip(rows, self._score(inputs, hypotheses, words, generate_kwargs), strict=True):
                found[row] = replace(found[row], scored=scored)
        nothing = self._nothing(generate_kwargs)
        return {"translations": [found.get(row, nothing) for row in range(len(is_empty))]}

    def _generate(
        self, inputs: dict[str, Any], sources: list[_Source], generate_kwargs: dict[str, Any]
    ) -> list[_Found]:
        config = generate_kwargs.get("generation_config") or self.model.generation_config
        _warn_if_limit_is_short(inputs["input_ids"].shape[1], {**_given(vars(config)), **generate_kwargs})
        prefixes = [source.prefix for source in sources]
        if inputs.get("forced_bos_token_id") is not None and any(prefixes):
            # The language of the translation, which `generate` puts first where nothing else is.
            prefixes = [[inputs["forced_bos_token_id"], *prefix] for prefix in prefixes]
        constraints = constraint_arguments(self.model, prefixes, [source.phrases for source in sources])
        output_ids = self.model.generate(**{**inputs, **constraints, **generate_kwargs})
        prompt_length = constraints["decoder_input_ids"].shape[1] if any(prefixes) else 1
        found = []
        for ids, prefix in zip(output_ids.view(len(sources), -1, output_ids.shape[1]), prefixes, strict=True):
            hypotheses = []
            for row in ids.tolist():
                token_ids = translation_token_ids(row, len(prefix), prompt_length, self.model)
                hypotheses.append(Hypothesis(token_ids, len(prefix), self._decode(token_ids)))
            found.append(_Found(ids.cpu(), hypotheses))
        return found

    def _without_loops(
        self,
        found: dict[int, _Found],
        sources: list[_Source],
        input_tensors: dict[str, Any],
        generate_kwargs: dict[str, Any],
    ) -> dict[int, _Found]:
        """What takes the place of translations that have fallen into a loop, by row."""

        def loops(row: int, of_row: _Found) -> bool:
            source = sources[row]
            forced = " ".join(self._decode(ids) for ids in [source.prefix, *source.phrases])
            return is_loop(of_row.hypotheses[0].text, f"{source.text} {forced}")

        looping = [row for row, of_row in found.items() if loops(row, of_row)]
        sizes = [ngram_size_without_loops(sources[row].text) for row in looping]
        mended: dict[int, _Found] = {}
        for size in set(sizes):
            rows = [row for row, own in zip(looping, sizes, strict=True) if own == size]
            settings = {**generate_kwargs, "no_repeat_ngram_size": size}
            again = self._generate(_select(rows, input_tensors), [sources[row] for row in rows], settings)
            mended |= zip(rows, again, strict=True)
        return {row: of_row for row, of_row in mended.items() if not loops(row, of_row)}

    def _score(
        self,
        inputs: dict[str, Any],
        hypotheses: list[list[Hypothesis]],
        words: list[list[int] | None],
        generate_kwargs: dict[str, Any],
    ) -> list[list[Translation]]:
        settings = dict(generate_kwargs)
        config = scoring_config(settings.pop("generation_config", None) or self.model.generation_config, **settings)
        scorer = Scorer([self.model, *(settings.get("ensemble") or ())], self.target_tokenizer, config)
        repeats = len(hypotheses[0])
        batch = {name: inputs[name].repeat_interleave(repeats, dim=0) for name in ("input_ids", "attention_mask")}
        flat_words = [of_text for of_text in words if of_text is not None for _ in range(repeats)] or None
        scored = scorer(batch, [hypothesis for of_text in hypotheses for hypothesis in of_text], flat_words)
        return [scored[i : i + repeats] for i in range(0, len(scored), repeats)]

    def _nothing(self, generate_kwargs: dict[str, Any]) -> _Found:
        """The translations of an empty text."""
        config = generate_kwargs.get("generation_config") or self.model.generation_config
        num_translations = generate_kwargs.get("num_return_sequences", config.num_return_sequences) or 1
        empty = join_translations([], [""])
        return _Found(
            torch.zeros(num_translations, 0, dtype=torch.int64),
            [Hypothesis([], 0, "")] * num_translations,
            [empty] * num_translations,
        )

    def _decode(self, token_ids: Sequence[int], **settings: Any) -> str:
        return self.target_tokenizer.decode(token_ids, skip_special_tokens=True, **settings)

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool = False,
        clean_up_tokenization_spaces: bool = False,
        split_sentences: bool = False,
        **wanted: bool,
    ) -> list[Any]:
        """The translations of one text.

        Args:
            model_outputs: `translations` of the text.
            return_tensors: Whether to give token ids.
            return_text: Whether to give the text beside the token ids; without these there is always text.
            clean_up_tokenization_spaces: Whether to take out the spaces before punctuation.
            split_sentences: Whether the text is a part of another, with whose others it will be joined.
            **wanted: `return_scores` and `return_alignments`.

        Returns:
            K dicts; for a part K translations.
        """
        found = model_outputs["translations"]
        found = found[0] if isinstance(found, list) else found
        records = []
        for i, output_ids in enumerate(found.output_ids):
            text = self._decode(output_ids, clean_up_tokenization_spaces=clean_up_tokenization_spaces)
            translation = replace(found.scored[i], text=text) if found.scored else Translation(text)
            if split_sentences:
                records.append(translation)
                continue
            record = {"translation_token_ids": output_ids} if return_tensors else {}
            shown = _record(translation, **wanted)
            if return_tensors and not return_text:
                del shown["translation_text"]
            records.append({**record, **shown})
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

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Pushes model, tokenizers and code; with the package also the card and the recipe that lay beside the model.

        Args:
            repo_id: user/name.
            **kwargs: `private`, `token`, `revision`, `create_pr`, `commit_message` and `max_shard_size`, as
                transformers takes them.

        Returns:
            The address of the commit.
        """
        if self.model.config.model_type != "vaswani" or "push_pipeline" not in PACKAGE_PARTS:
            return super().push_to_hub(repo_id, **kwargs)
        return PACKAGE_PARTS["push_pipeline"]()(self, repo_id, **kwargs)


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"A text to translate must be a str, but one is of type {type(text).__name__}.")
    return text


def _with_own_constraints(inputs: Any, kwargs: dict[str, Any]) -> Any:
    """Texts with the constraints that were given for each, which are taken out of the settings.

    Raises:
        TypeError: If the phrases are one text.
        ValueError: If there are not as many as texts.
    """
    if isinstance(kwargs.get("must_contain"), str):
        raise TypeError("`must_contain` must be a list of phrases, but is a str.")
    of_each: dict[str, list] = {}
    for name, kind in (("target_prefix", str), ("must_contain", (list, tuple))):
        value = kwargs.get(name)
        entries = value if isinstance(value, (list, tuple)) else ()
        # None stands for a text of which nothing is asked.
        if any(isinstance(e, kind) for e in entries) and all(e is None or isinstance(e, kind) for e in entries):
            of_each[name] = list(kwargs.pop(name))
    if not of_each:
        return inputs
    num_texts = len(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else None
    for name, values in of_each.items():
        if len(values) != num_texts:
            there = "one text or a stream" if num_texts is None else f"{num_texts} texts"
            raise ValueError(f"`{name}` must have one entry per text, but has {len(values)} for {there}.")
    rows = [dict(zip(of_each, values, strict=True)) for values in zip(*of_each.values(), strict=True)]
    return [_Request(_checked(text), **row) for text, row in zip(inputs, rows, strict=True)]


def _flat(results: list[list[Any]]) -> list[Any]:
    return [result[0] for result in results] if all(len(result) == 1 for result in results) else results


def _record(translation: Translation, return_scores: bool = False, return_alignments: bool = False) -> dict[str, Any]:
    record: dict[str, Any] = {"translation_text": translation.text}
    if return_scores:
        words = [asdict(word) for word in translation.words or []]
        record |= {"score": translation.score, "confidence": translation.confidence, "words": words}
    return {**record, "alignment": translation.alignment} if return_alignments else record


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
    place: dict[str, Any] = {"subfolder": TARGET_FOLDER, "local_files_only": local_files_only}
    name = tokenizer.name_or_path
    if model.origin is not None and (model.origin / TARGET_FOLDER).is_dir() and name == model.name_or_path:
        # Of the model's revision, and there without the user's token: pipeline() passes on neither.
        name, place = str(model.origin / TARGET_FOLDER), {}
    try:
        # Not by AutoTokenizer: it asks for a config.json beside the tokenizer, and in the subfolder there is none.
        return PreTrainedTokenizerFast.from_pretrained(name, **place)
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
