"""The dtype that a translator computes in: a named one, or bfloat16 where that is fast and translates the same."""

import copy
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from ..model.translator_vaswani import Request, TranslationOptions
from .bad_lines import has_text

logger = transformers_logging.get_logger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Texts that are translated in both dtypes: a model that bfloat16 is too coarse for shows it in the first few, while
# near-ties, which differ in a few of a hundred translations of a sound model, seldom come among them.
NUM_COMPARED = 8
# Of several threads with one translator the first decides.
_DECIDING = threading.Lock()


def checked_dtype(dtype: Any) -> torch.dtype | str | None:
    """The dtype that a name or a dtype stands for, "auto", or None for the checkpoint's.

    Args:
        dtype (str or torch.dtype, optional): What was asked for.

    Raises:
        ValueError: If it is none of them.
    """
    if dtype is None or dtype in ("auto", *DTYPES.values()):
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f'`dtype` must be "float32", "bfloat16", "float16" or "auto", but is {dtype!r}.')
    return DTYPES[dtype]


def settle(translator: Any, requests: Sequence[Request], options: TranslationOptions) -> None:
    """Decide for a translator between float32, which it is in, and bfloat16: that, if the first texts agree.

    Args:
        translator (Translator): Undecided, or nothing happens.
        requests (sequence): The first of its work; without any text it stays undecided.
        options (TranslationOptions): How they are to be translated.
    """
    with _DECIDING:
        compared = [request for request in requests if has_text(request)][:NUM_COMPARED]
        if not (translator.is_undecided and compared):
            return
        backend = translator.backend
        copies = [copy.deepcopy(model).to(torch.bfloat16) for model in (backend.model, *backend.ensemble)]
        faster = _with_models(translator, copies)
        num_same = _num_same(_with_models(translator, [backend.model, *backend.ensemble]), faster, compared, options)
        if num_same == len(compared):
            translator.backend = faster.backend
        else:
            logger.warning(
                f"`dtype` auto: bfloat16 translates {num_same} of the first {len(compared)} texts as float32 does; float32 "
                "is used."
            )
        translator.is_undecided = False


def _with_models(translator: Any, models: list[Any]) -> Any:
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    settings = {"prefix": translator.prefix, "task_settings": translator.task_settings}
    return type(translator)(models[0], *tokenizers, ensemble=models[1:], **settings)


def _num_same(translator: Any, faster: Any, requests: list[Request], options: TranslationOptions) -> int:
    """How many texts have one translation, by search without sampling."""
    sampling = ("streamer", "temperature", "top_k", "top_p")
    generate = {name: value for name, value in options.generate.items() if name not in sampling}
    generate |= {"do_sample": False, "num_return_sequences": 1}
    options = replace(options, return_scores=False, return_alignments=False, repetition_guard=False)
    options = replace(options, on_error="fail", seed=None, generate=generate)
    with _without_warnings():
        try:
            expected = list(translator.translate_requests(requests, options))
            found = list(faster.translate_requests(requests, options))
        except (ValueError, TypeError, ArithmeticError, RuntimeError):
            # What bfloat16 cannot translate is left to float32, and what that cannot is named when its line comes.
            return 0
    return sum(map(str.__eq__, expected, found))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """What there is to warn of is said when the texts are translated to be given back."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
