"""Lexically constrained beam search, for translations that contain given phrases: grid beam search (Hokamp and Liu 2017, arXiv 1704.07138).

Beams compete only with those that are as far with their phrases: for each number of phrase tokens that are there
already, as many beams are kept as a search without phrases has. None ends before all its phrases are there, and near its
limit a beam may only go on with them.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig

from ..model.beam_search_vaswani import NOTHING, BeamSearch, Candidates
from ..model.configuration_vaswani import eos_token_ids

# For each phrase the number of its tokens that the end of a translation has in order; its length once it was there.
Progress = tuple[int, ...]


class Phrases:
    """The phrases that one translation must contain.

    Args:
        phrases (Sequence): Lists of token ids.
    """

    def __init__(self, phrases: Sequence[Sequence[int]]):
        self.phrases = [tuple(phrase) for phrase in phrases]
        self.length = sum(map(len, self.phrases))

    def advanced(self, progress: Progress, token: int) -> Progress:
        """The progress after one more token.

        Args:
            progress (tuple): The progress before.
            token (int): The token.

        Returns:
            tuple: As many numbers as phrases.
        """
        return tuple(
            len(phrase) if done == len(phrase) else _longest_beginning(phrase, (*phrase[:done], token))
            for phrase, done in zip(self.phrases, progress, strict=True)
        )

    def missing(self, progress: Progress) -> int:
        """The tokens after which all phrases can be there.

        Args:
            progress (tuple): The progress.

        Returns:
            int: The tokens of the missing phrases, less those that the nearest of them has already.
        """
        missing = [(len(p), done) for p, done in zip(self.phrases, progress, strict=True) if done < len(p)]
        return sum(length for length, _ in missing) - max((done for _, done in missing), default=0)

    def are_in(self, tokens: Sequence[int]) -> bool:
        """True if these tokens contain all phrases.

        Args:
            tokens (Sequence): Token ids.

        Returns:
            bool: True if none is missing.
        """
        return self.missing(self.progress(tokens)) == 0

    def progress(self, tokens: Sequence[int]) -> Progress:
        """The progress after these tokens.

        Args:
            tokens (Sequence): Token ids.

        Returns:
            tuple: As many numbers as phrases.
        """
        progress: Progress = (0,) * len(self.phrases)
        for token in tokens:
            progress = self.advanced(progress, token)
        return progress

    def next_tokens(self, progress: Progress) -> set[int]:
        """The tokens that bring a missing phrase forward.

        Args:
            progress (tuple): The progress.

        Returns:
            set: Token ids.
        """
        return {p[done] for p, done in zip(self.phrases, progress, strict=True) if done < len(p)}


def _longest_beginning(phrase: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """The length of the longest beginning of the phrase that the tokens end with."""
    return next(n for n in range(min(len(phrase), len(tokens)), -1, -1) if phrase[:n] == tokens[len(tokens) - n :])


class PhraseSearch(BeamSearch):
    """The search for translations that contain phrases.

    Args:
        phrases (list): The `Phrases` of each of the B sentences.
        num_kept (int): Beams for each number of missing tokens; `num_beams` of the config is the number of all beams.
        *args: As `BeamSearch` has them.
        **kwargs: As `BeamSearch` has them.

    Raises:
        ValueError: If the phrases of a sentence are longer than its translation may be.
    """

    def __init__(self, phrases: list[Phrases], num_kept: int, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.phrases, self.num_kept = phrases, num_kept
        self.num_counted = self.num_full = num_kept
        # A sentence without phrases is searched as it would be by itself; one beam ends with its first `</s>`.
        has_none = torch.tensor([not wanted.phrases for wanted in phrases], device=self.limits.device)
        self.stops_when_full = has_none & (self.stops_when_full | (num_kept == 1))
        # Beams that may not end yet have no guess of what they will come to.
        self.is_exact |= ~has_none
        self.ends = set() if self.eos is None else set(self.eos.tolist())
        # The progress of each beam, by sentence.
        self.progress: dict[int, list[Progress]] = {}
        for sentence, prompt in zip(self.sentences.tolist(), self.sequences[:, 0].tolist(), strict=True):
            progress, limit = phrases[sentence].progress(prompt), int(self.limits[sentence])
            self.progress[sentence] = [progress] * self.num_beams
            if phrases[sentence].missing(progress) > limit:
                raise ValueError(
                    f"`must_contain` asks for {phrases[sentence].length} tokens in sentence {sentence}, but its "
                    f"translation can have no more than {limit}; give a larger `max_new_tokens`."
                )

    def take_over(self, search: BeamSearch) -> None:
        """Take the results of the sentences that were not searched here.

        Args:
            search (BeamSearch): Which has searched them all, with fewer beams.
        """
        others = torch.ones_like(self.limits, dtype=torch.bool)
        others[list(self.progress)] = False
        length = max(search.finished_paths.shape[2], self.finished_paths.shape[2])
        for name in ("finished_paths", "finished_scores", "finished_lengths"):
            # Copies, because what was made in inference mode cannot be changed outside of it.
            ours, theirs = getattr(self, name).clone(), getattr(search, name)[others]
            if name == "finished_paths":
                ours, theirs = (self._filled(paths, length - paths.shape[2]) for paths in (ours, theirs))
            ours[others, : search.num_beams] = theirs
            setattr(self, name, ours)

    def _in_full_batch(self, function: Callable, *arguments: torch.Tensor) -> torch.Tensor:
        # A processor may count on as many rows per sentence as the caller has asked for.
        parts = zip(*(values.split(self.num_kept, dim=1) for values in arguments), strict=True)
        return torch.cat([super(PhraseSearch, self)._in_full_batch(function, *part) for part in parts], dim=1)

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        if self.num_new > 0:
            self._follow_beams()
        total = log_probs + self.scores[:, : log_probs.shape[1], None]
        most = max(self._num_options(wanted) for wanted in self.phrases)
        scores, tokens = (values.tolist() for values in total.topk(min(most, total.shape[2]), dim=2))
        rows = []
        for row, sentence in enumerate(self.sentences.tolist()):
            options = self._options(sentence, total[row], scores[row], tokens[row])
            rows.append(self._grid(options, is_last=self.num_new + 1 >= int(self.limits[sentence])))
        width = self.num_kept + self.num_beams
        padded = [row + [(NOTHING, 0, self.fill if self.fill >= 0 else 0)] * (width - len(row)) for row in rows]
        columns = ([[option[i] for option in row] for row in padded] for i in range(3))
        types = (torch.float32, torch.int64, torch.int64)
        device = log_probs.device
        return Candidates(*(torch.tensor(c, dtype=d, device=device) for c, d in zip(columns, types, strict=True)))

    def _num_options(self, wanted: Phrases) -> int:
        """How many of a beam's tokens are looked at: some end it, some bring phrases forward or begin them again."""
        return self.num_kept + len(self.ends) + 2 * len(wanted.phrases)

    def _follow_beams(self) -> None:
        tokens, parents = self.sequences[:, :, -1].tolist(), self.parents.tolist()
        for row, sentence in enumerate(self.sentences.tolist()):
            old, wanted = self.progress[sentence], self.phrases[sentence]
            self.progress[sentence] = [
                wanted.advanced(old[parent], token) for parent, token in zip(parents[row], tokens[row], strict=True)
            ]

    def _options(
        self, sentence: int, total: torch.Tensor, scores: list[list[float]], tokens: list[list[int]]
    ) -> list[tuple[float, int, int, int]]:
        """Ways to go on as (score, beam, token, missing tokens), best first, that leave capacity for the missing ones."""
        wanted, capacity = self.phrases[sentence], int(self.limits[sentence]) - self.num_new - 1
        options = []
        for beam, row in enumerate(scores):
            progress = self.progress[sentence][beam]
            number = self._num_options(wanted)
            of_token = dict(zip(tokens[beam][:number], row[:number], strict=True))
            # Those that bring a phrase forward are looked at however improbable they are.
            of_token |= {token: float(total[beam, token]) for token in wanted.next_tokens(progress)}
            for token, score in of_token.items():
                missing = wanted.missing(wanted.advanced(progress, token))
                if score > NOTHING / 2 and missing <= (0 if token in self.ends else capacity):
                    options.append((score, beam, token, missing))
        return sorted(options, reverse=True)

    def _grid(self, options: list[tuple[float, int, int, int]], is_last: bool) -> list[tuple[float, int, int]]:
        """First what ends, of the best complete ones; then for each number of missing tokens the best that go on."""
        ending, going_on, num_complete = [], [], 0
        num_of: dict[int, int] = {}
        for score, beam, token, missing in options:
            num_complete += missing == 0
            if is_last or token in self.ends:
                if num_complete <= self.num_kept:
                    ending.append((score, beam, token))
            elif num_of.setdefault(missing, 0) < self.num_kept:
                num_of[missing] += 1
                going_on.append((score, beam, token))
        return ending + going_on


def check_phrases(
    must_contain: Sequence[Sequence[Sequence[int]]], config: GenerationConfig, num_classes: int, has_own_cache: bool
) -> None:
    """Check the phrases that translations shall contain.

    Args:
        must_contain (Sequence): For each sentence its phrases, lists of token ids.
        config (GenerationConfig): The settings they come with.
        num_classes (int): V.
        has_own_cache (bool): True if the caller gives a cache.

    Raises:
        ValueError: If a phrase is no list of token ids, tokens are sampled, or there is a cache.
    """
    special = {*eos_token_ids(config), config.pad_token_id, config.decoder_start_token_id}
    for sentence, phrases in enumerate(must_contain):
        for phrase in phrases or ():
            is_possible = isinstance(phrase, (list, tuple)) and len(phrase) > 0
            if not is_possible or not all(
                isinstance(t, int) and 0 <= t < num_classes and t not in special for t in phrase
            ):
                raise ValueError(
                    "`must_contain` must have for each sentence a list of phrases, each a list of ids of ordinary target "
                    f"tokens with at least one of them, but has the phrase {phrase!r} for sentence {sentence}."
                )
    if config.do_sample:
        raise ValueError("`must_contain` cannot be combined with `do_sample`; leave one of them out.")
    if has_own_cache:
        raise ValueError("`must_contain` cannot be combined with `past_key_values`; leave one of them out.")


def search_again(
    task: Any, config: GenerationConfig, must_contain: Sequence[Sequence[Sequence[int]]], search: BeamSearch
) -> BeamSearch:
    """The search for translations that contain phrases, of the sentences whose translations lack one so far.

    Args:
        task (Any): The batch, as `generate` searches it.
        config (GenerationConfig): The settings.
        must_contain (Sequence): For each sentence its phrases, lists of token ids.
        search (BeamSearch): The search without phrases, when it is over; most translations contain them by themselves.

    Returns:
        BeamSearch: One with all results.

    Raises:
        ValueError: If there are not as many lists of phrases as sentences.
    """
    if len(must_contain) != len(task.prompt):
        raise ValueError(
            f"`must_contain` must have a list of phrases for each sentence, but has {len(must_contain)} for "
            f"{len(task.prompt)} sentences."
        )
    phrases = [Phrases(of_sentence or ()) for of_sentence in must_contain]
    found = search.results()[0].view(len(phrases), config.num_return_sequences, -1).tolist()
    lacking = [i for i, wanted in enumerate(phrases) if not all(map(wanted.are_in, found[i]))]
    if not lacking:
        return search
    grid = copy.copy(config)
    grid.num_beams = config.num_beams * (1 + max(phrases[i].length for i in lacking))
    if task.in_lock_step:
        # Outputs of each step are those of all sentences; the ones that lack nothing are searched as before.
        phrases = [wanted if i in lacking else Phrases([]) for i, wanted in enumerate(phrases)]
    kept = range(len(phrases)) if task.in_lock_step else lacking
    search_class = partial(PhraseSearch, phrases, config.num_beams)
    other = task.run(grid, search_class, torch.tensor(kept, device=task.prompt.device))
    if not task.in_lock_step:
        other.take_over(search)
    return other
