"""Runs a model that `vaswani export --format transformers_js` has exported. Python code computes
log-probabilities with ONNX Runtime. A Node.js script translates texts.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from ..checkpoint.files import CONFIG_FILE, read_json_object
from ..model.segment_search_vaswani import batches_by_length, map_batches
from .export_formats import Engine
from .onnx_engine import OnnxGraph

GRAPHS, ENCODER, DECODER = "onnx", "encoder_model", "decoder_model_merged"
# Maps each dtype of transformers.js to the suffix of the graph files.
DTYPES = {"fp32": "", "fp16": "_fp16", "q8": "_quantized"}
# The maximum size of a batch, counted in source tokens for ONNX Runtime, and in characters for Node.js.
_TOKENS_PER_BATCH = 16384
_SCRIPT = Path(__file__).with_name("transformers_js_translate.cjs")


class TransformersJsEngine(Engine):
    """Runs the ONNX graphs of an export for transformers.js. `dtype` is "fp32", "fp16" or "q8"."""

    libraries = ("onnxruntime",)
    beam_search = "none"
    installation = "npm install @huggingface/transformers"

    def __init__(self, folder: Path, dtype: str = "fp32", batch_size: int = 32) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._dtype = dtype
        self._batch_size = batch_size
        config = read_json_object(self._folder, CONFIG_FILE, folder)
        self._start: int = config["decoder_start_token_id"]
        self._pad: int = config["pad_token_id"] or 0
        self._encoder, self._decoder = (
            OnnxGraph(self._folder / GRAPHS / f"{name}{DTYPES[dtype]}.onnx") for name in (ENCODER, DECODER)
        )

    @classmethod
    def is_available(cls) -> bool:
        """Return True if Node.js finds the package `@huggingface/transformers` in a folder `node_modules` or
        in NODE_PATH.
        """
        if shutil.which("node") is None:
            return False
        return subprocess.run(["node", _SCRIPT, "--check"], capture_output=True).returncode == 0

    def logits(self, batch: Mapping[str, torch.Tensor], num_steps: int = 0) -> torch.Tensor:
        """Return the logits [B, T, V]. `batch` has `input_ids` and `attention_mask` [B, S], and
        `decoder_input_ids` [B, T], padded on the right. The last `num_steps` target tokens are processed one
        by one with the cache.
        """
        inputs = {
            "encoder_attention_mask": batch["attention_mask"],
            "encoder_hidden_states": self._encoder(**batch)["last_hidden_state"],
            **self._empty_cache(len(batch["input_ids"])),
        }
        target = batch["decoder_input_ids"]
        num_first = target.shape[1] - num_steps
        logits = []
        for start, end in [(0, num_first), *((i, i + 1) for i in range(num_first, target.shape[1]))]:
            inputs |= {"input_ids": target[:, start:end], "use_cache_branch": torch.tensor([start > 0])}
            outputs = self._decoder(**inputs)
            logits.append(outputs.pop("logits"))
            inputs |= {name.replace("present", "past_key_values"): value for name, value in outputs.items()}
        return torch.cat(logits, dim=1)

    def _empty_cache(self, batch_size: int) -> dict[str, torch.Tensor]:
        """Return keys and values of length 0, as transformers.js passes in the first call of the decoder."""
        cache = {}
        for value in self._decoder.session.get_inputs():
            if value.name.startswith("past_key_values"):
                _, heads, _, width = value.shape
                cache[value.name] = torch.zeros(batch_size, heads, 0, width)
        return cache

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        pairs = list(zip(source_ids, target_ids, strict=True))
        return map_batches(self._score, pairs, source_ids, _TOKENS_PER_BATCH, self._batch_size)

    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[list[float]]:
        sources = [torch.tensor(source) for source, _ in pairs]
        targets = [torch.tensor(target) for _, target in pairs]
        inputs = [torch.cat((torch.tensor([self._start]), ids[:-1])) for ids in targets]
        batch = {
            "input_ids": pad_sequence(sources, batch_first=True, padding_value=self._pad),
            "attention_mask": pad_sequence([torch.ones_like(ids) for ids in sources], batch_first=True),
            "decoder_input_ids": pad_sequence(inputs, batch_first=True, padding_value=self._pad),
        }
        log_probs = self.logits(batch).log_softmax(dim=-1)
        return [
            row[torch.arange(len(ids)), ids].tolist() for row, ids in zip(log_probs, targets, strict=True)
        ]

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """Translate texts in Node.js with greedy search. `num_beams` has no effect."""
        batches = list(batches_by_length(texts, _TOKENS_PER_BATCH, self._batch_size))
        job = {
            "folder": str(self._folder),
            "dtype": self._dtype,
            "batches": [[texts[i] for i in numbers] for numbers in batches],
        }
        result = subprocess.run(
            ["node", _SCRIPT], input=json.dumps(job), capture_output=True, encoding="utf-8"
        )
        if result.returncode != 0:
            raise ValueError(f"transformers.js cannot run '{self._folder}': {result.stderr.strip()[-500:]}")
        translations = [""] * len(texts)
        for numbers, found in zip(batches, json.loads(result.stdout), strict=True):
            for i, translation in zip(numbers, found, strict=True):
                translations[i] = translation
        return translations
