"""Runs of several processes on one machine."""

import shutil
from pathlib import Path

import pytest
import torch
from in_two_processes import fail_in_first, fail_in_second, in_two_processes, validate, wait_for_the_first

from vaswani_hf.patches import accept_numbered_cpus

pytestmark = pytest.mark.usefixtures("quick_workers")


def test_validation_works_in_a_group_without_the_cpu(finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    first, second = in_two_processes(validate, folder, backend="cuda:gloo")
    assert first == second
    assert first == pytest.approx(validate(0, folder), rel=1e-5)


def test_processes_wait_for_the_first_and_end_where_one_fails(tmp_path):
    folders = [tmp_path / name for name in ("wait", "first", "second")]
    for folder in folders:
        folder.mkdir()
    answers = in_two_processes(wait_for_the_first, folders[0], backend="gloo")
    assert answers == [[0, "prepared0"], [0, "prepared1"]]
    # One process prints the error, and the other process ends without a message.
    assert in_two_processes(fail_in_first, folders[1], backend="gloo") == ["The corpus is empty.", 1]
    assert in_two_processes(fail_in_second, folders[2], backend="gloo") == [
        1,
        "No space left on device",
    ]


def test_several_processes_on_a_cpu_can_load_the_state_of_the_optimizer(tmp_path):
    torch.save({"step": torch.ones(2)}, tmp_path / "optimizer.pt")
    accept_numbered_cpus()
    # A second call must not fail.
    accept_numbered_cpus()
    loaded = torch.load(tmp_path / "optimizer.pt", map_location=torch.device("cpu:0"), weights_only=True)
    assert torch.equal(loaded["step"], torch.ones(2))
