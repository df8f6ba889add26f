"""Scores given translations with BLEU and chrF (computed by sacreBLEU) and exact match. To translate the
sources and then score the translations, use evaluate.py.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF

from ..model.errors_vaswani import InvalidValueError
from ..settings.base import format_value
from ..settings.sections import EvaluationSettings

# get_ende_bleu.sh of tensor2tensor splits compounds with perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g'. Perl
# matches bytes by default, so `_COMPOUND` matches bytes too. In "a-é-b", a `str` pattern would match only
# "a-é", because matches cannot overlap. As a `bytes` pattern, `_COMPOUND` matches both hyphens of "a-é-b",
# because "é" has two bytes.
_COMPOUND = re.compile(rb"(\S)-(\S)")
SPLIT_COMPOUNDS_NOTE = (
    "This BLEU is not sacreBLEU's: compounds were split at their hyphens after tokenization, as for the "
    "published scores of WMT 2014 English-German; compare it only with tokenized, compound-split scores "
    "such as the paper's 27.3 and 28.4."
)

# The options whose default values come from the section `evaluation` of the checkpoint's recipe.
RECIPE_KEYS = ("tokenize", "lowercase")
SHORT_TEXTS_NOTE = (
    "BLEU is 0 because BLEU counts sequences of 4 tokens, and each translation has fewer than 4 tokens. For "
    "texts with fewer than 4 tokens, use exact match and chrF."
)
COUNT_CHARACTERS_NOTE = (
    'BLEU can also count characters: `--tokenize char` on the command line, `tokenize="char"` in Python.'
)


def split_compounds(text: str) -> str:
    """Replace each hyphen inside a word by ##AT##-##AT##: "a-b" becomes "a ##AT##-##AT## b"."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", text.encode(errors="surrogatepass")).decode(
        errors="surrogatepass"
    )


class CompoundSplitBLEU(BLEU):
    """Computes BLEU after splitting compounds at their hyphens in the tokenized text."""

    def __init__(self, tokenize: str, lowercase: bool):
        # `force` turns off sacreBLEU's warning about tokenized text.
        super().__init__(tokenize=tokenize, lowercase=lowercase, force=True)
        tokenizer = self.tokenizer
        # sacreBLEU calls `tokenizer` for each hypothesis and each reference.
        self.tokenizer: Any = lambda text: split_compounds(tokenizer(text))
        self.tokenizer_signature = f"{self.tokenizer_signature}+split_compounds"


def check_tokenizer(tokenize: str, key: str = "tokenize") -> None:
    """Raise an error if sacreBLEU has no tokenizer `tokenize`, or if the tokenizer needs a missing file or
    package.
    """
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(f'"{name}"' for name in BLEU.TOKENIZERS)
        raise InvalidValueError(f"`{key}` must be one of {known}, but is {tokenize!r}.")
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError, OSError):
        raise InvalidValueError(
            f"`{key}` is {tokenize!r}, which needs a package or a file that is missing; install the package "
            "or the file as sacreBLEU's documentation describes, or choose another tokenizer, such as 13a."
        ) from None


def corpus_metrics(tokenize: str, lowercase: bool, split_compounds: bool) -> dict[str, BLEU | CHRF]:
    """Create sacreBLEU's metrics for BLEU and chrF. The arguments are those of `score_translations`."""
    check_tokenizer(tokenize)
    # The tokenizer "none" is for tokenized text. `force` turns off sacreBLEU's warning about tokenized text.
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
    """Compute BLEU, chrF and exact match of a corpus, each from 0 to 100, with the signatures of sacreBLEU.

    BLEU (Papineni et al. 2002) is computed by sacreBLEU (Post 2018), which expects detokenized text. chrF
    (Popović 2015) is chrF2 with character 6-grams. The entry `bleu_note` explains a BLEU score that is easy
    to misunderstand.
    """
    bleu, chrf = corpus_metrics(tokenize, lowercase, split_compounds).values()
    reference_lists = as_reference_lists(predictions, references)
    # sacreBLEU needs one list with the first reference of every prediction, one list with the second
    # reference, and so on. Missing references are None.
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
    notes = [SPLIT_COMPOUNDS_NOTE] if split_compounds else []
    notes += notes_on_short_texts(bleu_score, tokenize)
    if notes:
        scores["bleu_note"] = " ".join(notes)
    return scores


def notes_on_short_texts(score: BLEUScore, tokenize: str) -> list[str]:
    """Return a note if BLEU is 0 because every translation has fewer than 4 tokens, the largest n-gram size
    of BLEU. If all translations are empty, return no note.
    """
    if score.score > 0 or score.totals[-1] > 0 or score.sys_len == 0:
        return []
    return [SHORT_TEXTS_NOTE if tokenize == "char" else f"{SHORT_TEXTS_NOTE} {COUNT_CHARACTERS_NOTE}"]


def exact_match_by(
    groups: Sequence[Any], predictions: Sequence[str], references: Sequence[str]
) -> dict[Any, dict[str, float]]:
    """For each group of predictions, return the exact match (percent) and the number of sentences.
    `groups[i]` is the group of prediction i, such as the number of digits in the source.
    """
    results = {}
    for group in sorted(set(groups)):
        rows = [row for row, of_row in enumerate(groups) if of_row == group]
        ours = [predictions[row] for row in rows]
        theirs = [[references[row]] for row in rows]
        results[group] = {"exact_match": _exact_match(ours, theirs, lowercase=False), "sentences": len(rows)}
    return results


def scoring_of_recipes(given: Collection[str], sections: Mapping[str, EvaluationSettings]) -> dict[str, Any]:
    """Return the options `tokenize` and `lowercase` from the recipes of the checkpoints. The result contains
    no option whose name is in `given`. Raise an error if two recipes have different values for an option that
    is not in `given`. All systems must be scored with the same options. `sections` maps the name of each
    checkpoint to the section `evaluation` of its recipe.
    """
    scoring = {}
    for key in RECIPE_KEYS:
        if key in given:
            continue
        values = {name: getattr(section, key) for name, section in sections.items() if hasattr(section, key)}
        if len(set(values.values())) > 1:
            of_systems = ", ".join(f"{format_value(value)} for {name}" for name, value in values.items())
            raise InvalidValueError(
                f"`--{key}` must be given, because `evaluation.{key}` differs between the recipes of the "
                f"systems ({of_systems}), and all systems must be scored alike."
            )
        if values:
            scoring[key] = next(iter(values.values()))
    if "tokenize" in scoring:
        check_tokenizer(scoring["tokenize"], "evaluation.tokenize")
    return scoring


def recipe_note(scoring: Mapping[str, Any], names: Collection[str]) -> str:
    """Return a note that the options in `scoring` come from the recipes of the checkpoints `names`."""
    settings = " and ".join(
        f"`{key}: {value if key == 'tokenize' else format_value(value)}`" for key, value in scoring.items()
    )
    options = " and ".join(f"`--{key}`" for key in scoring)
    return (
        f"The scores use {settings} from the recipe of {' and '.join(names)}; {options} would override the "
        "recipe."
    )


def as_reference_lists(
    predictions: Sequence[str], references: Sequence[str | Sequence[str]]
) -> list[list[str]]:
    """Convert each entry of `references` to the list of references of one prediction."""
    if len(predictions) == 0:
        raise InvalidValueError("`predictions` must hold at least one translation, but is empty.")
    lists = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    if len(predictions) != len(lists) or not all(lists):
        raise InvalidValueError(
            "`references` must have one entry, with at least one reference, for each of the"
            f" {len(predictions)} predictions, but the number of entries with references is {sum(map(bool, lists))}."
        )
    return lists


def _exact_match(predictions: Sequence[str], reference_lists: list[list[str]], lowercase: bool) -> float:
    if lowercase:
        predictions = [prediction.lower() for prediction in predictions]
        reference_lists = [[reference.lower() for reference in entry] for entry in reference_lists]
    pairs = zip(predictions, reference_lists, strict=True)
    matches = sum(prediction in entry for prediction, entry in pairs)
    return 100.0 * matches / len(predictions)
