"""The private names of other libraries that the package and its scripts use, in one list; any version may take them away.

A name is looked for in the source of the module that has it, so that the test says which one an installed version lacks.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import vaswani_hf

ROOT = Path(__file__).parent.parent

PRIVATE = {
    "transformers.generation.utils": """
        _eos_token_tensor _expand_inputs_for_generation _has_unfinished_sequences _pad_token_tensor _prefill
        _prepare_cache_for_generation
        _prepare_generation_config _sample
        _update_model_kwargs_for_generation _valid_auto_compile_criteria
    """,
    "transformers.generation.configuration_utils": "_from_model_config _get_default_generation_params",
    "transformers.modeling_utils": """
        _can_compile_fullgraph _can_record_outputs _check_and_adjust_attn_implementation _get_resized_embeddings
        _get_resized_lm_head _init_weights _is_hf_initialized
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
    "transformers.trainer": "_get_grad_norm _load_rng_state _prepare_input _save_checkpoint",
    "datasets.arrow_dataset": "_indices",
    "os": "_exit",
    "evaluate.module": "_build_data_dir _compute _data_dir_root _info",
    "torch.nn.modules.module": "_backward_hooks _backward_pre_hooks _compiled_call_impl _forward_hooks _forward_pre_hooks",
    "torch.utils._pytree": "_pytree",
    # Dispatch modes and fake tensors are documented, but their modules have private names. The other names are attention
    # kernels that `scaled_dot_product_attention` chooses from.
    "torch._subclasses.fake_tensor": "_subclasses",
    "torch.utils.flop_counter": """
        _python_dispatch _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_backward
    """,
    "torch._meta_registrations": """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    """,
}
# Names without an underscore, in modules that are the inside of a library or that no documentation promises.
INSIDES = {
    "transformers.pipelines.base": "check_task register_pipeline supported_tasks",
    "transformers.integrations.deepspeed": "is_deepspeed_zero3_enabled",
    "transformers.integrations.fsdp": "is_fsdp_managed_module",
    "transformers.quantizers.quantizer_torchao": "flatten_tensor_state_dict",
    "transformers.exporters.configs": "OnnxConfig",
    "transformers.exporters.exporter_dynamo": "get_auto_dynamic_shapes",
    "transformers.exporters.exporter_onnx": "OnnxExporter",
    "huggingface_hub.constants": "ENDPOINT HF_HUB_DISABLE_PROGRESS_BARS HF_HUB_DISABLE_XET",
    "huggingface_hub.utils": "enable_progress_bars filter_repo_objects parse_ratelimit_headers validate_repo_id",
    "ctranslate2.converters.transformers": """
        BartLoader TransformersConverter architecture_name get_model_spec register_loader set_attention set_common_layers
        set_decoder set_embeddings set_encoder set_layer_norm set_linear
    """,
    "ctranslate2.specs.common_spec": "Activation",
    "ctranslate2.specs.transformer_spec": "TransformerDecoderSpec TransformerEncoderSpec TransformerSpec",
}
# Older transformers do without these, which is seen by their absence.
WHERE_THERE = {"ExportedModel"}
NAMES = [
    (module, name) for part in (PRIVATE, INSIDES) for module, names in part.items() for name in names.split()
]
# The loader and the exporter are the only files that look into these libraries.
LIBRARIES = "transformers huggingface_hub torch datasets evaluate accelerate tokenizers ctranslate2".split()


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_the_installed_version_has_the_name(module, name):
    if module.startswith("ctranslate2"):
        pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install vaswani_hf[ctranslate2]")
    source = inspect.getsource(importlib.import_module(module))
    assert re.search(rf"\b{name}\b", source), f"{module} has no {name} any more; find what took its place."


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_uses(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Private names of attributes, imports, keywords, and of texts that are names: those of getattr, hasattr, vars …"""
    nodes = list(nodes)
    # Pieces of f-strings, and of names that are tested or cut, are no names of things.
    pieces = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Call) and re.search(r"(with|prefix|suffix)$", getattr(node.func, "attr", "")):
            pieces |= {id(part) for argument in node.args for part in ast.walk(argument)}
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.keyword) and node.arg:
            names = [node.arg]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            is_name = re.fullmatch(rf"_\w+|({'|'.join(LIBRARIES)})(\.\w+)+", node.value)
            names = node.value.split(".") if is_name else []
        yield from filter(is_private, names)


def own_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What is defined here: functions, classes, variables, and attributes of `self` and `cls`."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if getattr(node.value, "id", "") in ("self", "cls") else []


def our_nodes() -> dict[str, list[ast.AST]]:
    """The syntax of each file of the package and of its scripts."""
    paths = [*Path(vaswani_hf.__path__[0]).rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    return {str(path): list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths}


def foreign_names() -> dict[str, str]:
    """Private names that nobody here defines, and those that override one of a class from outside, with their places."""
    files = our_nodes()
    own = {name for nodes in files.values() for name in own_names(nodes)}
    found = {name: place for place, nodes in files.items() for name in private_uses(nodes) if name not in own}
    for info in pkgutil.walk_packages(vaswani_hf.__path__, "vaswani_hf."):
        for thing in vars(importlib.import_module(info.name)).values():
            if not inspect.isclass(thing) or thing.__module__ != info.name:
                continue
            outside = [base for base in thing.__mro__[1:] if not base.__module__.startswith("vaswani_hf")]
            for name in filter(is_private, vars(thing)):
                if any(name in vars(base) for base in outside if base is not object):
                    found[name] = info.name
    return found


def test_every_private_name_of_others_is_in_the_list():
    # Python and the libraries put these into a class by themselves. `_is_complete` is ours, on a config of theirs.
    automatic = {"_abc_impl", "_auto_class", "_backward_cls", "_is_protocol"}
    known = {name for _, name in NAMES} | automatic | {"_is_complete"}
    missing = {name: place for name, place in foreign_names().items() if name not in known}
    assert not missing


def test_every_private_name_of_the_list_is_in_use():
    used = {name for nodes in our_nodes().values() for name in private_uses(nodes)} | foreign_names().keys()
    assert not {name for names in PRIVATE.values() for name in names.split()} - used


def test_every_name_from_the_inside_of_a_library_is_in_the_list():
    missing = {}
    for place, nodes in our_nodes().items():
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and any(
                (node.module or "").startswith(module) for module in INSIDES
            ):
                names = [alias.name for alias in node.names]
                listed = INSIDES.get(node.module or "", "").split()
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "constants":
                names, listed = [node.attr], INSIDES["huggingface_hub.constants"].split()
            else:
                continue
            missing |= {name: place for name in names if name not in listed and name not in WHERE_THERE}
    assert not missing


@pytest.mark.parametrize(
    "code",
    [
        "model._secret",
        "model._secret = 3",
        "del model._secret",
        "from torch._secret import open",
        "from torch._secret.inside import open as close",
        "from transformers.generation import _secret",
        "from transformers.generation._secret import search",
        "import torch._secret",
        "import torch._secret.inside as torch_inside",
        "getattr(model, '_secret', None)",
        "hasattr(model, '_secret')",
        "setattr(model, '_secret', 1)",
        "vars(model)['_secret']",
        "'_secret' in vars(model)",
        "importlib.import_module('torch._secret.inside')",
        "operator.attrgetter('_secret')",
        "names = ['_secret']",
        "generate(_secret=True)",
        "class A:\n    def f(self):\n        return self.model._secret",
    ],
)
def test_the_search_for_private_names_sees(code):
    nodes = list(ast.walk(ast.parse(code)))
    assert set(private_uses(nodes)) - set(own_names(nodes)) == {"_secret"}


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def _secret(self):\n        return self._secret",
        "self._secret = 1; self._secret",
        "from .sibling import _secret\n_secret = _secret",
        "model.__secret__",
        "f'{stack}_secret'",
        "name.endswith(('_secret', '_id'))",
        "'it has a _secret'",
    ],
)
def test_the_search_for_private_names_takes_none_for_one(code):
    nodes = list(ast.walk(ast.parse(code)))
    assert not set(private_uses(nodes)) - set(own_names(nodes))


def test_the_scripts_are_searched():
    assert {str(path) for path in (ROOT / "scripts").rglob("*.py")} <= our_nodes().keys()


@pytest.mark.parametrize(("library", "parts"), [("transformers", 2), ("huggingface_hub", 1)])
def test_the_cap_is_the_first_version_after_the_one_that_is_tested(library, parts):
    with (ROOT / "pyproject.toml").open("rb") as file:
        required = [Requirement(line) for line in tomllib.load(file)["project"]["dependencies"]]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    tested = Version(re.search(rf"^{library}==(.+)$", pinned, re.MULTILINE)[1])
    (cap,) = [s for r in required if r.name == library for s in r.specifier if s.operator == "<"]
    *same, last = tested.release[:parts]
    assert Version(cap.version).release[:parts] == (*same, last + 1)
