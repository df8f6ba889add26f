"""What a run will cost, before anything is read or downloaded: parameters, operations, memory, tokens, hours.

Operations are counted in operations.py, the memory in step_memory.py.
"""

from typing import Any

from torch import nn

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..recipe.schema import TEXT_TASKS, Recipe, TrainingSection
from .operations import NUM_PAPER_GPUS, PAPER_GPUS, gpu_rate, meta_model, muon_flops, paper_seconds, step_flops
from .optimizer import muon_matrices
from .step_memory import StepSettings, step_memory
from .trainer import NUMBERS_OF_A_PART

# An assumption (tokens). Attention has a small share of the operations at such lengths, and a plan gives them for
# `data.max_length` too, which no corpus reaches.
MEAN_LENGTH = 32
# The symbols of a parser on the Wall Street Journal: 26 labels, 45 parts of speech, the end of a constituent, 4 special tokens.
PARSER_SYMBOLS = 76
_GIB = 2**30
_PARTS = {"_attn.": "attention", ".fc": "feed_forward", "layer_norm": "norms"}


def planned_config(recipe: Recipe) -> VaswaniConfig:
    """The config of the model that a recipe will train, as far as it is known without the tokenizers.

    Args:
        recipe (Recipe): Its `tokenizer.vocab_size` is taken for the size of the vocabulary, which a small corpus may not fill; the
            trees of a parser are taken for those of the Wall Street Journal.

    Returns:
        VaswaniConfig: The shape.
    """
    tokenizer = recipe.tokenizer
    target_size = PARSER_SYMBOLS if recipe.task == "parsing" else tokenizer.target_vocab_size
    return VaswaniConfig(
        **{name: value for name, value in recipe.model.items() if name != "init_from"},
        vocab_size=tokenizer.vocab_size,
        decoder_vocab_size=target_size or tokenizer.vocab_size,
        share_encoder_decoder_embeddings=tokenizer.shared_vocabulary,
    )


def parameters_by_part(model: VaswaniForSeq2SeqLM) -> dict[str, Any]:
    """The number of parameters, tied ones counted once.

    Args:
        model (VaswaniForSeq2SeqLM): On any device.

    Returns:
        dict: `total`; `embeddings`, learned positions and the output projection included; and for `encoder` and `decoder` a
        dict of their `total`, `attention`, `feed_forward` and `norms`.
    """
    stacks = {stack: dict.fromkeys(("total", *_PARTS.values()), 0) for stack in ("encoder", "decoder")}
    found: dict[str, Any] = {"total": 0, "embeddings": 0, **stacks}
    for name, parameter in model.named_parameters():
        found["total"] += parameter.numel()
        part = next((part for piece, part in _PARTS.items() if piece in name), None)
        if part is None:
            found["embeddings"] += parameter.numel()
            continue
        stack = stacks["encoder" if name.startswith("model.encoder.") else "decoder"]
        stack["total"] += parameter.numel()
        stack[part] += parameter.numel()
    return found


def plan_run(
    recipe: Recipe,
    *,
    hardware: str | None = None,
    tokens_per_second: float | None = None,
    mean_length: int | None = None,
) -> dict[str, Any]:
    """What a run of one process will cost; several with an eighth of the batch each, say, compute the same together.

    Args:
        recipe (Recipe): The run; nothing that it names is read.
        hardware (str, optional): One of the paper's GPUs, of which it had eight, for the hours.
        tokens_per_second (float, optional): A measured rate for the hours: target tokens per second, as a run shows them.
        mean_length (int, optional): The assumed mean length of a sentence (tokens); `MEAN_LENGTH` by default.

    Returns:
        dict: What `plan_as_text` prints. What follows from the number of steps is None where the recipe counts epochs.

    Raises:
        ValueError: If the rate of the hardware is not known, a number is not positive, or the recipe has what no plan counts.
    """
    _refuse_what_is_not_planned(recipe)
    if tokens_per_second is not None and not 0 < tokens_per_second < float("inf"):
        raise ValueError(f"`--tokens_per_second` must be a positive number, but is {tokens_per_second}.")
    rate = None if hardware is None else gpu_rate(hardware)
    training, longest = recipe.training, recipe.data.max_length
    if mean_length is not None and mean_length > longest:
        raise ValueError(f"`--mean_length` must be at most `data.max_length`, {longest}, but is {mean_length}.")
    length = min(mean_length or MEAN_LENGTH, longest)
    model, steps = meta_model(planned_config(recipe)), training.max_steps
    flops = _flops(recipe, model, length)
    batches, hours = training.gradient_accumulation_steps, None
    if rate is not None and steps is not None:
        hours = steps * flops["paper"]["step"] / (NUM_PAPER_GPUS * rate) / 3600
    elif tokens_per_second is not None and steps is not None:
        hours = steps * batches * training.target_tokens_per_batch / tokens_per_second / 3600
    return {
        "vocab_size": model.config.vocab_size,
        "decoder_vocab_size": model.config.decoder_vocab_size,
        "parameters": parameters_by_part(model),
        "steps": steps,
        "num_train_epochs": training.num_train_epochs,
        "source_tokens": None if steps is None else steps * batches * training.source_tokens_per_batch,
        "target_tokens": None if steps is None else steps * batches * training.target_tokens_per_batch,
        "flops": flops,
        "memory": _memory(recipe, model, length),
        "hardware": None if hardware is None else f"{NUM_PAPER_GPUS} x {hardware.upper()}",
        "tokens_per_second": tokens_per_second,
        "hours": hours,
    }


def _refuse_what_is_not_planned(recipe: Recipe) -> None:
    if recipe.task in TEXT_TASKS:
        raise ValueError(
            f"`vaswani plan` counts an encoder and a decoder, but the recipe has `task: {recipe.task}`, a model of one of them."
        )
    if name := recipe.model.get("init_from"):
        raise ValueError(
            f"`model.init_from: {name}` would have to be read for a plan; leave it out with `--init_from null`, and give the "
            "fields of that model."
        )
    if frozen := recipe.training.frozen:
        raise ValueError(
            f"`training.frozen: {', '.join(frozen)}` is counted by no plan; leave it out with `--frozen []`, for a plan of the run "
            "in which all is trained."
        )


def _second_pass(training: TrainingSection) -> str | None:
    return "simcut" if training.simcut_alpha else "r_drop" if training.r_drop_alpha else None


def _flops(recipe: Recipe, model: VaswaniForSeq2SeqLM, length: int) -> dict[str, Any]:
    training = recipe.training
    batches, steps, longest = training.gradient_accumulation_steps, training.max_steps, recipe.data.max_length
    positions = (batches * training.source_tokens_per_batch, batches * training.target_tokens_per_batch)
    of_optimizer = muon_flops(model) if training.optimizer == "muon" else 0
    twice, second_pass = training.gradient_checkpointing, _second_pass(training)
    at_mean, at_most, in_paper = (
        of_optimizer + step_flops(model, positions, tokens, gradient_checkpointing=again, second_pass=second_pass)
        # The paper's training computed no layer twice.
        for tokens, again in ((length, twice), (longest, twice), (length, False))
    )
    seconds = paper_seconds(in_paper, length)
    by_paper = seconds * NUM_PAPER_GPUS * PAPER_GPUS["P100"]
    return {
        "mean_length": length,
        "max_length": longest,
        "counted": {"step": at_mean, "run": steps and steps * at_mean},
        "counted_at_max_length": {"step": at_most, "run": steps and steps * at_most},
        "paper": {"seconds_of_a_step": seconds, "step": by_paper, "run": steps and steps * by_paper},
    }


def _memory(recipe: Recipe, model: VaswaniForSeq2SeqLM, length: int) -> dict[str, dict[str, Any]]:
    """That of one accelerator with whole batches, and of a processor, which computes large ones in parts."""
    training, config = recipe.training, model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    matrices = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    whole = (training.source_tokens_per_batch, training.target_tokens_per_batch)
    second_pass = _second_pass(training)
    part = max(recipe.data.max_length, NUMBERS_OF_A_PART // config.d_model // (1 if second_pass is None else 2))
    parts = whole if training.torch_compile else (min(whole[0], part), min(whole[1], part))
    found = {}
    for name, device, positions in (("accelerator", "cuda", whole), ("processor", "cpu", parts)):
        settings = StepSettings(
            positions,
            length,
            device,
            bf16=training.bf16 is True,
            gradient_checkpointing=training.gradient_checkpointing,
            accumulates=training.gradient_accumulation_steps > 1 or positions != whole,
            second_pass=second_pass,
            has_average=training.ema_decay is not None,
            num_muon=sum(matrix.numel() for matrix in muon_matrices(model)) if training.optimizer == "muon" else 0,
        )
        found[name] = {
            "source_positions": positions[0],
            "target_positions": positions[1],
            "dtype": "bfloat16" if training.bf16 is True else "float32",
            **step_memory(config, parameters, matrices, settings),
        }
    return found


def plan_as_text(plan: dict[str, Any]) -> str:
    """A plan for people.

    Args:
        plan (dict): That of `plan_run`.

    Returns:
        str: Lines.
    """
    parameters, sizes = plan["parameters"], {plan["vocab_size"], plan["decoder_vocab_size"]}
    classes = " and ".join(f"{size:,}" for size in sorted(sizes))
    lines = [
        f"parameters        {parameters['total']:>15,}  with {classes} classes, which a small corpus may not fill",
        f"  embeddings      {parameters['embeddings']:>15,}  with the output projection",
    ]
    for stack in ("encoder", "decoder"):
        shares = ", ".join(f"{part.replace('_', '-')} {parameters[stack][part]:,}" for part in _PARTS.values())
        lines.append(f"  {stack:<15} {parameters[stack]['total']:>15,}  {shares}")
    return "\n".join([*lines, *_length_lines(plan), *_flops_lines(plan), *_memory_lines(plan), *_hours_lines(plan)])


def _length_lines(plan: dict[str, Any]) -> list[str]:
    if plan["steps"] is None:
        return [
            f"steps                     unknown  `training.num_train_epochs` = {plan['num_train_epochs']:g} counts epochs of a "
            "corpus that is not read; with `training.max_steps` steps, tokens and hours are known"
        ]
    return [
        f"steps             {plan['steps']:>15,}",
        f"source tokens     {plan['source_tokens']:>15,}  at most: positions, padding included",
        f"target tokens     {plan['target_tokens']:>15,}",
    ]


def _flops_lines(plan: dict[str, Any]) -> list[str]:
    flops, unit = plan["flops"], "step" if plan["steps"] is None else "run"
    counted, at_most, paper = (flops[name] for name in ("counted", "counted_at_max_length", "paper"))
    steps = "" if plan["steps"] is None else f"{plan['steps']:,} steps x "
    seconds = paper["seconds_of_a_step"]
    return [
        f"FLOPs of a {unit:<4}   {counted[unit]:>15.2e}  products, forward and backward, in sentences of {flops['mean_length']} "
        f"tokens (assumed); {at_most[unit]:.2e} in ones of `data.max_length` = {flops['max_length']}",
        f"  by the paper    {paper[unit]:>15.2e}  {steps}{seconds:.3g} s x {NUM_PAPER_GPUS} GPUs x "
        f"{PAPER_GPUS['P100'] / 1e12} TFLOPS of a P100; seconds scaled from the paper's",
    ]


def _memory_lines(plan: dict[str, Any]) -> list[str]:
    lines = []
    for device, memory in plan["memory"].items():
        parts = ", ".join(
            f"{part} {memory[part] / _GIB:.2f}"
            for part in ("weights", "gradients", "optimizer", "activations", "loss")
        )
        lines.append(
            f"GiB, {device:<12} {memory['peak'] / _GIB:>15.2f}  at the peak of a step in {memory['dtype']}, "
            f"{memory['source_positions']:,} + {memory['target_positions']:,} positions at once: {parts}"
        )
    return lines


def _hours_lines(plan: dict[str, Any]) -> list[str]:
    if plan["hours"] is None:
        rate = plan["hardware"] or plan["tokens_per_second"]
        why = "the number of steps is unknown" if rate else "give `--hardware` or a measured `--tokens_per_second`"
        return [f"hours                     unknown  {why}"]
    rate = plan["hardware"] or f"{plan['tokens_per_second']:,.0f} target tokens/s"
    return [f"hours             {plan['hours']:>15,.1f}  by {rate}"]
