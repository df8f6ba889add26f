"""The memory network: stories whose answers follow from their words, accuracy on held-out ones, attention on what supports."""

import re

import pytest
import torch

from vaswani_hf.model.attention_vaswani import VaswaniAttention


@pytest.fixture(scope="module")
def memory(script):
    return script("memory_network")


@pytest.fixture(scope="module")
def stories(memory):
    return memory.make_stories(seed=1)


@pytest.fixture(scope="module")
def network(memory, stories):
    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "EPOCHS", 5)
        return memory.train(1, stories[0])


def statement_of(story, pattern, before=None):
    """The place and the match of the last statement that matches, before another one."""
    found = [(place, re.fullmatch(pattern, told)) for place, told in enumerate(story[:before])]
    return [(place, match) for place, match in found if match][-1]


def read(story, question):
    """The answer to a question, read from the words of the story alone, and the statements that it takes."""
    patterns = {
        r"who dropped the (\w+)": r"(\w+) dropped the {}",
        r"what colour is the (\w+)": r"the {} is (\w+)",
    }
    for asked, told in patterns.items():
        if match := re.fullmatch(asked, question):
            place, found = statement_of(story, told.format(match[1]))
            return found[1], [place]
    supporting, before = [], None
    name = re.fullmatch(r"where is (?:the )?(\w+)(?: thing)?", question)[1]
    if question.endswith(" thing"):
        place, found = statement_of(story, rf"the (\w+) is {name}")
        name, supporting = found[1], [place]
    if question.startswith("where is the "):
        before, found = statement_of(story, rf"(\w+) dropped the {name}")
        name, supporting = found[1], [*supporting, before]
    place, found = statement_of(story, rf"{name} went to the (\w+)", before)
    return found[1], [*supporting, place]


def test_answers_follow_from_the_words_and_take_as_many_statements_as_said(stories):
    asked = [(story, *question) for part in stories for story, questions in part for question in questions]
    assert {facts for *_, facts in asked} == {1, 2, 3}
    for story, question, answer, facts in asked:
        found, supporting = read(story, question)
        assert (found, len(set(supporting))) == (answer, facts)


def test_held_out_stories_are_in_no_training(stories):
    training, held_out = ({story for story, _ in part} for part in stories)
    assert (len(training), len(held_out)) == (5000, 1000)
    assert not training & held_out


def test_it_attends_by_the_package_and_answers_held_out_questions_on_one_fact(memory, stories, network):
    assert all(type(hop) is VaswaniAttention for hop in network.hops)
    found = memory.accuracies(network, stories[1])
    assert found[1] > 95
    # One hop finds one statement.
    assert max(found[2], found[3]) < 75


def test_the_attention_is_on_the_statement_that_supports_the_answer(memory, stories, network):
    asked = [
        (story, [question]) for story, questions in stories[1] for question in questions if question[2] == 1
    ]
    with torch.no_grad():
        weights = network(*memory.tensors_of(asked)[:2])[1]
    assert torch.allclose(weights.sum(-1), torch.ones(len(asked), 1))
    supporting = [read(story, question[0])[1] for story, (question,) in asked]
    hits = (weights[:, 0].argmax(-1, keepdim=True) == torch.tensor(supporting)).float().mean()
    assert hits > 0.95
    # The weights stand beside the statements.
    lines = memory.shown(network, asked[0]).splitlines()
    assert lines[1].startswith(f"{asked[0][1][0][0]}? ")
    expected = [
        f"{weight:.2f}  {told}" for weight, told in zip(weights[0, 0].tolist(), asked[0][0], strict=True)
    ]
    assert lines[2:] == expected


def test_each_hop_looks_with_what_the_last_one_found(memory, stories):
    torch.manual_seed(0)
    network = memory.MemoryNetwork(3).eval()
    statements, questions, *_ = memory.tensors_of(stories[1][:4])
    logits, weights = network(statements, questions)
    assert weights.shape == (len(questions), 3, memory.STATEMENTS)
    # The statements' order counts, and so do the words' and the first hop for the second.
    assert not torch.allclose(logits, network(statements.flip(1), questions)[0])
    assert not torch.allclose(logits, network(statements.flip(2), questions)[0])
    with torch.no_grad():
        network.hops[0].out_proj.weight.zero_()
    assert not torch.allclose(weights[:, 1], network(statements, questions)[1][:, 1])


@pytest.mark.parametrize("hops", ["0", "4"])
def test_hops_that_there_are_not_are_refused(memory, capsys, hops):
    with pytest.raises(SystemExit):
        memory.main(["--hops", hops])
    assert f"argument --hops: invalid choice: {hops} (choose from 1, 2, 3)" in capsys.readouterr().err
