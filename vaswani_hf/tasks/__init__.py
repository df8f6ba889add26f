"""Defines the table `TASKS`, which maps the name of each task to the class of the task. For example,
`TASKS["translation"]` is the class `TranslationTask` in translation.py.
"""

from .base import CardWords, Scores, Task
from .language_modeling import CausalLanguageModelingTask, MaskedLanguageModelingTask
from .parsing import ParsingTask
from .translation import TranslationTask

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (TranslationTask, CausalLanguageModelingTask, MaskedLanguageModelingTask, ParsingTask)
}

__all__ = ["TASKS", "CardWords", "Scores", "Task"]
