"""Defines the export format for CTranslate2. The conversion is in ctranslate2.py."""

from pathlib import Path
from typing import Any

from ..checkpoint.files import FILES_OF_BOTH_TOKENIZERS
from ..checkpoint.tokenizers import Tokenizers
from ..model.translator_vaswani import BaseTranslator
from ..translation.ctranslate2 import load_ctranslate2_translator
from ..translation.ctranslate2_files import VOCABULARY_FILES
from .ctranslate2_limits import EXPRESSIBLE
from .export_formats import ExportFormat, TranslatorEngine


def _export(model: Any, tokenizers: Tokenizers | None, folder: Path, quantization: str | None) -> str:
    # Import ctranslate2.py only here, because the library CTranslate2 is perhaps not installed.
    from .ctranslate2 import export_ctranslate2

    assert tokenizers is not None
    return export_ctranslate2(model, tokenizers, folder, quantization)


class CTranslate2Engine(TranslatorEngine):
    """Runs a model that was exported to the format of CTranslate2."""

    libraries = ("ctranslate2",)
    # With `early_stopping` "never", the searches of CTranslate2 and of this package find the same
    # translations.
    search = {"early_stopping": "never"}

    def load(self, folder: Path) -> BaseTranslator:
        return load_ctranslate2_translator(folder, "cpu")


CTRANSLATE2 = ExportFormat(
    name="ctranslate2",
    main_file="model.bin",
    library_name="ctranslate2",
    expressible=EXPRESSIBLE,
    # The export checks no search settings, because `CTranslate2Backend` checks the search settings in the
    # exported folder.
    settings=None,
    export=_export,
    libraries=("ctranslate2",),
    quantizations=("float32", "int8", "int16", "float16", "bfloat16"),
    needs_tokenizers=True,
    keeps_records=True,
    engine=CTranslate2Engine,
    certified=("float32", "float16", "int8"),
    optional_files=(*FILES_OF_BOTH_TOKENIZERS, *VOCABULARY_FILES),
)
