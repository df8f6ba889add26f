"""Loads the models of the HTTP service, and finds the model that translates from one language to another."""

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
    """A source language, a target language, and the translator that translates between the two languages.

    Attributes:
        source (str): The code of the source language.
        target (str): The code of the target language.
        translator (BaseTranslator): The translator that has loaded the model.
        tag (str, optional): The language in the tag, such as `>>en<<`, that is put before each source text.
            None if the model needs no tag.
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
    """All pairs of source language and target language that the service can translate.

    Args:
        models (sequence): Each model: its source language, its target language and its translator.
        detector (callable, optional): Returns the probability of each language for a text.

    Raises:
        ValueError: If two models have the same source language and the same target language.
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
                    "Each model must translate between different languages, but two models translate from "
                    f"{source} to {target}; leave one of them out."
                )
            self._directions[source, target] = Direction(source, target, translator)
        for source, target, translator in models:
            for tag in translator.tags:
                language = tag.strip("><")
                # A model that was trained in both directions can also translate its target language into its
                # source language. Then the text must have the tag of the source language.
                pair = (target, source) if language == source else (source, language)
                self._directions.setdefault(pair, Direction(*pair, translator, tag=language))

    def __iter__(self):
        return iter(self._directions.values())

    def sources(self, target: str | None = None) -> list[str]:
        """Return the source languages of all models. If `target` is given, return only the source languages
        of models that translate to `target`.
        """
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
        """Return the `Direction` with the given source language and target language.

        Args:
            source (str): The source language, or "auto".
            target (str, optional): The target language. The value may be None if only one target language
                exists for the source language.
            texts (sequence): The texts. The detector reads the texts if `source` is "auto".

        Raises:
            ValueError: If no model translates between the two languages, or if more than one language fits
                "auto" or None.
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
    """Copy the weights into memory, because transformers maps the weight file into memory. If another program
    truncated the mapped file, the service would crash.
    """
    for parameter in model.parameters():
        # This does not concern quantized weights, because quantized weights are not mapped from the file.
        if type(parameter) is nn.Parameter:
            parameter.data = parameter.data.clone()
