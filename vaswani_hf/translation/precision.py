"""The dtype of a translator.

"auto" chooses bfloat16 if bfloat16 is fast and gives the same translations as float32.
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

from ..model.inputs_vaswani import InvalidInput, Request, has_text
from ..model.translator_vaswani import BaseTranslator, TranslationOptions

logger = transformers_logging.get_logger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The number of texts that are translated in both dtypes. A few texts are enough to detect a model for which
# bfloat16 is not precise enough. More texts would refuse bfloat16 for good models too, because a few of 100
# translations differ when two candidates have nearly the same score.
NUM_COMPARED = 8
# If several threads use one translator, only the first thread decides on the dtype.
_DECIDING = threading.Lock()


def checked_dtype(dtype: Any) -> torch.dtype | str | None:
    """The dtype that an argument `dtype` means: a torch.dtype, "auto", or None for the checkpoint's dtype."""
    if dtype is None or dtype in ("auto", *DTYPES.values()):
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f'`dtype` must be "float32", "bfloat16", "float16" or "auto", but is {dtype!r}.')
    return DTYPES[dtype]


def choose_dtype(
    translator: Any, requests: Sequence[Request | InvalidInput], options: TranslationOptions
) -> None:
    """Change a translator from float32 to bfloat16 if the first texts get the same translations.

    If all requests are blank, the decision is left to the next call.
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
            translator.backend = faster.backend
        else:
            logger.warning(
                f"`dtype` auto: bfloat16 translates {num_same} of the first {len(compared)} texts as float32 "
                "does; float32 is used."
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
    """The number of requests that both translators translate equally. Sampling is turned off."""
    sampling = ("streamer", "temperature", "top_k", "top_p")
    generate = {name: value for name, value in options.generate.items() if name not in sampling}
    generate |= {"do_sample": False, "num_return_sequences": 1}
    options = replace(
        options,
        return_scores=False,
        return_alignments=False,
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
            # If bfloat16 fails, use float32. If float32 fails, the later translation raises the error.
            return 0
    return sum(map(str.__eq__, expected, found))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings, because the translation after the comparison repeats them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
