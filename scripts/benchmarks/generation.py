"""Beam search against MarianMT and CTranslate2 with the same weights on the same sentences, in one run.

`python scripts/benchmarks/generation.py CHECKPOINT SOURCE [--reference FILE --base --sentences 200]` prints one table:
medians over interleaved repetitions, ratios to MarianMT in its usual use (file order, batches of 32), peak memory beyond
the loaded model, each in a process of its own, how many translations are those of MarianMT, how many are others than those
of our search in float32, and BLEU. Our search is measured in bfloat16 and with weights in int8 too. `--base` measures a model of the
paper's base size that computes what the checkpoint does (`widened`), so that translations and lengths are real.
"""

import argparse
import copy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from training_peers.turns import resident
from transformers import MarianMTModel
from transformers.utils import logging

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.convert.marian import to_marian
from vaswani_hf.data.lines import read_lines
from vaswani_hf.evaluation.bleu import score_translations
from vaswani_hf.model.translator_vaswani import Segment, batches_by_length
from vaswani_hf.translation import Translator
from vaswani_hf.translation.quantization import quantize

# Settings that both searches can express. With "never" transformers stops where no better translation is possible, as ours does.
SETTINGS: dict[str, Any] = {
    "num_beams": 4,
    "length_penalty": 0.6,
    "early_stopping": "never",
    "max_new_tokens": 100,
}
PAPER = {
    "num_beams": 4,
    "length_penalty": 0.6,
    "length_penalty_type": "gnmt",
    "max_length_a": 1,
    "max_length_b": 50,
}
BUDGETS = (256, 512, 1024, 2048, 4096)
Ids = list[list[int]]
Engine = Callable[[Ids], Ids]


def widened(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """A model of the paper's base size with the same logits: features, heads and inner units repeated.

    LayerNorm of repeated features is repeated too. Positions become a learned table, since wider sinusoids are others;
    layers that are too many add almost nothing to what they get.
    """
    small = model.config
    config = VaswaniConfig(
        vocab_size=small.vocab_size,
        position_embedding="learned",
        max_position_embeddings=1024,
        attention_bias=False,
    )
    wide = VaswaniForSeq2SeqLM(config).eval()
    state = wide.state_dict()
    for name, tensor in state.items():
        tensor.copy_(_widened_tensor(name, tensor, model))
    wide.load_state_dict(state)
    wide.generation_config = copy.deepcopy(model.generation_config)
    return wide


def _widened_tensor(name: str, new: torch.Tensor, model: VaswaniForSeq2SeqLM) -> torch.Tensor:
    small, state = model.config, model.state_dict()
    width, inner = 512 // small.d_model, 2048 // small.encoder_ffn_dim
    heads, depth = 8 // small.encoder_attention_heads, 64 // (small.d_k or 1)
    if "embed_positions" in name:
        return model.get_encoder().position_states(torch.arange(len(new))).repeat(1, width)
    if "layers." not in name:
        # Embeddings are multiplied by the root of a width that is larger.
        return state["model.shared.weight"].repeat(1, width) / width**0.5
    stack = "encoder" if ".encoder." in name else "decoder"
    layer, last = int(name.split(".")[3]), getattr(small, f"{stack}_layers") - 1
    if "norm" in name:
        if layer >= last and "final" in name:
            # The old last LayerNorm is the new last one; it and those of the layers between change nothing until then.
            old = state[name.replace(f"layers.{layer}.", f"layers.{last}.")].repeat(width)
            # The output projection, a repeated embedding, must not count the features as often as they are there.
            old = old / width**0.5 if stack == "decoder" else old
            return old if layer == 5 else torch.full_like(new, float(name.endswith("weight")))
        return (
            state[name].repeat(width)
            if layer <= last
            else torch.full_like(new, float(name.endswith("weight")))
        )
    if layer > last:
        return new * 1e-6
    old = state[name]
    if "fc1" in name:
        return old.repeat(inner, width) / width if old.dim() == 2 else old.repeat(inner)
    if "fc2" in name:
        return old.repeat(width, inner) / inner if old.dim() == 2 else old.repeat(width)
    per_head = old.T if "out_proj" in name else old
    per_head = per_head.view(1, small.encoder_attention_heads, 1, -1, small.d_model)
    per_head = per_head.expand(heads, -1, depth, -1, -1).reshape(512, small.d_model)
    if "out_proj" in name:
        return per_head.T.repeat(width, 1) / (heads * depth)
    # A product of queries and keys is as often as wide, and divided by the root of that.
    return (
        per_head.repeat(1, width)
        / width
        * (depth**-0.25 if name.split(".")[-2] in ("q_proj", "k_proj") else 1)
    )


def marian_of(model: VaswaniForSeq2SeqLM) -> MarianMTModel:
    """The MarianMT model with the same logits, of a widened model as well."""
    if model.config.position_embedding == "sinusoidal":
        return to_marian(model)
    # The export refuses learned positions, because transformers would not load them into a MarianMT model again.
    config = copy.deepcopy(model.config)
    config.position_embedding = "sinusoidal"
    twin = VaswaniForSeq2SeqLM(config).eval()
    twin.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "embed_positions" not in name}
    )
    twin.generation_config = model.generation_config
    marian = to_marian(twin)
    halves = torch.cat((torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)))
    for stack in (marian.model.encoder, marian.model.decoder):
        table = model.get_encoder().embed_positions.weight[:, halves]
        stack.embed_positions.weight.data[: len(table)] = table
    return marian


def file_order(ids: Ids, size: int) -> list[list[int]]:
    """Batches of so many sentences as they come."""
    return [list(range(start, min(start + size, len(ids)))) for start in range(0, len(ids), size)]


def _sorted(ids: Ids, tokens: int) -> list[list[int]]:
    return list(batches_by_length(ids, tokens))


def by_transformers(
    model: Any, pad: int, batches: Callable[[Ids], list[list[int]]], settings: dict
) -> Engine:
    """`generate` over batches."""

    def run(ids: Ids) -> Ids:
        results: Ids = [[]] * len(ids)
        for batch in batches(ids):
            rows = [torch.tensor(ids[i]) for i in batch]
            input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(
                model.device
            )
            outputs = model.generate(input_ids, attention_mask=(input_ids != pad).long(), **settings)
            for i, output in zip(batch, outputs.tolist(), strict=True):
                # From behind the start to `</s>`.
                results[i] = [token for token in output[1:] if token != pad]
        return results

    return run


def by_ctranslate2(folder: str) -> Engine:
    """CTranslate2 over length-sorted batches."""
    from vaswani_hf.translation.ctranslate2 import CTranslate2Backend

    backend = CTranslate2Backend(folder, num_threads=torch.get_num_threads())
    settings = {**SETTINGS, "max_length_a": None, "max_length_b": None, "max_length": None}

    def run(ids: Ids) -> Ids:
        results: Ids = [[]] * len(ids)
        for batch in batches_by_length(ids, 1024):
            found = backend.search([Segment("", ids[i], []) for i in batch], **settings)
            for i, hypotheses in zip(batch, found, strict=True):
                results[i] = hypotheses[0].token_ids
        return results

    return run


class Benchmark:
    """Models and engines of one run.

    Args:
        arguments (Namespace): Of the command line.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        translator = Translator.from_pretrained(arguments.checkpoint, arguments.device)
        self.tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
        self.pad, self.eos = translator.model.config.pad_token_id, translator.model.config.eos_token_id
        self.model = widened(translator.model.cpu()) if arguments.base else translator.model
        # Limits are those of the settings.
        self.model.generation_config.max_length = None
        for name in ("max_length_a", "max_length_b"):
            setattr(self.model.generation_config, name, None)
        self.model.to(arguments.device, torch.bfloat16 if arguments.bf16 else torch.float32)
        lines = [line.strip() for line in read_lines(arguments.source)]
        self.ids = translator.source_tokenizer(lines[: arguments.sentences])["input_ids"]
        self.references: list[str] = []
        if arguments.reference:
            self.references = [line.strip() for line in read_lines(arguments.reference)][
                : arguments.sentences
            ]

    def model_of(self, name: str) -> Any:
        """The model of an engine of PyTorch."""
        if name.startswith("marian"):
            return marian_of(self.model)
        if "bf16" in name:
            return copy.deepcopy(self.model).to(torch.bfloat16)
        return quantize(copy.deepcopy(self.model)) if "int8" in name else self.model

    def bleu(self, translations: Ids) -> float | None:
        """BLEU of translations, if there are references."""
        if not self.references:
            return None
        texts = self.tokenizers[1].batch_decode(translations, skip_special_tokens=True)
        return float(score_translations(texts, self.references)["bleu"])

    def engine(self, name: str, ids: Ids) -> Engine:
        """An engine by its name."""
        if name.startswith("ctranslate2"):
            from vaswani_hf.convert.ctranslate2 import to_ctranslate2

            folder = str(Path(tempfile.mkdtemp()) / "model")
            to_ctranslate2(self.model, self.tokenizers, folder, "int8" if "int8" in name else None)
            return by_ctranslate2(folder)
        model = self.model_of(name)
        model.generation_config.max_length = None
        settings = PAPER if "paper" in name else SETTINGS

        def run(batches: Callable[[Ids], list[list[int]]]) -> Engine:
            return by_transformers(model, self.pad, batches, settings)

        if "one" in name:
            return run(lambda ids: file_order(ids, 1))
        if "file" in name:
            return run(lambda ids: file_order(ids, 32))
        if not ids:
            return run(partial(_sorted, tokens=2048))
        engines = {budget: run(partial(_sorted, tokens=budget)) for budget in BUDGETS}
        seconds = {budget: timed(engine, ids)[0] for budget, engine in engines.items()}
        best = min(seconds, key=lambda budget: seconds[budget])
        print(f"{name}: batches of {best} source tokens are its fastest", flush=True)
        return engines[best]


def timed(engine: Engine, ids: Ids) -> tuple[float, Ids]:
    """One run."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    translations = engine(ids)
    return time.perf_counter() - start, translations


def peak_memory(benchmark: Benchmark, name: str, is_heavy: bool) -> float:
    """The memory of a run beyond that before it, in a process that has run nothing else."""
    ids = benchmark.ids
    engine = benchmark.engine(name, [])
    if is_heavy:
        tokens = [token for sentence in benchmark.ids for token in sentence[:-1]]
        tokens *= 64 * 99 // len(tokens) + 1
        ids = [tokens[99 * i : 99 * (i + 1)] + [benchmark.eos] for i in range(64)]
        model = benchmark.model_of(name)
        model.generation_config.max_length = None
        engine = by_transformers(
            model, benchmark.pad, lambda ids: file_order(ids, 64), {**SETTINGS, "num_beams": 8}
        )
    if benchmark.model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine(ids)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # From here on the highest resident size counts anew (Linux).
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    engine(ids)
    return resident("VmHWM") - before


def measured(names: list[str], benchmark: Benchmark, ids: Ids) -> dict[str, tuple[float, Ids]]:
    """The median seconds of each engine, and its translations.

    Args:
        names (list): Engines.
        benchmark (Benchmark): The models.
        ids (list): Sentences.

    Returns:
        dict: (seconds, translations) by name.
    """
    engines = {name: benchmark.engine(name, ids) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    translations: dict[str, Ids] = {}
    for engine in engines.values():
        engine(ids[:32])
    for _ in range(benchmark.arguments.repetitions):
        for name, engine in engines.items():
            seconds, translations[name] = timed(engine, ids)
            times[name].append(seconds)
    return {name: (statistics.median(times[name]), translations[name]) for name in names}


def print_table(
    results: dict[str, tuple[float, Ids]], baseline: str, memory: dict[str, str], bleu: Any
) -> None:
    """Print one line per engine.

    Args:
        results (dict): (seconds, translations) by engine.
        baseline (str): The engine that ratios refer to.
        memory (dict): What is known of its memory, by engine.
        bleu (Callable): From translations to BLEU, or None.
    """
    slowest, expected = results[baseline]
    ours = next(translations for name, (_, translations) in results.items() if name.startswith("vaswani"))
    print(
        f"\n{'':28}{'seconds':>9}{'sent/s':>9}{'tokens/s':>10}{'ratio':>7}{'same':>7}{'changed':>9}{'BLEU':>7}  peak MiB"
    )
    for name, (seconds, translations) in results.items():
        tokens = sum(map(len, translations))
        same = sum(map(list.__eq__, translations, expected))
        changed = sum(map(list.__ne__, translations, ours))
        score = bleu(translations)
        print(
            f"{name:28}{seconds:9.2f}{len(expected) / seconds:9.1f}{tokens / seconds:10,.0f}{slowest / seconds:7.2f}"
            f"{same:7,}{changed:9,}{'' if score is None else f'{score:.2f}':>7}{memory.get(name, ''):>10}",
            flush=True,
        )


def memory_of(name: str, is_heavy: bool) -> float:
    """The peak memory of an engine, measured by this script in another process."""
    command = [sys.executable, *sys.argv, "--memory-of", name, *(["--heavy"] if is_heavy else [])]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    ).stdout
    return float(output.split()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder of this package")
    parser.add_argument("source", help="sentences, one per line (plain or .gz)")
    parser.add_argument("--reference", help="their translations, line by line, for BLEU")
    parser.add_argument(
        "--base", action="store_true", help="measure a model of the paper's base size instead"
    )
    parser.add_argument("--sentences", type=int, help="the first so many")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--without_ctranslate2", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--heavy", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    benchmark = Benchmark(arguments)
    if arguments.memory_of:
        print(peak_memory(benchmark, arguments.memory_of, arguments.heavy))
        return
    names = ["marian, file order", "marian, sorted", "vaswani, sorted", "vaswani, sorted, paper"]
    if not arguments.bf16:
        names += ["vaswani bf16, sorted", *(["vaswani int8, sorted"] if arguments.device == "cpu" else [])]
    if not arguments.without_ctranslate2:
        names += ["ctranslate2 float32", "ctranslate2 int8"]
    results = measured(names, benchmark, benchmark.ids)
    memory = {name: f"{memory_of(name, False):,.0f}" for name in names}
    print_table(results, names[0], memory, benchmark.bleu)
    few = benchmark.ids[: 20 if arguments.base else 50]
    print(f"\n{len(few)} sentences, one at a time:", end="")
    alone = [
        "marian, one",
        "vaswani, one",
        *(name.replace("sorted", "one") for name in names[4:] if "vaswani" in name),
    ]
    print_table(measured(alone, benchmark, few), alone[0], {}, lambda translations: None)
    heavy = {name: memory_of(name, True) for name in ("marian, file order", "vaswani, sorted")}
    theirs, ours = heavy.values()
    print(
        f"\n8 beams, 64 inputs of 100 tokens: marian {theirs:,.0f} MiB, vaswani {ours:,.0f} MiB, {ours / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
