"""Declares and validates the options of a translation and of a search, before the search and the translator
use the options.

Two dataclasses declare all options as fields: `TranslationOptions` for the translator, and `SearchSettings`
for `generate`. Each field has a type, a default and metadata:

- `help` describes the option on the command line and in the manual.
- `rule` is the `Rule` for the values of the option, see checks_vaswani. An option whose type is bool or a
  `Literal` needs no rule, because such a type contains all possible values.
- `group` is the group in which `--help` lists the option.
- `command_line` is False if the option exists only in Python.
- `is_added` is True if `generate` of transformers does not have this setting.
- `is_recipe_key` is False if a recipe cannot set the field of `SearchSettings` in the section `decoding`.
- `unit` is the unit of a number in a recipe, such as "tokens".
- `effect` is what a field of `SearchSettings` changes: the length limit, the scores of translations, the
  forbidden tokens, or the probabilities for sampling. Each tuple such as `SCORE_SETTINGS` contains the
  settings with one `effect`.
- `neutral` is a value with the same effect as the default, if the default is None.

The dataclass fields in this file define the options of the command line, of `Translator` and of the pipeline.
The same fields define the section `decoding` of a recipe, and the tables of options in the manual. To add an
option, add a field and the code that uses the option. To give a command the new option, also add a line with
`translation_option` to the options class of the command. The section "An option of the commands" of
CONTRIBUTING.md lists all steps.

This file imports neither torch nor transformers, because the command `vaswani` reads its arguments before the
slow import of torch and transformers.

This file is saved with every checkpoint because the search and the translator validate their options with
this file.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from .checks_vaswani import (
    A_COUNT,
    A_PROBABILITY,
    A_SIZE,
    Rule,
    a_number,
    an_integer,
    one_of,
    rule_of,
)
from .errors_vaswani import InvalidValueError
from .glossary_vaswani import Glossary, read_glossary


def option(
    default: Any = None,
    help: str = "",
    rule: Rule | None = None,
    *,
    group: str = "search",
    command_line: bool = True,
    is_added: bool = False,
    is_recipe_key: bool = True,
    unit: str = "",
    effect: Literal["length", "score", "forbidden tokens", "sampling"] | None = None,
    neutral: Any = None,
    factory: Any = MISSING,
) -> Any:
    """Declare a field of a class of options. The docstring of this file explains the arguments."""
    metadata = {
        "help": help,
        "rule": rule,
        "group": group,
        "command_line": command_line,
        "is_added": is_added,
        "is_recipe_key": is_recipe_key,
        "unit": unit,
        "effect": effect,
        "neutral": default if neutral is None else neutral,
    }
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_options(values: Mapping[str, Any], kind: type, ignored: tuple[str, ...] = ()) -> None:
    """For each field of the dataclass `kind`, check the entry of `values` with the same name. The rule of the
    field must allow the value. None is valid.
    """
    for declared in fields(kind):
        if declared.name in ignored:
            continue
        value = values.get(declared.name)
        if value is not None:
            rule_of(declared).check(declared.name, value)


def check_sampling(settings: Mapping[str, Any], prefix: str = "") -> None:
    """Raise an error if a call has a sampling setting without `do_sample`, because transformers would ignore
    the setting.

    A config can contain sampling settings without `do_sample`, because a checkpoint can recommend settings
    for sampling. The error message writes `prefix`, such as "--", before the names of the settings.
    """
    if settings.get("do_sample") or getattr(settings.get("generation_config"), "do_sample", None):
        return
    for name in SAMPLING_SETTINGS:
        if settings.get(name) is not None:
            raise InvalidValueError(
                f"`{prefix}{name}` is a setting of sampling and must come with `{prefix}do_sample`; set "
                f"`{prefix}do_sample`, or leave `{prefix}{name}` out."
            )


@dataclass(frozen=True)
class SearchSettings:
    """The settings of `generate` that this package checks. Most settings in `SearchSettings` are options of
    the command line. A model card lists only the settings in `SearchSettings`.

    `generate` also accepts all other settings of transformers. The file precedence_vaswani describes the
    value of a setting that a call does not pass.

    Example:
        >>> SearchSettings(num_beams=4).length_penalty
        1.0
    """

    num_beams: int = option(
        1,
        "number of beams; 1 means greedy search",
        A_SIZE,
        unit="beams",
    )
    num_return_sequences: int = option(
        1,
        "number of translations of each text; if the number is above 1, the translations are printed as "
        "JSON lines",
        A_SIZE,
        is_recipe_key=False,
    )
    early_stopping: bool | Literal["never"] = option(
        False,
        "rule for the end of the beam search of a text; with true, the search ends as soon as `num_beams` "
        "translations have finished; with never, the search ends if no better translation is possible; "
        "false is like never, but with `length_penalty_type` power the search then assumes that all "
        "translations end at the current length",
        command_line=False,
    )
    length_penalty: float = option(
        1.0,
        "exponent of the length penalty of beam search",
        a_number("a finite number"),
        effect="score",
    )
    length_penalty_type: Literal["gnmt", "power"] | None = option(
        None,
        "divisor of the scores: ((5 + length) / 6)^exponent for gnmt, length^exponent for power",
        # Without `one_of`, error messages would list the value None. A user cannot give None on the command
        # line.
        one_of("gnmt", "power"),
        is_added=True,
        effect="score",
        neutral="power",
    )
    coverage_penalty: float | None = option(
        None,
        "weight of the coverage penalty of beam search",
        a_number("a number of 0 or more", ge=0),
        is_added=True,
        effect="score",
        neutral=0.0,
    )
    max_new_tokens: int | None = option(
        None,
        "maximum number of tokens of a translation, without the start token and the target prefix",
        A_SIZE,
        unit="tokens",
        effect="length",
    )
    max_length: int | None = option(
        None,
        "maximum number of tokens of a translation, including the decoder's start token and the target prefix",
        A_SIZE,
        command_line=False,
        unit="tokens",
        effect="length",
    )
    max_length_a: float | None = option(
        None,
        "maximum number of tokens of a translation per source token; `max_length_b` is added",
        a_number("a number of 0 or more", ge=0),
        is_added=True,
        unit="tokens per source token",
        effect="length",
    )
    max_length_b: int | None = option(
        None,
        "number of tokens added to `max_length_a` times the source length",
        # Accept 50.0, because the file generation_config.json of a checkpoint can contain a float.
        an_integer("an integer of 0 or more", ge=0, accepts_float=True),
        is_added=True,
        unit="tokens",
        effect="length",
    )
    no_repeat_ngram_size: int = option(
        0,
        "forbid a translation that contains a sequence of this number of tokens twice; 0 forbids nothing",
        A_COUNT,
        unit="tokens",
        effect="forbidden tokens",
    )
    do_sample: bool = option(
        False, "sample translations at random instead of searching for the best", group="sampling"
    )
    temperature: float = option(
        1.0,
        "temperature of sampling; translations are more varied above 1 and less varied below 1",
        a_number("a number above 0", gt=0),
        group="sampling",
        effect="sampling",
    )
    top_k: int = option(
        50,
        "sample each token from this number of most probable tokens",
        A_COUNT,
        group="sampling",
        unit="tokens",
        effect="sampling",
    )
    top_p: float = option(
        1.0,
        "sample each token from the most probable tokens whose probabilities sum to this value",
        a_number("a number above 0 and at most 1", gt=0, le=1),
        group="sampling",
        effect="sampling",
    )


def _settings_with(effect: str) -> tuple[str, ...]:
    return tuple(one.name for one in fields(SearchSettings) if one.metadata["effect"] == effect)


# Maps the name of each setting to its default value.
DECODING_SETTINGS: dict[str, Any] = {setting.name: setting.default for setting in fields(SearchSettings)}
# Maps the name of each setting to a value with the same effect as the default.
NEUTRAL_SETTINGS: dict[str, Any] = {one.name: one.metadata["neutral"] for one in fields(SearchSettings)}
# The settings that this package adds to the settings of transformers.
ADDED_SETTINGS = tuple(setting.name for setting in fields(SearchSettings) if setting.metadata["is_added"])
# The settings that determine the score of a translation.
SCORE_SETTINGS = _settings_with("score")
# The settings that have an effect only on beam search.
BEAM_SEARCH_SETTINGS = ("early_stopping", *SCORE_SETTINGS)
# The settings that limit the length of a translation.
LENGTH_SETTINGS = _settings_with("length")
# The settings that have no effect without `do_sample`.
SAMPLING_SETTINGS = _settings_with("sampling")
# The settings of `generate` that can forbid tokens: fields of `SearchSettings`, and settings that only
# transformers declares.
FORBIDDING_SETTINGS = (
    *_settings_with("forbidden tokens"),
    *"bad_words_ids suppress_tokens begin_suppress_tokens sequence_bias encoder_no_repeat_ngram_size".split(),
    *"min_length min_new_tokens forced_bos_token_id forced_eos_token_id".split(),
)


def validate_search_fields(settings: Any) -> None:
    """Check the settings of `generate` in a dict or a config. Check sampling settings only if `do_sample` is
    True. None is valid.
    """
    if settings is None:
        return
    values = settings if isinstance(settings, Mapping) else vars(settings)
    ignored = () if values.get("do_sample") else SAMPLING_SETTINGS
    check_options(values, SearchSettings, ignored)


@dataclass(frozen=True)
class TranslationOptions:
    """The options of the translator. The fields are keyword arguments of `translate` and of the pipeline. The
    fields without `command_line=False` are also options of the command `vaswani translate`.

    The field `generate` contains the arguments of `model.generate`, such as `num_beams`. The metadata entry
    `help` of each field describes the option.

    Raises:
        ValueError: If an option or a setting of the search has an invalid value.

    Example:
        >>> options = TranslationOptions.of(split_sentences=True, num_beams=2)
        >>> options.split_sentences, options.generate
        (True, {'num_beams': 2})
    """

    window: int = option(
        1000,
        "number of lines that are read and translated together; 1 if the input is a terminal",
        A_SIZE,
        group="computing",
    )
    tokens_per_batch: int = option(
        4096, "number of source tokens per batch, including padding", A_SIZE, group="computing"
    )
    batch_size: int | None = option(
        None,
        "number of texts per batch; by default as many texts as `tokens_per_batch` allows",
        A_SIZE,
        command_line=False,
    )
    split_sentences: bool = option(False, "translate each sentence of a text separately (false)")
    repetition_guard: bool = option(
        False,
        "translate a text again, without repetition, if its translation repeats itself in a loop (false)",
    )
    # The constructor replaces the name of a file by the `Glossary` in the file.
    glossary: str | Glossary | None = option(
        None,
        "file with a source term, a tab and a target term in each line; the translation of a text with the "
        "source term must contain the target term; an empty target term means that the source term is "
        "copied",
    )
    min_confidence: float | None = option(
        None,
        "minimum probability that a translation is good; if the calibrated confidence of a translation is "
        "lower, write an empty line (or the `error`, in JSON); needs the file calibration.json that "
        "`vaswani evaluate --calibration fit` writes",
        A_PROBABILITY,
        group="input and output",
    )
    on_error: Literal["fail", "skip"] = option(
        "fail",
        "what to do with an invalid line; skip: report the line, write an empty translation (or the "
        "`error`, in JSON) and continue; the exit code is 1 if all lines are invalid",
        group="input and output",
    )
    seed: int | None = option(
        None,
        "seed of sampling; the same seed draws the same translations",
        an_integer(f"an integer from 0 to {2**32 - 1}", ge=0, le=2**32 - 1),
        group="sampling",
    )
    src_lang: str | None = option(
        None,
        "language of the texts, as the tokenizer names it, for models of many languages such as NLLB",
        group="input and output",
    )
    tgt_lang: str | None = option(
        None,
        "language of the translations, as the tokenizer names it, for models with several target languages; "
        "for example nld if the tokenizer has the tag >>nld<<",
        group="input and output",
    )
    return_scores: bool = option(
        False,
        "return score, tokens, words and confidences with each translation",
        command_line=False,
    )
    return_alignments: bool = option(
        False, "return the word alignment of each translation", command_line=False
    )
    warn_of_limit: bool = option(
        False,
        "warn if `max_new_tokens` or `max_length` is set, and a source text has more than 90 % of the number of "
        "tokens that its translation may have",
        command_line=False,
    )
    tokenize: dict[str, Any] = option(
        factory=dict, help="arguments of the source tokenizer, such as `truncation`", command_line=False
    )
    decode: dict[str, Any] = option(
        factory=lambda: {"clean_up_tokenization_spaces": False},
        help="arguments of the target tokenizer's `decode`",
        command_line=False,
    )
    generate: dict[str, Any] = option(factory=dict, help="arguments of `generate`", command_line=False)

    def __post_init__(self):
        check_options(vars(self), type(self))
        if self.glossary is not None and not isinstance(self.glossary, Glossary):
            # Keep the content of the file in the options, so that no copy of the options reads the file
            # again.
            object.__setattr__(self, "glossary", read_glossary(self.glossary))
        check_sampling(self.generate)
        validate_search_fields(self.generate)
        validate_search_fields(self.generate.get("generation_config"))

    @classmethod
    def of(cls, **options: Any) -> "TranslationOptions":
        """Create options from keyword arguments. Arguments that are no fields of `TranslationOptions` become
        entries of the dict `generate`.
        """
        names = {field.name for field in fields(cls)} - {"generate"}
        own = {name: options.pop(name) for name in names & options.keys()}
        return cls(**own, generate=options)

    @property
    def is_scored(self) -> bool:
        """True if an option, such as `return_scores`, needs the scores of the translations."""
        return self.return_scores or self.return_alignments or self.min_confidence is not None
