"""Converts a checkpoint to the ONNX graphs, configs and tokenizer that transformers.js loads as a MarianMT
model.

- onnx/encoder_model.onnx maps `input_ids` and `attention_mask` to `last_hidden_state`.

- onnx/decoder_model_merged.onnx maps the target tokens `input_ids` and the encoder outputs to `logits`, and
  to the keys and values `present.N.{decoder,encoder}.{key,value}`. The inputs
  `past_key_values.N.{decoder,encoder}.{key,value}` are the keys and values of earlier calls. If the input
  `use_cache_branch` is False, the decoder graph computes the keys and values of the source from the encoder
  outputs.

The export writes each ONNX graph to three files: with float32 weights, with float16 weights (suffix `_fp16`)
and with int8 weights (suffix `_quantized`). The floating-point inputs and outputs of the graph are float32 in
each file, also with float16 or int8 weights.

The greedy search of transformers.js stops only when all sentences of a batch generate `</s>` in the same
step. Therefore the decoder graph generates `</s>` again in each step after the end of a sentence.

In shapes, B is the batch size, S the source length, T the target length, P the number of cached target
tokens, H the number of heads, D the model width and V the size of the target vocabulary.
"""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData
from torch import nn
from torch.export import Dim
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ..checkpoint.files import TOKENIZER_FILES, read_json_object, write_whole
from ..checkpoint.search_settings import NotExpressibleError, SupportedSettings
from ..checkpoint.tokenizers import SHARED_IDS_MARK, Tokenizers
from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id, eos_token_ids
from ..model.loss_vaswani import EXCLUDED_LOGIT
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from .comparison import report, sample_batch
from .export_formats import (
    ALL_FIELDS,
    ExportFormat,
    Expressible,
    Limit,
    needs_end_token,
    needs_start_token,
    refuse_language_tokens,
    write_card,
)
from .marian import marian_config
from .onnx import TRACED_LENGTH, quiet, refuse_short_table
from .simplify import num_positions
from .transformers_js_engine import DECODER, DTYPES, ENCODER, GRAPHS, TransformersJsEngine

# The number of weights that share one scale of the int8 quantization.
_BLOCK_SIZE = 32
# The sizes of the traced inputs: the numbers of sentences, cached target tokens and new target tokens.
_TRACED_SENTENCES, _TRACED_CACHED, _TRACED_NEW = 2, 3, 2
# The generation settings that the export writes.
_SETTINGS = """
    bos_token_id eos_token_id pad_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id bad_words_ids
    suppress_tokens begin_suppress_tokens no_repeat_ngram_size repetition_penalty min_length min_new_tokens
""".split()


def export_transformers_js(
    model: VaswaniForSeq2SeqLM,
    tokenizers: Tokenizers | None,
    folder: Path,
    quantization: str | None = None,
) -> str:
    """Write the ONNX graphs, the configs and the tokenizer, and compare the graphs with the model."""
    assert tokenizers is not None
    tokenizer = _only_tokenizer(tokenizers)
    refuse_short_table(model.config, "transformers_js")
    model.float()
    (folder / GRAPHS).mkdir(parents=True)
    with quiet():
        _write_graph(_encoder_program(model), folder, ENCODER)
        _write_graph(_decoder_program(model), folder, DECODER)
    longest = num_positions(model, tokenizers)
    config = marian_config(model.config, longest)
    config.architectures = ["MarianMTModel"]
    config.save_pretrained(folder)
    _generation_config(model, longest).save_pretrained(folder)
    _save_tokenizer(tokenizer, folder)
    return " ".join(_differences(model, folder))


def _only_tokenizer(tokenizers: Tokenizers) -> Any:
    """Return the source tokenizer, because transformers.js has only one tokenizer per model. Raise an error
    if the source tokenizer cannot also decode the target.
    """
    source, target = tokenizers
    refuse_language_tokens(source, "the pipeline of transformers.js")
    if source is not target and not target.init_kwargs.get(SHARED_IDS_MARK, False):
        raise NotExpressibleError(
            "`tokenizers` are a source and a target tokenizer with different ids, which transformers.js "
            "cannot express: it has one tokenizer per model; use another format, or train with a joint "
            "vocabulary."
        )
    return source


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    settings = read_json_object(folder, TOKENIZER_FILES[1], folder)
    # Replace the class name that transformers 5 writes, because transformers.js prints a warning about this
    # name.
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_whole(folder / TOKENIZER_FILES[1], json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


class _EncoderGraph(nn.Module):
    def __init__(self, model: VaswaniForSeq2SeqLM):
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class _DecoderGraph(nn.Module):
    """The decoder, with the inputs and outputs that transformers.js expects. `decoder_states` are the keys
    [B, H, P, d_k] and values [B, H, P, d_v] of the cached target tokens in all layers. `encoder_states` are
    the keys and values of the source tokens.
    """

    def __init__(self, model: VaswaniForSeq2SeqLM):
        super().__init__()
        self.model = model
        ends = eos_token_ids(model.config)
        is_end = torch.zeros(model.config.decoder_vocab_size, dtype=torch.bool)
        is_end[ends] = True
        only_end = torch.full(is_end.shape, EXCLUDED_LOGIT)
        only_end[ends[0]] = 0
        self.register_buffer("is_end", is_end)
        self.register_buffer("only_end", only_end)

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        decoder_states: list[torch.Tensor],
        encoder_states: list[torch.Tensor],
        use_cache_branch: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor], tuple[torch.Tensor, ...]]:
        batch_size, source_length = encoder_attention_mask.shape
        source_states = torch.cond(
            use_cache_branch[0],
            _cached_states,
            self._source_states,
            (encoder_hidden_states, *encoder_states),
        )
        for states in source_states:
            # Tell the exporter the sizes of the tensors that `torch.cond` returns.
            torch._check(states.shape[0] == batch_size)
            torch._check(states.shape[2] == source_length)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for i in range(self.model.config.decoder_layers):
            pair = slice(2 * i, 2 * i + 2)
            cache.self_attention_cache.update(*decoder_states[pair], i)
            cache.cross_attention_cache.update(*source_states[pair], i)
            cache.is_updated[i] = True
        decoder = self.model.get_decoder()
        states = decoder(
            input_ids=input_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
        ).last_hidden_state  # [B, T, D]
        logits = self.model.logits(states)  # [B, T, V]
        # In the first call, an input token `</s>` does not end the translation, because `</s>` can be the
        # start token.
        has_ended = self.is_end[input_ids] & use_cache_branch  # [B, T]
        logits = torch.where(has_ended.unsqueeze(-1), self.only_end, logits)
        present = []
        for layer in cache.self_attention_cache.layers:
            present += [layer.keys, layer.values]
        return logits, present, source_states

    def _source_states(self, encoder_hidden_states: torch.Tensor, *cached: torch.Tensor) -> tuple:
        """Compute the keys and values of the cross-attention for all layers, from the encoder output."""
        states: list[torch.Tensor] = []
        for layer in self.model.get_decoder().layers:
            states += layer.encoder_attn.keys_and_values(encoder_hidden_states, encoder_hidden_states, None)
        return tuple(tensor.contiguous() for tensor in states)


def _cached_states(encoder_hidden_states: torch.Tensor, *cached: torch.Tensor) -> tuple:
    # Clone the tensors, because a branch of `torch.cond` must not return its inputs.
    return tuple(tensor.clone() for tensor in cached)


def _encoder_program(model: VaswaniForSeq2SeqLM) -> Any:
    ids = torch.zeros(_TRACED_SENTENCES, TRACED_LENGTH, dtype=torch.int64)
    axes = {0: Dim("batch_size"), 1: Dim("encoder_sequence_length")}
    return torch.onnx.export(
        _EncoderGraph(model),
        (ids, torch.ones_like(ids)),
        dynamo=True,
        dynamic_shapes=(axes, axes),
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
    )


def _decoder_program(model: VaswaniForSeq2SeqLM) -> Any:
    config = model.config
    batch, source, new = (Dim(name) for name in ("batch_size", "encoder_sequence_length", "new_length"))
    ids = torch.zeros(_TRACED_SENTENCES, _TRACED_NEW, dtype=torch.int64)
    mask = torch.ones(_TRACED_SENTENCES, TRACED_LENGTH, dtype=torch.int64)
    encoder_hidden_states = torch.zeros(_TRACED_SENTENCES, TRACED_LENGTH, config.d_model)
    # The length axis of the cached source has its own dimension name, because the cached source has the
    # length 0 in the first call.
    cached = {0: batch, 2: Dim("past_decoder_sequence_length")}
    cached_source = {0: batch, 2: Dim("past_encoder_sequence_length")}
    num_states = 2 * config.decoder_layers
    return torch.onnx.export(
        _DecoderGraph(model),
        (
            ids,
            mask,
            encoder_hidden_states,
            _zero_states(model, _TRACED_CACHED),
            _zero_states(model, TRACED_LENGTH - 1),
            torch.tensor([True]),
        ),
        dynamo=True,
        dynamic_shapes=(
            {0: batch, 1: new},
            {0: batch, 1: source},
            {0: batch, 1: source},
            [cached] * num_states,
            [cached_source] * num_states,
            None,
        ),
        input_names=[
            *("input_ids", "encoder_attention_mask", "encoder_hidden_states"),
            *_names("past_key_values", "decoder", config),
            *_names("past_key_values", "encoder", config),
            "use_cache_branch",
        ],
        output_names=[
            "logits",
            *_names("present", "decoder", config),
            *_names("present", "encoder", config),
        ],
    )


def _names(prefix: str, stack: str, config: VaswaniConfig) -> list[str]:
    names = []
    for i in range(config.decoder_layers):
        names += [f"{prefix}.{i}.{stack}.key", f"{prefix}.{i}.{stack}.value"]
    return names


def _zero_states(model: VaswaniForSeq2SeqLM, length: int) -> list[torch.Tensor]:
    heads = model.config.decoder_attention_heads
    states = []
    for layer in model.get_decoder().layers:
        for width in (layer.self_attn.d_k, layer.self_attn.d_v):
            states.append(torch.zeros(_TRACED_SENTENCES, heads, length, width))
    return states


def _write_graph(program: Any, folder: Path, name: str) -> None:
    """Write three ONNX files: with float32, float16 and int8 weights."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.transformers.float16 import convert_float_to_float16

    paths = {dtype: folder / GRAPHS / f"{name}{suffix}.onnx" for dtype, suffix in DTYPES.items()}
    program.save(paths["fp32"], external_data=False)
    onnx.save(convert_float_to_float16(onnx.load(paths["fp32"]), keep_io_types=True), paths["fp16"])
    # Quantize only the weights, in blocks. In a test with a Multi30k model, the quantization in blocks
    # changed the most probable token at 0.3 % of the positions. `quantize_dynamic` changed the most probable
    # token at 1.0 % of the positions, because `quantize_dynamic` also quantizes the activations of a whole
    # batch with one scale.
    quantizer = MatMulNBitsQuantizer(
        _with_int8_embeddings(onnx.load(paths["fp32"])), bits=8, block_size=_BLOCK_SIZE, is_symmetric=True
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(paths["q8"]), use_external_data_format=False)


def _with_int8_embeddings(model: Any) -> Any:
    """Store the embeddings in int8, with one scale for each token. Store a tied output projection as a
    separate matrix, because the quantizer quantizes only constant matrices.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    tables = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    nodes = []
    replaced = set()
    for node in graph.node:
        table = tables.get(node.input[0]) if node.op_type in ("Gather", "Transpose") else None
        if table is None or table.data_type != TensorProto.FLOAT:
            nodes.append(node)
            continue
        replaced.add(table.name)
        rows = torch.from_numpy(numpy_helper.to_array(table).copy())  # [V, D]
        name, output = node.name, node.output[0]
        if node.op_type == "Transpose":
            graph.initializer.append(numpy_helper.from_array(rows.T.contiguous().numpy(), output))
            continue
        scales = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127  # [V, 1]
        codes = (rows / scales).round().to(torch.int8)
        graph.initializer.append(numpy_helper.from_array(codes.numpy(), f"{name}_codes"))
        graph.initializer.append(numpy_helper.from_array(scales.numpy(), f"{name}_scales"))
        ids = node.input[1]
        nodes += [
            helper.make_node("Gather", [f"{name}_codes", ids], [f"{name}_int8"]),
            helper.make_node("Cast", [f"{name}_int8"], [f"{name}_float"], to=TensorProto.FLOAT),
            helper.make_node("Gather", [f"{name}_scales", ids], [f"{name}_scale"]),
            helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [output]),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    for name in replaced - used:
        graph.initializer.remove(tables[name])
    return model


def _generation_config(model: VaswaniForSeq2SeqLM, longest: int) -> GenerationConfig:
    """Return the supported settings: transformers.js has only greedy search and one length limit."""
    settings = {name: getattr(model.generation_config, name, None) for name in _SETTINGS}
    settings["decoder_start_token_id"] = decoder_start_token_id(model.config)
    return GenerationConfig(**settings, num_beams=1, do_sample=False, max_length=longest)


def _differences(model: VaswaniForSeq2SeqLM, folder: Path) -> list[str]:
    """Describe the differences between the logits of the graphs and of the model, one line per dtype. The
    graphs process the last target tokens in separate calls, one token per call, so that the comparison also
    tests the cache.
    """
    batch = sample_batch(model.config)
    target = batch["decoder_input_ids"]
    ends = torch.tensor(eos_token_ids(model.config))
    # Replace each `</s>` in the target with an ordinary token. After `</s>`, the exported decoder graph
    # generates only `</s>`, but the original model can generate any token.
    target[:, 1:][torch.isin(target[:, 1:], ends)] = _ordinary_token(model.config)
    is_real = batch["decoder_attention_mask"].bool()
    with torch.no_grad():
        expected = model(**batch).logits[is_real]
    lines = []
    for dtype, title in (("fp32", "float32"), ("fp16", "float16"), ("q8", "int8")):
        logits = TransformersJsEngine(folder, dtype).logits(batch, num_steps=target.shape[1] // 2)[is_real]
        what = f"logits of the {title} graphs"
        difference = (logits - expected).abs().max().item()
        lines.append(report(what, difference) if dtype == "fp32" else report(what, difference, None))
    return lines


def _ordinary_token(config: VaswaniConfig) -> int:
    others = {config.pad_token_id, *eos_token_ids(config)}
    return next(number for number in range(len(others) + 1) if number not in others)


_USE = """# {name} for transformers.js

This folder contains a translation model in the ONNX format of
[transformers.js](https://huggingface.co/docs/transformers.js). `vaswani export --format transformers_js` of
vaswani_hf wrote the folder.

```js
import {{ pipeline }} from "@huggingface/transformers";

// The name of a repository on the Hub, or the path of this folder. The value of `dtype` is "fp32", "fp16" or "q8".
const translator = await pipeline("translation", "{name}", {{ dtype: "q8" }});
console.log(await translator("A sentence of the source language."));
```

transformers.js translates with greedy search. The pipeline stops after 256 new tokens; the argument `max_new_tokens`
changes this limit.
"""


def describe_transformers_js(folder: Path, name: str, data: ModelCardData) -> None:
    """Write the model card. `data` is the metadata of the checkpoint's model card."""
    text = _USE.format(name=name)
    write_card(folder, data, text, library_name="transformers.js", tags=("transformers.js", "onnx"))


_LIMITS: dict[str, Limit] = {
    "decoder_start_token_id": needs_start_token,
    "eos_token_id": needs_end_token,
}
TRANSFORMERS_JS = ExportFormat(
    name="transformers_js",
    main_file="onnx/decoder_model_merged.onnx",
    library_name="transformers.js",
    expressible=Expressible("transformers.js", ALL_FIELDS, _LIMITS),
    settings=SupportedSettings(
        "transformers.js",
        _SETTINGS,
        left_out=None,
        search=(
            "the search of transformers.js is greedy, and the pipeline of transformers.js stops after 256 "
            "new tokens"
        ),
    ),
    export=export_transformers_js,
    libraries=("onnx", "onnxscript", "onnxruntime"),
    needs_tokenizers=True,
    describe=describe_transformers_js,
    engine=TransformersJsEngine,
    model_type="marian",
    optional_files=TOKENIZER_FILES,
)
