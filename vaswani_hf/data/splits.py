"""Refuses splits without usable sentence pairs, and names the split in an error message."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from datasets import Dataset

from ..model.errors_vaswani import InvalidValueError
from ..settings.data import DataSettings
from .encoding import CHARACTERS_PER_TOKEN, character_limit, has_too_many_characters


@contextmanager
def explain_split_errors(split: str) -> Iterator[None]:
    """Context manager that adds the name of a split to the message of an error about the split."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(f"`data`, {split} split: {error}") from error
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"The {split} split of `data`: {error}") from error


def split_name(data: DataSettings, split: str) -> str:
    """Return a description of a split for error messages: its files, its size (such as `data.test_size:
    500`), its dataset, or its toy corpus.
    """
    if files := data.files(split):
        return " and ".join(files)
    if split in data.held_out_sizes:
        return f"`data.{split}_size: {data.held_out_sizes[split]}`"
    if dataset := getattr(data, "dataset", None):
        return f"'{dataset}', `{split}_split` {getattr(data, f'{split}_split')},"
    return f"`data.corpus: {data.corpus}`"


def refuse_unusable(pairs: Dataset, data: DataSettings, split: str, fault: str) -> None:
    """Raise an error with the text `fault` if every pair has an empty side.

    For a training or validation split, raise an error if every pair has an empty side or too many characters.
    The pairs of a test split can have any length.
    """
    name = split_name(data, split)
    max_length = data.max_length
    with_text = (pair for pair in pairs if pair["source"].strip() and pair["target"].strip())
    first = next(with_text, None)
    if first is None:
        raise ValueError(f"{name} {fault}")
    if split == "test":
        # Do not check the lengths of a test split, because the evaluation translates and scores sentences of
        # any length.
        return
    for pair in itertools.chain([first], with_text):
        if not has_too_many_characters(pair["source"], pair["target"], max_length):
            return
    raise ValueError(
        f"{name} must have at least one line with 1 to {character_limit(max_length):,} characters "
        f"({CHARACTERS_PER_TOKEN} for each token of `data.max_length`), but all {len(pairs):,} lines are "
        "longer or empty; split the lines, or raise `data.max_length`."
    )
