"""Exports checkpoints to the formats of other libraries (MarianMT, CTranslate2 and ONNX)."""

from .export import export

__all__ = ["export"]
