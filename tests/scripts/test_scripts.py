"""Each benchmark and each example runs once with tiny sizes. Other tests check the computations of the
scripts.
"""

import gzip
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import tiny_model
from sentences import rows
from torch.utils.flop_counter import FlopCounterMode

from vaswani_hf.data.toy_corpora import number_pairs

SCRIPTS = Path(__file__).parents[2] / "scripts"

# Each script, its command line, and regular expressions of its output. Words in braces are paths.
RUNS = rows(r"""
alignment.py | {checkpoint} | 20 sentence pairs, \d+ German words: \d+\.\d % wrong | tags: \d+\.\d % enclose the correct words
bf16.py | --threads 1 --rounds 1 --shapes d32_v500_b512 | float32 takes \d+\.\d\d \(
corpus.py | {out} --pairs 300 --num_proc 1 | \| first \| 20 steps \| | \| resumed \| whole run \|
encoding.py | {source} {target} --repeat 1 --rounds 1 --vocab_size 300 | "sha256" | words takes
generation.py | {checkpoint} {source} --reference {target} --sentences 4 --max_new_tokens 3 --repetitions 1 --device cpu --without_ctranslate2 | vaswani int8, sorted +\d | 8 beams, 64 inputs of 100 tokens: marian
language_detection.py | en={source} de={target} --lines 3 | py3langid, all languages +en +\d+\.\d %, de +\d+\.\d %, \d+\.\d\d ms per text
repetition_guard.py | {checkpoint} {source} {target} --other {target} --inputs 22 | \| none \| 2 \| \d \| | \| another language \| 2 \| | \| all \| 22 \| \d+ \| \d+ \|
serving.py | {checkpoint} {source} --clients 1 2 --requests 4 --rounds 1 --sentence seven --serve='--timeout 60' | batches +ready after \d+\.\d s, \d+ MiB | 2 clients: batches .* one request at a time takes \d | p99 \d | one sentence, no wait
serving_soak.py | {checkpoint} {source} --requests 60 --clients 4 | \d right | \d cancelled | malformed JSON: 400 | MiB after each tenth of the requests: \d
startup.py | {checkpoint} --rounds 1 | vaswani translate .* imports takes | vaswani serve .* imports takes
threads.py | --shapes toy --ways one after --rounds 1 --seconds 0.01 | train, toy:  | translate, toy:  | \| after \| [\d,]+ \| \d.* \| [\d,]+ \| \d
training.py | --shapes toy --pairs 1000 --turns 1 --turn 2000 --threads 1 --dtype float32 | \| MarianMT, group_by_length \| [\d,]+ \| \d | \| JoeyNMT \| not measured: no --joeynmt PYTHON
training_step.py | --width 16 --ffn 16 --heads 2 --layers 1 --vocabulary 100 --tokens 64 --repetitions 1 | step of vaswani .* marian takes | whole step .*100\.0%
window.py | --repetitions 1 --width 16 --heads 2 --lengths 512 1024 --window 8 --output {out}/window.png | slope of seconds: \{'full' | slope of MiB
compare_gpt2.py | --train {source} --test {source} --steps 2 --seeds 1 --vocab_size 300 | \| GPT2LMHeadModel \| [\d,]+ \| | GPT-2 / time of a step of this package: \d
quick_trees.py | 3 | \(S \(
""")


@pytest.fixture
def run(python, tmp_path, tiny_checkpoint):
    """A function that runs a script with an interpreter that has imported the package, and returns its
    output.
    """
    places = {"out": tmp_path / "out", "source": tmp_path / "train.en", "target": tmp_path / "train.de"}
    places["out"].mkdir()
    pairs = number_pairs(300, 1, "train")
    for side in ("source", "target"):
        places[side].write_text("".join(f"{pair[side]}\n" for pair in pairs))
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS.parent), "TMPDIR": str(tmp_path)}

    def start(name: str, words: str) -> str:
        if "{checkpoint}" in words:
            places["checkpoint"] = tiny_checkpoint()
        (path,) = SCRIPTS.rglob(name)
        command = [python, str(path), *shlex.split(words.format(**places))]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


# Scripts that train several times, or that compare many sizes.
SLOW = ("corpus.py", "bf16.py")


@pytest.mark.parametrize(
    "cells", [pytest.param(row, id=row[0], marks=pytest.mark.slow if row[0] in SLOW else ()) for row in RUNS]
)
def test_each_script_runs(run, cells):
    name, words, *patterns = cells
    output = run(name, words)
    for pattern in patterns:
        assert re.search(pattern, output), output


@pytest.mark.slow
def test_the_speedrun(run, tmp_path):
    lines = "".join(f"{pair['source']}\n" for pair in number_pairs(100, 1, "train")).encode()
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            (tmp_path / f"{split}.lc.norm.tok.{language}.gz").write_bytes(gzip.compress(lines))
    tiny = "--vocab_size 300 --d_model 8 --encoder_ffn_dim 8 --decoder_ffn_dim 8 --encoder_layers 1 --decoder_layers 1"
    output = run("speedrun.py", f"{tmp_path} --seeds 1 --processes 1 --max_steps 1 --num_beams 1 {tiny}")
    assert re.search(r"float32: [\d,]+ GFLOP/s, bfloat16: [\d,]+ GFLOP/s", output), output
    assert re.search(r"\| 1 \| \d+\.\d\d \| \d+\.\d\d \| \d\.\d{3}e\+\d+ \| 0\.000 \| \d", output), output


@pytest.mark.slow
def test_the_table_of_imports():
    # Use the real interpreter, because the script starts pytest.
    path = SCRIPTS.parent / "tests" / "convert" / "test_import_annotated_transformer.py"
    command = [sys.executable, str(SCRIPTS / "benchmarks" / "imports.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row = r"\| The Annotated Transformer \| the formulas of the book \| \d+ \| \d\.\de-"
    assert re.search(row, done.stdout), done.stdout


def test_html_page(run, tmp_path):
    pytest.importorskip("playwright", reason="Playwright is not installed.")
    for program in ("node", "chromium"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed.")
    source = tmp_path / "source.txt"
    source.write_text("seven\n" + "seven eight " * 6 + "nine\n")
    output = run("browser.py", f"{{checkpoint}} {source} --num_beams 2 --quantization int8")
    assert "int8, Node.js: 0 of 2 " in output
    assert "int8, Chromium: 0 of 2 " in output


def test_every_script_is_run_by_a_test():
    # The build of the manual runs paper.py.
    tested_elsewhere = "browser complexity imports memory_network paper quickstart score_functions speedrun"
    tested_elsewhere += " table3 timing translate_ray worked_numbers"
    scripts = {path.name for folder in ("benchmarks", "examples") for path in (SCRIPTS / folder).glob("*.py")}
    assert scripts == {row[0] for row in RUNS} | {f"{name}.py" for name in tested_elsewhere.split()}


def test_turns_alternate_and_ratios_belong_to_a_round(script):
    timing = script("timing")
    calls = []
    ways = {"slow": lambda: calls.append("slow") or 6.0}
    ways["fast"] = lambda: calls.append("fast") or len(calls) * 1.0
    times = timing.in_turns(ways, rounds=2, warm_up=1, measure=lambda way: way())
    assert calls == ["slow", "fast", "fast", "slow", "slow", "fast"]
    assert times == {"slow": [6.0, 6.0], "fast": [3.0, 6.0]}
    assert str(timing.ratio(times["slow"], times["fast"])) == "1.50 (1.00 to 2.00)"


def test_the_error_of_a_new_process_is_shown_and_a_warning_only_once(script, monkeypatch, tmp_path, capsys):
    timing = script("timing")
    path = tmp_path / "measure.py"
    path.write_text("import sys\nprint('a warning', file=sys.stderr)\nprint('MiB', 10 / float(sys.argv[1]))")
    monkeypatch.setattr(sys, "argv", [str(path)])
    assert [timing.from_fresh_process([number]) for number in ("2", "5")] == [5.0, 2.0]
    assert capsys.readouterr().err == "a warning\n"
    with pytest.raises(subprocess.CalledProcessError):
        timing.from_fresh_process(["0"])
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_competitor_waits_between_its_turns():
    code = """
from training_peers.turns import NoMoreTurnsError, Turns
turns = Turns()
print("output of a library")
try:
    turns.start()
    for step in range(1000):
        turns.count(10, 16)
        turns.step_ended()
except NoMoreTurnsError:
    turns.finish(1.5)
"""
    commands = [{"steps": 3}, {"tokens": 70}, {"tokens": 72}, {"tokens": 96}, {"end": True}]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="".join(json.dumps(command) + "\n" for command in commands),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS / "benchmarks")},
        check=True,
    )
    first, *turns, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first, last) == ({"ready": True}, {"validation_loss": 1.5})
    # A turn has at least one step. It ends when its number of tokens is nearest to the wanted number.
    assert [(turn["steps"], turn["tokens"]) for turn in turns] == [(3, 30), (7, 70), (8, 80), (10, 100)]
    assert turns[-1]["positions"] == 160


def test_the_flops_of_a_training_step_are_those_that_pytorch_counts(script):
    turns = script("turns")
    shape = turns.Shape(width=16, ffn=24, layers=2, heads=2, vocabulary=50, tokens=0, turn=0)
    model = script("marian_mt").marian(shape, pad_token_id=1, eos_token_id=2, start_token_id=0)
    model.set_attn_implementation("eager")
    # The counter counts masked products too. With one target position the causal mask hides nothing.
    inputs = {
        "input_ids": torch.arange(4, 11)[None],
        "decoder_input_ids": torch.zeros(1, 1, dtype=torch.int64),
    }
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs, use_cache=False)
    flops = script("preparation").training_flops(shape, np.array([7]), np.array([1]))
    assert flops == 3 * counter.get_total_flops()


def test_a_widened_model_computes_the_same_function(script):
    model = tiny_model(encoder_ffn_dim=32, decoder_ffn_dim=32)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "decoder_input_ids": torch.tensor([[0, 8, 9]])}
    with torch.no_grad():
        # Use embeddings with both signs, because positive embeddings could hide a missing scale.
        model.model.shared.weight.normal_(generator=torch.Generator().manual_seed(1))
        expected = model(**inputs).logits[..., 3:]
        logits = script("generation").widened(model)(**inputs).logits[..., 3:]
    assert torch.allclose(logits, expected, atol=1e-2)


def test_the_phases_of_a_run_get_their_seconds_and_their_memory(script):
    phases = [("imports", 1, 8), ("tokenise", 10, 12), ("tokenise", 14, 15), ("batch", 16, 17)]
    phases += [("step", 17, 18), ("batch", 18, 18.1), ("step", 18.1, 20)]
    found = [{"phase": name, "start": start, "end": end} for name, start, end in phases]
    samples = [(time, time * 2**20, 2**20, 2**19) for time in range(21)]
    table = script("corpus").table("first", found, samples, 0.5)
    assert "| first | tokenise | 3.0 | 15.00 | 1.00 | 0.50 |" in table
    assert "| first | 2 steps | 3.0 | 20.00 | 1.00 | 0.50 |" in table
    assert "| first | from the start to the end of the first step | 17.5 | 18.00 | 1.00 | 0.50 |" in table


def test_unscaled_scores_spread_with_the_width_and_saturate_the_softmax(script, tmp_path):
    functions = script("score_functions")
    table = functions.compare_scaling(tmp_path, num_queries=300)
    assert (tmp_path / "scaling.png").exists()
    for score, power in (("dot", 0.5), ("scaled_dot", 0.0), ("dot_mean", -0.5)):
        for width, row in zip(functions.WIDTHS, table[score], strict=True):
            assert row["deviation"] == pytest.approx(width**power, rel=0.15)
    even = math.log(functions.NUM_KEYS)
    assert table["dot"][-1]["entropy"] < 0.05 * even
    assert 0.85 * even < table["scaled_dot"][-1]["entropy"] < 0.9 * even
    assert table["dot_mean"][-1]["entropy"] > 0.999 * even
    assert table["dot"][-1]["gradient"] < 0.25 * table["dot"][2]["gradient"]
    assert table["scaled_dot"][-1]["gradient"] == pytest.approx(table["scaled_dot"][2]["gradient"], rel=0.1)


def test_the_table_of_score_functions_has_the_results_of_a_run(script, monkeypatch, capsys, tmp_path):
    functions = script("score_functions")
    monkeypatch.setattr(functions, "exact_match", lambda score, output, overrides: 12.5)
    functions.main(["training", "--output", str(tmp_path), "--scores", "additive", "--repetitions", "1"])
    row = r"\| `additive` \| v tanh\(W q \+ U k\) \| Bahdanau et al. 2015, A.1.2 \| 12.5 % \| \d+\.\d+ \| \d+\.\d\d \|"
    assert re.search(row, capsys.readouterr().out)


@pytest.fixture(scope="module")
def memory(script):
    return script("memory_network")


def read(story, question):
    """The answer to a question by the words of the story, and the positions of the supporting statements."""

    def last(pattern, before=None):
        found = [(place, re.fullmatch(pattern, told)) for place, told in enumerate(story[:before])]
        return [(place, match) for place, match in found if match][-1]

    if match := re.fullmatch(r"who dropped the (\w+)|what colour is the (\w+)", question):
        pattern = rf"(\w+) dropped the {match[1]}" if match[1] else rf"the {match[2]} is (\w+)"
        place, found = last(pattern)
        return found[1], [place]
    supporting, before = [], None
    name = re.fullmatch(r"where is (?:the )?(\w+)(?: thing)?", question)[1]
    if question.endswith(" thing"):
        place, found = last(rf"the (\w+) is {name}")
        name, supporting = found[1], [place]
    if question.startswith("where is the "):
        before, found = last(rf"(\w+) dropped the {name}")
        name, supporting = found[1], [*supporting, before]
    place, found = last(rf"{name} went to the (\w+)", before)
    return found[1], [*supporting, place]


def test_answers_of_the_memory_network_follow_from_the_stories(memory):
    training, held_out = memory.make_stories(seed=1)
    assert not {story for story, _ in training} & {story for story, _ in held_out}
    asked = [(story, *question) for story, questions in training + held_out for question in questions]
    assert {facts for *_, facts in asked} == {1, 2, 3}
    for story, question, answer, facts in asked:
        found, supporting = read(story, question)
        assert (found, len(set(supporting))) == (answer, facts)


def test_the_script_of_the_memory_network_runs(memory, monkeypatch, capsys):
    for name, value in {"TRAINING": 300, "HELD_OUT": 200, "EPOCHS": 1}.items():
        monkeypatch.setattr(memory, name, value)
    memory.main(["--hops", "1"])
    assert re.search(r"hops 1: \d+\.\d \d+\.\d \d+\.\d\n\n.*\(correct: ", capsys.readouterr().out)


@pytest.mark.slow
def test_a_memory_network_attends_to_the_statement_that_decides_the_answer(memory, monkeypatch, capsys):
    monkeypatch.setattr(memory, "EPOCHS", 5)
    found = []
    train = memory.train
    monkeypatch.setattr(memory, "train", lambda *given: found.append(train(*given)) or found[0])
    memory.main(["--hops", "1", "--seed", "1"])
    accuracy = re.search(r"hops 1: (\S+) (\S+) (\S+)", capsys.readouterr().out)
    # With one hop, a model finds only one supporting statement.
    assert float(accuracy[1]) > 95 and max(float(accuracy[2]), float(accuracy[3])) < 75
    _, held_out = memory.make_stories(seed=1)
    asked = [
        (story, [question]) for story, questions in held_out for question in questions if question[2] == 1
    ]
    with torch.no_grad():
        weights = found[0](*memory.tensors_of(asked)[:2])[1]  # [B, hops, S]
    supporting = torch.tensor([read(story, question[0])[1] for story, (question,) in asked])
    assert (weights[:, 0].argmax(-1, keepdim=True) == supporting).float().mean() > 0.95


def test_each_hop_of_a_memory_network_depends_on_the_hop_before(memory):
    torch.manual_seed(0)
    network = memory.MemoryNetwork(3).eval()
    _, held_out = memory.make_stories(seed=1)
    statements, questions, *_ = memory.tensors_of(held_out[:4])
    logits, weights = network(statements, questions)
    assert not torch.allclose(logits, network(statements.flip(1), questions)[0])
    with torch.no_grad():
        network.hops[0].out_proj.weight.zero_()
    assert not torch.allclose(weights[:, 1], network(statements, questions)[1][:, 1])


def test_train_has_the_header_that_uv_reads():
    text = (SCRIPTS / "train.py").read_text(encoding="utf-8")
    (block,) = re.findall(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", text, re.MULTILINE)
    header = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.MULTILINE))
    project = tomllib.loads((SCRIPTS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # The name is free on PyPI, so somebody else could take it: the header must not install it by name.
    assert header == {"requires-python": project["requires-python"], "dependencies": []}
