"""The private names of other libraries that the package uses, in one list; any version may take them away.

A name is looked for in the source of the module that has it, so that the test says which one an installed version lacks.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import vaswani_hf

PRIVATE = {
    "transformers.generation.utils": """
        _eos_token_tensor _has_unfinished_sequences _pad_token_tensor _prefill _prepare_generation_config _sample
        _update_model_kwargs_for_generation _valid_auto_compile_criteria
    """,
    "transformers.generation.configuration_utils": "_from_model_config _get_default_generation_params",
    "transformers.modeling_utils": """
        _can_compile_fullgraph _can_record_outputs _get_resized_embeddings _get_resized_lm_head _init_weights
        _no_split_modules _resize_token_embeddings _skip_keys_device_placement _supports_attention_backend
        _supports_flash_attn _supports_flex_attn _supports_sdpa _tied_weights_keys _tp_plan _tp_size
    """,
    "transformers.distributed.mixin": "_fsdp_plan",
    "transformers.configuration_utils": "_attn_implementation",
    "transformers.models.nllb.tokenization_nllb": "_build_translation_inputs",
    "transformers.pipelines.base": """
        _batch_size _forward _forward_params _load_feature_extractor _load_image_processor _load_processor _load_tokenizer
        _load_video_processor _pipeline_calls_generate _postprocess_params _registered_impl _sanitize_parameters
    """,
    "transformers.trainer": "_get_grad_norm _save_checkpoint",
    "datasets.arrow_dataset": "_indices",
    "evaluate.module": "_build_data_dir _compute _data_dir_root _info",
    "torch.nn.modules.module": "_compiled_call_impl _forward_hooks _forward_pre_hooks",
}
NAMES = [(module, name) for module, names in PRIVATE.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_the_installed_version_has_the_name(module, name):
    source = inspect.getsource(importlib.import_module(module))
    assert re.search(rf"\b{name}\b", source), f"{module} has no {name} any more; find what took its place."


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def foreign_names() -> dict[str, str]:
    """Private names that nobody in the package defines, and those that override one of a class from outside."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in Path(vaswani_hf.__path__[0]).rglob("*.py")}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    own = {node.name for _, node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for _, node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for _, node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    used = {node.attr: path.name for path, node in nodes if isinstance(node, ast.Attribute)}
    found = {name: place for name, place in used.items() if _is_private(name) and name not in own}
    for info in pkgutil.walk_packages(vaswani_hf.__path__, "vaswani_hf."):
        for thing in vars(importlib.import_module(info.name)).values():
            if not inspect.isclass(thing) or thing.__module__ != info.name:
                continue
            outside = [base for base in thing.__mro__[1:] if not base.__module__.startswith("vaswani_hf")]
            for name in filter(_is_private, vars(thing)):
                if any(name in vars(base) for base in outside if base is not object):
                    found[name] = info.name
    return found


def test_every_private_name_of_others_is_in_the_list():
    # Python and the libraries put these into a class by themselves.
    known = {name for _, name in NAMES} | {"_abc_impl", "_auto_class", "_backward_cls"}
    missing = {name: place for name, place in foreign_names().items() if name not in known}
    assert not missing
