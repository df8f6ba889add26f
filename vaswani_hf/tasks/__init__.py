"""Defines the table `TASKS`, which maps the name of each task to a task object. For example,
`TASKS["translation"]` is an object of the class `TranslationTask` in translation.py.
"""

from .base import CardWords, Scores, Task
from .language_modeling import CausalLanguageModelingTask, MaskedLanguageModelingTask
from .parsing import ParsingTask
from .translation import TranslationTask

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        TranslationTask(),
        CausalLanguageModelingTask(),
        MaskedLanguageModelingTask(),
        ParsingTask(),
    )
}

__all__ = ["TASKS", "CardWords", "Scores", "Task"]
