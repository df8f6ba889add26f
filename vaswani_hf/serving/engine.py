"""The queue of the service, and the thread that translates the sentences of several requests in one batch.

A `Job` is a request of a client: texts with the same options. The thread splits the texts of a job into
segments (see `BaseTranslator`). A batch takes the segments of all waiting jobs with the same options in turn,
one segment of each job, so that a long text does not delay a short text until the long text is finished.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from transformers import TextStreamer

from ..model.inputs_vaswani import Request, TranslationOptions
from ..model.translator_vaswani import BaseTranslator, Segment, Translation
from .limits import Limits


class QueueFullError(RuntimeError):
    """Raised if the queue has no room for a request."""


@dataclass(eq=False)
class Job:
    """A request of a client.

    Attributes:
        translator (BaseTranslator): The translator for all texts.
        requests (list): The texts, each a `Request`.
        options (TranslationOptions): The options that `BaseTranslator.complete` returned.
        future (Future): The result: for each text its translations, best first.
        on_text (callable, optional): Called with each part of the translation as soon as greedy search has
            found the part.
    """

    translator: BaseTranslator
    requests: list[Request]
    options: TranslationOptions
    on_text: Callable[[str], None] | None = None
    future: "Future[list[list[Translation]]]" = field(default_factory=Future)
    arrival: float = field(default_factory=time.monotonic)
    layouts: list[tuple[list[Segment], list[str]]] = field(default_factory=list)
    # The segments that no batch has taken yet, each with its number in the job.
    waiting: deque[tuple[int, Segment]] = field(default_factory=deque)
    # The translations of each segment. A segment without translations is not translated yet.
    translations: dict[int, list[Translation]] = field(default_factory=dict)
    is_prepared: bool = False

    @cached_property
    def num_characters(self) -> int:
        """The number of characters of all texts."""
        return sum(len(request.text) for request in self.requests)

    @property
    def num_segments(self) -> int:
        """The number of segments of all texts."""
        return sum(len(segments) for segments, _ in self.layouts)

    def prepare(self) -> None:
        """Split and tokenize the texts."""
        self.is_prepared = True
        self.translator.prepare(self.requests, self.options)
        if self.on_text is not None:
            streamer = _Streamer(self)
            generate = {**self.options.generate, "streamer": streamer}
            self.options = replace(self.options, generate=generate)
        translated = list(filter(_needs_translation, self.requests))
        layouts = iter(self.translator.layouts(translated, range(1, len(translated) + 1), self.options))
        self.layouts = [
            next(layouts) if _needs_translation(request) else ([], [request.text])
            for request in self.requests
        ]
        segments = [segment for of_text, _ in self.layouts for segment in of_text]
        self.waiting.extend(enumerate(segments))
        if self.on_text is not None:
            self.on_text(self.layouts[0][1][0])

    def may_share_batch(self, other: "Job") -> bool:
        """Return True if one call of the translator can translate segments of both jobs."""
        is_same = self.translator is other.translator and self.options == other.options
        return is_same and self.is_constrained == other.is_constrained

    @property
    def is_constrained(self) -> bool:
        """True if a translation must begin with a prefix or contain phrases."""
        return any(request.target_prefix or request.must_contain for request in self.requests)

    def record(self, number: int, translations: list[Translation]) -> None:
        """Record the translations of a segment. The last segment finishes the job."""
        self.translations[number] = translations
        if self.on_text is not None:
            self.on_text(self.layouts[0][1][number + 1])
        self.finish_if_complete()

    def result(self) -> list[list[Translation]]:
        """Return the translations of each text. All segments must have translations."""
        found = []
        number = 0
        for request, (segments, separators) in zip(self.requests, self.layouts, strict=True):
            of_text = [self.translations[i] for i in range(number, number + len(segments))]
            found.append(self.translator.join(request, of_text, separators, self.options))
            number += len(segments)
        return found

    def finish_if_complete(self) -> None:
        """Set the result of the future if all segments have translations."""
        if len(self.translations) < self.num_segments:
            return
        # The client may have cancelled the future in another thread.
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(self.result())

    def fail(self, error: Exception) -> None:
        """Set the error of the future."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


def _needs_translation(request: Request) -> bool:
    """Return False for a text without letters and digits, such as an emoji. The text is its own translation."""
    is_constrained = request.target_prefix or request.must_contain
    return bool(is_constrained) or any(map(str.isalnum, request.text))


class _Streamer(TextStreamer):
    """Passes each part of a translation to the job. Stops the search if the client has cancelled the job."""

    def __init__(self, job: Job):
        super().__init__(job.translator.target_tokenizer, skip_special_tokens=True, **job.options.decode)
        self._job = job

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self._job.future.cancelled():
            raise InterruptedError("The client has cancelled the request.")
        assert self._job.on_text is not None
        self._job.on_text(text.replace("\n", " "))


class Engine:
    """Translates jobs in one thread.

    Args:
        limits (Limits): The sizes of the queue and of a batch.
        on_batch (callable, optional): Called with the number of sentences of each batch.
    """

    def __init__(self, limits: Limits, on_batch: Callable[[int], Any] = lambda num_sentences: None):
        self._limits = limits
        self._on_batch = on_batch
        # The jobs whose future has no result yet, in the order of their turns. `_changed` guards the jobs.
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name="translation", daemon=True)

    @property
    def num_waiting(self) -> int:
        """The number of characters of all unfinished jobs."""
        with self._changed:
            return sum(job.num_characters for job in self._jobs)

    @property
    def is_alive(self) -> bool:
        """True if the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Translate all waiting jobs, and end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Append a job to the queue. A job whose future is cancelled leaves the queue.

        Raises:
            QueueFullError: If the queue has no room for the job.
        """
        with self._changed:
            if self._jobs and self.num_waiting + job.num_characters > self._limits.max_waiting:
                raise QueueFullError
            self._jobs.append(job)
            self._changed.notify()
        job.future.add_done_callback(lambda _: self._remove(job))

    def _remove(self, job: Job) -> None:
        with self._changed:
            self._jobs.remove(job)

    def _work(self) -> None:
        while jobs := self._next_jobs():
            for job in jobs:
                if not job.is_prepared:
                    self._prepare(job)
            # A client may have cancelled its job in the meantime.
            if waiting := [job for job in jobs if job.waiting and not job.future.done()]:
                self._translate(self._next_batch(waiting))

    def _next_jobs(self) -> list[Job]:
        """Wait for jobs, and return all unfinished jobs. The result is empty if the engine stops."""
        with self._changed:
            while True:
                if not self._jobs:
                    if self._is_stopping:
                        return []
                    self._changed.wait()
                    continue
                first = min(job.arrival for job in self._jobs)
                seconds = first + self._limits.batch_wait / 1000 - time.monotonic()
                if seconds <= 0 or self._is_stopping or len(self._jobs) >= self._limits.max_batch:
                    return list(self._jobs)
                self._changed.wait(seconds)

    def _prepare(self, job: Job) -> None:
        try:
            job.prepare()
            # A job of texts without letters has no segments.
            job.finish_if_complete()
        except Exception as error:
            job.fail(error)

    def _next_batch(self, jobs: list[Job]) -> list[tuple[Job, int, Segment]]:
        """Take segments of the first job and of the jobs that may share its batch, in turn."""
        sharing = [job for job in jobs if job.may_share_batch(jobs[0])]
        # `generate` streams only one segment at a time.
        limit = self._limits.max_batch if jobs[0].on_text is None else 1
        batch: list[tuple[Job, int, Segment]] = []
        num_tokens = 0
        turns = deque(sharing)
        while turns and len(batch) < limit:
            job = turns.popleft()
            num_tokens += len(job.waiting[0][1].token_ids)
            if batch and num_tokens > jobs[0].options.tokens_per_batch:
                break
            batch.append((job, *job.waiting.popleft()))
            if job.waiting:
                turns.append(job)
        with self._changed:
            # Move the jobs behind the jobs with other options, so that all jobs get their turn.
            for job in sharing:
                if job in self._jobs:
                    self._jobs.remove(job)
                    self._jobs.append(job)
        return batch

    def _translate(self, batch: list[tuple[Job, int, Segment]]) -> None:
        """Translate a batch. If the translation fails, translate the segments of each job alone, so that only
        the job with the bad segment fails.
        """
        first = batch[0][0]
        jobs = list(dict.fromkeys(job for job, _, _ in batch))
        try:
            found = first.translator.translate_segments([segment for _, _, segment in batch], first.options)
        except Exception as error:
            if len(jobs) == 1:
                first.fail(error)
                return
            for job in jobs:
                self._translate([row for row in batch if row[0] is job])
            return
        self._on_batch(len(batch))
        for (job, number, _), translations in zip(batch, found, strict=True):
            try:
                job.record(number, translations)
            except Exception as error:
                job.fail(error)
