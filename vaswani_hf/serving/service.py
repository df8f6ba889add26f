"""Defines `Service`: the models, the queue and the options of the HTTP service."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from fastapi import HTTPException, Request

from ..model.backend_vaswani import PyTorchBackend
from ..model.errors_vaswani import InvalidValueError
from ..model.glossary_vaswani import Glossary
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import Request as TextRequest
from ..model.translator_vaswani import BaseTranslator
from ..translation.language_check import LanguageCheck
from .directions import Direction, Directions
from .documents import DocumentsJob
from .engine import Engine, Job, QueueFullError
from .limits import Limits
from .metrics import Metrics
from .schema import RequestSettings, Wanted

# The seconds in the header `Retry-After` if the queue is full.
_RETRY_AFTER = 2
# The maximum number of entries in the cache of translation options. An entry of the cache holds the options
# for one model and one combination of request settings.
_MOST_SETTINGS = 100


class Service:
    """Holds the models, the request queue and the options of the HTTP service.

    Args:
        directions (Directions): The models.
        options (TranslationOptions): The default options of all translations.
        limits (Limits): The limits on requests, on the queue and on batches.
        api_key (str, optional): The key that each request must have.
        glossaries (mapping, optional): Maps names, which requests can use, to glossaries.
        language_check (str, optional): "pass" returns a text unchanged if the text is not in the source
            language, and "refuse" answers with an error. Without a detector in `directions`, `language_check`
            has no effect.
    """

    def __init__(
        self,
        directions: Directions,
        options: TranslationOptions,
        limits: Limits,
        api_key: str | None = None,
        glossaries: Mapping[str, Glossary] | None = None,
        language_check: Literal["pass", "refuse"] | None = None,
    ):
        self.directions = directions
        self.limits = limits
        self.metrics = Metrics()
        self.engine = Engine(limits, self.metrics.count_batch)
        self.metrics.watch_queue(lambda: self.engine.num_waiting_characters)
        self._options = options
        self._api_key = api_key
        self._glossaries = glossaries or {}
        # Cache the options, because computing the options takes about 0.5 ms and most requests have the same
        # settings.
        self._options_for = lru_cache(_MOST_SETTINGS)(self._complete_options)
        # Each request with documents (HTML or templates) occupies one thread, so at most `max_batch` of these
        # requests run at the same time. The threads need little CPU time, because the threads mostly wait for
        # the translation thread of `Engine`.
        self._threads = ThreadPoolExecutor(limits.max_batch, "documents")
        self._checks: dict[str, LanguageCheck] = {}
        if language_check is not None and directions.detector is not None:
            self._checks = {
                language: LanguageCheck(language, language_check, directions.detector)
                for language in directions.sources()
            }
        for direction in directions:
            for glossary in (None, *self._glossaries.values()):
                direction.translator.complete(replace(options, glossary=glossary))

    def start(self) -> None:
        """Start the translation thread, and load the model of the language detector in another thread."""
        self.engine.start()
        if self.directions.detector is not None:
            self._threads.submit(self.directions.detector, "")

    def stop(self) -> None:
        """Finish all accepted requests, and end the threads."""
        self._threads.shutdown()
        self.engine.stop()

    @property
    def needs_key(self) -> bool:
        """True if clients must send the API key."""
        return self._api_key is not None

    def authorize(self, request: Request, fields: dict[str, Any]) -> None:
        """Refuse a request without the API key in the field `api_key` or as a bearer token in the header."""
        if self._api_key is None:
            return
        # Convert the header back to bytes, and decode the bytes as UTF-8. curl sends the API key as UTF-8,
        # but Starlette decodes headers as Latin-1.
        header = request.headers.get("authorization", "").encode("latin-1").decode(errors="replace")
        scheme, _, token = header.partition(" ")
        key = token if scheme.lower() == "bearer" else str(fields.get("api_key") or "")
        if not key:
            raise HTTPException(
                403, "The service needs an API key; ask the operator of the service for a key."
            )
        if not hmac.compare_digest(key.encode(errors="replace"), self._api_key.encode()):
            raise HTTPException(403, "Invalid API key")

    def check_limits(self, wanted: Wanted) -> None:
        """Refuse a request with too many characters, texts or alternatives."""
        num_characters = sum(map(len, (*wanted.texts, wanted.target_prefix, *wanted.must_contain)))
        for number, limit, name in (
            (num_characters, self.limits.max_characters, "characters"),
            (len(wanted.texts), self.limits.max_texts, "texts"),
        ):
            if number > limit:
                raise HTTPException(
                    413,
                    f"A request may have at most {limit:,} {name}, but has {number:,}; divide the request.",
                )
        num_alternatives = wanted.settings.alternatives
        if num_alternatives > self.limits.max_alternatives:
            raise InvalidValueError(
                f"`alternatives` must be at most {self.limits.max_alternatives}, but is {num_alternatives}."
            )

    def submit(
        self, direction: Direction, wanted: Wanted, on_text: Callable[[str], None] | None = None
    ) -> Job | DocumentsJob:
        """Put the texts of a request into the queue, and return the job that receives the translations."""
        self._check_support(direction, wanted)
        options = self._options_for(direction, wanted.settings)
        if wanted.format == "text":
            requests = self._requests(direction, wanted.texts, wanted.target_prefix, wanted.must_contain)
            return self._enqueue(Job(direction.translator, requests, options, on_text))
        options = replace(options, split_sentences=False, return_alignments=True)

        def enqueue(sentences: Sequence[str]) -> Job:
            return self._enqueue(Job(direction.translator, self._requests(direction, sentences), options))

        documents = DocumentsJob(wanted.format, wanted.texts, enqueue)
        self._threads.submit(documents.run)
        return documents

    def _requests(
        self,
        direction: Direction,
        texts: Sequence[str],
        target_prefix: str = "",
        must_contain: Sequence[str] = (),
    ) -> list[TextRequest]:
        """Convert texts to `Request` objects, and check their languages if `language_check` is set."""
        requests = [
            TextRequest(direction.without_tags(text), target_prefix, must_contain, line_number=number)
            for number, text in enumerate(texts, 1)
        ]
        check = self._checks.get(direction.source)
        return requests if check is None else list(map(check, requests))

    def _enqueue(self, job: Job) -> Job:
        """Put a job into the queue, or refuse the request with the HTTP status 429 if the queue is full."""
        try:
            self.engine.submit(job)
        except QueueFullError:
            raise HTTPException(
                429,
                "The queue of the service is full; send the request again later.",
                {"Retry-After": str(_RETRY_AFTER)},
            ) from None
        self.metrics.characters.inc(job.num_characters)
        return job

    def _check_support(self, direction: Direction, wanted: Wanted) -> None:
        """Refuse a request if the engine that runs the model does not support the request."""
        backend = direction.translator.backend
        if wanted.must_contain and not backend.supports_phrases:
            raise InvalidValueError(
                "`must_contain` must be left out, because the engine that runs the model does not support "
                "phrases."
            )
        if wanted.settings.stream and not isinstance(backend, PyTorchBackend):
            raise InvalidValueError(
                "`stream` must be left out, because the engine that runs the model cannot send parts of a "
                "translation."
            )

    def _complete_options(self, direction: Direction, settings: RequestSettings) -> TranslationOptions:
        """Return the translation options for one request: the default options of the service, changed by the
        settings of the request (`settings`).
        """
        options = replace(self._options, return_scores=settings.scores, return_alignments=settings.alignments)
        if settings.min_confidence is not None:
            options = replace(options, min_confidence=settings.min_confidence)
        if settings.glossary is not None:
            options = replace(options, glossary=self._glossary(settings.glossary))
        if direction.tag is not None:
            options = replace(options, tgt_lang=direction.tag)
        if settings.stream and options.min_confidence is not None:
            raise InvalidValueError(
                "`stream` must be left out with `min_confidence`, because the confidence of a translation is "
                "known only at the end of the search."
            )
        translator = direction.translator
        return translator.complete(replace(options, generate=_search_settings(translator, options, settings)))

    def _glossary(self, name: str) -> Glossary:
        if name in self._glossaries:
            return self._glossaries[name]
        known = ", ".join(self._glossaries)
        if not known:
            raise InvalidValueError(
                f"`glossary` is {name!r}, but the service has no glossary; leave `glossary` out."
            )
        raise InvalidValueError(f"`glossary` must be a glossary of the service ({known}), but is {name!r}.")


def _search_settings(
    translator: BaseTranslator, options: TranslationOptions, settings: RequestSettings
) -> dict[str, Any]:
    """Return the search settings. A streamed answer needs greedy search. To return alternative translations,
    the search needs at least as many beams as returned translations.
    """
    generate = dict(options.generate)
    if settings.stream:
        generate["num_beams"] = 1
    if settings.alternatives:
        num_beams = translator.setting("num_beams", **options.generate)
        num_translations = 1 + settings.alternatives
        generate["num_return_sequences"] = num_translations
        generate["num_beams"] = max(num_beams, num_translations)
    return generate
