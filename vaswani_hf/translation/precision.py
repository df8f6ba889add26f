"""The dtype of a translator: a named one, or bfloat16 if it is fast and gives the same translations."""

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
# Texts that are translated in both dtypes. If bfloat16 is too coarse for a model, the first few texts show
# it. Near-ties, which change a few of a hundred translations of a sound model, are rare among so few texts.
NUM_COMPARED = 8
# If several threads use one translator, the first thread decides.
_DECIDING = threading.Lock()


def checked_dtype(dtype: Any) -> torch.dtype | str | None:
    """The dtype of a name or a dtype; "auto"; or None for the checkpoint's. Refuses all others."""
    if dtype is None or dtype in ("auto", *DTYPES.values()):
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f'`dtype` must be "float32", "bfloat16", "float16" or "auto", but is {dtype!r}.')
    return DTYPES[dtype]


def choose_dtype(
    translator: Any, requests: Sequence[Request | InvalidInput], options: TranslationOptions
) -> None:
    """Changes an undecided translator from float32 to bfloat16 if the first texts get the same translations.

    The translator stays undecided if no request has a text.
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
                f"`dtype` auto: bfloat16 translates {num_same} of the first {len(compared)} texts as float32 does; float32 "
                "is used."
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
    """The number of texts with the same translation by both, without sampling."""
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
            # float32 translates what bfloat16 cannot translate. An error of float32 is raised later.
            return 0
    return sum(map(str.__eq__, expected, found))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppresses warnings: the translation that is given back repeats them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
