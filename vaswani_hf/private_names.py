"""Lists undocumented names of other libraries that the package uses, and warns if an installed library lacks
a name.

A new version of a library can remove an undocumented name without notice. CONTRIBUTING.md describes how to
adopt a new release of transformers.
"""

import importlib.util
import re
import warnings
from importlib.metadata import version
from pathlib import Path

# The newest version of each library with which the tests have run. constraints.txt pins the versions in
# `TESTED`.
TESTED = {
    "transformers": "5.23.0",
    "torch": "2.13.0",
    "huggingface_hub": "2.4.0",
    "datasets": "5.2.0",
    "evaluate": "0.4.6",
}

# Maps each module to the private names (with an initial underscore) that the package uses.
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
        _load_video_processor _postprocess_params _registered_impl _sanitize_parameters
    """,
    "transformers.trainer": "_get_grad_norm _get_output_dir _load_rng_state _save_checkpoint",
    "datasets.arrow_dataset": "_indices",
    "evaluate.module": "_build_data_dir _compute _data_dir_root _info",
    # `torch._check` is in `PRIVATE` because its name begins with an underscore, although the documentation of
    # `torch.export` describes `torch._check`.
    "torch": "_check _dynamo",
    "torch.nn.modules.module": "_backward_hooks _backward_pre_hooks _compiled_call_impl _forward_hooks _forward_pre_hooks",
    # `_python_dispatch` and `_subclasses` are modules with the documented classes `TorchDispatchMode` and
    # `FakeTensorMode`. The names that begin with `_scaled` are kernels of `scaled_dot_product_attention`.
    "torch._subclasses.fake_tensor": "_subclasses",
    "torch.utils.flop_counter": """
        _python_dispatch _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_backward
    """,
    "torch._meta_registrations": """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    """,
}
# Maps each internal or undocumented module to the names that the package uses from the module, except names
# with a leading underscore.
INSIDES = {
    "transformers.pipelines.base": "check_task register_pipeline supported_tasks",
    "transformers.integrations.deepspeed": "is_deepspeed_zero3_enabled",
    "transformers.integrations.fsdp": "is_fsdp_managed_module",
    "transformers.quantizers.quantizer_torchao": "flatten_tensor_state_dict",
    "transformers.exporters.configs": "OnnxConfig",
    "transformers.exporters.exporter_dynamo": "get_auto_dynamic_shapes",
    "transformers.exporters.exporter_onnx": "OnnxExporter",
    "huggingface_hub.constants": "ENDPOINT HF_HUB_DISABLE_PROGRESS_BARS HF_HUB_DISABLE_XET",
    "huggingface_hub.utils": "enable_progress_bars parse_ratelimit_headers validate_repo_id",
    "torch._dynamo._trace_wrapped_higher_order_op": "TransformGetItemToIndex",
    "ctranslate2.converters.transformers": """
        BartLoader TransformersConverter architecture_name get_model_spec register_loader set_attention set_common_layers
        set_decoder set_embeddings set_encoder set_layer_norm set_linear
    """,
    "ctranslate2.specs.common_spec": "Activation",
    "ctranslate2.specs.transformer_spec": "TransformerDecoderSpec TransformerEncoderSpec TransformerSpec",
}


def missing_names(library: str) -> list[str]:
    """Return the listed names that the source files of the installed library lack, as `module.name`."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parents[1]
    missing = []
    for module, names in (*PRIVATE.items(), *INSIDES.items()):
        if module.split(".")[0] != library:
            continue
        place = folder.joinpath(*module.split("."))
        files = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
        source = files[0].read_text(encoding="utf-8") if files else ""
        missing += [f"{module}.{name}" for name in names.split() if not re.search(rf"\b{name}\b", source)]
    return missing


def warn_of_missing_names() -> None:
    """Warn if an installed library is not the tested version and lacks a name in `PRIVATE` or `INSIDES`."""
    for library, tested in TESTED.items():
        installed = version(library)
        if installed.split("+")[0] == tested:
            continue
        missing = missing_names(library)
        if missing:
            warnings.warn(
                f"{library} {installed} does not have {', '.join(missing)}, so parts of vaswani_hf will "
                "fail; install the version with which vaswani_hf is tested: pip install "
                f"'{library}=={tested}'.",
                stacklevel=2,
            )
