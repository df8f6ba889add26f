"""Translates HTML documents of a request. A thread divides the documents into sentences, and sends the sentences to
the queue of the service, so that sentences of documents and of other requests share batches.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError

from ..markup import translate_html_documents
from ..model.translator_vaswani import Translation
from .engine import Job


class DocumentsJob:
    """A request of a client with HTML documents. `run` translates the documents.

    Args:
        documents (sequence): The documents.
        submit (callable): Puts a list of sentences into the queue, and returns the job of these sentences. The job
            must ask for word alignments.

    Attributes:
        future (Future): The result: for each document a list with one translation. A client may cancel the future
            at any time.
    """

    def __init__(self, documents: Sequence[str], submit: Callable[[Sequence[str]], Job]):
        self.future: Future[list[list[Translation]]] = Future()
        self._documents = documents
        self._submit = submit

    def run(self) -> None:
        """Translate the documents, and set the result or the error of the future."""
        # The client may have cancelled the future in another thread.
        with contextlib.suppress(InvalidStateError):
            try:
                texts = translate_html_documents(self._documents, self._translate)
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result([[Translation(text)] for text in texts])

    def _translate(self, sentences: Sequence[str]) -> list[Translation]:
        job = self._submit(sentences)
        # If the client cancels the request, its sentences leave the queue.
        self.future.add_done_callback(lambda _: job.future.cancel())
        return [best for best, *_ in job.future.result()]
