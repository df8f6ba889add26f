"""Runs the graphs of an ONNX export in ONNX Runtime, with the search of this package.

In shapes, B is the batch size, S the source length, T the number of target tokens in one call and D the model
width.
"""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import EncoderDecoderCache, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..checkpoint.tokenizers import load_tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.masks_vaswani import CACHE_NAME
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.translator_vaswani import BaseTranslator
from .export_formats import TranslatorEngine

_OWN = "self_attention_cache"
_SOURCE = "cross_attention_cache"


class OnnxGraph:
    """Runs one ONNX graph in ONNX Runtime. The graph defines the names of its inputs and outputs."""

    def __init__(self, path: Path):
        # Turn off the usage reports of ONNX Runtime.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def __call__(self, **values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the graph. Arguments that are not inputs of the graph are ignored."""
        inputs = {value.name: values[value.name].numpy() for value in self.session.get_inputs()}
        outputs = self.session.run(self.outputs, inputs)
        return {name: torch.from_numpy(value) for name, value in zip(self.outputs, outputs, strict=True)}


class OnnxEncoder:
    """The encoder of an `OnnxModel`: runs the graph encoder.onnx."""

    def __init__(self, graph: OnnxGraph):
        self.graph = graph

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Encode the source [B, S] to `last_hidden_state` [B, S, D]."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        states = self.graph(input_ids=input_ids, attention_mask=attention_mask.long())
        return BaseModelOutput(states["last_hidden_state"])


class OnnxModel(VaswaniForSeq2SeqLM):
    """Runs the graphs of an ONNX export as encoder and decoder, with the inherited method `generate`. The
    base class creates PyTorch modules on the meta device, without memory for weights. The PyTorch modules are
    not run.
    """

    # The graphs need a separate copy of the source keys and values for each beam.
    shares_sources = False

    def __init__(self, folder: Path):
        config = VaswaniConfig.from_pretrained(folder)
        # The graphs mask the tokens outside an attention window, and need the keys and values of all tokens.
        # If `attention_window` in the config is None, `generate` caches the keys and values of all tokens.
        config.attention_window = None
        with torch.device("meta"):
            super().__init__(config)
        self.eval()
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self.graphs = {name: OnnxGraph(folder / f"{name}.onnx") for name in ("encoder", "prefill", "decode")}

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        return OnnxEncoder(self.graphs["encoder"])

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Compute the logits [B, T, V], with the arguments of `VaswaniForSeq2SeqLM.forward`. `forward` adds
        the new keys and values to a given cache in place. Without a cache, `decoder_input_ids` must contain
        all target tokens.
        """
        past = past_key_values if cache is None else cache
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        states = encoder_outputs[0]
        mask = (
            torch.ones(states.shape[:2]) if attention_mask is None else attention_mask.view(len(states), -1)
        )
        inputs = {
            "encoder_outputs.last_hidden_state": states,
            "attention_mask": mask.long(),
            "decoder_input_ids": decoder_input_ids,
        }
        is_first = past is None or past.get_seq_length() == 0
        if is_first:
            outputs = self.graphs["prefill"](**inputs)
        else:
            outputs = self.graphs["decode"](**inputs, **_inputs_of(past))
        if past is not None:
            _store(past, outputs, is_first)
        return Seq2SeqLMOutput(logits=outputs["logits"], **{CACHE_NAME: past})


def _inputs_of(cache: EncoderDecoderCache) -> dict[str, torch.Tensor]:
    """Return the cached keys and values under the input names of decode.onnx."""
    inputs: dict[str, torch.Tensor] = {}
    for part in (_OWN, _SOURCE):
        for number, layer in enumerate(getattr(cache, part).layers):
            name = f"input.{CACHE_NAME}.{part}.layers.{number}"
            inputs |= {f"{name}.keys": layer.keys, f"{name}.values": layer.values}
    return inputs


def _store(cache: EncoderDecoderCache, outputs: dict[str, torch.Tensor], is_first: bool) -> None:
    """Store in `cache` the keys and values that a graph has returned."""
    prefix = CACHE_NAME if is_first else f"output.{CACHE_NAME}"
    for part in (_OWN, _SOURCE) if is_first else (_OWN,):
        own = getattr(cache, part)
        number = 0
        while (name := f"{prefix}.{part}.layers.{number}.keys") in outputs:
            keys = outputs[name]
            values = outputs[f"{name.removesuffix('keys')}values"]
            if is_first:
                own.update(keys, values, number)
            else:
                own.layers[number].keys = keys
                own.layers[number].values = values
            number += 1


class OnnxEngine(TranslatorEngine):
    """Runs the ONNX export of a checkpoint."""

    libraries = ("onnxruntime",)

    def load(self, folder: Path) -> BaseTranslator:
        return BaseTranslator(OnnxModel(folder), *load_tokenizers(folder))
