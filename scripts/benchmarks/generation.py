"""Compares the beam search of this package with MarianMT and CTranslate2 on the same sentences.

    python scripts/benchmarks/generation.py CHECKPOINT SOURCE
        [--reference FILE --base --sentences 200 --early_stopping]

All engines use the same weights. The script prints a table with one row for each engine. The column "seconds"
shows the median time. The column "same" shows how many translations are equal to the translations of
MarianMT. The column "changed" shows how many translations differ from the translations of this package in
float32. The column "peak MiB" shows the peak memory minus the memory of the loaded model. The column "ratio"
shows the speed divided by the speed of the engine in the first row. By default, the script also measures the
search of this package in bfloat16 and, on a CPU, with int8 weights. With `--base`, the script measures a
model of the paper's base size. `widened` makes this model from the checkpoint. The checkpoint and the model
of the base size compute the same logits, so the translations have realistic lengths.
"""

import argparse
import copy
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import from_fresh_process, in_turns, peak_memory, print_header, ratio, seconds_of
from transformers import MarianMTModel
from transformers.utils import logging

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.convert.marian import to_marian
from vaswani_hf.data.lines import read_lines
from vaswani_hf.evaluation.bleu import score_translations
from vaswani_hf.model.backend_vaswani import Segment
from vaswani_hf.model.segment_search_vaswani import batches_by_length
from vaswani_hf.translation import Translator
from vaswani_hf.translation.quantization import quantize

# All searches except "vaswani, sorted, paper" use these settings. With `early_stopping="never"`, a search
# stops only when no better translation is possible. The option `--early_stopping` replaces "never" by True.
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
BASE_WIDTH = 512
BASE_FFN = 2048
BASE_HEADS = 8
BASE_LAYERS = 6
Ids = list[list[int]]
Engine = Callable[[Ids], Ids]
Batching = Callable[[Ids], list[list[int]]]


def widened(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """Return a model of the paper's base size that computes the same logits as the smaller `model`. The wide
    model repeats the features, heads and inner units of `model`.

    Repeating the features does not change the outputs of LayerNorm, because repeated features have the same
    mean and the same variance. The wide model stores the position encodings of `model` in its table of
    learned positions, because sinusoids depend on the width of the model. If the wide model has more layers
    than `model`, the additional layers add almost nothing to their inputs.
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
    small = model.config
    state = model.state_dict()
    width = BASE_WIDTH // small.d_model
    if "embed_positions" in name:
        return model.get_encoder().position_states(torch.arange(len(new))).repeat(1, width)
    if "layers." not in name:
        # Divide the embeddings by `width**0.5`, because a model multiplies its embeddings by the square root
        # of `d_model`, and the `d_model` of the wide model is `width` times as large.
        return state["model.shared.weight"].repeat(1, width) / width**0.5
    stack = "encoder" if ".encoder." in name else "decoder"
    layer = int(name.split(".")[3])
    last = getattr(small, f"{stack}_layers") - 1
    if "norm" in name:
        identity = torch.full_like(new, float(name.endswith("weight")))
        if layer >= last and "final" in name:
            if layer < BASE_LAYERS - 1:
                return identity
            # Give the last layer of the wide model the final LayerNorm of the last layer of the small model.
            old = state[name.replace(f"layers.{layer}.", f"layers.{last}.")].repeat(width)
            # In the decoder, divide the parameters of the LayerNorm by `width**0.5`, so that the logits do
            # not change. The output projection adds up each feature `width` times, but the weights of the
            # output projection are divided only by `width**0.5`.
            return old / width**0.5 if stack == "decoder" else old
        return state[name].repeat(width) if layer <= last else identity
    if layer > last:
        return new * 1e-6
    old = state[name]
    inner = BASE_FFN // small.encoder_ffn_dim
    if "fc1" in name:
        return old.repeat(inner, width) / width if old.dim() == 2 else old.repeat(inner)
    if "fc2" in name:
        return old.repeat(width, inner) / inner if old.dim() == 2 else old.repeat(width)
    heads = BASE_HEADS // small.encoder_attention_heads
    depth = BASE_WIDTH // BASE_HEADS // (small.d_k or 1)
    is_output = "out_proj" in name
    per_head = (old.T if is_output else old).view(1, small.encoder_attention_heads, 1, -1, small.d_model)
    per_head = per_head.expand(heads, -1, depth, -1, -1).reshape(BASE_WIDTH, small.d_model)
    if is_output:
        return per_head.T.repeat(width, 1) / (heads * depth)
    wide = per_head.repeat(1, width) / width
    # A head of the wide model has `depth` times as many features as a head of `small`. Therefore its dot
    # products of queries and keys are `depth` times as large. Attention divides the dot products by the
    # square root of the number of features, so the scores would be depth**0.5 times as large. Multiply the
    # queries and the keys by depth**-0.25 each, so that the scores do not change.
    return wide * depth**-0.25 if name.split(".")[-2] in ("q_proj", "k_proj") else wide


def marian_of(model: VaswaniForSeq2SeqLM) -> MarianMTModel:
    """Return a MarianMT model with the same logits as `model`. `model` may be a model that `widened` has
    returned.
    """
    if model.config.position_embedding == "sinusoidal":
        return to_marian(model)
    # Export the model with sinusoids and set the learned positions afterwards. The export does not support
    # learned positions, because transformers does not load learned positions into a MarianMT model.
    config = copy.deepcopy(model.config)
    config.position_embedding = "sinusoidal"
    twin = VaswaniForSeq2SeqLM(config).eval()
    twin.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "embed_positions" not in name}
    )
    twin.generation_config = model.generation_config
    marian = to_marian(twin)
    even = torch.arange(0, config.d_model, 2)
    halves = torch.cat((even, even + 1))
    for stack in (marian.model.encoder, marian.model.decoder):
        table = model.get_encoder().embed_positions.weight[:, halves]
        stack.embed_positions.weight.data[: len(table)] = table
    return marian


def file_order(ids: Ids, size: int) -> list[list[int]]:
    """Divide the sentences into batches of `size` sentences, in the order of the file."""
    return [list(range(start, min(start + size, len(ids)))) for start in range(0, len(ids), size)]


def by_length(ids: Ids, tokens: int) -> list[list[int]]:
    """Divide the sentences into batches of sentences with similar lengths. A batch has at most `tokens`
    source tokens.
    """
    return list(batches_by_length(ids, tokens))


def by_transformers(model: Any, pad: int, batching: Batching, settings: dict[str, Any]) -> Engine:
    """Return an engine that calls `generate`."""

    def run(ids: Ids) -> Ids:
        results: Ids = [[]] * len(ids)
        for batch in batching(ids):
            rows = [torch.tensor(ids[i]) for i in batch]
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            input_ids = padded.to(model.device)
            outputs = model.generate(input_ids, attention_mask=(input_ids != pad).long(), **settings)
            for i, output in zip(batch, outputs.tolist(), strict=True):
                # Leave out the start token of each translation.
                results[i] = [token for token in output[1:] if token != pad]
        return results

    return run


def by_ctranslate2(folder: str, device: str, settings: dict[str, Any]) -> Engine:
    """Return an engine that calls CTranslate2 on batches of similar lengths."""
    from vaswani_hf.translation.ctranslate2 import CTranslate2Backend

    backend = CTranslate2Backend(folder, device, num_threads=torch.get_num_threads())
    settings = {**settings, "max_length_a": None, "max_length_b": None, "max_length": None}

    def run(ids: Ids) -> Ids:
        results: Ids = [[]] * len(ids)
        for batch in batches_by_length(ids, 1024):
            found = backend.search([Segment("", ids[i], []) for i in batch], **settings)
            for i, hypotheses in zip(batch, found, strict=True):
                results[i] = hypotheses[0].token_ids
        return results

    return run


class Benchmark:
    """Holds the model, the sentences and the engines of one benchmark run. `arguments` are the arguments of
    the command line.
    """

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.exports = tempfile.TemporaryDirectory()
        self.settings = {
            **SETTINGS,
            "max_new_tokens": arguments.max_new_tokens,
            "early_stopping": arguments.early_stopping or "never",
        }
        translator = Translator.from_pretrained(arguments.checkpoint, arguments.device)
        self.tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
        self.pad = translator.model.config.pad_token_id
        self.eos = translator.model.config.eos_token_id
        self.model = widened(translator.model.cpu()) if arguments.base else translator.model
        # Remove the length limits of the checkpoint, because the settings of each engine limit the length.
        for name in ("max_length", "max_length_a", "max_length_b"):
            setattr(self.model.generation_config, name, None)
        # Divide scores by a power of the length, because MarianMT has no other length penalty.
        self.model.generation_config.length_penalty_type = "power"
        self.model.to(arguments.device, torch.bfloat16 if arguments.bf16 else torch.float32)
        lines = [line.strip() for line in read_lines(arguments.source)]
        self.ids = translator.source_tokenizer(lines[: arguments.sentences])["input_ids"]
        self.references: list[str] = []
        if arguments.reference:
            references = [line.strip() for line in read_lines(arguments.reference)]
            self.references = references[: arguments.sentences]

    def bleu(self, translations: Ids) -> str:
        """Return the BLEU score of the translations as text. Return an empty string if there are no reference
        translations.
        """
        if len(self.references) != len(translations):
            return ""
        texts = self.tokenizers[1].batch_decode(translations, skip_special_tokens=True)
        return f"{score_translations(texts, self.references)['bleu']:.2f}"

    def model_of(self, name: str) -> Any:
        """Return the PyTorch model of an engine: MarianMT or this package, in float32, bfloat16 or int8."""
        if name.startswith("marian"):
            model: Any = marian_of(self.model)
        elif "bf16" in name:
            model = copy.deepcopy(self.model).to(torch.bfloat16)
        elif "int8" in name:
            model = quantize(copy.deepcopy(self.model))
        else:
            model = self.model
        model.generation_config.max_length = None
        return model

    def engine(self, name: str, ids: Ids) -> Engine:
        """Return the engine `name`. If a PyTorch engine sorts the sentences by length, try all batch sizes in
        BUDGETS on the sentences `ids`, and use the fastest batch size. If `ids` is empty, use batches of
        2,048 source tokens.
        """
        if name.startswith("ctranslate2"):
            from vaswani_hf.convert.ctranslate2 import to_ctranslate2

            folder = str(Path(self.exports.name) / name)
            to_ctranslate2(self.model, self.tokenizers, folder, "int8" if "int8" in name else None)
            return by_ctranslate2(folder, self.arguments.device, self.settings)
        model = self.model_of(name)
        settings = PAPER if "paper" in name else self.settings
        if "one" in name or "file" in name:
            size = 1 if "one" in name else 32
            return by_transformers(model, self.pad, partial(file_order, size=size), settings)
        engines = {
            tokens: by_transformers(model, self.pad, partial(by_length, tokens=tokens), settings)
            for tokens in BUDGETS
        }
        if not ids:
            return engines[2048]
        engines[2048](ids[:64])  # Warm up.
        seconds = {tokens: seconds_of(partial(engine, ids)) for tokens, engine in engines.items()}
        best = min(seconds, key=lambda tokens: seconds[tokens])
        print(f"{name}: batches of {best} source tokens are the fastest", flush=True)
        return engines[best]

    def heavy_engine(self, name: str) -> tuple[Engine, Ids]:
        """Return an engine that searches with 8 beams, and its inputs: 64 sentences of 100 tokens."""
        tokens = [token for sentence in self.ids for token in sentence[:-1]]
        tokens *= 64 * 99 // len(tokens) + 1
        ids = [tokens[99 * i : 99 * (i + 1)] + [self.eos] for i in range(64)]
        settings = {**self.settings, "num_beams": 8}
        return by_transformers(self.model_of(name), self.pad, partial(file_order, size=64), settings), ids


def print_table(names: list[str], benchmark: Benchmark, ids: Ids, memory: dict[str, float]) -> None:
    """Measure the engines alternately, and print one line per engine. The ratio of an engine is its speed
    divided by the speed of the first engine.
    """
    translations: dict[str, Ids] = {}

    def translate(name: str, engine: Engine) -> None:
        translations[name] = engine(ids)

    engines = {name: benchmark.engine(name, ids) for name in names}
    ways = {name: partial(translate, name, engine) for name, engine in engines.items()}
    times = in_turns(ways, benchmark.arguments.repetitions)
    ours = next(name for name in names if name.startswith("vaswani"))
    columns = ("seconds", "sent/s", "tokens/s", "same", "changed", "BLEU", "peak MiB")
    print(f"\n{len(ids):,} sentences{'':14}" + "".join(f"{column:>10}" for column in columns) + "  ratio")
    for name in names:
        seconds = statistics.median(times[name])
        found = translations[name]
        cells = [
            f"{seconds:.2f}",
            f"{len(ids) / seconds:.1f}",
            f"{sum(map(len, found)) / seconds:,.0f}",
            f"{sum(map(list.__eq__, found, translations[names[0]])):,}",
            f"{sum(map(list.__ne__, found, translations[ours])):,}",
            benchmark.bleu(found),
            f"{memory[name]:,.0f}" if name in memory else "",
        ]
        line = f"{name:28}" + "".join(f"{cell:>10}" for cell in cells)
        print(f"{line}  {ratio(times[names[0]], times[name])}", flush=True)


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder of this package")
    parser.add_argument("source", help="a file with one sentence per line, plain or .gz")
    parser.add_argument(
        "--reference", help="a file with the reference translations of the sentences, to compute BLEU"
    )
    parser.add_argument("--base", action="store_true", help="measure a model of the paper's base size")
    parser.add_argument(
        "--sentences",
        type=int,
        help="translate only this number of sentences, from the beginning of the file",
    )
    parser.add_argument("--max_new_tokens", type=int, default=100)
    parser.add_argument(
        "--early_stopping",
        action="store_true",
        help="end a search as soon as `num_beams` translations have finished",
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true", help="run all PyTorch engines in bfloat16")
    parser.add_argument("--without_ctranslate2", action="store_true")
    parser.add_argument("--memory_of", help=argparse.SUPPRESS)
    parser.add_argument("--heavy", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    logging.disable_progress_bar()
    benchmark = Benchmark(arguments)
    if arguments.memory_of:
        engine, ids = benchmark.engine(arguments.memory_of, []), benchmark.ids
        if arguments.heavy:
            engine, ids = benchmark.heavy_engine(arguments.memory_of)
        print(peak_memory(lambda: engine(ids), arguments.device))
        return
    print_header(arguments.device)
    names = ["marian, file order", "marian, sorted", "vaswani, sorted", "vaswani, sorted, paper"]
    if not arguments.bf16:
        names.append("vaswani bf16, sorted")
        if arguments.device == "cpu":
            names.append("vaswani int8, sorted")
    if not arguments.without_ctranslate2:
        names += ["ctranslate2 float32", "ctranslate2 int8"]
    memory = {name: from_fresh_process(["--memory_of", name]) for name in names}
    print_table(names, benchmark, benchmark.ids, memory)
    alone = ["marian, one", "vaswani, one"]
    alone += [name.replace("sorted", "one") for name in names[4:] if "vaswani" in name]
    print_table(alone, benchmark, benchmark.ids[: 20 if arguments.base else 50], {})
    theirs, ours = (
        from_fresh_process(["--memory_of", name, "--heavy"])
        for name in ("marian, file order", "vaswani, sorted")
    )
    sizes = f"marian {theirs:,.0f} MiB, vaswani {ours:,.0f} MiB, {ours / theirs:.2f}"
    print(f"\n8 beams, 64 inputs of 100 tokens: {sizes}")


if __name__ == "__main__":
    main()
