"""Trains MarianMT with the Seq2SeqTrainer of transformers for the benchmark training.py, with random batches
or with `group_by_length`.
"""

import sys
from pathlib import Path
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
from training_peers.turns import NoMoreTurnsError, PeerSettings, Shape, Turns, read_settings
from training_peers.vaswani import corpus_of, recipe_of, sizes

PAIRS_PER_BATCH = 128
# The assumed number of positions per pair, with the padding of random batches. Only the batch size on a GPU
# depends on this number.
POSITIONS_PER_PAIR = 32


class CompetingTrainer(Counting, Seq2SeqTrainer):
    """The `Seq2SeqTrainer` of transformers, extended by a count of the tokens in its batches."""


def marian(shape: Shape, *, pad_token_id: int, eos_token_id: int, start_token_id: int) -> MarianMTModel:
    """Return a MarianMT model with the sizes of a shape, and with the activation and the embedding scale of
    the paper.
    """
    config = MarianConfig(
        **sizes(shape),
        vocab_size=shape.vocabulary,
        dropout=0.1,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        forced_eos_token_id=eos_token_id,
        decoder_start_token_id=start_token_id,
        attn_implementation="sdpa",
    )
    return MarianMTModel(config)


def arguments_of(settings: PeerSettings, *, is_grouped: bool) -> Seq2SeqTrainingArguments:
    """Return the training arguments. Of the settings that affect the training, only the optimizer, the
    schedule, the label smoothing, the gradient clipping, the batches and the dtype differ from the defaults
    of the Trainer.
    """
    grouping: dict[str, Any] = {}
    if is_grouped and "train_sampling_strategy" in Seq2SeqTrainingArguments.__dataclass_fields__:
        grouping = {"train_sampling_strategy": "group_by_length"}
    elif is_grouped:
        # Older versions of transformers have the setting `group_by_length` in place of
        # `train_sampling_strategy`.
        grouping = {"group_by_length": True}
    on_gpu = settings.shape.tokens // POSITIONS_PER_PAIR
    is_recipe_on_gpu = settings.dtype == "recipe" and settings.device != "cpu"
    return Seq2SeqTrainingArguments(
        **grouping,
        output_dir=str(Path(settings.folder) / "marian_mt"),
        max_steps=10**6,
        per_device_train_batch_size=PAIRS_PER_BATCH if settings.device == "cpu" else on_gpu,
        label_smoothing_factor=0.1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=settings.warmup_steps,
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        max_grad_norm=0.0,
        bf16=settings.dtype == "bfloat16" or is_recipe_on_gpu,
        use_cpu=settings.device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    """Train in turns. If the second command-line argument is "grouped", put sentences of similar lengths into
    one batch.
    """
    settings = read_settings()
    turns = Turns(torch.cuda if settings.device == "cuda" else None)
    corpus = corpus_of(recipe_of(settings))
    tokenizer = corpus.source_tokenizer
    set_seed(1)
    model = marian(
        settings.shape,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        start_token_id=tokenizer.bos_token_id,
    )
    trainer = CompetingTrainer(
        model=model,
        args=arguments_of(settings, is_grouped="grouped" in sys.argv[2:]),
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
