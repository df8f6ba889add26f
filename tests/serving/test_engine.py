"""The queue and the batches of the service."""

import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from vaswani_hf.model.inputs_vaswani import TranslationOptions
from vaswani_hf.model.requests_vaswani import Request
from vaswani_hf.serving.engine import Engine, Job, QueueFullError
from vaswani_hf.serving.limits import Limits

# Seconds; more than the time limit of a test. The first batch begins when `max_batch` requests wait.
NEVER = 10_000.0
SCORED = TranslationOptions.of(split_sentences=True, return_scores=True)
LINES = ["der Hund läuft. zwei nein! ja?", "", "  Öl\n3. Mai  ", "weiß größer. " * 30, "eins"]


class Recorded:
    """A translator that records its batches. A batch waits until `proceed` is set. The text "bad" is an
    error.
    """

    def __init__(self, translator):
        self._translator = translator
        self.segment_search = SimpleNamespace(translate=self._record)
        self.batches: list[list[str]] = []
        self.proceed = threading.Event()
        self.proceed.set()
        self.has_begun = threading.Event()

    def __getattr__(self, name):
        return getattr(self._translator, name)

    def _record(self, segments, options):
        texts = [segment.text for segment in segments]
        self.batches.append(texts)
        self.has_begun.set()
        assert self.proceed.wait(60)
        if "bad" in texts:
            raise RuntimeError("/secret/path")
        return self._translator.segment_search.translate(segments, options)


@pytest.fixture
def recorded(copier) -> Recorded:
    return Recorded(copier)


@pytest.fixture
def engine():
    """Start an engine with the given limits."""
    engines = []

    def start(**limits) -> Engine:
        engines.append(Engine(Limits(**limits)))
        engines[-1].start()
        return engines[-1]

    yield start
    for started in engines:
        started.stop()


def wait_until(is_true) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def job_of(translator, *texts: str, options=None, **constraints) -> Job:
    options = translator.complete(options or TranslationOptions.of(split_sentences=True))
    return Job(translator, [Request(text, **constraints) for text in texts], options)


def submitted(engine: Engine, *jobs: Job) -> list:
    for job in jobs:
        engine.submit(job)
    return [job.future for job in jobs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 2, "num_return_sequences": 2, "return_scores": True, "return_alignments": True},
        {"split_sentences": False, "repetition_guard": True},
    ],
    ids=str,
)
def test_the_translations_are_those_of_the_translator(copier, engine, options):
    options = TranslationOptions.of(**{"split_sentences": True} | options)
    expected = list(copier.translations([Request(line) for line in LINES], options))
    started = engine(max_batch=4)
    futures = submitted(started, *[job_of(copier, line, options=options) for line in LINES])
    (whole,) = submitted(started, job_of(copier, *LINES, options=options))
    for found in ([future.result(60)[0] for future in futures], whole.result(60)):
        for translations, others in zip(found, expected, strict=True):
            for ours, other in zip(translations, others, strict=True):
                assert (ours.text, ours.alignment) == (other.text, other.alignment)
                assert ours.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "given", "batches"),
    [
        ("nein", {}, [["eins", "nein"]]),
        ("nein", {"options": SCORED}, [["eins"], ["nein"]]),
        # A text without letters is translated if its translation has a constraint.
        ("!", {"target_prefix": "Öl"}, [["eins"], ["!"]]),
    ],
    ids=["equal options", "other options", "constraint"],
)
def test_requests_that_arrive_together_share_a_batch_if_they_may(recorded, engine, text, given, batches):
    started = engine(max_batch=2, batch_wait=NEVER)
    first, second = submitted(started, job_of(recorded, "eins"), job_of(recorded, text, **given))
    assert first.result(60)[0][0].text == "eins"
    (translation,) = second.result(60)[0]
    assert translation.text.startswith(given.get("target_prefix", text))
    assert (translation.score is None) == ("options" not in given)
    assert recorded.batches == batches


def test_a_request_after_a_batch_of_one_request_does_not_wait(recorded, engine):
    started = engine(max_batch=2, batch_wait=NEVER)
    # The two requests have different options, so each batch has one request.
    submitted(started, job_of(recorded, "eins"), job_of(recorded, "nein", options=SCORED))[1].result(60)
    (alone,) = submitted(started, job_of(recorded, "Hund"))
    assert alone.result(60)[0][0].text == "Hund"


def test_a_long_text_does_not_delay_a_short_text(recorded, engine):
    """The short text is in the next batch, although the long text came first: groups take turns."""
    recorded.proceed.clear()
    started = engine(max_batch=2)
    (long,) = submitted(started, job_of(recorded, "eins. " * 8))
    assert recorded.has_begun.wait(60)
    others = submitted(started, job_of(recorded, "Hund"), job_of(recorded, "Öl", options=SCORED))
    recorded.proceed.set()
    assert long.result(60)[0][0].text == next(recorded.translate(["eins. " * 8], split_sentences=True))
    assert all(future.done() for future in others)
    assert recorded.batches[:3] == [["eins.", "eins."], ["eins.", "Hund"], ["Öl"]]


def test_a_batch_has_a_limited_number_of_tokens(recorded, engine):
    options = TranslationOptions.of(split_sentences=True, tokens_per_batch=8)
    job = job_of(recorded, "eins zwei, drei! " * 3, options=options)
    submitted(engine(), job)[0].result(60)
    assert [len(batch) for batch in recorded.batches] == [1] * job.num_segments


def test_a_cancelled_request_leaves_the_queue(recorded, engine):
    recorded.proceed.clear()
    started = engine(max_batch=1)
    running, waiting = submitted(started, job_of(recorded, "eins. nein."), job_of(recorded, "Hund"))
    assert recorded.has_begun.wait(60)
    assert started.num_waiting_characters == len("eins. nein.Hund")
    assert waiting.cancel() and running.cancel()
    assert started.num_waiting_characters == 0
    recorded.proceed.set()
    (last,) = submitted(started, job_of(recorded, "Öl"))
    assert last.result(60)[0][0].text == "Öl"
    # The batch that had begun is finished, and nothing else of the two requests is translated.
    assert recorded.batches == [["eins."], ["Öl"]]


def test_a_bad_text_fails_alone(recorded, engine):
    started = engine(max_batch=3, batch_wait=NEVER)
    good, bad, other = submitted(started, *[job_of(recorded, text) for text in ("eins", "bad", "zwei, ja?")])
    with pytest.raises(RuntimeError):
        bad.result(60)
    assert [future.result(60)[0][0].text for future in (good, other)] == ["eins", "zwei, ja?"]


def test_a_text_that_cannot_be_tokenized_fails_alone(copier, engine):
    options = TranslationOptions.of(tokenize={"no_such_argument": 1, "return_tensors": "nonsense"})
    bad, good = submitted(engine(), job_of(copier, "eins", options=options), job_of(copier, "Hund"))
    assert bad.exception(60) is not None
    assert good.result(60)[0][0].text == "Hund"


def test_a_full_queue_refuses_a_request(recorded, engine):
    recorded.proceed.clear()
    started = engine(max_waiting=6)
    # If no other request waits, a request is accepted even if it is longer than the limit.
    (first,) = submitted(started, job_of(recorded, "eins nein"))
    with pytest.raises(QueueFullError):
        started.submit(job_of(recorded, "Hund"))
    recorded.proceed.set()
    first.result(60)
    wait_until(lambda: started.num_waiting_characters == 0)
    (again,) = submitted(started, job_of(recorded, "Hund"))
    assert again.result(60)[0][0].text == "Hund"


def test_a_stop_finishes_all_requests(recorded):
    started = Engine(Limits(max_batch=3, batch_wait=NEVER))
    started.start()
    futures = submitted(started, job_of(recorded, "eins"), job_of(recorded, "Hund"))
    started.stop()
    assert [future.result(0)[0][0].text for future in futures] == ["eins", "Hund"]
    assert not started.is_alive


def test_a_cancelled_stream_stops_the_search(copier, engine):
    parts: list[str] = []
    options = TranslationOptions.of(split_sentences=True, num_beams=1)
    job = Job(copier, [Request("der Hund läuft über die Straße")], copier.complete(options))

    def cancel(part: str) -> None:
        parts.append(part)
        if part.strip():
            job.future.cancel()

    job.on_text = cancel
    started = engine()
    started.submit(job)
    with pytest.raises(CancelledError):
        job.future.result(60)
    (last,) = submitted(started, job_of(copier, "Öl"))
    assert last.result(60)[0][0].text == "Öl"
    assert "".join(parts).strip() == "der"
