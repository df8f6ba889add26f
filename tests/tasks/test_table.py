"""Only the table of tasks knows the names of the tasks."""

import ast
from pathlib import Path

import pytest

import vaswani_hf
from vaswani_hf.checkpoint.results import DataRecord
from vaswani_hf.tasks import TASKS, Task

PACKAGE = Path(vaswani_hf.__file__).parent


def comparisons_of(source: str) -> list[int]:
    """Return the lines that compare a task with another value."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if any("task" in (getattr(side, "attr", None), getattr(side, "id", None)) for side in sides):
            lines.append(node.lineno)
    return lines


def test_no_other_code_asks_which_task_a_run_has():
    assert comparisons_of("if recipe.task == 'parsing':\n    pass") == [1]
    found = {
        str(path.relative_to(PACKAGE)): comparisons_of(path.read_text()) for path in PACKAGE.rglob("*.py")
    }
    # Two files may compare tasks: a run with its recorded recipe, and a recipe with the table.
    assert {name for name, lines in found.items() if lines} == {"recipe/recipe.py", "training/run.py"}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_states_what_other_code_needs(task):
    missing = [name for name in Task.__annotations__ if not hasattr(task, name)]
    assert not missing and TASKS[task.name] is task
    assert task.tokenizer_settings(vocab_size=300).planned_target_size > 0
    # A model without a record can also have a card.
    description = task.card_description(DataRecord(), None)
    assert "known" in description and "None" not in description
    assert task.card_example(DataRecord(), None) and not task.card_scores({})
