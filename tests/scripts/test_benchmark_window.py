"""The benchmark of windows: a table, slopes and a picture, from lengths that take no time."""

from types import SimpleNamespace

import pytest


def test_it_measures_prints_and_draws(script, tmp_path, capsys, monkeypatch):
    benchmark, arguments = script("window"), ["--repetitions", "1", "--width", "16", "--heads", "2"]
    arguments += ["--lengths", "512", "1024", "--window", "8", "--output", str(tmp_path / "window.png")]

    def in_this_process(command, **kwargs):
        # A fresh process takes its time to import, and only its memory would be another.
        benchmark.main(command[2:])
        return SimpleNamespace(stdout=capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(benchmark.subprocess, "run", in_this_process)
    found = {}
    monkeypatch.setattr(
        benchmark, "draw", lambda *given, own=benchmark.draw: (found.update(given[1]), own(*given))
    )
    benchmark.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[-3:]] == ["slope of seconds", "slope of MiB", "picture"]
    assert all(len(values) == 2 and min(values) > 0 for values in found["seconds"].values())
    # Full attention and the window, each at both lengths.
    assert {quantity: sorted(by_window) for quantity, by_window in found.items()} == {
        "seconds": [0, 8],
        "MiB": [0, 8],
    }
    assert (tmp_path / "window.png").stat().st_size > 10_000


def test_a_slope_is_the_exponent(script):
    lengths = [512, 1024, 2048]
    for power in (1, 2):
        assert script("window").slope(lengths, [3 * n**power for n in lengths]) == pytest.approx(power)


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
        script("window").main(options)
    assert message in capsys.readouterr().err
