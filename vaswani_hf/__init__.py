"""The 2017 Transformer as a Hugging Face model. The following lines show the main functions of the package.

    from vaswani_hf import Translator, evaluate, export, load_recipe, push, train
    recipe = load_recipe("numbers")  # a YAML file, or the name of a recipe that `vaswani recipes` lists
    train(recipe)  # writes the checkpoint, its scores and its training curve
    translator = Translator.from_pretrained(recipe.output_dir)
    print(list(translator.translate(["one", "two"])))
    print(evaluate(translator, ["seven"], ["sieben"])["chrf"])
    export(recipe.output_dir, "exported", "marian")
    push(recipe.output_dir, "user/numbers")

`import vaswani_hf` registers the models with `AutoModel`, and the task "translation" with `pipeline`.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .version import __version__

__all__ = [
    "Parser",
    "TranslationPipeline",
    "Translator",
    "VaswaniAttention",
    "VaswaniConfig",
    "VaswaniDecoderConfig",
    "VaswaniEncoderConfig",
    "VaswaniForCausalLM",
    "VaswaniForMaskedLM",
    "VaswaniForSeq2SeqLM",
    "VaswaniModel",
    "__version__",
    "evaluate",
    "export",
    "import_checkpoint",
    "load_recipe",
    "push",
    "register_attention",
    "register_position_encoding",
    "train",
]

if TYPE_CHECKING:
    from .convert.export import export as export
    from .convert.importing import import_checkpoint as import_checkpoint
    from .evaluation.evaluate import evaluate as evaluate
    from .model.attention_vaswani import VaswaniAttention as VaswaniAttention
    from .model.attention_vaswani import register_attention as register_attention
    from .model.configuration_vaswani import VaswaniConfig as VaswaniConfig
    from .model.language_models_vaswani import VaswaniDecoderConfig as VaswaniDecoderConfig
    from .model.language_models_vaswani import VaswaniDecoderModel as VaswaniDecoderModel
    from .model.language_models_vaswani import VaswaniEncoderConfig as VaswaniEncoderConfig
    from .model.language_models_vaswani import VaswaniEncoderModel as VaswaniEncoderModel
    from .model.language_models_vaswani import VaswaniForCausalLM as VaswaniForCausalLM
    from .model.language_models_vaswani import VaswaniForMaskedLM as VaswaniForMaskedLM
    from .model.modeling_vaswani import VaswaniDecoder as VaswaniDecoder
    from .model.modeling_vaswani import VaswaniEncoder as VaswaniEncoder
    from .model.modeling_vaswani import VaswaniForSeq2SeqLM as VaswaniForSeq2SeqLM
    from .model.modeling_vaswani import VaswaniModel as VaswaniModel
    from .model.modeling_vaswani import register_position_encoding as register_position_encoding
    from .model.pretrained_vaswani import VaswaniPreTrainedModel as VaswaniPreTrainedModel
    from .parsing.parser import Parser as Parser
    from .publish.push import push as push
    from .recipe.loading import load_recipe as load_recipe
    from .registration import TranslationPipeline as TranslationPipeline
    from .registration import register_translation_pipeline as register_translation_pipeline
    from .training.run import train as train
    from .translation.translator import Translator as Translator

# Maps each public name to its module. A module is imported at the first use of a name, because the import of
# some modules takes seconds.
_MODULES = {
    "Parser": "parsing.parser",
    "TranslationPipeline": "registration",
    "Translator": "translation.translator",
    "VaswaniAttention": "model.attention_vaswani",
    "VaswaniConfig": "model.configuration_vaswani",
    "VaswaniDecoder": "model.modeling_vaswani",
    "VaswaniDecoderConfig": "model.language_models_vaswani",
    "VaswaniDecoderModel": "model.language_models_vaswani",
    "VaswaniEncoder": "model.modeling_vaswani",
    "VaswaniEncoderConfig": "model.language_models_vaswani",
    "VaswaniEncoderModel": "model.language_models_vaswani",
    "VaswaniForCausalLM": "model.language_models_vaswani",
    "VaswaniForMaskedLM": "model.language_models_vaswani",
    "VaswaniForSeq2SeqLM": "model.modeling_vaswani",
    "VaswaniModel": "model.modeling_vaswani",
    "VaswaniPreTrainedModel": "model.pretrained_vaswani",
    "evaluate": "evaluation.evaluate",
    "export": "convert.export",
    "import_checkpoint": "convert.importing",
    "load_recipe": "recipe.loading",
    "push": "publish.push",
    "register_attention": "model.attention_vaswani",
    "register_position_encoding": "model.modeling_vaswani",
    "register_translation_pipeline": "registration",
    "train": "training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """Return True if the running program is the command `vaswani`. For the command, this file does not import
    torch, because the command checks its options before the slow import of torch. Return False in a worker
    process of the command: `sys.argv` is the same, but the worker process needs torch.
    """
    if "--multiprocessing-fork" in sys.orig_argv:
        return False
    if sys.argv[:1] == ["-m"]:
        # With `python -m NAME ARGUMENTS`, `sys.argv` is still `["-m", *ARGUMENTS]` while Python runs this
        # file. `sys.orig_argv` ends with `[NAME, *ARGUMENTS]`, so `sys.orig_argv[-len(sys.argv)]` is NAME.
        return sys.orig_argv[-len(sys.argv)] in ("vaswani_hf", "vaswani_hf.cli")
    return Path(sys.argv[0]).name in ("vaswani", "vaswani.exe")


if not _is_command():
    from . import registration as registration
