"""The options of a translation: `TranslationOptions`, and `SearchSettings`, which are those of `generate`.

Each option is declared once, as a field of one of these two dataclasses. The field has a type, a default and
metadata:

- `help`: one sentence for the command line and the manual;
- `least`, `above`, `most`: the range of a number; `whole` if a float must have no fraction;
- `choices`: the possible values;
- `command_line`: False if only Python has the option.

`check_options` validates values against these fields. The command line, the manual, `Translator` and the
pipeline read the same fields, so that a new option is a new field and the code that uses it.

This file travels with every checkpoint because the search and the translator validate their options with it.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType
from typing import Any, get_args

from .configuration_vaswani import is_int, is_number


def option(
    default: Any = None,
    help: str = "",
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    whole: bool = False,
    choices: tuple[Any, ...] = (),
    command_line: bool = True,
    factory: Any = MISSING,
) -> Any:
    """A field of a dataclass of options; see the docstring of this file."""
    metadata = {
        "help": help,
        "least": least,
        "above": above,
        "most": most,
        "whole": whole,
        "choices": choices,
        "command_line": command_line,
    }
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SearchSettings:
    """The settings of `generate` that the command line offers and that model cards and CTranslate2 know.

    `generate` takes all other settings of transformers too. The default of a field applies if neither the
    call nor the generation config of the checkpoint sets the field: an option that is not given is not passed
    to `generate`.
    """

    num_beams: int = option(1, "beams; the checkpoint's by default, 4 if it has none", least=1)
    num_return_sequences: int = option(
        1, "translations of each text (1); more than one are printed as JSON lines", least=1
    )
    early_stopping: bool | str = option(
        False,
        "when the beam search stops: True as soon as `num_beams` translations have finished",
        choices=(False, True, "never"),
        command_line=False,
    )
    length_penalty: float = option(1.0, "exponent of the length; the checkpoint's by default")
    length_penalty_type: str | None = option(
        None,
        "gnmt, ((5 + length) / 6)^exponent, or power; the checkpoint's by default",
        choices=("gnmt", "power"),
    )
    coverage_penalty: float | None = option(
        None, "weight of the coverage; the checkpoint's by default", least=0
    )
    max_new_tokens: int | None = option(
        None, "longest translation in tokens; the checkpoint's by default", least=1
    )
    max_length: int | None = option(
        None, "longest translation in tokens, the start of the decoder included", least=1, command_line=False
    )
    max_length_a: float | None = option(None, "longest translation: tokens per source token", least=0)
    max_length_b: float | None = option(
        None, "longest translation: tokens in addition to `max_length_a`", least=0, whole=True
    )
    no_repeat_ngram_size: int = option(0, "no sequence of this many tokens occurs twice", least=0)
    do_sample: bool = option(False, "draw translations instead of searching the best")
    temperature: float = option(1.0, "temperature of sampling: above 1 more varied, below 1 less", above=0)
    top_k: int = option(50, "sample from this number of most probable tokens", least=0)
    top_p: float = option(
        1.0, "sample from the most probable tokens whose probabilities sum to this", above=0, most=1
    )


# The default of each setting by its name.
DECODING_SETTINGS: dict[str, Any] = {setting.name: setting.default for setting in fields(SearchSettings)}
# Settings that the search of this package adds to those of transformers.
ADDED_SETTINGS = ("length_penalty_type", "max_length_a", "max_length_b", "coverage_penalty")
# Settings that the score of a translation depends on.
SCORE_SETTINGS = ("length_penalty", "length_penalty_type", "coverage_penalty")
_SAMPLING_SETTINGS = ("temperature", "top_k", "top_p")


@dataclass(frozen=True)
class TranslationOptions:
    """The options of a translation. `Translator`, the pipeline and the command line share names and defaults.

    Raises:
        ValueError: If an option or a setting of the search has an impossible value.
    """

    window: int = option(1000, "lines read before they are translated (1000; 1 at a terminal)", least=1)
    tokens_per_batch: int = option(4096, "source positions per batch, padding included (4096)", least=1)
    batch_size: int | None = option(
        None, "texts per batch; as many as `tokens_per_batch` allows by default", least=1, command_line=False
    )
    split_sentences: bool = option(False, "translate long texts sentence by sentence (false)")
    repetition_guard: bool = option(False, "translate once more what has fallen into a loop (false)")
    on_error: str = option(
        "fail",
        "skip: name a bad line, write an empty one (or its `error`, in JSON) and go on; exit code 1 if all are bad",
        choices=("fail", "skip"),
    )
    seed: int | None = option(None, "the same one draws the same", least=0, most=2**32 - 1)
    return_scores: bool = option(
        False, "give score, tokens, words and confidences with each translation", command_line=False
    )
    return_alignments: bool = option(False, "give the word alignment of each translation", command_line=False)
    warn_of_limit: bool = option(
        False, "warn if the limit of a translation is short for its source", command_line=False
    )
    tokenize: dict[str, Any] = option(
        factory=dict, help="arguments of the source tokenizer, such as `src_lang`", command_line=False
    )
    decode: dict[str, Any] = option(
        factory=lambda: {"clean_up_tokenization_spaces": False},
        help="arguments of the target tokenizer's `decode`",
        command_line=False,
    )
    generate: dict[str, Any] = option(factory=dict, help="arguments of `generate`", command_line=False)

    def __post_init__(self):
        check_options(vars(self), type(self))
        validate_search_fields(self.generate)
        validate_search_fields(self.generate.get("generation_config"))

    @classmethod
    def of(cls, **options: Any) -> "TranslationOptions":
        """The options of a call: those that have no field become `generate`."""
        names = {field.name for field in fields(cls)} - {"generate"}
        own = {name: options.pop(name) for name in names & options.keys()}
        return cls(**own, generate=options)

    @property
    def is_scored(self) -> bool:
        """True if translations have scores."""
        return self.return_scores or self.return_alignments


def check_options(values: Mapping[str, Any] | Any, kind: type, ignored: tuple[str, ...] = ()) -> None:
    """Validate a mapping or an object with options of a class; an option that is missing or None is not set.

    The `ValueError` of an impossible value names the option, what it must be, and the value.
    """
    for declared in fields(kind):
        if declared.name in ignored:
            continue
        value = value_of(values, declared.name)
        if value is not None and not _is_possible(value, declared):
            raise ValueError(f"`{declared.name}` must be {_words(declared)}, but is {value!r}.")


def validate_search_fields(settings: Any) -> None:
    """Validate the settings of the search in a dict or a config; those of sampling only if it samples."""
    ignored = () if value_of(settings, "do_sample") else _SAMPLING_SETTINGS
    check_options(settings, SearchSettings, ignored)


def value_of(settings: Any, name: str) -> Any:
    """The value in a mapping, or the attribute of an object; None if there is none."""
    return settings.get(name) if isinstance(settings, Mapping) else getattr(settings, name, None)


def setting_of(name: str, settings: Mapping[str, Any], generation_config: Any) -> Any:
    """The value of a setting of `generate`: the call's, even if None, its config's, or the checkpoint's."""
    if name in settings:
        return settings[name]
    for config in (settings.get("generation_config"), generation_config):
        value = getattr(config, name, None)
        if value is not None:
            return value
    return None


def type_of(declared: Field) -> type | None:
    """The type of an option that is one of int, float, str and bool; None for all others."""
    kinds = [kind for kind in get_args(declared.type) or (declared.type,) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, str, bool) else None


def _is_possible(value: Any, declared: Field) -> bool:
    limits = declared.metadata
    if limits["choices"]:
        return value in limits["choices"]
    kind = type_of(declared)
    if kind is bool:
        return isinstance(value, bool)
    if kind not in (int, float):
        return True
    least: Any = float("-inf") if limits["least"] is None else limits["least"]
    if not (is_int(value, least) if kind is int else is_number(value, max(least, -1e300))):
        return False
    if limits["above"] is not None and value <= limits["above"]:
        return False
    if limits["whole"] and value != int(value):
        return False
    return limits["most"] is None or value <= limits["most"]


def _words(declared: Field) -> str:
    """The words that follow "must be"."""
    limits = declared.metadata
    if limits["choices"]:
        choices = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in limits["choices"]]
        return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
    kind = type_of(declared)
    if kind is bool:
        return "True or False"
    noun = "an integer" if kind is int or limits["whole"] else "a number"
    if kind is int and limits["least"] == 1:
        return "a positive integer"
    if limits["least"] is not None and limits["most"] is not None:
        return f"{noun} from {limits['least']} to {limits['most']}"
    if limits["least"] is not None:
        return f"{noun} of {limits['least']} or more"
    if limits["above"] is not None:
        end = "" if limits["most"] is None else f" and at most {limits['most']}"
        return f"{noun} above {limits['above']}{end}"
    return "a finite number"
