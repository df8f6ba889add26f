"""Defines `vaswani env`, the command that prints versions and hardware as a text for bug reports."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

from ..version import __version__
from .options import Options

_LIBRARIES = """
    torch transformers tokenizers accelerate datasets huggingface_hub safetensors pydantic sacrebleu numpy peft
    ctranslate2 onnxruntime torchao
""".split()
_VARIABLES = ("HF_", "TRANSFORMERS_", "CUDA_VISIBLE_DEVICES", "OMP_", "GOMP_", "VASWANI_")
_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")


class EnvOptions(Options):
    """The options of `vaswani env`."""

    needs_libraries: ClassVar[bool] = False


def run(options: EnvOptions) -> None:
    """Print one version, one property of the hardware or one environment variable per line."""
    import torch

    from ..processor import capability, processor_name

    properties = {"vaswani_hf": f"{__version__} ({Path(__file__).parents[1]})"}
    properties["python"] = f"{platform.python_version()} on {platform.platform()}"
    for name in _LIBRARIES:
        properties[name] = _version_of(name)
    found = [name for name in ("avx2", "avx512_bf16", "amx_bf16", "bf16") if capability(name)]
    properties["processor"] = f"{processor_name()}; {os.cpu_count()} cores"
    properties["processor instructions"] = ", ".join(found) or "unknown"
    properties["threads of torch"] = str(torch.get_num_threads())
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    properties["GPUs"] = ", ".join(gpus) or "none"
    properties["CUDA of torch"] = str(torch.version.cuda or "none")
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            is_secret = any(word in name for word in _SECRETS)
            # Remove the user name and the password from a URL.
            properties[name] = "(set, not shown)" if is_secret else re.sub(r"//[^/@]*@", "//…@", value)
    for name, value in properties.items():
        print(f"{name}: {value}")


def _version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
