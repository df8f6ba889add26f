"""Run `train ARGUMENTS` as one of several processes, and record the pairs of every training batch."""

import json
import os
import sys

from vaswani_hf.cli import main
from vaswani_hf.training.trainer import VaswaniTrainer

RECORD = "batches-{}.jsonl"


def record_batches(folder: str, rank: int) -> None:
    """Every training step appends a line [step, source sentences as ids] to the file of its process."""
    step = VaswaniTrainer.training_step

    def recorded(trainer, model, inputs, *args, **kwargs):
        rows = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].sum(1).tolist(), strict=True)
        line = [trainer.state.global_step, [ids[:length] for ids, length in rows]]
        with open(os.path.join(folder, RECORD.format(rank)), "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return step(trainer, model, inputs, *args, **kwargs)

    VaswaniTrainer.training_step = recorded


if __name__ == "__main__":
    record_batches(os.environ["RECORD_FOLDER"], int(os.environ.get("RANK", "0")))
    sys.exit(main(["train", *sys.argv[1:]]))
