"""BLEU, chrF and exact match of translations and references, by sacrebleu.

`score_translations` scores a corpus, `exact_match_by` groups of its sentences. `TranslationMetric` is the
same as an `evaluate.Metric`, which is constructed directly, not loaded from the Hub. evaluate.py makes the
translations.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

# perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' of tensor2tensor's get_ende_bleu.sh. For this script text is
# bytes: two hyphens around one letter are both split if the letter is not ASCII.
_COMPOUND = re.compile(rb"(\S)-(\S)")
SPLIT_COMPOUNDS_NOTE = (
    "This BLEU is not sacreBLEU's: compounds were split at their hyphens after tokenization, as for the"
    " published scores of WMT 2014 English-German; compare it only with tokenized, compound-split scores such"
    " as the paper's 27.3 and 28.4."
)


def split_compounds(text: str) -> str:
    """A tokenized text with hyphens within words set apart: "rich-text" becomes "rich ##AT##-##AT## text"."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", text.encode(errors="surrogatepass")).decode(
        errors="surrogatepass"
    )


class CompoundSplitBLEU(BLEU):
    """BLEU of tokenized, compound-split text. Its signature names the split."""

    def __init__(self, tokenize: str, lowercase: bool):
        # Text that ends in " ." is tokenized on purpose here.
        super().__init__(tokenize=tokenize, lowercase=lowercase, force=True)
        tokenizer = self.tokenizer
        # sacreBLEU calls this attribute for hypotheses and references alike.
        self.tokenizer: Any = lambda text: split_compounds(tokenizer(text))
        self.tokenizer_signature = f"{self.tokenizer_signature}+split_compounds"


def check_tokenizer(tokenize: str, key: str = "tokenize") -> None:
    """Refuse a tokenizer that sacreBLEU does not have, or that needs a package or file that is not installed."""
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(f'"{name}"' for name in BLEU.TOKENIZERS)
        raise ValueError(f"`{key}` must be one of {known}, but is {tokenize!r}.")
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError, OSError):
        raise ValueError(
            f"`{key}` is {tokenize!r}, which needs a package or a file that is not there; install what"
            " sacreBLEU's documentation names for this tokenizer, or choose another one, such as 13a."
        ) from None


def corpus_metrics(tokenize: str, lowercase: bool, split_compounds: bool) -> dict[str, BLEU | CHRF]:
    """The metrics of a corpus, "bleu" and "chrf", with the options of `score_translations`."""
    check_tokenizer(tokenize)
    # "none" is for text that is tokenized already. sacrebleu would advise against such text each time.
    bleu = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    if split_compounds:
        bleu = CompoundSplitBLEU(tokenize, lowercase)
    return {"bleu": bleu, "chrf": CHRF(lowercase=lowercase)}


def score_translations(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    split_compounds: bool = False,
) -> dict[str, float | str]:
    """The scores of a corpus and the signatures under which to report them.

    BLEU is that of Papineni et al. (2002) as `sacrebleu` computes it (Post, 2018), on detokenized text. chrF
    is that of Popović (2015), chrF2 with character 6-grams.
    """
    bleu, chrf = corpus_metrics(tokenize, lowercase, split_compounds).values()
    reference_lists = _reference_lists(predictions, references)
    # sacrebleu wants one list per reference number, with None where a translation has fewer references than
    # others.
    references_by_number = list(itertools.zip_longest(*reference_lists))
    bleu_score = bleu.corpus_score(predictions, references_by_number)
    chrf_score = chrf.corpus_score(predictions, references_by_number)
    scores = {
        "bleu": bleu_score.score,
        "chrf": chrf_score.score,
        "exact_match": _exact_match(predictions, reference_lists, lowercase),
        "brevity_penalty": bleu_score.bp,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    if split_compounds:
        scores["bleu_note"] = SPLIT_COMPOUNDS_NOTE
    return scores


def exact_match_by(
    groups: Sequence[Any], predictions: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> dict[Any, dict[str, float]]:
    """The exact match of each group of translations, sorted by group.

    A group has "exact_match", in percent, and "sentences", the number of its translations.
    """
    results = {}
    for group in sorted(set(groups)):
        rows = [row for row, of_row in enumerate(groups) if of_row == group]
        ours = [predictions[row] for row in rows]
        theirs = [[references[row]] for row in rows]
        results[group] = {"exact_match": _exact_match(ours, theirs, lowercase), "sentences": len(rows)}
    return results


class TranslationMetric(evaluate.Metric):
    """`score_translations` as a metric of the `evaluate` library.

    `compute` returns what `score_translations` returns, and takes `tokenize` and `lowercase` to differ once
    from the constructor. Sentences are kept in memory: no file is written, and in a distributed run one
    process must have been given all sentences, as `Seq2SeqTrainer` gives them.

    Args:
        tokenize (str): As in `score_translations`.
        lowercase (bool): As in `score_translations`.
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False):
        check_tokenizer(tokenize)
        self.tokenize = tokenize
        self.lowercase = lowercase
        super().__init__(keep_in_memory=True)

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """Adds one translation, with its reference or references."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> None:
        """Adds some translations, with the reference or references of each."""
        super().add_batch(predictions=predictions, references=_reference_lists(predictions, references))

    def compute(self, **inputs: Any) -> dict[str, float | str]:
        """The scores of the translations given here, if any, and of all added since the last call."""
        if self.writer is None and inputs.get("predictions") is None:
            raise ValueError(
                "`predictions` must be given to `compute`, or added before it, but there are none."
            )
        return super().compute(**inputs)

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="BLEU, chrF and exact match, computed by sacrebleu.",
            citation="Papineni et al. (2002); Popović (2015); Post (2018)",
            inputs_description="predictions: list of strings. references: a string or a list for each.",
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
            reference_urls=["https://aclanthology.org/P02-1040", "https://aclanthology.org/W18-6319"],
        )

    def _build_data_dir(self) -> str:
        # The base class would make a directory for files that are never written, and fail where it may not.
        return self._data_dir_root

    def _compute(
        self,
        *,
        predictions: list[str],
        references: list[list[str]],
        tokenize: str | None = None,
        lowercase: bool | None = None,
    ) -> dict[str, float | str]:
        return score_translations(
            predictions,
            references,
            tokenize=self.tokenize if tokenize is None else tokenize,
            lowercase=self.lowercase if lowercase is None else lowercase,
        )


def _reference_lists(
    predictions: Sequence[str], references: Sequence[str | Sequence[str]]
) -> list[list[str]]:
    if len(predictions) == 0:
        raise ValueError("`predictions` must hold at least one translation, but is empty.")
    lists = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    if len(predictions) != len(lists) or not all(lists):
        raise ValueError(
            "`references` must have one entry, with at least one reference, for each of the"
            f" {len(predictions)} predictions, but has {sum(map(bool, lists))}."
        )
    return lists


def _exact_match(predictions: Sequence[str], reference_lists: list[list[str]], lowercase: bool) -> float:
    if lowercase:
        predictions = [prediction.lower() for prediction in predictions]
        reference_lists = [[reference.lower() for reference in entry] for entry in reference_lists]
    pairs = zip(predictions, reference_lists, strict=True)
    matches = sum(prediction in entry for prediction, entry in pairs)
    return 100.0 * matches / len(predictions)
