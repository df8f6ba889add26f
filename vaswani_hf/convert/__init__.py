"""Exports checkpoints to the formats of other libraries, such as CTranslate2 and ONNX, and imports
checkpoints of other libraries.
"""

from .export import export

__all__ = ["export"]
