"""The formats of other libraries; a new one is a file in this folder and an entry."""

from .ctranslate2_format import CTRANSLATE2
from .formats import Format
from .marian import MARIAN
from .onnx import ONNX

FORMATS: dict[str, Format] = {entry.name: entry for entry in (MARIAN, CTRANSLATE2, ONNX)}
