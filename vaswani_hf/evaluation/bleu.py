"""BLEU, its tokenization, chrF and exact match of translations and references; evaluate.py makes the translations.

`score_translations` is a function over `sacrebleu`, and `TranslationMetric` an `evaluate.Metric` over that function,
which is constructed directly, not loaded from the Hub. `score_translations` needs `sacrebleu` alone;
`TranslationMetric` needs `evaluate` and `datasets` too, and says so when it is constructed without them.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

try:
    import datasets
    import evaluate
except ImportError as error:
    _MetricBase: type = object
    _missing: ImportError | None = error
else:
    _MetricBase = evaluate.Metric
    _missing = None

# perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' of tensor2tensor's get_ende_bleu.sh, for which text is bytes: two hyphens
# around one letter are both split if the letter is no ASCII.
_COMPOUND = re.compile(rb"(\S)-(\S)")
SPLIT_COMPOUNDS_NOTE = (
    "This BLEU is not sacreBLEU's: compounds were split at their hyphens after tokenization, as for the published scores of "
    "WMT 2014 English-German; compare it only with tokenized, compound-split scores such as the paper's 27.3 and 28.4."
)


def split_compounds(text: str) -> str:
    """A tokenized text with the hyphens within words set apart: "rich-text" becomes "rich ##AT##-##AT## text".

    Args:
        text (str): Tokens separated by spaces.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", text.encode(errors="surrogatepass")).decode(errors="surrogatepass")


class CompoundSplitBLEU(BLEU):
    """BLEU of tokenized, compound-split text; the signature names a tokenizer that sacreBLEU does not have.

    Args:
        tokenize (str): The tokenizer of `sacrebleu` that comes before the split.
        lowercase (bool): Ignore case.
    """

    def __init__(self, tokenize: str, lowercase: bool):
        # Text that ends in " ." is tokenized on purpose here.
        super().__init__(tokenize=tokenize, lowercase=lowercase, force=True)
        tokenizer = self.tokenizer
        # An instance's callable, which sacreBLEU calls for hypotheses and references alike.
        self.tokenizer: Any = lambda text: split_compounds(tokenizer(text))
        self.tokenizer_signature = f"{self.tokenizer_signature}+split_compounds"


def corpus_metrics(tokenize: str, lowercase: bool, split_compounds: bool) -> dict[str, BLEU | CHRF]:
    """The metrics of a corpus: "bleu" and "chrf".

    Args:
        tokenize (str): As in `score_translations`.
        lowercase (bool): As in `score_translations`.
        split_compounds (bool): As in `score_translations`; chrF knows no words.

    Raises:
        ValueError: If `tokenize` is unknown.
    """
    check_tokenizer(tokenize)
    # Text that is tokenized already is what "none" is for; sacrebleu would advise against it each time.
    plain = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    return {
        "bleu": CompoundSplitBLEU(tokenize, lowercase) if split_compounds else plain,
        "chrf": CHRF(lowercase=lowercase),
    }


def score_translations(
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    split_compounds: bool = False,
) -> dict[str, float | str]:
    """The scores of a corpus and the signatures under which to report them.

    BLEU is that of Papineni et al. (2002) as `sacrebleu` computes it (Post, 2018), on detokenized text; chrF is that of
    Popović (2015), chrF2 with character 6-grams.

    Args:
        predictions (Sequence[str]): The translations.
        references (Sequence[str | Sequence[str]]): For each translation its reference, or its one or more references.
        tokenize (str): The tokenizer of `sacrebleu` for BLEU; "13a" is that of the WMT evaluations. The first use of
            "spm" and of the names with a number after "flores" or "spBLEU" downloads a model.
        lowercase (bool): Ignore case, in all three scores.
        split_compounds (bool): Set hyphens within words apart after tokenization, for BLEU alone, as the published scores
            of WMT 2014 English-German do, which tokenize by Moses; such a BLEU is not sacreBLEU's.

    Returns:
        dict[str, float | str]: "bleu" and "chrf", both from 0 to 100; "exact_match", the percentage of translations
            that equal a reference; "brevity_penalty" of BLEU, from 0 to 1; "bleu_signature" and "chrf_signature"; and with
            `split_compounds` "bleu_note", a sentence that says what this BLEU is.

    Raises:
        TypeError: If `predictions` or `references` is not a list, or a prediction not a string.
        ValueError: If there are no predictions, if there are not as many references, if a translation has no reference,
            or if `tokenize` is unknown.
    """
    bleu, chrf = corpus_metrics(tokenize, lowercase, split_compounds).values()
    reference_lists = _reference_lists(predictions, references)
    # sacrebleu wants one list per reference number, with None where a translation has fewer references than others.
    references_by_number = list(itertools.zip_longest(*reference_lists))
    bleu_score = bleu.corpus_score(predictions, references_by_number)
    chrf_score = chrf.corpus_score(predictions, references_by_number)
    return {
        "bleu": bleu_score.score,
        "chrf": chrf_score.score,
        "exact_match": _exact_match(predictions, reference_lists, lowercase),
        "brevity_penalty": bleu_score.bp,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
        **({"bleu_note": SPLIT_COMPOUNDS_NOTE} if split_compounds else {}),
    }


def exact_match_by(
    groups: Sequence[Any], predictions: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> dict[Any, dict[str, float]]:
    """The exact match of each group of translations, such as all of one length.

    Args:
        groups (Sequence): The group of each translation, of a kind that can be sorted.
        predictions (Sequence[str]): The translations.
        references (Sequence[str]): Their references.
        lowercase (bool): Ignore case.

    Returns:
        dict[Any, dict[str, float]]: For each group, sorted, "exact_match", the percentage of translations that equal
            their reference, and "sentences", the number of translations.
    """
    members: dict[Any, list[int]] = {group: [] for group in sorted(set(groups))}
    for index, group in enumerate(groups):
        members[group].append(index)
    return {
        group: {
            "exact_match": _exact_match(
                [predictions[index] for index in indices], [[references[index]] for index in indices], lowercase
            ),
            "sentences": len(indices),
        }
        for group, indices in members.items()
    }


class TranslationMetric(_MetricBase):
    """`score_translations` as a metric of the `evaluate` library.

    `compute`, `add` and `add_batch` are those of `evaluate.Metric`; `compute` returns what `score_translations` returns
    and takes `tokenize` and `lowercase` to differ once from the constructor. Sentences are kept in memory: no file is
    written, and in a distributed run one process must have been given all sentences, as `Seq2SeqTrainer` gives them.

    Args:
        tokenize (str): As in `score_translations`.
        lowercase (bool): As in `score_translations`.

    Raises:
        ImportError: If `evaluate` or `datasets` cannot be imported.
        ValueError: If `tokenize` is unknown.
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False):
        if _missing is not None:
            raise ImportError(
                f"`TranslationMetric` needs `evaluate` and `datasets`, but {_missing}; run `pip install evaluate "
                "datasets`, or call `score_translations`, which needs neither."
            ) from _missing
        check_tokenizer(tokenize)
        self.tokenize = tokenize
        self.lowercase = lowercase
        super().__init__(keep_in_memory=True)

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """Adds one translation.

        Args:
            prediction (str): The translation.
            reference (str | Sequence[str]): Its reference, or its one or more references.
        """
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> None:
        """Adds some translations.

        Args:
            predictions (Sequence[str]): The translations.
            references (Sequence[str | Sequence[str]]): As in `score_translations`.
        """
        super().add_batch(predictions=predictions, references=_reference_lists(predictions, references))

    def compute(self, **inputs: Any) -> dict[str, float | str]:
        """The scores of the translations given here, if any, and of all added since the last call.

        Args:
            **inputs (Any): `predictions`, `references`, `tokenize` and `lowercase`, each optional.

        Returns:
            dict[str, float | str]: As from `score_translations`.

        Raises:
            ValueError: If nothing was added and nothing is given.
        """
        if self.writer is None and inputs.get("predictions") is None:
            raise ValueError("`predictions` must be given to `compute`, or added before it, but there are none.")
        return super().compute(**inputs)

    def _info(self) -> "evaluate.MetricInfo":
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="BLEU, chrF and exact match, computed by sacrebleu.",
            citation="Papineni et al. (2002); Popović (2015); Post (2018)",
            inputs_description="predictions: list of strings. references: for each a string or a list of strings.",
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


def check_tokenizer(tokenize: str) -> None:
    """Refuse a tokenizer that sacreBLEU does not have, or that needs what is not installed.

    Args:
        tokenize (str): Its name.

    Raises:
        ValueError: If it is unknown or cannot be used.
    """
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(f'"{name}"' for name in BLEU.TOKENIZERS)
        raise ValueError(f"`tokenize` must be one of {known}, but is {tokenize!r}.")
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError, OSError):
        raise ValueError(
            f"`tokenize` is {tokenize!r}, which needs a package or a file that is not there; install what sacreBLEU's documentation "
            "names for it, or take another one, such as 13a."
        ) from None


def _reference_lists(predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    for name, entries in (("predictions", predictions), ("references", references)):
        if isinstance(entries, str) or not isinstance(entries, Sequence):
            raise TypeError(f"`{name}` must be a list with one entry per translation, but is {entries!r}.")
    if len(predictions) == 0:
        raise ValueError("`predictions` must hold at least one translation, but is empty.")
    if len(predictions) != len(references):
        raise ValueError(
            f"`references` must have one entry for each of the {len(predictions)} predictions, but has {len(references)}."
        )
    for index, prediction in enumerate(predictions):
        if not isinstance(prediction, str):
            raise TypeError(f"`predictions[{index}]` must be a string, but is {prediction!r}.")
    return [_reference_list(index, entry) for index, entry in enumerate(references)]


def _reference_list(index: int, entry: str | Sequence[str]) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    if not isinstance(entry, Sequence) or len(entry) == 0 or not all(isinstance(text, str) for text in entry):
        raise ValueError(f"`references[{index}]` must be a string or a list of at least one string, but is {entry!r}.")
    return list(entry)


def _exact_match(predictions: Sequence[str], reference_lists: list[list[str]], lowercase: bool) -> float:
    if lowercase:
        predictions = [prediction.lower() for prediction in predictions]
        reference_lists = [[reference.lower() for reference in entry] for entry in reference_lists]
    matches = sum(map(lambda prediction, entry: prediction in entry, predictions, reference_lists))
    return 100.0 * matches / len(predictions)
