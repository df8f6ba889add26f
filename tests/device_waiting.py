"""Counts the operations that would wait for a GPU, on a machine without a GPU."""

import re
import sys
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Parts of the names of operations that read values from a device.
WAITING = ("_local_scalar_dense", "nonzero", "equal.default", "masked_select", "unique")

_PLACE = re.compile(r"/vaswani_hf/(?!model/fast_path_vaswani)")


class Waiting(TorchDispatchMode):
    """Count operations that would wait for a GPU by place: reads, masks as indices, tensors of lists."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.places = Counter()
        # Count `tolist` separately, because `tolist` of a CPU tensor calls no operation that this mode sees.
        to_list = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (self.count(), to_list(tensor))[1])

    def count(self):
        # Count a read of `DelayedValues` at the place that calls its method.
        frame = sys._getframe()
        while frame is not None and not _PLACE.search(frame.f_code.co_filename):
            frame = frame.f_back
        self.places[f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "elsewhere"] += 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        is_mask = name.startswith(("aten.index.", "aten.index_put")) and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        # A single number that is written into a tensor has no dimensions and does not count as a list.
        is_list = "lift_fresh" in name and args[0].dim() > 0
        if is_mask or is_list or any(one in name for one in WAITING):
            self.count()
        return function(*args, **(kwargs or {}))
