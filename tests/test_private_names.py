"""The undocumented names of other libraries that the package uses, with their modules. Any version may remove
these names.

ruff (SLF001, PLC2701) refuses the use of private names that pyproject.toml does not list. ruff sees no method that overrides
a private method, and no name without an underscore.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import vaswani_hf

ROOT = Path(__file__).parent.parent
SOURCES = [
    path.read_text(encoding="utf-8")
    for folder in ("vaswani_hf", "scripts")
    for path in (ROOT / folder).rglob("*.py")
]

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
# Names without an underscore in internal or undocumented modules.
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
NAMES = [
    (module, name)
    for table in (PRIVATE, INSIDES)
    for module, names in table.items()
    for name in names.split()
]
LISTED = {name for _, name in NAMES}


@pytest.mark.parametrize(("module", "names"), [*PRIVATE.items(), *INSIDES.items()])
def test_the_installed_version_has_the_names_and_the_package_uses_them(module, names):
    if module.startswith("ctranslate2"):
        pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install vaswani_hf[ctranslate2]")
    source = inspect.getsource(importlib.import_module(module))
    for name in names.split():
        assert re.search(rf"\b{name}\b", source), f"{module} has no {name} any more; find its successor."
        assert any(re.search(rf"\b{name}\b", text) for text in SOURCES), f"No file uses {name} of {module}."


def test_private_methods_of_other_libraries_are_overridden_only_if_they_are_listed():
    # Python and the libraries add these names to every class.
    automatic = {"_abc_impl", "_auto_class", "_backward_cls", "_is_protocol"}
    overridden = set()
    for info in pkgutil.walk_packages(vaswani_hf.__path__, "vaswani_hf."):
        for thing in vars(importlib.import_module(info.name)).values():
            if not inspect.isclass(thing) or thing.__module__ != info.name:
                continue
            others = [base for base in thing.__mro__[1:-1] if not base.__module__.startswith("vaswani_hf")]
            names = [name for name in vars(thing) if re.match("_[^_]", name)]
            overridden |= {name for name in names if any(name in vars(base) for base in others)}
    assert "_sanitize_parameters" in overridden
    assert overridden - automatic - LISTED == set()


def test_names_from_the_inside_of_a_library_are_listed():
    # The package also works if transformers has no `ExportedModel`.
    missing = [
        (node.module, alias.name)
        for text in SOURCES
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(tuple(INSIDES))
        for alias in node.names
        if (node.module, alias.name) not in {*NAMES, ("transformers.exporters.base", "ExportedModel")}
    ]
    constants = {name for text in SOURCES for name in re.findall(r"\bconstants\.([A-Z_]+)", text)}
    assert missing == [] and constants <= LISTED


def test_the_linter_allows_listed_names_and_names_of_this_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        allowed = tomllib.load(file)["tool"]["ruff"]["lint"]["flake8-self"]["ignore-names"]
    assert {*allowed} - LISTED == {"_handlers", "_is_complete", "_padding_is_end"}


@pytest.mark.parametrize(("library", "parts"), [("transformers", 2), ("huggingface_hub", 1)])
def test_the_cap_is_the_first_version_after_the_one_that_is_tested(library, parts):
    with (ROOT / "pyproject.toml").open("rb") as file:
        required = [Requirement(line) for line in tomllib.load(file)["project"]["dependencies"]]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    tested = Version(re.search(rf"^{library}==(.+)$", pinned, re.MULTILINE)[1])
    (cap,) = [s for r in required if r.name == library for s in r.specifier if s.operator == "<"]
    *same, last = tested.release[:parts]
    assert Version(cap.version).release[:parts] == (*same, last + 1)
