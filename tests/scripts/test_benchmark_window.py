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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "0"], "must be positive"),
        (["--repetitions", "0"], "must be positive"),
        (["--lengths", "512", "512"], "a slope needs two lengths"),
        (["--output", "no_such_folder/window.png"], "--output must be in a folder that exists"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_is_measured(script, options, message, capsys):
    with pytest.raises(SystemExit):
        script("benchmark_window").main(options)
    assert message in capsys.readouterr().err
