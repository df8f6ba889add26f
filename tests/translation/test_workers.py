"""Translation in several processes: the order, the memory, a killed process, and errors of processes."""

import functools
import os
import pickle
import signal
from itertools import count, islice

import pytest
from sentences import refused
from worker_processes import is_worker, needs_proc, processes_of

from vaswani_hf.translation import workers
from vaswani_hf.translation.translator import Request, TranslationOptions, Translator
from vaswani_hf.translation.workers import _picklable, translate_in_processes

pytestmark = pytest.mark.usefixtures("quick_workers")
LINES = ["eins nein", "", "der Hund", "ja? nein", "  größer. "]


@needs_proc
def test_several_processes_give_the_same_in_order_with_bounded_memory(copier_checkpoint):
    read = []

    def endless():
        for i in count():
            read.append(i)
            yield Request(LINES[i % len(LINES)])

    load = functools.partial(Translator.from_pretrained, copier_checkpoint, "cpu")
    translations = translate_in_processes(load, endless(), TranslationOptions(window=5), num_workers=2)
    assert list(islice(translations, 30)) == [line.strip() for line in LINES] * 6
    assert len(read) <= 30 + 2 * 2 * 5 + 5
    # Kill one of the workers.
    pids = [pid for pid in processes_of(os.getpid()) if is_worker(pid)]
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGKILL)
    with refused(
        "A worker process ended before it had translated all texts (exit code -9); if memory has run out, use fewer `--workers` or a "
        "smaller `--tokens_per_batch`.",
        ChildProcessError,
    ):
        list(islice(translations, 100))
    assert not any(map(is_worker, pids))


def test_an_error_of_a_worker_comes_after_the_translations_before_it(copier_checkpoint, monkeypatch):
    requests = iter([Request("ja?"), Request("nein", must_contain=("Hund " * 30,))])
    load = functools.partial(Translator.from_pretrained, copier_checkpoint, "cpu")
    options = TranslationOptions.of(num_beams=2, max_new_tokens=9)
    translations = translate_in_processes(load, requests, options, num_workers=2)
    started = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda load, number: started.append(number) or start(load, number))
    assert next(translations) == "ja?"
    with pytest.raises(ValueError, match="`must_contain` has 'Hund Hund") as raised:
        next(translations)
    assert raised.value.line_number == 2
    # All requests are in one window, so there is no work for a second process.
    assert started == [1]


class _TwoPartError(Exception):
    def __init__(self, name: str, reason: str):
        super().__init__(f"{name}: {reason}")


def test_an_error_that_cannot_be_sent_keeps_its_words():
    assert str(_picklable(ValueError("no"))) == "no"
    error = _picklable(_TwoPartError("line", "bad"))
    assert str(pickle.loads(pickle.dumps(error))) == "A worker process failed: _TwoPartError: line: bad"
