"""Computes the explanation of a translation: the attention weights, the probability of each word, other
probable words (the "runners-up"), and a record of the beam search.

In shapes, S is the number of source tokens, T the number of target tokens, and V the size of the vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..model.backend_vaswani import Hypothesis, Segment, language_token
from ..model.configuration_vaswani import decoder_start_token_id, eos_token_ids, is_vaswani_seq2seq
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.precedence_vaswani import config_of_call
from ..model.requests_vaswani import Request
from ..model.segment_search_vaswani import map_batches
from ..model.text_rules_vaswani import target_word_indices
from ..model.translations_vaswani import Translation
from ..model.translator_vaswani import BaseTranslator
from .explanation import (
    BYTES_PER_WEIGHT,
    MAX_PAGE_SIZE,
    Attention,
    Explanation,
    RunnerUp,
    SearchRecord,
    Token,
    Tokens,
    Weights,
    Word,
    WordChoice,
    display_texts,
    too_long,
)
from .recording import CandidateRecorder, ProcessorRecorder

# The runners-up of a target word are the most probable other words in its place. Find at most
# `NUM_RUNNERS_UP` other words for each target word. A runner-up begins with the first tokens (or none) of the
# target word, followed by a replacement token. Ignore a replacement token if the product of its probability
# and the probabilities of the word's tokens before it is below `LEAST_PROBABILITY`.
NUM_RUNNERS_UP = 3
LEAST_PROBABILITY = 0.001


def explain(
    translator: BaseTranslator, text: str, target: str | None = None, *, name: str = "", **settings: Any
) -> Explanation:
    """Translate a text, as one sentence, with beam search. Explain the translation, or `target` if `target`
    is given.

    The translator must not be an ensemble of models. `name` is the name of the model on the page. `settings`
    are arguments of `generate`, such as `num_beams`.
    """
    source_ids = translator.source_tokenizer(translator.prefix + text, verbose=False)["input_ids"]
    target_ids = None
    if target is not None:
        target_ids = translator.target_tokenizer(text_target=target, verbose=False)["input_ids"]
    _check_lengths(translator, len(source_ids), None if target_ids is None else len(target_ids))
    options = translator.complete(TranslationOptions.of(**settings, do_sample=False))
    (layout,) = translator.segmenter.layouts([Request(text)], options)
    if not layout.segments:
        raise InvalidValueError(f"`text` must contain a word, but is {text!r}.")
    explainer = _Explainer(translator, layout.segments[0], options)
    found, search = explainer.search()
    best = found
    if target_ids is not None:
        first_ids = language_token(explainer.segment)
        best = Hypothesis([*first_ids, *target_ids], len(first_ids), len(first_ids), text=target or "")
    return explainer.explain(best, search, text, name, is_given=target is not None)


def _check_lengths(translator: BaseTranslator, num_source: int, num_target: int | None) -> None:
    """Raise an error if a text is too long for the model, or if the self-attention weights of one text are
    larger than the maximum size of a page.
    """
    config = translator.model.config
    num_heads = config.num_hidden_layers * config.num_attention_heads
    longest = max(num_source, num_target or 0)
    if num_heads * longest**2 * BYTES_PER_WEIGHT > MAX_PAGE_SIZE:
        raise InvalidValueError(too_long(3 * num_heads, num_source, num_target))
    limit = translator.segmenter.max_length
    for name, number in (("text", num_source), ("target", num_target or 0)):
        if number > limit:
            raise InvalidValueError(
                f"`{name}` must have at most {limit:,} tokens, as many as the model has positions, but has "
                f"{number:,}; give a shorter text."
            )


class _Explainer:
    """Explains the translation of one text that is short enough for one input of the model."""

    def __init__(self, translator: BaseTranslator, segment: Segment, options: TranslationOptions):
        self.translator = translator
        self.backend: Any = translator.backend
        self.model = translator.model
        self.tokenizer = translator.target_tokenizer
        self.segment = segment
        self.options = options
        self.config = config_of_call(options.generate, self.backend.generation_config)
        self.end_ids = eos_token_ids(self.config)

    def search(self) -> tuple[Hypothesis, SearchRecord | None]:
        """Find the best translation by beam search, and record the search."""
        recorder: CandidateRecorder | ProcessorRecorder
        if is_vaswani_seq2seq(self.model):
            recorder = CandidateRecorder()
            arguments: dict[str, Any] = {"search": self.model.search_class(candidates=recorder)}
        else:
            recorder = ProcessorRecorder(self.options.generate, self.backend.generation_config)
            arguments = {"logits_processor": [recorder]}
        best = self._search([self.segment], **arguments)[0]
        best.text = self._decode(best)
        return best, recorder.record(self.tokenizer)

    def _search(self, segments: list[Segment], **arguments: Any) -> list[Hypothesis]:
        """Return the best hypothesis of each segment."""
        token_ids = [segment.token_ids + segment.prefix for segment in segments]
        search = partial(self.backend.search, with_attention=True, **self.options.generate, **arguments)
        found = map_batches(search, segments, token_ids, self.options.tokens_per_batch)
        return [hypotheses[0] for hypotheses in found]

    def _scored(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        """Return the hypotheses as translations with scores and log-probabilities."""
        segments = [self.segment] * len(hypotheses)
        of_segments = [[hypothesis] for hypothesis in hypotheses]
        scored = self.translator.segment_search.score(segments, of_segments, self.options)
        return [translation for (translation,) in scored]

    def _decode(self, hypothesis: Hypothesis) -> str:
        return self.translator.segment_search.decode(hypothesis, self.segment, self.options)

    def explain(
        self, best: Hypothesis, search: SearchRecord | None, text: str, name: str, *, is_given: bool
    ) -> Explanation:
        """Explain a translation."""
        start = decoder_start_token_id(self.config) or 0
        decoder_input_ids = [start, *best.token_ids[:-1]]
        outputs = self._forward(decoder_input_ids)
        target = tokens_of(best.token_ids, self.tokenizer)
        scored = self._scored([best])[0]
        num_ending = len(best.token_ids) - best.num_forced - len(scored.token_log_probs or ())
        log_probs = [0.0] * best.num_forced + list(scored.token_log_probs or ()) + [0.0] * num_ending
        is_complete = search is not None and (is_given or _is_result(search, best.token_ids))
        return Explanation(
            model=name,
            source_text=text,
            target_text=best.text,
            is_given=is_given,
            source=tokens_of(self.segment.token_ids, self.translator.source_tokenizer),
            target=target,
            decoder_input=tokens_of(decoder_input_ids, self.tokenizer),
            log_probs=log_probs,
            score=scored.score or 0.0,
            attention=Attention(
                encoder=_weights(outputs.encoder_attentions),
                decoder=_weights(outputs.decoder_attentions),
                cross=_weights(outputs.cross_attentions),
            ),
            words=self._word_choices(best, target, log_probs, outputs.logits[0].float().log_softmax(dim=-1)),
            search=search if is_complete else None,
            search_note="" if is_complete else _NOT_RECORDED,
        )

    @torch.inference_mode()
    def _forward(self, decoder_input_ids: list[int]) -> Any:
        source = torch.tensor([self.segment.token_ids], device=self.model.device)
        target = torch.tensor([decoder_input_ids], device=self.model.device)
        outputs = self.model(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            decoder_input_ids=target,
            output_attentions=True,
            use_cache=False,
        )
        for field in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            if not getattr(outputs, field, None):
                raise InvalidValueError(
                    f"`model` must return attention weights, but a {type(self.model).__name__} returns no "
                    f"`{field}`; name another model."
                )
        return outputs

    # The following methods compute the runners-up: the most probable other words in place of each target
    # word.

    def _word_choices(
        self, best: Hypothesis, target: Tokens, own: list[float], log_probs: torch.Tensor
    ) -> list[WordChoice]:
        """Return the probability of each target word, and its runners-up.

        `own` [T] are the log-probabilities of the target tokens. `log_probs` [T, V] are the log-probabilities
        of all tokens of the vocabulary at each position.
        """
        changes = [self._changes(word, best, own, log_probs) for word in target.words]
        # One dict for each target word: maps the text of each runner-up to its `RunnerUp`.
        found: list[dict[str, RunnerUp]] = [{} for _ in target.words]
        # Different replacements of a token can lead to the same runner-up. Beam searches take most of the
        # time of an explanation. Therefore, in each target word, first run beam searches only for the
        # `NUM_RUNNERS_UP` most probable token replacements. Then run beam searches for the less probable
        # replacements, but only in target words with fewer than `NUM_RUNNERS_UP` runners-up.
        for part in (slice(NUM_RUNNERS_UP), slice(NUM_RUNNERS_UP, None)):
            chosen: list[tuple[int, tuple[int, int]]] = []
            for number, of_word in enumerate(found):
                if len(of_word) < NUM_RUNNERS_UP:
                    chosen += [(number, change) for change in changes[number][part]]
            translations = self._translations([change for _, change in chosen], best)
            for (number, change), translation in zip(chosen, translations, strict=True):
                word = target.words[number]
                is_end = best.token_ids[word.start] in self.end_ids
                runner_up = self._runner_up(word.start, change, translation, best)
                if runner_up.text == ("" if is_end else word.text):
                    continue
                # Keep only the most probable of the token sequences with the same text.
                known = found[number].setdefault(runner_up.text, runner_up)
                if known.probability < runner_up.probability:
                    found[number][runner_up.text] = runner_up
        choices = []
        for word, of_word in zip(target.words, found, strict=True):
            runners_up = sorted(of_word.values(), key=lambda other: -other.probability)
            probability = math.exp(sum(own[word.start : word.stop]))
            choices.append(WordChoice(probability, runners_up[:NUM_RUNNERS_UP]))
        return choices

    def _changes(
        self, word: Word, best: Hypothesis, own: list[float], log_probs: torch.Tensor
    ) -> list[tuple[int, int]]:
        """Return the most probable token replacements in a word: (position of the token, id of the new
        token).
        """
        excluded = {*self.tokenizer.all_special_ids} - {*self.end_ids}
        changes = []
        for position in range(max(word.start, best.num_forced), word.stop):
            before = sum(own[word.start : position])
            values, tokens = log_probs[position].topk(min(4 * NUM_RUNNERS_UP, log_probs.shape[1]))
            for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
                if token != best.token_ids[position] and token not in excluded:
                    changes.append((before + value, position, token))
        probable = [change for change in changes if change[0] >= math.log(LEAST_PROBABILITY)]
        # Return more than `NUM_RUNNERS_UP` token replacements, because several token replacements can lead to
        # the same probable other word (runner-up).
        probable = sorted(probable, reverse=True)[: NUM_RUNNERS_UP + 2]
        return [(position, token) for _, position, token in probable]

    def _translations(self, changes: list[tuple[int, int]], best: Hypothesis) -> list[Translation]:
        """For each change (position, token), return the best translation that begins with the tokens of
        `best` before `position`, followed by `token`.
        """
        prefixes = [[*best.token_ids[best.num_forced : position], token] for position, token in changes]
        token_ids = [[*best.token_ids[: best.num_forced], *prefix] for prefix in prefixes]
        unfinished = [i for i, prefix in enumerate(prefixes) if prefix[-1] not in self.end_ids]
        found = self._search([replace(self.segment, prefix=prefixes[i]) for i in unfinished])
        for i, hypothesis in zip(unfinished, found, strict=True):
            token_ids[i] = hypothesis.token_ids
        hypotheses = []
        for ids in token_ids:
            # The page compares the scores of whole translations, so the score includes the tokens of the
            # prefix.
            hypothesis = Hypothesis(ids, best.num_forced, best.num_counted)
            hypothesis.text = self._decode(hypothesis)
            hypotheses.append(hypothesis)
        return self._scored(hypotheses)

    def _runner_up(
        self, start: int, change: tuple[int, int], translation: Translation, best: Hypothesis
    ) -> RunnerUp:
        """Return a `RunnerUp` for the word of `translation` that contains the token with the index `start`.
        `change` is (position, token), and `translation` is the best translation with `token` at `position`.
        """
        position, token = change
        token_ids = translation.token_ids or []
        words = tokens_of(token_ids, self.tokenizer).words
        word = next(word for word in words if word.start <= start < word.stop)
        log_probs = [0.0] * best.num_forced + (translation.token_log_probs or [])
        # If the runner-up is the beginning of the replaced word, `token` is the token after the runner-up.
        # Include the probability of `token`, because `token` decides that the word ends before it.
        stop = max(word.stop, position + 1)
        return RunnerUp(
            text="" if token_ids[word.start] in self.end_ids else word.text,
            probability=math.exp(sum(log_probs[start:stop])),
            position=position,
            token=token,
            translation=translation.text,
            score=translation.score or 0.0,
        )


_NOT_RECORDED = (
    "The page cannot show the beam search, because the recorded steps of `generate` of this model do not lead "
    "to the translation."
)


def _is_result(search: SearchRecord, token_ids: Sequence[int]) -> bool:
    """Return True if the best finished hypothesis of the recorded search has the token ids `token_ids`."""
    if not search.finished:
        return False
    path = []
    index = search.finished[0].node
    while index > 0:
        path.append(search.nodes[index].token)
        index = search.nodes[index].parent
    return path[::-1] == list(token_ids)


def _weights(layers: Sequence[torch.Tensor]) -> Weights:
    """Store the attention weights [1, heads, rows, columns] of each layer as `Weights`."""
    return Weights.of(torch.cat([layer.detach() for layer in layers]))


def tokens_of(token_ids: Sequence[int], tokenizer: Any) -> Tokens:
    """Return the text of each token, and the words that the tokens form."""
    texts = display_texts(token_ids, tokenizer)
    tokens = [Token(text, token_id) for text, token_id in zip(texts, token_ids, strict=True)]
    names, word_of_token = target_word_indices(token_ids, tokenizer)
    words: list[Word] = []
    previous = -1
    for index, number in enumerate(word_of_token):
        if number >= 0 and number == previous:
            words[-1] = replace(words[-1], stop=index + 1)
        else:
            text = names[number] if number >= 0 else texts[index].strip()
            words.append(Word(text, index, index + 1))
        previous = number
    return Tokens(tokens, words)
