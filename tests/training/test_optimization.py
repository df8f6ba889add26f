"""The schedule of Section 5.3 and checkpoint averaging of Section 6.1, by hand."""

import pytest
import torch
from safetensors.torch import save_file

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.training.averaging import average_checkpoints
from vaswani_hf.training.schedule import learning_rate, paper_schedule


def test_the_paper_s_own_numbers():
    # d_model 512, warmup 4000: the peak is 512^-0.5 · 4000^-0.5 = 1 / sqrt(2,048,000).
    assert learning_rate(4000, 512, 4000) == pytest.approx(2048000**-0.5)
    assert learning_rate(1, 512, 4000) == pytest.approx(2048000**-0.5 / 4000)
    assert learning_rate(16000, 512, 4000) == pytest.approx(2048000**-0.5 / 2)
    assert learning_rate(100, 64, 4000, factor=2.0) == pytest.approx(2 / 8 * 100 * 4000**-1.5)


@pytest.mark.parametrize(
    ("step", "warmup", "name", "value"), [(0, 5, "step", 0), (3, 0, "warmup_steps", 0), (-1, 5, "step", -1)]
)
def test_steps_count_from_one(step, warmup, name, value):
    with pytest.raises(ValueError, match=f"^`{name}` must be a positive integer, but is {value}\\.$"):
        learning_rate(step, 512, warmup)


def test_the_scheduler_gives_step_n_the_rate_of_step_n():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=123.0)
    scheduler = paper_schedule(optimizer, d_model=64, warmup_steps=3, factor=0.5)
    for step in range(1, 8):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(learning_rate(step, 64, 3, 0.5))
        optimizer.step()
        scheduler.step()
    state = scheduler.state_dict()
    resumed = paper_schedule(torch.optim.Adam([weight], lr=1.0), d_model=64, warmup_steps=3, factor=0.5)
    resumed.load_state_dict(state)
    assert resumed.get_last_lr() == scheduler.get_last_lr()


def test_the_average_is_the_mean_and_checkpoints_are_in_order(tmp_path):
    for step, value in ((200, 1.0), (1000, 5.0), (30, 3.0)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"w": torch.full((2,), value, dtype=torch.bfloat16)}, folder / "model.safetensors")
    (tmp_path / "checkpoint-best").mkdir()
    folders = checkpoints_in(tmp_path)
    assert [folder.name for folder in folders] == ["checkpoint-30", "checkpoint-200", "checkpoint-1000"]
    averaged = average_checkpoints(folders)
    assert averaged["w"].dtype == torch.bfloat16
    assert averaged["w"].tolist() == [3.0, 3.0]


def test_different_models_are_not_averaged(tmp_path):
    for name, size in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.zeros(size)}, tmp_path / name / "model.safetensors")
    with pytest.raises(ValueError, match="hold different models; average checkpoints of one run"):
        average_checkpoints([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ValueError, match="needs at least one checkpoint"):
        average_checkpoints([])
