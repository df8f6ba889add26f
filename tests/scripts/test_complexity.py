"""The complexity table: exponents of counted FLOPs, fits, sequential operations and paths. Seconds are not
tested.
"""

import math
import re

import pytest
import torch


@pytest.fixture(scope="module")
def complexity(script):
    return script("complexity")


@pytest.fixture(scope="module")
def rows(complexity):
    return {row.name: row for row in complexity.ROWS}


CORE, WHOLE, WINDOW = "self-attention", "self-attention with projections", "restricted self-attention"
LSTM, GRU, CONVOLUTION, DILATED = "recurrent (LSTM)", "recurrent (GRU)", "convolution", "dilated convolution"


@pytest.mark.parametrize(
    ("name", "size", "flops"),
    [
        # A multiplication and an addition count as two FLOPs, for the scores and for the weighted sum.
        (CORE, (96, 128), 2 * 2 * 96**2 * 128),
        # And four projections.
        (WHOLE, (96, 128), 2 * 2 * 96**2 * 128 + 4 * 2 * 96 * 128**2),
        # A block has 80 queries; each query has the 80 keys of the block and 80 keys on each side.
        (WINDOW, (400, 128, 0, 80), 2 * 2 * 400 * (3 * 80) * 128),
        # Each gate has a matrix for the input and a matrix for the state.
        (LSTM, (7, 24), 7 * 4 * 2 * 2 * 24**2),
        (GRU, (7, 24), 7 * 3 * 2 * 2 * 24**2),
        (CONVOLUTION, (50, 24, 5), 2 * 5 * 50 * 24**2),
        (DILATED, (50, 24, 5), 2 * 5 * 50 * 24**2),
    ],
)
def test_counted_flops_are_those_of_the_formulas(complexity, rows, name, size, flops):
    assert complexity.flops_of(rows[name], complexity.Size(*size)) == flops


def test_a_fit_finds_the_exponents_of_a_formula_and_says_how_well(complexity):
    row = complexity.ROWS[2]
    sizes = complexity.sizes_of(row)
    found = complexity.fit(sizes, [3e-9 * size.n**1.5 * size.d**0.5 / size.r for size in sizes])
    assert found.exponents == pytest.approx({"n": 1.5, "d": 0.5, "r": -1})
    assert (found.factor, found.r_squared) == pytest.approx((3e-9, 1))
    assert found.at(row.base) == pytest.approx(3e-9 * row.base.n**1.5 * row.base.d**0.5 / row.base.r)
    noisy = [size.n * (4 if number % 2 else 1) for number, size in enumerate(sizes)]
    assert complexity.fit(sizes, noisy).r_squared < 0.9


@pytest.mark.parametrize("name", [CORE, WHOLE, WINDOW, LSTM, GRU, CONVOLUTION, DILATED])
def test_the_chain_of_operations_grows_with_the_length_only_where_one_waits_for_another(
    complexity, rows, name
):
    size = complexity.Size(200, 16, 3 if "convolution" in name else 0, 16 if name == WINDOW else 0)
    short, long = complexity.sequential_operations(rows[name], size)
    if "recurrent" in name:
        assert rows[name].operations == "O(n)"
        # Twice as many positions give twice as many steps, plus a constant.
        assert 1.9 * short < long < 2 * short
    else:
        assert rows[name].operations == "O(1)"
        assert short == long


@pytest.mark.parametrize("length", [2, 10, 82])
@pytest.mark.parametrize(
    ("name", "rest", "path"),
    [
        (CORE, {}, lambda n: 1),
        (WHOLE, {}, lambda n: 1),
        (WINDOW, {"r": 4}, lambda n: math.ceil((n - 1) / 4)),
        (WINDOW, {"r": 100}, lambda n: 1),
        (LSTM, {}, lambda n: n),
        (GRU, {}, lambda n: n),
        (CONVOLUTION, {"k": 3}, lambda n: math.ceil((n - 1) / 2)),
        (CONVOLUTION, {"k": 4}, lambda n: math.ceil((n - 1) / 3)),
        (DILATED, {"k": 2}, lambda n: math.ceil(math.log2(n))),
        (DILATED, {"k": 3}, lambda n: {2: 1, 10: 3, 82: 5}[n]),
    ],
)
def test_paths_by_gradient_are_those_by_construction(complexity, rows, name, rest, path, length):
    size = complexity.Size(length, 16, **rest)
    assert complexity.path_length(rows[name], size) == rows[name].path(size) == path(length)


def test_the_window_is_cut_into_blocks_where_its_path_is_measured(complexity, rows):
    # 257 positions do not fit into one block, so the table shows the kernel with linear cost.
    assert complexity.layers_between_ends(rows[WINDOW], complexity.Size(257, 16, r=16)) == 16
    mask = rows[WINDOW].layer(complexity.Size(257, 16, r=16), 0, "eager").mask
    assert type(mask).__name__ == "Blocks"


def test_a_quick_run_prints_the_table_and_writes_the_picture(complexity, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(complexity, "PATH_LENGTH", 17)
    wanted = (CORE, WINDOW, CONVOLUTION)
    monkeypatch.setattr(complexity, "ROWS", [row for row in complexity.ROWS if row.name in wanted])
    picture = tmp_path / "complexity.png"
    torch.manual_seed(0)
    complexity.main(["--quick", "--picture", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()
    ]
    found = {line[0]: line[1:] for line in lines if line[0] in wanted}
    assert [found[name][:2] for name in wanted] == [
        ["O(n^2 d)", "n^2.00 d^1.00"],
        ["O(r n d)", "n^1.00 d^1.00 r^1.00"],
        ["O(k n d^2)", "n^1.00 d^2.00 k^1.00"],
    ]
    assert [found[name][-2:] for name in wanted] == [["O(1)", "1, 1"], ["O(n/r)", "1, 1"], ["O(n/k)", "8, 8"]]
    assert all(re.fullmatch(r"n\^-?\d+\.\d\d d\^.*", found[name][2]) for name in wanted)
