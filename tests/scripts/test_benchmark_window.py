"""The benchmark of windows: a table, slopes and a picture, from lengths that take no time."""

import pytest


def test_it_measures_prints_and_draws(script, tmp_path, capsys):
    benchmark = script("benchmark_window")
    options = ["--lengths", "512", "1024", "--repetitions", "1", "--width", "16", "--heads", "2", "--window", "8"]
    benchmark.main([*options, "--output", str(tmp_path / "window.png")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:2]] == ["512", "1,024"]
    assert [line.split(":")[0] for line in lines[2:]] == ["slope of seconds", "slope of MiB", "picture"]
    assert (tmp_path / "window.png").stat().st_size > 10_000


def test_a_slope_is_the_exponent(script):
    lengths = [512, 1024, 2048]
    for power in (1, 2):
        assert script("benchmark_window").slope(lengths, [3 * n**power for n in lengths]) == pytest.approx(power)
