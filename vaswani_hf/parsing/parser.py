"""Defines `Parser`, which writes constituency trees. The search of a parser finds only well-formed trees."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from ..data.trees import CLOSE, OPEN, WORD, Tree, tree_from_symbols, tree_from_text, unescaped
from ..model.backend_vaswani import Hypothesis, PyTorchBackend, Segment
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import FORBIDDING_SETTINGS, TranslationOptions
from ..model.length_limits_vaswani import max_new_tokens_of
from ..model.precedence_vaswani import config_of_call, setting_of
from ..model.requests_vaswani import Request
from ..model.segment_search_vaswani import SegmentSearch
from ..model.segmenter_vaswani import Segmenter
from ..model.translations_vaswani import Translation
from ..translation.translator import Translator

logger = logging.get_logger(__name__)

# The smallest tree over N words has N + 3 symbols: N tags, an opening bracket, a closing bracket and `</s>`.
NUM_OTHER_SYMBOLS = 3


class WellFormedTrees(LogitsProcessor):
    """Allows a symbol only if the beam can still become a well-formed tree over all words of the sentence.

    `limits` contains the maximum number of symbols of each tree, including `</s>`. Each entry of `limits`
    must be at least the number of words of the sentence plus `NUM_OTHER_SYMBOLS`. In tensor shapes, B is the
    number of sentences, K the number of beams, T the number of symbols that a beam already has, and V the
    size of the target vocabulary.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        num_words: Sequence[int],
        limits: Sequence[int],
        device: torch.device | str = "cpu",
    ):
        special_ids = set(tokenizer.all_special_ids)
        opening_ids = []
        tag_ids = []
        for symbol, token_id in tokenizer.get_vocab().items():
            if symbol == CLOSE:
                self.close_id = token_id
            elif symbol.startswith(OPEN):
                opening_ids.append(token_id)
            elif token_id not in special_ids:
                tag_ids.append(token_id)
        self.eos_token_id = tokenizer.eos_token_id
        self.opening_ids = torch.tensor(opening_ids, device=device)
        # The model writes a part-of-speech tag in place of each word.
        self.tag_ids = torch.tensor(tag_ids, device=device)
        self.num_words = torch.tensor(num_words, device=device)
        self.limits = torch.tensor(limits, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Set the scores [B * K, V] of forbidden symbols to -inf. `input_ids` [B * K, 1 + T] contains the
        start token and the T symbols of each beam.
        """
        num_beams = len(scores) // len(self.num_words)
        num_words = self.num_words.repeat_interleave(num_beams)  # [B * K]
        limits = self.limits.repeat_interleave(num_beams)
        symbols = input_ids[:, 1:]  # [B * K, T], without the start token
        num_symbols = symbols.shape[1]
        is_opening = torch.isin(symbols, self.opening_ids)
        num_opening = is_opening.sum(dim=1)
        depth = num_opening - (symbols == self.close_id).sum(dim=1)
        num_words_left = num_words - torch.isin(symbols, self.tag_ids).sum(dim=1)

        has_words_left = num_words_left > 0
        is_begun = num_opening > 0
        is_inside = depth > 0
        # `is_empty` is True if the last symbol is an opening bracket, because an empty bracket must not be
        # closed. In the first step, there is no last symbol, so no bracket is empty and `is_empty` is False.
        is_empty = is_opening[:, -1:].any(dim=1)
        # Allow another opening bracket only if the length limit has room for the remaining symbols: a tag for
        # each remaining word, a closing bracket for each open bracket, and `</s>`.
        num_needed = num_words_left + (depth + 1) + 1
        has_room = num_symbols + 1 + num_needed <= limits

        allowed = torch.zeros_like(scores, dtype=torch.bool)  # [B * K, V]
        may_open = (is_inside | ~is_begun) & has_words_left & has_room
        allowed[:, self.opening_ids] = may_open.unsqueeze(1)
        may_write_word = is_inside & has_words_left
        allowed[:, self.tag_ids] = may_write_word.unsqueeze(1)
        # Forbid the closing bracket that ends the tree until the tree has all words of the sentence.
        allowed[:, self.close_id] = is_inside & ~is_empty & ((depth > 1) | ~has_words_left)
        allowed[:, self.eos_token_id] = is_begun & ~is_inside
        return scores.masked_fill(~allowed, -torch.inf)


class TreeBackend(PyTorchBackend):
    """The PyTorch backend of a parser. The search finds only well-formed trees."""

    # The tokenizer of trees. `Parser` sets the attribute `tokenizer`.
    tokenizer: PreTrainedTokenizerFast

    def search(
        self, segments: list[Segment], with_attention: bool = False, **settings: Any
    ) -> list[list[Hypothesis]]:
        """Return the trees of each sentence as sequences of symbols, the best tree first."""
        for name in (*FORBIDDING_SETTINGS, "prefix_allowed_tokens_fn"):
            if setting_of(name, settings, self.generation_config):
                raise InvalidValueError(
                    f"`{name}` forbids symbols that a tree may need, and must be left out for a parser."
                )
        if any(segment.prefix for segment in segments):
            raise InvalidValueError(
                "`target_prefixes` must be left out for a parser, because a parser writes whole trees."
            )
        num_words = [len(segment.text.split()) for segment in segments]
        limits = self._limits(segments, settings)
        for segment, number, limit in zip(segments, num_words, limits, strict=True):
            smallest = number + NUM_OTHER_SYMBOLS
            if limit < smallest:
                raise ValueError(
                    f"A tree over {number:,} words has at least {smallest:,} symbols, but no more than "
                    f"{limit:,} are allowed for {segment.text!r:.60}; raise `max_new_tokens`, `max_length` "
                    "or `max_length_b`."
                )
        constraint = WellFormedTrees(self.tokenizer, num_words, limits, self.model.device)
        processors = LogitsProcessorList([constraint, *(settings.pop("logits_processor", None) or ())])
        return super().search(segments, with_attention, **settings, logits_processor=processors)

    def _limits(self, segments: list[Segment], settings: dict[str, Any]) -> list[int]:
        """Return the maximum number of symbols, including `</s>`, in the tree of each sentence."""
        config = config_of_call(settings, self.generation_config)
        return [
            max_new_tokens_of(config, len(segment.token_ids), 1, self.max_positions) for segment in segments
        ]


class SentenceSegmenter(Segmenter):
    """Makes one segment of each sentence."""

    backend: Any

    def split(self, request: Request, options: TranslationOptions) -> tuple[list[str], list[str]]:
        words = [unescaped(word) for word in request.text.split()]
        return ([" ".join(words)], ["", ""]) if words else ([], [""])

    def cut(self, segment: Segment, line_number: int) -> list[Segment]:
        """Return the sentence `segment` uncut, because the trees of two parts of a sentence cannot be joined
        to one tree. Log a warning for a sentence that is longer than the sentences in training.
        """
        length = len(segment.token_ids)
        positions = self.backend.max_positions
        if length > positions:
            raise ValueError(
                f"Line {line_number:,} must have at most {positions:,} tokens, the number of positions of the "
                f"model, but has {length:,}."
            )
        if length > self.max_length:
            logger.warning(
                f"Line {line_number} has {length} tokens, but the training used sentences of at most "
                f"{self.max_length} tokens; the tree of this line may be less accurate."
            )
        return [segment]


class TreeSearch(SegmentSearch):
    """Converts the symbols that the search finds to trees."""

    def decode(self, hypothesis: Hypothesis, segment: Segment, options: TranslationOptions) -> str:
        return str(decode_tree(self.target_tokenizer, hypothesis.token_ids, segment.text.split()))


class Parser(Translator):
    """Writes the constituency trees of sentences (Section 6.3 of the paper).

    White space must separate the words of a sentence. Punctuation marks must be separate words, as in the
    training treebank. The leaves of a tree are exactly the words of the sentence. `Parser.from_pretrained`
    loads a checkpoint.

    Example:
        >>> from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
        >>> from vaswani_hf.data.tokenizer_training import train_tokenizer
        >>> from vaswani_hf.tasks.parsing import train_tree_tokenizer
        >>> words = train_tokenizer(["the dog sees the cat ."], 270)
        >>> trees = train_tree_tokenizer(["(S (NP (DT the) (NN dog)) (VP (VBZ sees)))"])
        >>> config = VaswaniConfig(
        ...     vocab_size=len(words), decoder_vocab_size=len(trees), share_encoder_decoder_embeddings=False,
        ...     d_model=16, encoder_layers=1, decoder_layers=1
        ... )
        >>> parser = Parser(VaswaniForSeq2SeqLM(config).eval(), words, trees)
        >>> parser("the dog sees the cat .").words
        ('the', 'dog', 'sees', 'the', 'cat', '.')

    Args:
        model (PreTrainedModel): A sequence-to-sequence model of this package.
        source_tokenizer (PreTrainedTokenizerFast): The tokenizer of sentences.
        target_tokenizer (PreTrainedTokenizerFast): The tokenizer of trees.
        ensemble (sequence): More models with the same vocabulary. The parser averages the probabilities of
            all models.
        **kwargs: Keyword arguments of `Translator`.
    """

    backend: Any
    segmenter_class = SentenceSegmenter
    segment_search_class = TreeSearch
    makes_trees = True

    def make_backend(self, model: PreTrainedModel, ensemble: Sequence[PreTrainedModel]) -> TreeBackend:
        backend = TreeBackend(model, ensemble)
        backend.tokenizer = self.target_tokenizer
        return backend

    def __call__(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Parse one sentence or several sentences.

        Args:
            sentences (str or sequence): One sentence or several sentences.
            **options: The options of `parse`.

        Returns:
            Tree or list: The tree of one sentence, or None if the sentence has no words. For several
            sentences, a list with a tree or None for each sentence.

        Raises:
            ValueError: If a sentence is longer than the model accepts, or if an option has an impossible
                value.
            NotFiniteError: If the model's logits are NaN or infinite.
        """
        if isinstance(sentences, str):
            return next(self.parse([sentences], **options))
        return list(self.parse(sentences, **options))

    def parse(self, sentences: Iterable[str], **options: Any) -> Iterator[Tree | None]:
        """Parse sentences lazily, and yield the trees in the order of the sentences.

        Args:
            sentences (iterable): The sentences. White space separates the words of a sentence. The parser
                reads `window` sentences at a time.
            **options: `window`, `tokens_per_batch` and `on_error` as in `Translator.translate`. With
                `on_error="skip"`, the parser yields None for a sentence that cannot be parsed. All other
                options, such as `num_beams`, are options of `generate`.

        Yields:
            Tree: The tree of each sentence, or None if a sentence has no words. `str(tree)` is the tree in
                bracket notation on one line.

        Raises:
            ValueError: If a sentence is longer than the model accepts, or if an option has an impossible
                value.
            NotFiniteError: If the model's logits are NaN or infinite.
        """
        options["num_return_sequences"] = 1
        for translation in self.translate(sentences, **options):
            text = translation.text if isinstance(translation, Translation) else translation
            yield tree_from_text(text) if text else None


def decode_tree(tokenizer: PreTrainedTokenizerFast, token_ids: list[int], words: list[str]) -> Tree:
    """Convert the token ids of symbols to a tree with the leaves `words`. Leave out special tokens."""
    symbols = []
    tags = []
    for token in tokenizer.convert_ids_to_tokens(token_ids, skip_special_tokens=True):
        if token == CLOSE or token.startswith(OPEN):
            symbols.append(token)
        else:
            symbols.append(WORD)
            tags.append(token)
    return tree_from_symbols(words, symbols, tags)
