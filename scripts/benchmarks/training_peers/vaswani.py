"""Trains a model with this package for the benchmark training.py, as `vaswani train` does, but without saving
checkpoints.
"""

import json
from pathlib import Path
from typing import Any

import torch

from training_peers.trainer_turns import Counting, TurnsCallback, validation_loss
from training_peers.turns import NoMoreTurnsError, PeerSettings, Shape, Turns, read_settings
from vaswani_hf.data.corpus import Corpus
from vaswani_hf.model.modeling_vaswani import VaswaniForSeq2SeqLM
from vaswani_hf.recipe import Recipe, make_recipe
from vaswani_hf.tasks import TASKS
from vaswani_hf.training.hardware import describe_computation
from vaswani_hf.training.loop import add_callbacks, run_training
from vaswani_hf.training.recipe_model import build_model
from vaswani_hf.training.run import resolve
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments


class CompetingTrainer(Counting, VaswaniTrainer):
    """The trainer of `vaswani train`, extended by a count of the tokens in its batches."""


def sizes(shape: Shape) -> dict[str, int]:
    """Return the fields of a config that set the sizes of a model. The config of MarianMT has fields with the
    same names.
    """
    fields = {"d_model": shape.width}
    for stack in ("encoder", "decoder"):
        fields[f"{stack}_layers"] = shape.layers
        fields[f"{stack}_attention_heads"] = shape.heads
        fields[f"{stack}_ffn_dim"] = shape.ffn
    return fields


def recipe_of(settings: PeerSettings) -> Recipe:
    """Return the recipe for the training. The recipe leaves out settings that the package chooses for the
    hardware, such as the dtype.
    """
    folder = Path(settings.folder)
    shape = settings.shape
    data: dict[str, Any] = {"source_language": "source", "target_language": "target"}
    for split in ("train", "validation"):
        for side in ("source", "target"):
            data[f"{split}_{side}"] = str(folder / f"{split}.{side}")
    # Drop pairs that are longer than a batch may be, because every pair must fit into a batch.
    data["max_length"] = min(100, shape.tokens)
    training = {
        "max_steps": 10**6,
        "source_tokens_per_batch": shape.tokens,
        "target_tokens_per_batch": shape.tokens,
        # Choose the factor so that the highest learning rate of the paper's schedule is
        # `settings.learning_rate`. The highest learning rate is factor * width ** -0.5 * warmup_steps **
        # -0.5.
        "learning_rate_factor": settings.learning_rate * (shape.width * settings.warmup_steps) ** 0.5,
        "warmup_steps": settings.warmup_steps,
        "save_steps": 10**6,
        "eval_steps": 10**6,
        "bf16": {"recipe": "auto", "float32": False, "bfloat16": True}[settings.dtype],
    }
    return make_recipe(
        {
            "output_dir": str(folder / "vaswani"),
            "data": data,
            "tokenizer": {"vocab_size": shape.vocabulary},
            "model": {**sizes(shape), "dropout": 0.1, "label_smoothing": 0.1},
            "training": training,
        }
    )


def corpus_of(recipe: Recipe, *, new_tokenizers: bool = False) -> Corpus:
    """Return the corpus of a recipe. Load the tokenizer from the folder of the texts. If `new_tokenizers` is
    True, first train the tokenizer, and write the tokenizer into the folder of the texts.
    """
    folder = recipe.folder.parent
    return recipe.make_task().load_corpus(folder, new_tokenizers=new_tokenizers)


def model_of(recipe: Recipe, corpus: Corpus) -> VaswaniForSeq2SeqLM:
    """Return the model of a recipe. The embeddings have the vocabulary size of the recipe, even if the
    tokenizer has fewer tokens.
    """
    model = build_model(
        recipe.model, TASKS[recipe.task].model_class, corpus, recipe.decoding.settings(), recipe.seed
    )
    if len(corpus.source_tokenizer) != recipe.tokenizer.vocab_size:
        model.resize_token_embeddings(recipe.tokenizer.vocab_size, mean_resizing=False)
    return model


def main() -> None:
    """Train in turns."""
    settings = read_settings()
    turns = Turns(torch.cuda if settings.device == "cuda" else None)
    recipe = resolve(recipe_of(settings), None)
    corpus = corpus_of(recipe)
    folder = recipe.folder
    folder.mkdir(exist_ok=True)
    model = model_of(recipe, corpus)
    arguments = training_arguments(recipe.training, recipe.output_dir, recipe.seed, validates=False)
    trainer = CompetingTrainer(corpus, recipe.training, task=recipe.make_task(), model=model, args=arguments)
    trainer.turns = turns
    means = json.dumps(describe_computation(recipe.training, arguments.device))
    (folder / "means.json").write_text(means, encoding="utf-8")
    add_callbacks(trainer, recipe.publishing)
    trainer.add_callback(TurnsCallback(turns))
    try:
        run_training(trainer, None)
    except NoMoreTurnsError:
        turns.finish(validation_loss(model, corpus))


if __name__ == "__main__":
    main()
