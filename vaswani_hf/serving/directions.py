"""Loads the models of the HTTP service, and finds the model that translates from the source language of a
request to its target language.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..checkpoint.languages import recorded_languages
from ..checkpoint.loading import checkpoint_folder
from ..model.backend_vaswani import PyTorchBackend
from ..model.errors_vaswani import InvalidValueError
from ..model.translator_vaswani import BaseTranslator
from ..translation.language_check import LanguageDetector

AUTO = "auto"
# The language detector reads at most this number of characters, because more characters hardly change the
# result.
_MOST_READ = 1000


@dataclass(frozen=True)
class Direction:
    """A source language, a target language, and the translator that translates between the two languages.

    Attributes:
        source (str): The code of the source language.
        target (str): The code of the target language.
        translator (BaseTranslator): The translator of the model.
        tag (str, optional): The language code in the tag of the target language. For example, "en" stands for
            the tag `>>en<<`, and the service adds this tag to each source text. None if the model needs no
            tag.
    """

    source: str
    target: str
    translator: BaseTranslator
    tag: str | None = None

    def without_tags(self, text: str) -> str:
        """Replace each tag such as `>>en<<` by `»en«`, because a tag in the text of a client would change the target
        language.
        """
        for tag in self.translator.segment_tokenizer.tags:
            text = text.replace(tag, f"»{tag[2:-2]}«")
        return text


class Directions:
    """Contains each `Direction` (source language, target language and translator) that the service supports.

    Args:
        models (sequence): A tuple for each model: the source language, the target language and the
            translator.
        detector (callable, optional): A function that returns the probability of each language for a text.

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
                raise InvalidValueError(
                    f"`models` must have different languages, but two models translate from {source} to {target}; "
                    "leave one of the two models out."
                )
            self._directions[source, target] = Direction(source, target, translator)
        for source, target, translator in models:
            for tag in translator.segment_tokenizer.tags:
                language = tag.strip("><")
                # A model that was trained in both directions can also translate from its target language to
                # its source language. For this reverse direction, the service adds a tag that names the
                # language to translate into.
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
        """For each source language, return the probability that the texts are in this source language. All
        texts must be in one language. The most probable language is first. If there is no detector, all
        probabilities are 0.
        """
        text = "\n".join(texts)[:_MOST_READ]
        found = {} if self.detector is None else self.detector(text)
        languages = {language: found.get(language, 0.0) for language in self.sources()}
        return dict(sorted(languages.items(), key=lambda item: -item[1]))

    def _detected(self, texts: Sequence[str], target: str | None) -> str:
        """Return the most probable language of texts. Only languages that the service can translate to
        `target` are considered.
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
            source (str): The source language, or "auto" to detect the language of `texts`.
            target (str, optional): The target language. The value may be None if only one target language
                exists for the source language.
            texts (sequence): The source texts. The function reads the texts only if `source` is "auto", to
                detect their language.

        Raises:
            ValueError: If no model translates from `source` to `target`, if `target` is None and there are
                several target languages, or if the language of the texts cannot be detected.
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
        languages (sequence): The source language and the target language of each entry of `names`, such as
            "en:de". If the sequence is empty, the languages are read from the checkpoints.
        load (callable): A function that returns the translator for an entry of `names`.
        detector (callable, optional): A function that returns the probability of each language for a text.

    Raises:
        ValueError: If `languages` is empty and a checkpoint does not contain its languages, or if two models
            have the same source language and the same target language.
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
    """Copy the weights to ordinary memory, because the weights that transformers loads are a memory-mapped
    file. If another program truncated the file, the service would crash.
    """
    for parameter in model.parameters():
        # Do not copy quantized weights, because quantized weights are already in ordinary memory.
        if type(parameter) is nn.Parameter:
            parameter.data = parameter.data.clone()
