"""Run `train ARGUMENTS` as one of several processes that train with DeepSpeed ZeRO-2 over gloo on a CPU."""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import accelerate.state  # noqa: E402
import deepspeed.comm  # noqa: E402, F401
import torch  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402

import vaswani_hf.training.processes  # noqa: E402, F401
from vaswani_hf.cli import main  # noqa: E402


def train_on_cpu_as_on_accelerators() -> None:
    """accelerate uses DeepSpeed only with accelerators, but DeepSpeed itself can use a CPU."""
    state = accelerate.state.PartialState
    state._prepare_backend = lambda self, *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
    state.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
    torch.accelerator.is_available = lambda: True
    # Do not build the sums over shared memory, because the compilation takes minutes.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_on_cpu_as_on_accelerators()
    sys.exit(main(["train", *sys.argv[1:]]))
