"""The table `TASKS` maps names to tasks: `TASKS[recipe.task]` is the task of a recipe, such as `Translation`
in translation.py.
"""

from .base import CardWords, Scores, Task
from .language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from .parsing import Parsing
from .translation import Translation

TASKS: dict[str, Task] = {
    task.name: task for task in (Translation(), CausalLanguageModeling(), MaskedLanguageModeling(), Parsing())
}

__all__ = ["TASKS", "CardWords", "Scores", "Task"]
