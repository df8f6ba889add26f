"""Evaluates a model on a test set: computes BLEU and chrF of the translations, and the perplexity of the
references.
"""

import math
import time
from typing import Any

from transformers.utils import logging

from ..checkpoint.results import JsonObject
from ..model.backend_vaswani import Hypothesis, language_token
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.segment_search_vaswani import batches_by_length
from ..model.tokenizing_vaswani import TOKENIZING
from ..model.translations_vaswani import Translation
from ..translation.translator import Translator
from .bleu import check_tokenizer, score_translations

logger = logging.get_logger(__name__)


class Measurements(JsonObject):
    """The loss of a model on a test set, the number of sentences, and the time of the translation.

    Attributes:
        loss: The loss on the references in nats per token; None if all sentence pairs are too long for the
            model, or if the translations come from a file.
        perplexity: The perplexity per token on the references; None if `loss` is None.
        seconds: The time that the translation took, in seconds; None if the translations come from a file.
    """

    loss: float | None = None
    perplexity: float | None = None
    sentences: int
    seconds: float | None = None
    sentences_per_second: float | None = None


def perplexity(loss: float) -> float:
    """Return exp(loss), the perplexity per token, or infinity if exp(loss) is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


def evaluate(
    model: str | Translator,
    sources: list[str],
    references: list[str],
    *,
    device: str | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    tokenize: str = "13a",
    lowercase: bool = False,
    split_compounds: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Translate a test set, and score the translations with BLEU, chrF and exact match.

    Example:
        >>> from vaswani_hf import Translator, VaswaniConfig, VaswaniForSeq2SeqLM
        >>> from vaswani_hf.data.tokenizer_training import train_tokenizer
        >>> tokenizer = train_tokenizer(["A dog sleeps.", "Ein Hund schläft."], 280)
        >>> config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
        >>> translator = Translator(VaswaniForSeq2SeqLM(config).eval(), tokenizer, tokenizer)
        >>> scores = evaluate(translator, ["A dog sleeps."], ["Ein Hund schläft."], max_new_tokens=5)
        >>> scores["sentences"], len(scores["translations"])
        (1, 1)

    Args:
        model (str or Translator): A checkpoint folder, user/name or user/name@revision on the Hub, or a
            translator.
        sources (list): The source sentences.
        references (list): The reference translation of each sentence.
        device (str, optional): As for `Translator.from_pretrained`: the device of the model.
        dtype (str, optional): As for `Translator.from_pretrained`: the dtype of the weights.
        quantization (str, optional): As for `Translator.from_pretrained`: the quantization of the weights.
        tokenize (str): The tokenizer of sacreBLEU: "13a", "intl", "char", "none" …
        lowercase (bool): Ignore the difference between upper and lower case.
        split_compounds (bool): Split words at hyphens, as in the published BLEU scores for WMT 2014
            English-German.
        **options: Options of `Translator.translate`, such as `num_beams` and `tokens_per_batch`.

    Returns:
        dict: The scores `bleu`, `chrf` and `exact_match` are from 0 to 100. `bleu_signature` and
            `chrf_signature` are the signatures of sacreBLEU. `loss` (nats per token) and `perplexity` are
            computed on the references. Sentence pairs that are too long for the model do not count for `loss`
            and `perplexity`. If all pairs are too long, `loss` and `perplexity` are None. `sentences` is the
            number of sentences, `seconds` is the time that the translation took, and `sentences_per_second`
            is the speed of the translation. `translations` is the list of translations.

    Raises:
        ValueError: If the checkpoint does not exist, if there are no sentences, if the numbers of sentences
            and references differ, or if an option has an impossible value.
        HubError: If a repository cannot be downloaded.
        NotFiniteError: If the model's logits are NaN or infinite.
    """
    check_tokenizer(tokenize)
    if isinstance(model, str):
        model = Translator.from_pretrained(model, device, dtype=dtype, quantization=quantization)
    translations, measured = translate_and_measure(model, sources, references, **options)
    scores = score_translations(
        translations,
        # Remove spaces at both ends, because a line of a corpus can end in spaces.
        [reference.strip() for reference in references],
        tokenize=tokenize,
        lowercase=lowercase,
        split_compounds=split_compounds,
    )
    return {**scores, **measured.as_json(), "translations": translations}


def translate_and_measure(
    translator: Translator,
    sources: list[str],
    references: list[str],
    *,
    tokens_per_batch: int | None = None,
    **options: Any,
) -> tuple[list[str], Measurements]:
    """Return the translations of a test set, and `Measurements` such as the perplexity and the speed."""
    if len(sources) != len(references):
        raise ValueError(
            f"There must be one reference per source sentence, but there are {len(sources)} sources and "
            f"{len(references)} references."
        )
    if not sources:
        raise ValueError("There must be at least one sentence to evaluate, but there is none.")
    if options.get("on_error") == "skip":
        raise InvalidValueError(
            "`on_error` must not be skip, because a skipped sentence has no score; leave `on_error` out."
        )
    if tokens_per_batch is None:
        tokens_per_batch = TranslationOptions.tokens_per_batch
    names = ("src_lang", "tgt_lang")
    languages: dict[str, str] = {name: options[name] for name in names if name in options}
    start = time.perf_counter()
    translated = translate_test_set(translator, sources, tokens_per_batch=tokens_per_batch, **options)
    # With an option such as `return_scores`, a translation is a `Translation`.
    translations = [one.text if isinstance(one, Translation) else one for one in translated]
    seconds = time.perf_counter() - start
    nats, tokens = _likelihood_of_references(translator, sources, references, tokens_per_batch, languages)
    measured = Measurements(
        loss=nats / tokens if tokens else None,
        perplexity=perplexity(nats / tokens) if tokens else None,
        sentences=len(sources),
        seconds=seconds,
        sentences_per_second=len(sources) / seconds,
    )
    return translations, measured


def translate_test_set(
    translator: Translator, sources: list[str], what: str = "", **options: Any
) -> list[Any]:
    """Translate a test set with a progress bar on a terminal. `what` is the name of the system in the
    progress bar.
    """
    from tqdm.auto import tqdm

    if translator.setting("do_sample", **options):
        # Use a fixed seed, so that a second evaluation gives the same scores. Without sampling, do not set
        # the seed, because the seed of PyTorch would change for the caller, too.
        options = {"seed": 1, **options}
    translated = translator.translate(sources, **options)
    description = f"translating {what}".strip()
    # With `disable=None`, tqdm shows no progress bar if stderr is not a terminal.
    bar = tqdm(translated, total=len(sources), unit=" sentences", desc=description, disable=None, leave=False)
    return list(bar)


def _likelihood_of_references(
    translator: Translator,
    sources: list[str],
    references: list[str],
    tokens_per_batch: int,
    languages: dict[str, str],
) -> tuple[float, int]:
    """Return the total negative log-likelihood of the references in nats, and the number of their tokens.
    Leave out the pairs that are too long for the model.
    """
    limit = translator.segmenter.max_length
    options = TranslationOptions.of(**languages)
    segments = translator.segmenter.source_segments((source.strip() for source in sources), options)
    pairs = []
    for segment, target in zip(segments, references, strict=True):
        with TOKENIZING:
            ids = translator.target_tokenizer(text_target=target.strip(), verbose=False)["input_ids"]
        hypothesis = Hypothesis([*language_token(segment), *ids])
        if max(len(segment.token_ids), len(hypothesis.token_ids)) <= limit:
            pairs.append((segment, hypothesis))
    if len(pairs) < len(sources):
        logger.warning(
            f"{len(sources) - len(pairs)} pairs longer than {limit} tokens are left out of the perplexity."
        )
    lengths = [segment.token_ids + hypothesis.token_ids for segment, hypothesis in pairs]
    nats, tokens = 0.0, 0
    for batch in batches_by_length(lengths, 2 * tokens_per_batch):
        scores = translator.backend.score([pairs[i][0] for i in batch], [pairs[i][1] for i in batch], 0)
        for log_probs, _ in scores:
            nats -= sum(log_probs)
            tokens += len(log_probs)
    return nats, tokens
