"""`Parser`: the engine of the translator with the constraint of trees, and trees in place of translations."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from transformers import LogitsProcessorList
from transformers.utils import logging

from ..data.tree_tokenizer import written_tree
from ..data.trees import Tree, tree_of, unescaped
from ..model.generation_vaswani import PAPER_MAX_LENGTH, tokens_at_most
from ..model.translator_vaswani import Hypothesis, Segment, TranslationOptions, setting_of
from ..translation.pytorch import PyTorchBackend
from ..translation.scoring import Translation
from ..translation.translator import Translator
from .well_formed import LEAST_MORE, WellFormedTrees

logger = logging.get_logger(__name__)


# Settings of `generate` by which a symbol may be forbidden where the tree needs it.
_FORBIDDING = (
    "no_repeat_ngram_size encoder_no_repeat_ngram_size min_length min_new_tokens bad_words_ids suppress_tokens "
    "begin_suppress_tokens forced_bos_token_id forced_eos_token_id prefix_allowed_tokens_fn"
).split()


class TreeBackend(PyTorchBackend):
    """A parser's model as a backend, whose search finds trees over the words of each segment and nothing else.

    Args:
        model (PreTrainedModel): The model.
        ensemble (sequence): More models of the same vocabulary, whose probabilities are averaged with the first one's.
    """

    # The tokenizer of trees.
    tokenizer: Any = None

    def search(self, segments: list[Segment], with_attention: bool = False, **settings: Any) -> list[list[Hypothesis]]:
        """For each sentence of a batch its linearised trees, best first.

        Args:
            segments (list): B of them.
            with_attention (bool): Without effect.
            **settings: Those of `generate`.

        Raises:
            ValueError: If no tree over a sentence is as short as the settings ask for, or one of them forbids trees.
        """
        for name in _FORBIDDING:
            if setting_of(name, settings, self.generation_config):
                raise ValueError(f"`{name}` forbids symbols that a tree may need, and must be left out for a parser.")
        if any(segment.prefix for segment in segments):
            raise ValueError(
                "`target_prefixes` must be left out for a parser, whose trees begin as their sentences ask for."
            )
        num_words, limits = [], []
        for segment in segments:
            num_words.append(len(segment.text.split()))
            limits.append(self._limit(len(segment.token_ids), settings))
            if limits[-1] < num_words[-1] + LEAST_MORE:
                raise ValueError(
                    f"A tree over {num_words[-1]:,} words has at least {num_words[-1] + LEAST_MORE:,} symbols, but no more than "
                    f"{limits[-1]:,} are allowed for {segment.text!r:.60}; raise `max_new_tokens`, `max_length` or `max_length_b`."
                )
        processor = WellFormedTrees(self.tokenizer, num_words, limits)
        processors = LogitsProcessorList([processor, *(settings.pop("logits_processor", None) or ())])
        return super().search(segments, with_attention, **settings, logits_processor=processors)

    def _limit(self, source_length: int, settings: dict[str, Any]) -> int:
        """The most symbols, `</s>` included, that `generate` will allow for so many source tokens."""
        names = ("max_length_a", "max_length_b", "max_new_tokens", "max_length")
        a, b, most, length = (setting_of(name, settings, self.generation_config) for name in names)
        if a is None and b is None and most is None and length is None:
            a, b = PAPER_MAX_LENGTH
        by_source = tokens_at_most(SimpleNamespace(max_length_a=a, max_length_b=b), source_length)
        # `max_length` counts the start of the decoder, and the last symbol is never read.
        limits = (by_source, most, None if length is None else length - 1, self.max_positions)
        return min(int(limit) for limit in limits if limit is not None and limit < math.inf)


class Parser(Translator):
    """A model that gives sentences their constituency trees (Section 6.3).

    The words of a sentence are what white space separates: it has to be tokenized as the treebank is that the model was trained
    on, with punctuation as words of their own. A tree is over exactly these words, whatever they are.

        parser = Parser.from_pretrained("checkpoints/parsing")
        print(parser("the dog sees the cat ."))

    Args:
        model (PreTrainedModel): A sequence-to-sequence model of this package.
        source_tokenizer (PreTrainedTokenizerFast): The tokenizer of sentences.
        target_tokenizer (PreTrainedTokenizerFast): The tokenizer of trees.
        ensemble (sequence): More models of the same vocabulary, whose probabilities are averaged with the first one's.
        **kwargs: As `Translator` has them.
    """

    backend_class = TreeBackend
    makes_trees = True

    def __init__(self, model, source_tokenizer, target_tokenizer, ensemble=(), **kwargs):
        super().__init__(model, source_tokenizer, target_tokenizer, ensemble, **kwargs)
        self.backend.tokenizer = target_tokenizer

    def __call__(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """The tree of a sentence, or a list with the tree of each.

        Args:
            sentences (str or sequence): One sentence or several; one without words has the tree None.
            **options: As `parse` takes them.
        """
        trees = self.parse([sentences] if isinstance(sentences, str) else sentences, **options)
        return next(trees) if isinstance(sentences, str) else list(trees)

    def parse(self, sentences: Iterable[str], **options: Any) -> Iterator[Tree | None]:
        """The trees of sentences, in their order.

        Args:
            sentences (iterable): Words with white space between them; read as far as a window at a time.
            **options: `window`, `tokens_per_batch` and `on_error` as `Translator.translate` has them; with "skip" a bad
                sentence has no tree. All others are passed to `generate`, such as `num_beams`.

        Yields:
            Tree: Of each sentence, `str(tree)` being one line of brackets; None for one without words.
        """
        for found in self.translate(sentences, **{**options, "num_return_sequences": 1}):
            text = found.text if isinstance(found, Translation) else found
            yield tree_of(text) if text else None

    def _split(self, text: str, options: TranslationOptions) -> tuple[list[str], list[str]]:
        words = [unescaped(word) for word in text.split()]
        return ([" ".join(words)], ["", ""]) if words else ([], [""])

    def _pieces(self, segment: Segment, number: int, max_length: int) -> list[Segment]:
        """The sentence as it is, because a tree of its parts would be none of it.

        Raises:
            ValueError: If it is longer than the positions that the model has.
        """
        length, positions = len(segment.token_ids), self.backend.max_positions
        if length > positions:
            raise ValueError(
                f"Line {number:,} must have at most {positions:,} tokens, as many as the model has positions, but has {length:,}."
            )
        if length > max_length:
            logger.warning(
                f"Line {number} has {length} tokens, more than the {max_length} of the longest sentence in training; its tree may "
                "be worse than others."
            )
        return [segment]

    def _search(self, segments: list[Segment], options: TranslationOptions) -> list[list[Hypothesis]]:
        found = super()._search(segments, options)
        return [
            [replace(one, text=str(self._tree(one, segment))) for one in hypotheses]
            for segment, hypotheses in zip(segments, found, strict=True)
        ]

    def _tree(self, hypothesis: Hypothesis, segment: Segment) -> Tree:
        return written_tree(self.target_tokenizer, hypothesis.token_ids, segment.text.split())
