"""`TranslationPipeline` with what the package adds to the pipeline that travels with a checkpoint.

`import vaswani_hf` registers it. The methods import what they need when they are called, so that the import stays fast.
"""

from collections.abc import Sequence
from typing import Any

from .model import pipeline_vaswani
from .model.translator_vaswani import TranslationEngine


class TranslationPipeline(pipeline_vaswani.TranslationPipeline):
    """Translations of texts, by any encoder-decoder model that generates; see the base class.

    In addition to the base class it has scores, alignments, constraints, sentence splitting, the repetition guard and
    `on_error`, and `push_to_hub` pushes a Vaswani model as `vaswani push` does.
    """

    def constrained_inputs(self, inputs: Any, **constraints: Any) -> Any:
        """The inputs of a call as `Request`s with their constraints."""
        from .translation.constraints import constrained_requests

        return constrained_requests(inputs, **constraints)

    def engine(self, package_options: Sequence[str], ensemble: Sequence[Any]) -> TranslationEngine:
        """`Translator` if a call has options that only the package knows, else the engine that travels."""
        if not package_options:
            return super().engine(package_options, ensemble)
        from .translation.translator import Translator

        return self.make_engine(Translator, ensemble)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> Any:
        """Push the model with its tokenizers and its code; a Vaswani model is checked as `vaswani push` checks it."""
        if self.model.config.model_type != "vaswani":
            return super().push_to_hub(repo_id, **kwargs)
        from .publish.push import push_pipeline

        return push_pipeline(self, repo_id, **kwargs)
