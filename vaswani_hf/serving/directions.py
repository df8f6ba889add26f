"""Loads the models of the HTTP service, and finds the model for the languages of a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..checkpoint.languages import languages_to, recorded_languages
from ..checkpoint.loading import checkpoint_folder
from ..model.backend_vaswani import PyTorchBackend
from ..model.errors_vaswani import InvalidValueError
from ..model.translator_vaswani import BaseTranslator
from ..translation.language_check import LanguageDetector

AUTO = "auto"
# The maximum number of characters that the language detector reads. Reading more characters would hardly
# change the detected language.
_MOST_READ = 1000


@dataclass(frozen=True)
class Direction:
    """A source language, a target language, and the translator. `tgt_lang` is the option of a translation:
    the language in the tag that the translator adds to each source text (such as "en" for `>>en<<`), or the
    language of the language token. `tgt_lang` is None if the model needs neither a tag nor a language token.
    """

    source: str
    target: str
    translator: BaseTranslator
    tgt_lang: str | None = None

    def without_tags(self, text: str) -> str:
        """Change the brackets of each tag, such as `>>en<<` to `»en«`, because a tag would change the target
        language.
        """
        for tag in self.translator.segment_tokenizer.tags:
            text = text.replace(tag, f"»{tag[2:-2]}«")
        return text


class Directions:
    """The translation directions (pairs of source and target language) that the service supports. `models`
    contains a source language, a target language and a translator for each model. Two models with the same
    source language and the same target language raise a ValueError. A language without a language token
    raises a ValueError if the model needs language tokens.
    """

    def __init__(
        self,
        models: Sequence[tuple[str, str, BaseTranslator]],
        detector: LanguageDetector | None = None,
    ):
        self.detector = detector
        self._directions: dict[tuple[str, str], Direction] = {}
        for source, target, translator in models:
            if (source, target) in self._directions:
                raise InvalidValueError(
                    f"`models` must have different languages, but two models translate from {source} to {target}; "
                    "leave one of the two models out."
                )
            tokenizer = translator.segment_tokenizer
            for language in (source, target):
                if tokenizer.languages and language not in tokenizer.languages:
                    raise InvalidValueError(
                        f"`--languages` must name languages of the model ({', '.join(tokenizer.languages)}), but "
                        f"names {language}."
                    )
            is_chosen = target in tokenizer.languages or f">>{target}<<" in tokenizer.tags
            self._directions[source, target] = Direction(
                source, target, translator, target if is_chosen else None
            )
        for source, target, translator in models:
            for tag in translator.segment_tokenizer.tags:
                language = tag.strip("><")
                # A model with tags can translate into the language of each tag.
                pair = languages_to(language, (source, target))
                self._directions.setdefault(pair, Direction(*pair, translator, language))

    def __iter__(self):
        return iter(self._directions.values())

    def sources(self, target: str | None = None) -> list[str]:
        """Return the source languages of all models, or of the models that translate to `target`."""
        return list(dict.fromkeys(one.source for one in self if target in (None, one.target)))

    def confidences(self, texts: Sequence[str]) -> dict[str, float]:
        """Map each source language to the probability that `texts` are in this language, most probable
        language first. Without a language detector, the probability of each language is 0.
        """
        text = "\n".join(texts)[:_MOST_READ]
        found = {} if self.detector is None else self.detector(text)
        languages = {language: found.get(language, 0.0) for language in self.sources()}
        return dict(sorted(languages.items(), key=lambda item: -item[1]))

    def _detected(self, texts: Sequence[str], target: str | None) -> str:
        """Return the most probable language of `texts`. Consider only languages from which a model translates
        to `target`.
        """
        languages = self.sources(target)
        if not languages:
            raise ValueError("No model translates to the target language; `/languages` lists the languages.")
        if len(languages) == 1:
            return languages[0]
        confidences = self.confidences(texts)
        best = max(languages, key=lambda language: confidences[language])
        if confidences[best] == 0:
            raise ValueError(
                "The source language must be given, because the service has detected no source language; the source "
                f"languages are {', '.join(languages)}."
            )
        return best

    def find(self, source: str, target: str | None, texts: Sequence[str]) -> Direction:
        """Return the `Direction` for the given languages. The source language "auto" stands for the language
        of `texts`. The target language can be None if the service translates the source language into only
        one language. Raise a ValueError if the service does not support the languages, or if the language of
        the texts cannot be detected.
        """
        if source == AUTO:
            source = self._detected(texts, target)
        targets = [one.target for one in self if one.source == source]
        if not targets:
            raise ValueError(
                f"{source} is not supported; the source languages are {', '.join(self.sources())}."
            )
        if target is None and len(targets) > 1:
            raise ValueError(
                f"The target language must be given, because {source} has the target languages "
                f"{', '.join(targets)}."
            )
        target = target or targets[0]
        if target not in targets:
            raise ValueError(
                f"{source} cannot be translated to {target}; the target languages of {source} are "
                f"{', '.join(targets)}."
            )
        return self._directions[source, target]


def language_name(code: str) -> str:
    """Return the English name of a language, or the code itself if the language is unknown."""
    name = LANGUAGES.get(code.lower())
    return code if name is None else name.title()


def load_directions(
    names: Sequence[str],
    languages: Sequence[str],
    load: Callable[[str], BaseTranslator],
    detector: LanguageDetector | None = None,
) -> Directions:
    """Load the models `names` (folders or repositories on the Hub). `languages` has an entry for each model,
    such as "en:de". If `languages` is empty, read the languages from the checkpoints.
    """
    models = []
    for number, name in enumerate(names):
        translator = load(name)
        if isinstance(translator.backend, PyTorchBackend):
            _keep_in_memory(translator.backend.model)
        if languages:
            source, _, target = languages[number].partition(":")
        else:
            recorded = recorded_languages(Path(checkpoint_folder(name, option="models")))
            if recorded is None:
                raise InvalidValueError(
                    f"`--languages` must name the languages of each model, such as en:de, because '{name}' does not "
                    "record its languages."
                )
            source, target = recorded
        models.append((source, target, translator))
    return Directions(models, detector)


def _keep_in_memory(model: nn.Module) -> None:
    """Copy the weights to ordinary memory, because transformers memory-maps the weight file, and the service
    would crash if another program truncated this file.
    """
    for parameter in model.parameters():
        # Do not copy quantized weights, because quantized weights are not memory-mapped.
        if type(parameter) is nn.Parameter:
            parameter.data = parameter.data.clone()
