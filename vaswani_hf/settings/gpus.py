"""Lists the GPUs for which `vaswani plan --hardware` can estimate the duration of a run, and the prices of
some GPUs.
"""

from dataclasses import dataclass

from ..model.checks_vaswani import nearest_name
from ..model.errors_vaswani import InvalidValueError

# The sustained FLOPs per second of four GPU models (footnote 5 of the paper), and the number of P100 GPUs on
# which the paper trains a model (Section 5.2).
PAPER_GPUS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
NUM_PAPER_GPUS = 8
# The fraction of its peak speed that a GPU reaches, as `vaswani plan` assumes. `ASSUMED_UTILIZATION` was not
# measured. With small models and small batches, a GPU reaches a smaller fraction of its peak speed.
ASSUMED_UTILIZATION = 0.3
# The source of the prices in `GPUS`. For each GPU type, the price is the price of the smallest machine with
# one GPU of the type.
PRICES = "Hugging Face Jobs on 2026-08-21, https://huggingface.co/docs/hub/jobs-pricing"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU model. The peak speeds in TFLOPS are the speeds without sparsity.

    Attributes:
        bf16: The peak speed of matrix products in bfloat16 (TFLOPS); None if the GPU has no bfloat16
            instructions.
        fp32: The peak speed in float32 (TFLOPS) without tensor cores, because PyTorch does not use TF32 by
            default.
        source: The source of the speeds: the data sheet of the manufacturer.
        price: The price in US dollars per hour, from the price list that `PRICES` names. None if the price
            list has no machine with a single GPU of this type.
        flavor: The value of `hf jobs run --flavor` for the smallest machine with one GPU of this type; None
            if there is no such machine.
        memory: The memory of the GPU in GiB; 0 if `flavor` is None.
    """

    bf16: float | None
    fp32: float
    source: str
    price: float | None = None
    flavor: str | None = None
    memory: int = 0

    def peak(self, bf16: bool) -> tuple[float, str]:
        """Return the peak speed in FLOPs per second, and its dtype: bfloat16 if `bf16` is true and the GPU
        has bfloat16 instructions, else float32.
        """
        if bf16 and self.bf16 is not None:
            return self.bf16 * 1e12, "bfloat16"
        return self.fp32 * 1e12, "float32"


_NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
# The speeds of H100, H200 and V100 are the speeds of the SXM versions. The data sheets of H100, H200, L4 and
# L40S give the bfloat16 peak speeds for sparse matrices. For dense matrices, the peak speed is half of the
# number in the data sheet.
GPUS = {
    "H200": Gpu(
        bf16=989,
        fp32=67,
        source="https://www.nvidia.com/en-us/data-center/h200/",
        price=5.0,
        flavor="h200",
        memory=141,
    ),
    "H100": Gpu(
        bf16=989,
        fp32=67,
        source="https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet",
    ),
    "A100": Gpu(
        bf16=312,
        fp32=19.5,
        source=f"{_NVIDIA}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
        price=2.5,
        flavor="a100-large",
        memory=80,
    ),
    "L40S": Gpu(
        bf16=362,
        fp32=91.6,
        source="https://www.nvidia.com/en-us/data-center/l40s/",
        price=1.8,
        flavor="l40sx1",
        memory=48,
    ),
    "L4": Gpu(
        bf16=121,
        fp32=30.3,
        source="https://www.nvidia.com/en-us/data-center/l4/",
        price=0.8,
        flavor="l4x1",
        memory=24,
    ),
    "A10": Gpu(bf16=125, fp32=31.2, source=f"{_NVIDIA}/a10/pdf/a10-datasheet.pdf"),
    "RTX4090": Gpu(
        bf16=165.2,
        fp32=82.6,
        source="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
    "V100": Gpu(
        bf16=None,
        fp32=15.7,
        source="https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    "T4": Gpu(
        bf16=None,
        fp32=8.1,
        source=f"{_NVIDIA}/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
        price=0.4,
        flavor="t4-small",
        memory=16,
    ),
}


def gpu_seconds(gpu: Gpu, flops: float, bf16: bool) -> float:
    """Return the estimated seconds that one GPU needs for `flops` FLOPs, with `ASSUMED_UTILIZATION`."""
    peak, _ = gpu.peak(bf16)
    return flops / (ASSUMED_UTILIZATION * peak)


def gpu_name(given: str) -> str:
    """Convert the name of a GPU to its spelling in `GPUS` or `PAPER_GPUS`, such as "RTX4090"."""
    name = given.upper().replace(" ", "").replace("-", "").replace("_", "")
    known = [*GPUS, *PAPER_GPUS]
    if name not in known:
        raise InvalidValueError(
            f"`--hardware` must be one of {', '.join(known)}, but is {given!r}; the nearest name is "
            f"{nearest_name(name, known)}. For other hardware, give `--tokens_per_second`: the target tokens "
            "per second that the log lines of a run on this hardware show."
        )
    return name
