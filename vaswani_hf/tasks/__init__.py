"""Defines the table `TASKS`, which maps the name of each task to a task object. For example,
`TASKS["translation"]` is an object of the class `Translation` in translation.py.
"""

from .base import CardWords, Scores, Task
from .language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from .parsing import Parsing
from .translation import Translation

TASKS: dict[str, Task] = {
    task.name: task for task in (Translation(), CausalLanguageModeling(), MaskedLanguageModeling(), Parsing())
}

__all__ = ["TASKS", "CardWords", "Scores", "Task"]
