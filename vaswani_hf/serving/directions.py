"""Loads the models of the service, and finds the model for two languages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..checkpoint.languages import recorded_languages
from ..checkpoint.loading import checkpoint_folder
from ..model.translator_vaswani import BaseTranslator, PyTorchBackend
from ..translation.language_check import LanguageDetector

AUTO = "auto"
# The detector reads at most this number of characters, because more characters hardly change the result.
_MOST_READ = 1000


@dataclass(frozen=True)
class Direction:
    """A pair of languages and the translator for this pair.

    Attributes:
        source (str): The code of the source language.
        target (str): The code of the target language.
        translator (BaseTranslator): The translator.
        tag (str, optional): The language of the tag, such as `>>en<<`, that each text needs.
    """

    source: str
    target: str
    translator: BaseTranslator
    tag: str | None = None

    def without_tags(self, text: str) -> str:
        """Replace each tag such as `>>en<<` by `»en«`, because a tag in the text of a client would change the target
        language.
        """
        for tag in self.translator.tags:
            text = text.replace(tag, f"»{tag[2:-2]}«")
        return text


class Directions:
    """All directions of the service.

    Args:
        models (sequence): Each model: its source language, its target language and its translator.
        detector (callable, optional): Returns the probability of each language for a text.

    Raises:
        ValueError: If two models translate between the same languages.
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
                raise ValueError(
                    f"`models` must translate between different languages, but two models translate from {source} "
                    f"to {target}; leave one of them out."
                )
            self._directions[source, target] = Direction(source, target, translator)
        for source, target, translator in models:
            for tag in translator.tags:
                language = tag.strip("><")
                # A model that was trained in both directions translates into its source language if the text
                # has the tag of the source language.
                pair = (target, source) if language == source else (source, language)
                self._directions.setdefault(pair, Direction(*pair, translator, tag=language))

    def __iter__(self):
        return iter(self._directions.values())

    def sources(self, target: str | None = None) -> list[str]:
        """Return the source languages of all directions, or of the directions to the language `target`."""
        return list(dict.fromkeys(one.source for one in self if target in (None, one.target)))

    def confidences(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the probability of each source language for texts, most probable language first. Without a
        detector, all probabilities are 0.
        """
        text = "\n".join(texts)[:_MOST_READ]
        found = {} if self.detector is None else self.detector(text)
        languages = {language: found.get(language, 0.0) for language in self.sources()}
        return dict(sorted(languages.items(), key=lambda item: -item[1]))

    def _detected(self, texts: Sequence[str], target: str | None) -> str:
        """Return the most probable source language of texts, among the languages that can be translated to
        `target`.
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
                "The source language must be given, because the service does not detect these languages; the source "
                f"languages are {', '.join(languages)}."
            )
        return best

    def find(self, source: str, target: str | None, texts: Sequence[str]) -> Direction:
        """Return the direction for two languages.

        Args:
            source (str): The source language, or "auto".
            target (str, optional): The target language. The value may be None if only one target language
                exists for the source language.
            texts (sequence): The texts. The detector reads the texts if `source` is "auto".

        Raises:
            ValueError: If there is no such direction, or the choice is ambiguous.
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
    """Load all models.

    Args:
        names (sequence): Checkpoint folders, or repositories on the Hub.
        languages (sequence): For each name the languages, such as "en:de". If the sequence is empty, the
            checkpoints record their languages.
        load (callable): Loads the translator of a name.
        detector (callable, optional): Returns the probability of each language for a text.

    Raises:
        ValueError: If a checkpoint does not record its languages, or two models have the same languages.
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
                raise ValueError(
                    f"`--languages` must name the languages of each model, such as en:de, because '{name}' does not "
                    "record its languages."
                )
            source, target = recorded
        models.append((source, target, translator))
    return Directions(models, detector)


def _keep_in_memory(model: nn.Module) -> None:
    """Copy the weights into memory. transformers maps the weight file, and the process would crash if another
    program shortened the file.
    """
    for parameter in model.parameters():
        # Quantized weights are not in the file.
        if type(parameter) is nn.Parameter:
            parameter.data = parameter.data.clone()
