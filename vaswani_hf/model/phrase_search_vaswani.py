"""Grid beam search: finds translations that contain given phrases (Hokamp and Liu 2017, arXiv 1704.07138).

A beam competes only with beams that contain the same number of phrase tokens. The search keeps up to
`num_beams` beams with 0 phrase tokens, up to `num_beams` beams with 1 phrase token, and so on. A beam can end
only if the beam contains all phrases of its sentence. If the length limit leaves room only for the missing
phrases, the beam must continue with the missing phrases. `PhraseCandidates` implements grid beam search as a
candidate selection of `BeamSearch`.

If the search finds no translation with all phrases, `search_again` tries the phrases one after the other, and
keeps each phrase that the search can add to the translation. The file phrases_vaswani checks the phrases
before the search.

This file is saved with every checkpoint because `generate(must_contain=...)` runs the grid beam search of
this file.

In tensor shapes, F is the largest number of phrases of a sentence, and L the number of tokens of the longest
phrase. O is the number of candidates (possible next tokens) per beam that `PhraseCandidates` compares. The
docstring of the file beam_search_vaswani explains the other letters in tensor shapes, such as N and K.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .beam_search_vaswani import BeamSearch, SearchTask
from .beams_vaswani import EMPTY_SCORE, EXCLUDED_SCORE, Candidates, exists
from .decoding_vaswani import gather_beams
from .errors_vaswani import InvalidValueError
from .masks_vaswani import CACHE_NAME
from .phrases_vaswani import PhraseError, contains, fit_phrases, num_tokens
from .search_errors_vaswani import forbidding_settings
from .search_strategies_vaswani import CandidateSelection, EarlyStopping, RunningSearch

logger = logging.get_logger(__name__)


def search_again(
    task: SearchTask,
    config: GenerationConfig,
    must_contain: Sequence[Sequence[Sequence[int]]],
    search: BeamSearch,
) -> BeamSearch:
    """Run grid beam search for the sentences whose translations lack a required phrase. Return a `BeamSearch`
    with the results of all sentences. If the translations of a sentence already contain all its phrases, the
    sentence has the same results as in the beam search `search`.

    `search` is a beam search that has ended, and that ran without required phrases. If grid beam search finds
    no translation with all phrases of a sentence, `search_again` starts without phrases and adds one phrase
    per search. `search_again` keeps a phrase if grid beam search finds a translation with the phrase and the
    phrases that are already kept.
    """
    if len(must_contain) != len(task.prompt):
        raise InvalidValueError(
            f"`must_contain` must have a list of phrases for each sentence, but has {len(must_contain)} for "
            f"{len(task.prompt)} sentences."
        )
    found = search.results()[0].view(len(must_contain), config.num_return_sequences, -1).tolist()
    # Maps the index of a sentence to its required phrases. Contains only sentences with a translation that
    # lacks a required phrase.
    wanted: dict[int, list[Sequence[int]]] = {}
    for sentence, phrases in enumerate(must_contain):
        results = found[sentence]
        if not all(contains(tokens, phrase) for tokens in results for phrase in phrases or ()):
            wanted[sentence] = [*(phrases or ())]
    if not wanted:
        return search
    grid = _grid_search(task, config, wanted, search)
    failed = [sentence for sentence in grid.without_translation() if sentence in wanted]
    if not failed:
        return grid
    possible: dict[int, list[Sequence[int]]] = {sentence: [] for sentence in failed}
    for number in range(max(len(wanted[sentence]) for sentence in failed)):
        tried = {s: [*possible[s], wanted[s][number]] for s in failed if number < len(wanted[s])}
        without = _grid_search(task, config, tried, search).without_translation()
        possible |= {sentence: phrases for sentence, phrases in tried.items() if sentence not in without}
    wanted = {sentence: phrases for sentence, phrases in (wanted | possible).items() if phrases}
    return _grid_search(task, config, wanted, search) if wanted else search


def _grid_search(
    task: SearchTask, config: GenerationConfig, wanted: dict[int, list[Sequence[int]]], search: BeamSearch
) -> BeamSearch:
    """Run grid beam search for the sentences in `wanted`. For sentences that are not in `wanted`, keep the
    results of `search`, the beam search without phrases.
    """
    num_sentences = len(task.prompt)
    device = task.prompt.device
    phrases = _fit_phrases_of_batch(task, config, wanted)
    grid = copy.copy(config)
    grid.num_beams = config.num_beams * (1 + max(num_tokens(of_sentence) for of_sentence in phrases))
    sentences = torch.tensor(
        sorted(wanted) if search.may_remove_sentences else range(num_sentences), device=device
    )
    inputs = [_select_inputs(of_model, sentences, task.prompt, grid) for of_model in task.inputs]
    strategies = replace(
        task.strategies,
        candidates=PhraseCandidates(task, phrases, grid, config.num_beams),
        stopping_rule=PhraseStopping(config, phrases, device),
    )
    grid_task = replace(
        task,
        inputs=inputs,
        sentences=sentences,
        strategies=strategies,
        # Some logits processors need exactly `config.num_beams` rows per sentence.
        rows_per_sentence=config.num_beams,
    )
    found = BeamSearch(grid_task, grid)
    found.run()
    if search.may_remove_sentences:
        others = torch.ones(num_sentences, dtype=torch.bool, device=device)
        others[sentences] = False
        found.finished.copy_from(search.finished, others)
    return found


def _select_inputs(
    inputs: dict[str, Any], kept: torch.Tensor, prompt: torch.Tensor, config: GenerationConfig
) -> dict[str, Any]:
    """Return the inputs of a model for the sentences with the indices `kept` [N]."""
    selected = {name: value for name, value in inputs.items() if name != CACHE_NAME}
    selected["encoder_outputs"] = BaseModelOutput(inputs["encoder_outputs"][0][kept])
    if "attention_mask" in inputs:
        selected["attention_mask"] = inputs["attention_mask"][kept]
    if "decoder_attention_mask" in inputs:
        rows = inputs["decoder_attention_mask"].unflatten(0, (len(prompt), -1))[kept, 0]
        selected["decoder_attention_mask"] = rows.repeat_interleave(config.num_beams, dim=0)
    return selected


def _fit_phrases_of_batch(
    task: SearchTask, config: GenerationConfig, wanted: dict[int, list[Sequence[int]]]
) -> list[list[Sequence[int]]]:
    """Return the required phrases of each sentence. If the phrases of a sentence together exceed the length
    limit, merge the phrases into one token sequence in which overlapping phrases share tokens.
    """
    capacities = _phrase_capacity(task.limits, task.prompt.shape[1], config).tolist()
    phrases: list[list[Sequence[int]]] = [[] for _ in range(len(task.prompt))]
    for sentence, asked in wanted.items():
        fitting = fit_phrases(asked, task.prompt[sentence].tolist(), capacities[sentence])
        if fitting is None:
            end = " before `forced_eos_token_id`" if config.forced_eos_token_id is not None else ""
            raise PhraseError(
                sentence,
                [[*phrase] for phrase in asked],
                f"these phrases have {num_tokens(asked)} tokens, and the translation has room for at most "
                f"{capacities[sentence]}{end}; give a larger `max_new_tokens` or fewer phrases",
            )
        phrases[sentence] = fitting
    return phrases


def _phrase_capacity(limits: torch.Tensor, prompt_length: int, config: GenerationConfig) -> torch.Tensor:
    """Return for each sentence how many phrase tokens fit into a translation, [B] int64. If the generation
    config forces `</s>` at `max_length`, the translation has room for one phrase token fewer.
    """
    has_forced_end = config.forced_eos_token_id is not None
    is_longest = limits == config.max_length - prompt_length
    return limits - (is_longest & has_forced_end).long()


class PhraseStopping(EarlyStopping):
    """The stopping rule of grid beam search. Beams that lack the same number of phrase tokens form a group.
    Each group of beams contains at most `config.num_beams` beams.
    """

    def __init__(
        self, config: GenerationConfig, phrases: Sequence[Sequence[Sequence[int]]], device: torch.device
    ):
        super().__init__(config, len(phrases), num_counted=config.num_beams, device=device)
        # Use the normal stopping rule for sentences without phrases. With one beam, stop at the first `</s>`,
        # as greedy search does.
        has_none = torch.tensor([not of_sentence for of_sentence in phrases], device=device)
        self.stops_when_full = has_none & (self.stops_when_full | (config.num_beams == 1))
        # If a sentence has required phrases, the stopping rule must consider all possible lengths of a
        # translation, because a beam that lacks a phrase can end only after more tokens.
        self.considers_all_lengths |= ~has_none


class PhraseCandidates(CandidateSelection):
    """The candidate selection of grid beam search. `PhraseCandidates` keeps `num_kept` beams for each number
    of missing phrase tokens. `config.num_beams` is the total number K of beams.
    """

    def __init__(
        self,
        task: SearchTask,
        phrases: Sequence[Sequence[Sequence[int]]],
        config: GenerationConfig,
        num_kept: int,
    ):
        device = task.prompt.device
        self.num_kept = num_kept
        self.tables = PhraseTables(phrases, device)
        # Of the next tokens of each beam, at least `num_kept` candidates must be neither end tokens nor
        # tokens of phrases. Therefore take more than `num_kept` candidates.
        num_ends = 0 if config._eos_token_tensor is None else len(config._eos_token_tensor)
        numbers = [num_kept + num_ends + 2 * len(of_sentence) for of_sentence in phrases]
        self.num_compared = torch.tensor(numbers, device=device)  # [B]
        self.most_compared = max(numbers)
        self.most_missing = max(num_tokens(of_sentence) for of_sentence in phrases)
        self.capacity = _phrase_capacity(task.limits, task.prompt.shape[1], config)  # [B]
        # See `PhraseTables`. Unlike the beams, `matches` keeps the rows of sentences whose search has ended.
        self.matches = self.tables.match_prompts(task.prompt).repeat(
            1, config.num_beams, 1, 1
        )  # [B, K, F, L + 1]

    def __call__(self, search: RunningSearch, log_probs: torch.Tensor) -> Candidates:
        beams = search.beams
        matches = self.matches[beams.sentences]  # [N, K, F, L + 1]
        if search.num_new > 0:
            before = gather_beams(matches, beams.parents)
            matches = self.tables.advance(beams.sentences, before, beams.sequences[:, :, -1:]).squeeze(2)
            self.matches[beams.sentences] = matches
        candidates = self._compared(search, log_probs, matches)
        candidates = candidates.take(candidates.scores.argsort(dim=1, descending=True, stable=True))
        order, chosen = self._order(search, candidates).sort(dim=1, stable=True)
        num_candidates = self.num_kept + search.num_beams
        is_nothing = order[:, :num_candidates] == 2
        best = candidates.take(chosen[:, :num_candidates])
        return Candidates(
            best.scores.masked_fill(is_nothing, EMPTY_SCORE),
            best.parents.masked_fill(is_nothing, 0),
            best.tokens.masked_fill(is_nothing, max(search.fill, 0)),
        )

    def _order(self, search: RunningSearch, candidates: "_Compared") -> torch.Tensor:
        """Return a number [N, K * O] for each candidate: 0 if the candidate ends, 1 if the candidate
        continues, 2 if the candidate is discarded. The candidates of each sentence must be sorted by score,
        best first.
        """
        missing = candidates.missing
        is_last = search.limits.unsqueeze(1) <= search.num_new + 1
        ends = is_last | torch.isin(candidates.tokens, search.eos)
        is_possible = exists(candidates.scores)
        is_complete_enough = ((missing == 0) & is_possible).cumsum(dim=1) <= self.num_kept
        # Rank the unfinished candidates, best first. A candidate competes only with candidates that lack the
        # same number of phrase tokens.
        numbers = torch.arange(self.most_missing + 1, device=missing.device)
        misses_as_many = missing.unsqueeze(2) == numbers  # [N, K * O, most missing + 1]
        ranks = (misses_as_many & (is_possible & ~ends).unsqueeze(2)).cumsum(dim=1)
        is_good_enough = ranks.gather(2, missing.unsqueeze(2)).squeeze(2) <= self.num_kept
        is_kept = is_possible & torch.where(ends, is_complete_enough, is_good_enough)
        return torch.where(is_kept, 1 - ends.long(), 2)

    def _compared(self, search: RunningSearch, log_probs: torch.Tensor, matches: torch.Tensor) -> "_Compared":
        """Return the candidates that the search compares, for all beams.

        A candidate gets the `EXCLUDED_SCORE` if the missing tokens of the phrases do not fit into the rest of
        the translation.
        """
        sentences = search.beams.sentences
        total = log_probs + search.beams.scores.unsqueeze(2)  # [N, K, V]
        scores, tokens = total.topk(min(self.most_compared, total.shape[2]), dim=2)
        columns = torch.arange(tokens.shape[2], device=tokens.device)
        is_compared = (columns < self.num_compared[sentences].unsqueeze(1)).unsqueeze(1).expand_as(tokens)
        # Always add the next token of each phrase to the candidates, even if the token is improbable.
        added = self.tables.next_tokens(sentences, matches)  # [N, K, F]
        is_known = ((added.unsqueeze(3) == tokens.unsqueeze(2)) & is_compared.unsqueeze(2)).any(dim=3)
        is_known |= (added.unsqueeze(3) == added.unsqueeze(2)).tril(-1).any(dim=3)
        scores = torch.cat((scores, total.gather(2, added.clamp(min=0))), dim=2)
        is_compared = torch.cat((is_compared, (added >= 0) & ~is_known), dim=2)
        tokens = torch.cat((tokens, added.clamp(min=0)), dim=2)
        missing = self.tables.num_missing(sentences, self.tables.advance(sentences, matches, tokens))
        capacity = (self.capacity[sentences] - search.num_new - 1).view(-1, 1, 1)
        capacity = capacity.expand_as(tokens).masked_fill(torch.isin(tokens, search.eos), 0)
        scores = scores.masked_fill(~is_compared | (missing > capacity), EXCLUDED_SCORE)
        parents = torch.arange(search.num_beams, device=scores.device).view(1, -1, 1).expand_as(tokens)
        return _Compared(scores.flatten(1), parents.flatten(1), tokens.flatten(1), missing.flatten(1))


@dataclass
class _Compared(Candidates):
    """The candidates that the search compares, and the number of phrase tokens that each candidate lacks. All
    tensors are [N, K * O].
    """

    missing: torch.Tensor

    def take(self, index: torch.Tensor) -> "_Compared":
        """Return the candidates at the positions `index` [N, M] of the second dimension."""
        return _Compared(
            self.scores.gather(1, index),
            self.parents.gather(1, index),
            self.tokens.gather(1, index),
            self.missing.gather(1, index),
        )


class PhraseTables:
    """The phrases of a batch as tensors on the model's device, so that the CPU does not wait for the GPU.

    In the bool tensor `matches` [..., F, L + 1], entry [f, l] is True if the translation ends with the first
    l tokens of phrase f. If l is the length of phrase f, entry [f, l] stays True in later steps, because the
    translation contains the whole phrase.
    """

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], device: torch.device):
        num_phrases = max(1, max(len(of_sentence) for of_sentence in phrases))
        longest = max((len(phrase) for of_sentence in phrases for phrase in of_sentence), default=1)
        lengths = []
        tokens = []
        for of_sentence in phrases:
            padded = [*of_sentence, *[()] * (num_phrases - len(of_sentence))]
            lengths.append([len(phrase) for phrase in padded])
            tokens.append([[*phrase, *[-1] * (longest + 1 - len(phrase))] for phrase in padded])
        # If a sentence has fewer than `num_phrases` phrases, `lengths` is filled with 0. `tokens` contains -1
        # after the end of each phrase.
        self.lengths = torch.tensor(lengths, device=device)  # [B, F]
        self.tokens = torch.tensor(tokens, device=device)  # [B, F, L + 1]
        self.numbers = torch.arange(longest + 1, device=device)  # [L + 1]
        self.is_whole = self.numbers == self.lengths.unsqueeze(2)  # [B, F, L + 1]

    def match_prompts(self, prompts: torch.Tensor) -> torch.Tensor:
        """Compare the phrases with the prompts [B, P], and return the result as the tensor `matches` [B, 1,
        F, L + 1].
        """
        sentences = torch.arange(len(prompts), device=prompts.device)
        matches = torch.zeros_like(self.is_whole).unsqueeze(1)
        matches[..., 0] = True
        for tokens in prompts.unbind(dim=1):
            matches = self.advance(sentences, matches, tokens[:, None, None]).squeeze(2)
        return matches

    def advance(self, sentences: torch.Tensor, matches: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Extend each of the K beams by each of its O possible next tokens, `tokens` [N, K, O]. Return the
        new `matches` [N, K, O, F, L + 1] for F phrases with at most L tokens. The argument `matches` [N, K,
        F, L + 1] describes the beams without the next token.
        """
        is_next = tokens[..., None, None] == self.tokens[sentences][:, None, None, :, :-1]  # [N, K, O, F, L]
        longer = matches[:, :, None, :, :-1] & is_next
        matches_after = nn.functional.pad(longer, (1, 0), value=True)
        is_there = matches & self.is_whole[sentences].unsqueeze(1)
        return matches_after | is_there.unsqueeze(2)

    def num_matched(self, matches: torch.Tensor) -> torch.Tensor:
        """Return the number [..., F] int64 of matched tokens of each phrase."""
        return (matches * self.numbers).amax(dim=-1)

    def num_missing(self, sentences: torch.Tensor, matches: torch.Tensor) -> torch.Tensor:
        """Return the number of missing phrase tokens after each of the O possible next tokens of each beam,
        [N, K, O] int64.
        """
        lengths = self.lengths[sentences][:, None, None]
        progress = self.num_matched(matches)  # [N, K, O, F]
        is_missing = progress < lengths
        return (lengths * is_missing).sum(dim=-1) - (progress * is_missing).amax(dim=-1)

    def next_tokens(self, sentences: torch.Tensor, matches: torch.Tensor) -> torch.Tensor:
        """Return the next token [N, K, F] of each phrase, or -1 if the translation contains the phrase."""
        tokens = self.tokens[sentences].unsqueeze(1).expand(-1, matches.shape[1], -1, -1)
        return tokens.gather(3, self.num_matched(matches).unsqueeze(3)).squeeze(3)


def unmet_phrases(
    search: BeamSearch, must_contain: Sequence[Sequence[Sequence[int]]]
) -> list[list[list[Sequence[int]]]]:
    """For each result of each sentence, return the required phrases that the result does not contain."""
    sequences, scores, _ = search.results()
    num_results = search.config.num_return_sequences
    unmet: list[list[list[Sequence[int]]]] = [[] for _ in must_contain]
    for row, (tokens, score) in enumerate(zip(sequences.tolist(), scores.tolist(), strict=True)):
        phrases = must_contain[row // num_results] or () if score > -math.inf else ()
        unmet[row // num_results].append([phrase for phrase in phrases if not contains(tokens, phrase)])
    return unmet


def warn_of_unmet_phrases(unmet: list[list[list[Sequence[int]]]], config: GenerationConfig) -> None:
    """Log a warning for each sentence whose best translation lacks a required phrase."""
    for sentence, (best, *_) in enumerate(unmet):
        if best:
            logger.warning(
                f"`must_contain` has {', '.join(str([*phrase]) for phrase in best)} for sentence {sentence} "
                "of the batch, but no translation with all phrases was found under "
                f"{forbidding_settings(config)}; the translation lacks the named phrases."
            )
