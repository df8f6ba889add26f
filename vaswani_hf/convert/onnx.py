"""Converts a checkpoint to three ONNX graphs with the exporter of transformers, and compares the outputs of
the graphs in ONNX Runtime with the outputs of the checkpoint.

- encoder.onnx: maps `input_ids` and `attention_mask` to `last_hidden_state`. In prefill.onnx and decode.onnx,
  the input `encoder_outputs.last_hidden_state` is the output `last_hidden_state` of encoder.onnx.

- prefill.onnx: computes the first decoding step. prefill.onnx maps `decoder_input_ids` of any length to
  `logits` and `past_key_values.*`.

- decode.onnx: maps the next `decoder_input_ids` and `input.past_key_values.*` to `logits` and
  `output.past_key_values.*`.

With transformers 5.24 and later, the names of the inputs and outputs contain `cache` in place of
`past_key_values`.

The graphs accept any batch size, source length and target length. The weights of each graph are in a separate
file, such as encoder.onnx.data for encoder.onnx. If the export runs with a version of transformers that has
the class `ExportedModel`, `ExportedModel` can load the exported folder.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from ..checkpoint.files import FILES_OF_BOTH_TOKENIZERS
from ..checkpoint.tokenizers import Tokenizers, save_tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..model.masks_vaswani import CACHE_NAME, decoding_cache
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from .comparison import largest_difference, report, sample_batch
from .export_formats import ALL_FIELDS, ExportFormat, Expressible
from .onnx_engine import OnnxEngine, OnnxModel

# The size of the traced batch: the number of sentences, and the length of a sentence in tokens. The
# comparison runs the graphs on a larger batch (`sample_batch`), to test sizes that were not traced.
_TRACED_SENTENCES, TRACED_LENGTH = 2, 5
# When the export compares the graphs with the model, prefill.onnx processes `_PREFILLED` target tokens.
# decode.onnx processes the remaining target tokens one by one.
_PREFILLED = 3


def export_onnx(
    model: VaswaniForSeq2SeqLM, tokenizers: Tokenizers | None, folder: Path, quantization: str | None = None
) -> str:
    """Write the graphs (in float32), the configs and the tokenizers. Compare the graphs with the model."""
    refuse_short_table(model.config, "onnx")
    model.float()
    with quiet():
        graphs = {name: _export(part, inputs) for name, (part, inputs) in _parts(model).items()}
    folder.mkdir()
    _save(graphs, model, folder)
    if tokenizers is not None:
        save_tokenizers(*tokenizers, folder)
    if find_spec("onnxruntime") is None:
        return "The ONNX graphs were not compared with the checkpoint, because onnxruntime is not installed."
    batch = sample_batch(model.config)
    with torch.no_grad():
        expected = model(**batch).logits
    difference = largest_difference(run_onnx(folder, batch), expected, batch["decoder_attention_mask"])
    return report("logits of ONNX Runtime", difference)


def refuse_short_table(config: VaswaniConfig, format: str) -> None:
    """Raise a ValueError if the position table is too short to trace the model."""
    if config.num_positions < TRACED_LENGTH:
        raise InvalidValueError(
            f"`max_position_embeddings` is {config.max_position_embeddings}, but the format {format} needs "
            f"at least {TRACED_LENGTH}, because the model is traced with {TRACED_LENGTH} tokens."
        )


def run_onnx(folder: Path, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Run the graphs in ONNX Runtime. `batch` has `input_ids` and `attention_mask` [B, S], and
    `decoder_input_ids` [B, T], padded on the right. Return the logits [B, T, V]. The logits at padding
    positions have no meaning.
    """
    model = OnnxModel(folder)
    source = {
        "attention_mask": batch["attention_mask"],
        "encoder_outputs": model.get_encoder()(batch["input_ids"], batch["attention_mask"]),
    }
    target = batch["decoder_input_ids"]
    cache = decoding_cache(model.config, is_whole=True)
    logits = []
    for start, end in [(0, _PREFILLED), *((i, i + 1) for i in range(_PREFILLED, target.shape[1]))]:
        outputs = model(**source, decoder_input_ids=target[:, start:end], past_key_values=cache)
        logits.append(outputs.logits)
    return torch.cat(logits, dim=1)


def _parts(model: VaswaniForSeq2SeqLM) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return for each graph the module that the exporter traces, and its example inputs."""
    batch = {
        name: tensor[:_TRACED_SENTENCES, :TRACED_LENGTH]
        for name, tensor in sample_batch(model.config).items()
    }
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        states = model.get_encoder()(**source).last_hidden_state
        inputs = {
            "encoder_outputs": BaseModelOutput(states),
            "attention_mask": batch["attention_mask"],
            "use_cache": True,
        }
        prefix = {**inputs, "decoder_input_ids": batch["decoder_input_ids"][:, :_PREFILLED]}
        # The cache of the graphs always contains all tokens, even if the model has an attention window.
        past = decoding_cache(model.config, is_whole=True)
        model(**prefix, past_key_values=past)
    further = {
        **inputs,
        "decoder_input_ids": batch["decoder_input_ids"][:, _PREFILLED:],
        CACHE_NAME: past,
    }
    return {"encoder": (model.get_encoder(), source), "prefill": (model, prefix), "decode": (model, further)}


def _export(part: Any, inputs: dict[str, Any]) -> Any:
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_dynamo import get_auto_dynamic_shapes
    from transformers.exporters.exporter_onnx import OnnxExporter

    # Define no shape for `use_cache`, because the exporter removes this input.
    shapes = _varying(get_auto_dynamic_shapes({k: value for k, value in inputs.items() if k != "use_cache"}))
    return OnnxExporter().export(part, copy.deepcopy(inputs), OnnxConfig(dynamic=True, dynamic_shapes=shapes))


def _varying(shapes: Any) -> Any:
    """Mark only the batch axis and the length axes as dynamic, because tracing takes minutes if all axes are
    dynamic. The inputs are token ids and masks [B, S], and hidden states [B, S, D]. The keys and values [B,
    H, S, K] have H heads with K features each.
    """
    if isinstance(shapes, dict) and 0 in shapes:
        return {axis: shapes[axis] for axis in ((0, 2) if len(shapes) == 4 else (0, 1))}
    if isinstance(shapes, dict):
        return {name: _varying(value) for name, value in shapes.items()}
    return [_varying(value) for value in shapes] if isinstance(shapes, list) else shapes


def _save(graphs: dict[str, Any], model: VaswaniForSeq2SeqLM, folder: Path) -> None:
    try:
        from transformers.exporters.base import ExportedModel
    except ImportError:
        # Older versions of transformers, such as 5.17, do not have the class `ExportedModel`, and export each
        # graph as a `torch.onnx.ONNXProgram`.
        for name, program in graphs.items():
            program.save(folder / f"{name}.onnx", external_data=True)
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        return
    components = {name: exported.components["model"] for name, exported in graphs.items()}
    ExportedModel(components, "onnx", model.config, model.generation_config).save_pretrained(folder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the progress output and the warnings of torch and transformers."""
    disabled = logging.root.manager.disable
    # The import of ONNX Runtime's quantizer calls `logging.basicConfig`. Add a handler to the root logger
    # first, because `basicConfig` does nothing if the root logger has a handler.
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)
            logging.root.removeHandler(handler)


# ONNX supports every field of the config, because the graphs are traced from the model itself.
ONNX = ExportFormat(
    name="onnx",
    main_file="decode.onnx",
    library_name="onnx",
    expressible=Expressible("ONNX", ALL_FIELDS, {}),
    settings=None,
    export=export_onnx,
    libraries=("onnx", "onnxscript"),
    engine=OnnxEngine,
    model_type=VaswaniConfig.model_type,
    optional_files=FILES_OF_BOTH_TOKENIZERS,
)
