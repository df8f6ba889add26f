"""Counting what would wait for a GPU, on a machine without one."""

import traceback
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What asks a device for its numbers, and what hands it some that are not in pinned memory.
WAITING = ("_local_scalar_dense", "nonzero", "equal.default", "masked_select", "unique")


class Waiting(TorchDispatchMode):
    """Counts what would wait for a GPU: reading, masks as indices, lists that become tensors; by place in the code."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.places = Counter()
        # Tensors of a CPU are made into lists without any operation.
        to_list = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (self.count(), to_list(tensor))[1])

    def count(self):
        frames = [frame for frame in traceback.extract_stack() if "/vaswani_hf/" in frame.filename]
        self.places[f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "elsewhere"] += 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        is_mask = name.startswith(("aten.index.", "aten.index_put")) and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        # A number that is written into a tensor is one without dimensions.
        is_list = "lift_fresh" in name and args[0].dim() > 0
        if is_mask or is_list or any(one in name for one in WAITING):
            self.count()
        return function(*args, **(kwargs or {}))
