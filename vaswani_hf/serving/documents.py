"""Translates the documents of a request, such as HTML documents. A batch can contain sentences of documents
and sentences of other requests.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError

from ..markup import translate_documents
from ..model.translations_vaswani import Translation
from .engine import Job


class DocumentsJob:
    """A request to translate documents. `format` is "html" or "template". `submit` puts sentences into the
    queue, to be translated with the option `return_alignments`. `future` receives a list with one
    `Translation` for each document. The service cancels `future` if the client closes the connection.
    """

    def __init__(self, format: str, documents: Sequence[str], submit: Callable[[Sequence[str]], Job]):
        self.future: Future[list[list[Translation]]] = Future()
        self._format = format
        self._documents = documents
        self._submit = submit

    def run(self) -> None:
        """Translate the documents. Store the translations, or the exception of a failed translation, in the
        `Future` object `future`.
        """
        # `set_result` raises an `InvalidStateError` if another thread has cancelled the future.
        with contextlib.suppress(InvalidStateError):
            try:
                texts = translate_documents(self._documents, self._format, self._translate)
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result([[Translation(text)] for text in texts])

    def _translate(self, sentences: Sequence[str]) -> list[Translation]:
        job = self._submit(sentences)
        # If `self.future` is cancelled, also cancel the job, so that the queue drops the sentences of the
        # documents.
        self.future.add_done_callback(lambda _: job.future.cancel())
        return [best for best, *_ in job.future.result()]
