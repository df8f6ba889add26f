"""Damage of any file of the newest checkpoint is noticed and named, and the run continues from the checkpoint
before.
"""

import random
import shutil

import pytest
from tiny_runs import DAMAGES

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.checkpoint.manifest import metadata_of, verify_manifest, write_manifest
from vaswani_hf.training.resume import newest_checkpoint

# Files of other processes, of a stream, of a second vocabulary, of sharded weights and optimizers.
OTHERS = """
    rng_state_0.pth rng_state_1.pth stream_state.json target_tokenizer/tokenizer.json scaler.pt
    pytorch_model_fsdp_0/__0_0.distcp optimizer_0/.metadata global_step8/mp_rank_00_model_states.pt latest
""".split()


@pytest.fixture
def newest(copied):
    """The newest checkpoint of a run, with additional files."""
    checkpoint = copied / "checkpoint-8"
    for name in OTHERS:
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_bytes(random.Random(name).randbytes(99))
    write_manifest(checkpoint, metadata_of(checkpoint))
    return checkpoint


def test_damage_of_any_file_is_named_and_the_checkpoint_before_is_used(newest, tmp_path, capsys):
    folder = newest.parent
    assert newest_checkpoint(folder) == newest
    sound = shutil.copytree(newest, tmp_path / "sound")
    names = [path.relative_to(newest).as_posix() for path in sorted(newest.rglob("*")) if path.is_file()]
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"} < {
        *names
    }
    cases = [(name, "flipped") for name in names]
    cases += [(name, kind) for name in ("optimizer.pt", "manifest.json") for kind in DAMAGES]
    for name, kind in cases:
        DAMAGES[kind](newest / name)
        capsys.readouterr()
        assert newest_checkpoint(folder) == folder / "checkpoint-4", (name, kind)
        said = capsys.readouterr().out
        assert said.startswith(f"'{newest}' is damaged: {name}"), said
        assert said.endswith("; continuing from 'checkpoint-4'\n")
        assert said.count("\n") == 1
        shutil.rmtree(newest)
        shutil.copytree(sound, newest)
    assert newest_checkpoint(folder) == newest
    for checkpoint in checkpoints_in(folder):
        (checkpoint / "optimizer.pt").unlink()
    sentence = "holds no whole checkpoint to continue from .*optimizer.pt is missing.*; choose"
    with pytest.raises(ValueError, match=sentence):
        newest_checkpoint(folder)


def test_a_flipped_bit_anywhere_in_the_manifest_is_noticed(newest):
    path = newest / "manifest.json"
    content, facts = path.read_bytes(), metadata_of(newest)
    for place in range(0, len(content) * 8, 29):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert verify_manifest(newest, []), flipped[max(0, place // 8 - 20) : place // 8 + 20]
    path.write_bytes(content)
    assert verify_manifest(newest) is None
    assert metadata_of(newest) == facts
