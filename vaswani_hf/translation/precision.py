"""Chooses the dtype of a translator. The dtype "auto" means bfloat16 if bfloat16 is fast on the device and
gives the same translations of the first texts as float32, and otherwise means float32.
"""

import copy
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import InvalidInput, Request, has_text
from ..model.translator_vaswani import BaseTranslator

logger = transformers_logging.get_logger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The maximum number of texts that `choose_dtype` compares. A few texts are enough to detect a model for which
# bfloat16 is not precise enough. Among 100 texts, bfloat16 would change at least one translation, because
# some hypotheses have almost the same score. One changed translation is enough for `choose_dtype` to reject
# bfloat16. Therefore a comparison of 100 texts would reject bfloat16 even for suitable models.
NUM_COMPARED = 8
# A lock is necessary, because several threads can use the same translator.
_DECIDING = threading.Lock()


def checked_dtype(dtype: Any) -> torch.dtype | str | None:
    """Convert a name such as "bfloat16" to a torch.dtype. Return "auto" and None unchanged."""
    if dtype is None or dtype in ("auto", *DTYPES.values()):
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InvalidValueError(
            f'`dtype` must be "float32", "bfloat16", "float16" or "auto", but is {dtype!r}.'
        )
    return DTYPES[dtype]


def choose_dtype(
    translator: Any, requests: Sequence[Request | InvalidInput], options: TranslationOptions
) -> None:
    """Change a translator from float32 to bfloat16 if both dtypes give the same translations of the first
    texts. If all texts are blank, the next call chooses the dtype.
    """
    with _DECIDING:
        compared: list[Any] = [request for request in requests if has_text(request)][:NUM_COMPARED]
        if not (translator.is_undecided and compared):
            return
        backend = translator.backend
        models = [backend.model, *backend.ensemble]
        faster = _with_models(translator, [copy.deepcopy(model).to(torch.bfloat16) for model in models])
        num_same = _num_same(_with_models(translator, models), faster, compared, options)
        if num_same == len(compared):
            translator.use_backend(faster.backend)
        else:
            logger.warning(
                "`dtype` auto: float32 is used, because bfloat16 gives the same translation as float32 for "
                f"only {num_same} of the first {len(compared)} texts."
            )
        translator.is_undecided = False


def _with_models(translator: Any, models: list[Any]) -> BaseTranslator:
    return type(translator)(
        models[0],
        translator.source_tokenizer,
        translator.target_tokenizer,
        models[1:],
        prefix=translator.prefix,
        task_settings=translator.task_settings,
    )


def _num_same(
    translator: BaseTranslator, faster: BaseTranslator, requests: list[Request], options: TranslationOptions
) -> int:
    """Translate the requests without sampling, and return the number of requests whose float32 and bfloat16
    translations are equal.
    """
    sampling = ("streamer", "temperature", "top_k", "top_p")
    generate = {name: value for name, value in options.generate.items() if name not in sampling}
    generate |= {"do_sample": False, "num_return_sequences": 1}
    options = replace(
        options,
        return_scores=False,
        return_alignments=False,
        min_confidence=None,
        repetition_guard=False,
        on_error="fail",
        seed=None,
        generate=generate,
    )
    with _without_warnings():
        try:
            expected = list(translator.translate_requests(requests, options))
            found = list(faster.translate_requests(requests, options))
        except (ValueError, TypeError, ArithmeticError, RuntimeError):
            # Choose float32. If the error also occurs in float32, the translator raises the error when it
            # translates the same texts.
            return 0
    return sum(map(str.__eq__, expected, found))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings, because the translator later translates the same texts and logs the warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
