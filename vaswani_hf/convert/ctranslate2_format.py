"""Defines the entry for CTranslate2 in the table of export formats. The conversion itself is in
ctranslate2.py, which imports CTranslate2.
"""

from pathlib import Path
from typing import Any

from .ctranslate2_limits import EXPRESSIBLE
from .formats import Format, Tokenizers


def _export(model: Any, tokenizers: Tokenizers | None, folder: Path, quantization: str | None) -> str:
    # Import ctranslate2.py only here, because it imports CTranslate2, and CTranslate2 may not be installed.
    from .ctranslate2 import export_ctranslate2

    assert tokenizers is not None
    return export_ctranslate2(model, tokenizers, folder, quantization)


CTRANSLATE2 = Format(
    name="ctranslate2",
    expressible=EXPRESSIBLE,
    export=_export,
    libraries=("ctranslate2",),
    quantizations=("int8", "int16", "float16", "bfloat16"),
    needs_tokenizers=True,
    keeps_recipe=True,
)
