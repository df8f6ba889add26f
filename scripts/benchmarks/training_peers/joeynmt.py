"""Trains JoeyNMT for the benchmark training.py. The training uses the training loop and the batches of
JoeyNMT, and the same subword tokens as the other toolkits.

Run this file with a Python interpreter in which joeynmt is installed. vaswani_hf need not be installed.
"""

from pathlib import Path
from typing import Any

import torch
from joeynmt.config import parse_global_args, set_validation_args
from joeynmt.prediction import prepare
from joeynmt.training import TrainManager

from training_peers.turns import NoMoreTurnsError, PeerSettings, Turns, read_settings


class CompetingManager(TrainManager):
    """The training loop of JoeyNMT. The loop pauses while other toolkits train."""

    turns: Turns
    started = False

    def _train_step(self, batch):
        # Report each optimizer step at the start of the next step, because JoeyNMT cannot call a function
        # after an optimizer step.
        if self.started:
            self.turns.step_ended()
        self.started = True
        tokens = batch.src_mask.sum() + batch.ntokens
        self.turns.count(tokens, batch.src.numel() + batch.trg.numel())
        return super()._train_step(batch)


def configuration(settings: PeerSettings) -> dict[str, Any]:
    """Return the configuration of JoeyNMT."""
    folder = Path(settings.folder)
    shape = settings.shape
    text = {
        "voc_file": str(folder / "vocabulary.joeynmt"),
        "level": "word",
        "max_length": 1000,
        "lowercase": False,
    }
    embeddings = {"embedding_dim": shape.width, "scale": True, "dropout": 0.1}
    stack = {
        "type": "transformer",
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "embeddings": embeddings,
        "hidden_size": shape.width,
        "ff_size": shape.ffn,
        "dropout": 0.1,
        "layer_norm": "post",
    }
    return {
        "name": "benchmark",
        "model_dir": str(folder / "joeynmt"),
        "use_cuda": settings.device == "cuda",
        "random_seed": 1,
        "data": {
            "train": str(folder / "train.pieces"),
            "dev": str(folder / "validation.pieces"),
            "dataset_type": "plain",
            "src": {"lang": "source", **text},
            "trg": {"lang": "target", **text},
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
        "training": training_section(settings),
        "testing": {"batch_size": shape.tokens, "batch_type": "token", "eval_metrics": []},
    }


def training_section(settings: PeerSettings) -> dict[str, Any]:
    """Return the section `training` of the configuration."""
    width = settings.shape.width
    warmup = settings.warmup_steps
    return {
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "normalization": "tokens",
        "label_smoothing": 0.1,
        "scheduling": "noam",
        "learning_rate_factor": settings.learning_rate * (width * warmup) ** 0.5,
        "learning_rate_warmup": warmup,
        "learning_rate_min": 0.0,
        "batch_size": settings.shape.tokens,
        "batch_type": "token",
        "epochs": 10**6,
        "logging_freq": 100,
        "validation_freq": 10**8,
        "print_valid_sents": [],
    }


@torch.inference_mode()
def validation_loss(manager: TrainManager, pairs: Any, tokens: int) -> float:
    """Return the cross-entropy of the validation set in nats per token, without label smoothing."""
    model = manager.model.eval()
    total = 0.0
    count = 0
    model.loss_function = ("crossentropy", 0.0)
    batches = pairs.make_iter(
        batch_size=tokens,
        batch_type="token",
        device=manager.device,
        pad_index=model.pad_index,
        eos_index=model.eos_index,
    )
    for batch in batches:
        total += model(return_type="loss", **vars(batch))[0].item()
        count += int(batch.ntokens)
    return total / count


def main() -> None:
    """Train in turns."""
    settings = read_settings()
    turns = Turns(torch.cuda if settings.device == "cuda" else None)
    Path(settings.folder, "joeynmt").mkdir(exist_ok=True)
    arguments = parse_global_args(configuration(settings), rank=0, mode="train")
    bf16 = settings.dtype == "bfloat16" or (settings.dtype == "recipe" and settings.device == "cuda")
    autocast = {"device_type": settings.device, "enabled": bf16, "dtype": torch.bfloat16}
    model, train, validation, _ = prepare(arguments, rank=0, mode="train")
    manager = CompetingManager(
        rank=0,
        model=model,
        model_dir=arguments.model_dir,
        device=arguments.device,
        n_gpu=arguments.n_gpu,
        num_workers=0,
        autocast=autocast,
        seed=arguments.seed,
        train_args=arguments.train,
        dev_args=set_validation_args(arguments.test),
    )
    manager.turns = turns
    # Switch gradient scaling off, because gradients in bfloat16 need no scaling.
    manager.scaler = None
    # Prevent JoeyNMT from saving a checkpoint at the end.
    manager._save_checkpoint = lambda *args: None
    try:
        turns.start()
        manager.train_and_validate(train_data=train, valid_data=validation)
    except NoMoreTurnsError:
        turns.finish(validation_loss(manager, validation, settings.shape.tokens))


if __name__ == "__main__":
    main()
