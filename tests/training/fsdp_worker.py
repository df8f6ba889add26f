"""One of several processes that share a model by FSDP2 over gloo: `fsdp_worker.py native FOLDER` or `… train
ARGUMENTS`.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import accelerate.state  # noqa: E402
import torch  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402
from transformers import Seq2SeqTrainer  # noqa: E402
from transformers.distributed import DistributedConfig  # noqa: E402

import vaswani_hf.data.toy_corpora  # noqa: E402
from vaswani_hf import VaswaniForSeq2SeqLM  # noqa: E402
from vaswani_hf.cli import main  # noqa: E402

NUM_STEPS = 3


def train_steps(model: VaswaniForSeq2SeqLM, rank: int = 0, world_size: int = 1) -> list[float]:
    """The losses of this process over a few steps, with its share of the batches."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(NUM_STEPS):
        ids = torch.randint(4, 19, (8, 7), generator=generator)[rank::world_size]
        loss = model.train()(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_natively(folder: Path) -> None:
    """Load each checkpoint `start` sharded by transformers, train it, generate, and save it as `end`."""
    for start in sorted(folder.glob("*/start")):
        model = VaswaniForSeq2SeqLM.from_pretrained(start, distributed_config=DistributedConfig(fsdp_size=2))
        rank = torch.distributed.get_rank()
        losses = torch.tensor(train_steps(model, rank, 2))
        torch.distributed.all_reduce(losses)
        model.save_pretrained(start.parent / "end")
        # The processes generate different numbers of tokens, so one process ends its search earlier.
        source = torch.tensor([[5, 6, 7, 2]])
        sequences = model.eval().generate(source, num_beams=2, max_new_tokens=3 + 4 * rank, min_new_tokens=3)
        if rank == 0:
            result = {"losses": (losses / 2).tolist(), "sequences": sequences.tolist()}
            (start.parent / "result.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


def shard_on_cpu() -> None:
    """accelerate shards only on accelerators, but gloo can also shard on a CPU."""
    create = Seq2SeqTrainer.create_accelerator_and_postprocess

    def create_as_if_on_accelerators(trainer):
        assert trainer.args.device.type == "cpu"
        accelerate.state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        create(trainer)

    Seq2SeqTrainer.create_accelerator_and_postprocess = create_as_if_on_accelerators


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "native":
        train_natively(Path(sys.argv[2]))
    else:
        vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT = 21
        shard_on_cpu()
        sys.exit(main(sys.argv[1:]))
