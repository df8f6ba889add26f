"""Defines the queue of the HTTP service, and the thread that translates the texts in the queue. The thread
puts sentences of several requests into one batch.

A `Job` contains the texts and the options of one client request. All jobs in a batch have equal options. A
batch takes one segment (usually one sentence) of each job, then a second segment of each job, until the batch
is full. Therefore a short text does not wait until a long text of another job is translated.
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

from ..model.backend_vaswani import Layout, Segment
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import Request
from ..model.text_rules_vaswani import separator_after
from ..model.translations_vaswani import Translation
from ..model.translator_vaswani import BaseTranslator
from .limits import Limits


class QueueFullError(RuntimeError):
    """Raised if a new request would exceed the maximum number of characters in the queue."""


@dataclass(eq=False)
class Job:
    """The texts of one request of a client, and their translations. `options` come from
    `BaseTranslator.complete`. `future` receives a list of translations for each text, best first. `on_text`
    is called with each part of the translation as soon as greedy search has generated the part.
    """

    translator: BaseTranslator
    requests: list[Request]
    options: TranslationOptions
    on_text: Callable[[str], None] | None = None
    future: "Future[list[list[Translation]]]" = field(default_factory=Future)
    arrival: float = field(default_factory=time.monotonic)
    layouts: list[Layout] = field(default_factory=list)
    # The segments that are not translated yet. Each entry is a pair: the index of the segment in the job, and
    # the segment.
    waiting: deque[tuple[int, Segment]] = field(default_factory=deque)
    # Maps the index of each translated segment to its translations.
    translations: dict[int, list[Translation]] = field(default_factory=dict)
    is_prepared: bool = False

    @cached_property
    def num_characters(self) -> int:
        return sum(len(request.text) for request in self.requests)

    @property
    def num_segments(self) -> int:
        return sum(len(layout.segments) for layout in self.layouts)

    def prepare(self) -> None:
        """Split the texts into segments, and tokenize the segments."""
        self.is_prepared = True
        self.translator.prepare(self.requests, self.options)
        if self.on_text is not None:
            streamer = _Streamer(self)
            generate = {**self.options.generate, "streamer": streamer}
            self.options = replace(self.options, generate=generate)
        self.layouts = self.translator.segmenter.layouts(self.requests, self.options)
        segments = [segment for layout in self.layouts for segment in layout.segments]
        self.waiting.extend(enumerate(segments))
        if self.on_text is not None:
            self.on_text(self.layouts[0].separators[0])

    def may_share_batch(self, other: "Job") -> bool:
        """Return True if one batch can contain segments of this job and of the job `other`."""
        is_same = self.translator is other.translator and self.options == other.options
        return is_same and self.is_constrained == other.is_constrained

    @property
    def is_constrained(self) -> bool:
        """True if a translation must begin with a given prefix or contain given phrases."""
        return any(request.is_constrained for request in self.requests)

    def record(self, number: int, translations: list[Translation]) -> None:
        """Record the translations of the segment with the index `number`."""
        self.translations[number] = translations
        if self.on_text is not None:
            separators = self.layouts[0].separators
            self.on_text(separator_after(number, translations[0].text, separators))
        self.finish_if_complete()

    def result(self) -> list[list[Translation]]:
        """Join the translations of the segments of each text, after all segments have been translated."""
        found = []
        number = 0
        for request, layout in zip(self.requests, self.layouts, strict=True):
            of_text = [self.translations[i] for i in range(number, number + len(layout.segments))]
            found.append(self.translator.join(request, of_text, layout.separators, self.options))
            number += len(layout.segments)
        return found

    def finish_if_complete(self) -> None:
        """Set the result of the future if all segments have translations."""
        if len(self.translations) < self.num_segments:
            return
        # Ignore an `InvalidStateError`, because another thread cancels the future if the client closes the
        # connection.
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(self.result())

    def fail(self, error: Exception) -> None:
        """Make `self.future` raise `error`."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


class _Streamer(TextStreamer):
    """Passes each new piece of the translated text to `on_text`, and stops the search if the job is
    cancelled.
    """

    def __init__(self, job: Job):
        super().__init__(job.translator.target_tokenizer, skip_special_tokens=True, **job.options.decode)
        self._job = job

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self._job.future.cancelled():
            raise InterruptedError("The client has cancelled the request.")
        assert self._job.on_text is not None
        self._job.on_text(text.replace("\n", " "))


class Engine:
    """Translates the jobs of the queue in a separate thread. `on_batch` is called with the number of segments
    of each translated batch.
    """

    def __init__(self, limits: Limits, on_batch: Callable[[int], Any] = lambda num_sentences: None):
        self._limits = limits
        self._on_batch = on_batch
        # The unfinished jobs. The next batch begins with a segment of the first job that has waiting
        # segments. Code that uses `_jobs` must hold the lock `_changed`.
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        # The number of jobs in the last batch. Before the first batch, `_num_expected` is `max_batch`,
        # because the number of clients is unknown.
        self._num_expected = limits.max_batch
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name="translation", daemon=True)

    @property
    def num_waiting_characters(self) -> int:
        """The number of characters of the source texts of all unfinished jobs."""
        with self._changed:
            return sum(job.num_characters for job in self._jobs)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the translation thread."""
        self._thread.start()

    def stop(self) -> None:
        """Translate all unfinished jobs, and end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Append a job to the queue, in which the job stays until its future is done. Raise a
        `QueueFullError` if the queue would have too many characters. An empty queue accepts every job.
        """
        with self._changed:
            if self._jobs and self.num_waiting_characters + job.num_characters > self._limits.max_waiting:
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
            # Leave out jobs that failed in `_prepare` and jobs that a client has cancelled.
            if waiting := [job for job in jobs if job.waiting and not job.future.done()]:
                self._translate(self._next_batch(waiting))

    def _next_jobs(self) -> list[Job]:
        """Wait for jobs, and return all jobs in the queue. If the queue is empty and the engine must stop,
        return an empty list. The wait for further jobs ends after `batch_wait` seconds, or when the queue has
        as many jobs as the last batch.
        """
        with self._changed:
            while True:
                if not self._jobs:
                    if self._is_stopping:
                        return []
                    self._changed.wait()
                    continue
                first = min(job.arrival for job in self._jobs)
                seconds = first + self._limits.batch_wait - time.monotonic()
                if seconds <= 0 or self._is_stopping or len(self._jobs) >= self._num_expected:
                    return list(self._jobs)
                self._changed.wait(seconds)

    def _prepare(self, job: Job) -> None:
        try:
            job.prepare()
            # If no text of the job needs a translation, the job has no segments and is complete.
            job.finish_if_complete()
        except Exception as error:
            job.fail(error)

    def _next_batch(self, jobs: list[Job]) -> list[tuple[Job, int, Segment]]:
        """Return the segments of the next batch. The segments belong to the first job, and to other jobs for
        which `may_share_batch` is True.
        """
        sharing = [job for job in jobs if job.may_share_batch(jobs[0])]
        # Translate one segment at a time if the client streams the translation, because a streamer of
        # `generate` supports only a batch of one text.
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
            # Move all jobs that can share the batch to the end of the queue, so that jobs with other options
            # come first.
            for job in sharing:
                if job in self._jobs:
                    self._jobs.remove(job)
                    self._jobs.append(job)
        return batch

    def _translate(self, batch: list[tuple[Job, int, Segment]]) -> None:
        """Translate a batch. If the translation raises an error, translate each job separately, so that the
        error affects only one job.
        """
        first = batch[0][0]
        jobs = list(dict.fromkeys(job for job, _, _ in batch))
        try:
            segments = [segment for _, _, segment in batch]
            found = first.translator.segment_search.translate(segments, first.options)
        except Exception as error:
            if len(jobs) == 1:
                first.fail(error)
                return
            for job in jobs:
                self._translate([row for row in batch if row[0] is job])
            return
        self._num_expected = len(jobs)
        self._on_batch(len(batch))
        for (job, number, _), translations in zip(batch, found, strict=True):
            try:
                job.record(number, translations)
            except Exception as error:
                job.fail(error)
