"""MarianMT with Seq2SeqTrainer as a competitor: random batches of a number of pairs, or with `group_by_length`."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from training_peers.trainer_turns import Counting, TurnsCallback, validation_loss
from training_peers.turns import NoMoreTurnsError, Turns, read_settings
from training_peers.vaswani import corpus_of, measures, recipe_of


class CompetingTrainer(Counting, Seq2SeqTrainer):
    """transformers' own trainer, which counts."""


def marian(shape: dict[str, int], tokenizer: Any) -> MarianMTModel:
    """MarianMT with the measures of a shape, and the activation and the scale of the paper."""
    config = MarianConfig(
        **measures(shape),
        vocab_size=shape["vocabulary"],
        dropout=0.1,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        attn_implementation="sdpa",
    )
    return MarianMTModel(config)


def arguments_of(settings: SimpleNamespace, *, grouped: bool) -> Seq2SeqTrainingArguments:
    """The Trainer's arguments: its own defaults, but for the optimizer, the smoothing and the number of pairs."""
    bf16 = settings.dtype == "bfloat16" or (settings.dtype == "recipe" and settings.device != "cpu")
    # Earlier versions of transformers know it by another name.
    names = Seq2SeqTrainingArguments.__dataclass_fields__
    by_length = {"train_sampling_strategy": "group_by_length"}
    grouping = by_length if "train_sampling_strategy" in names else {"group_by_length": True}
    return Seq2SeqTrainingArguments(
        **(grouping if grouped else {}),
        output_dir=str(Path(settings.folder) / "marian_mt"),
        max_steps=10**6,
        per_device_train_batch_size=settings.pairs_per_batch,
        label_smoothing_factor=0.1,
        learning_rate=settings.learning_rate,
        # The paper's schedule.
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=settings.warmup_steps,
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        max_grad_norm=0.0,
        bf16=bf16,
        use_cpu=settings.device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    """Takes turns; a second word, "grouped", asks for batches of similar lengths."""
    settings = read_settings()
    turns = Turns(torch.cuda if settings.device == "cuda" else None)
    corpus = corpus_of(recipe_of(settings))
    set_seed(1)
    model, tokenizer = marian(settings.shape, corpus.source_tokenizer), corpus.source_tokenizer
    trainer = CompetingTrainer(
        model=model,
        args=arguments_of(settings, grouped="grouped" in sys.argv[2:]),
        train_dataset=corpus.train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        callbacks=[TurnsCallback(turns)],
    )
    trainer.turns = turns
    try:
        trainer.train()
    except NoMoreTurnsError:
        turns.finish(validation_loss(model, corpus))


if __name__ == "__main__":
    main()
