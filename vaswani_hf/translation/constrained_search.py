"""Lexically constrained beam search, for translations that contain given phrases: grid beam search (Hokamp and Liu 2017, arXiv 1704.07138).

Beams compete only with those that are as far with their phrases: for each number of phrase tokens that are there
already, as many beams are kept as a search without phrases has. None ends before all its phrases are there, and near its
limit a beam may only go on with them.

Other settings may forbid a translation with all phrases of a sentence. If that is certain from the phrases alone, the
search raises an error. If the search finds out, it gives back the best translation with as many of the phrases as
possible, and reports the others as unmet.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from ..model.beam_search_vaswani import NOTHING, BeamSearch, Candidates, SentenceError, forbidding_settings
from ..model.configuration_vaswani import eos_token_ids
from ..model.incremental_decoding_vaswani import gather_beams

logger = logging.get_logger(__name__)

# For each phrase the number of its tokens that the end of a translation has in order; its length once it was there.
Progress = tuple[int, ...]


class PhraseError(SentenceError):
    """The phrases of a sentence contradict another setting.

    Args:
        sentence (int): The number of the sentence in the batch.
        phrases (list): The phrases to blame, lists of token ids.
        reason (str): The contradiction, a clause.
        text (str, optional): The text of the sentence.
    """

    def __init__(self, sentence: int, phrases: list[list[int]], reason: str, text: str | None = None):
        super().__init__(sentence, text)
        self.args = (sentence, phrases, reason, text)
        self.phrases, self.reason = phrases, reason
        # The phrases in words, if the caller has them.
        self.phrase_texts: list[str] = []

    def __str__(self) -> str:
        phrases = ", ".join(map(repr, self.phrase_texts or self.phrases))
        return f"`must_contain` has {phrases} for {self.place}, but {self.reason}."


def forbidden_tokens(token_ids: Sequence[int], config: GenerationConfig) -> str | None:
    """The tokens that `bad_words_ids` or `suppress_tokens` forbids, in words with the setting; None if there are none.

    Args:
        token_ids (Sequence): Token ids in a row.
        config (GenerationConfig): The settings.
    """
    for bad in config.bad_words_ids or ():
        starts = range(len(token_ids) - len(bad) + 1)
        if bad and any([*token_ids[start : start + len(bad)]] == [*bad] for start in starts):
            return f"`bad_words_ids` forbids the tokens {[*bad]}"
    for token in config.suppress_tokens or ():
        if token in token_ids:
            return f"`suppress_tokens` forbids the token {token}"
    return None


def repeated_ngram(token_ids: Sequence[int], size: int | None) -> list[int] | None:
    """The first n-gram that occurs twice among tokens.

    Args:
        token_ids (Sequence): Token ids in a row.
        size (int, optional): The number of tokens of an n-gram; nothing is looked for if it is 0 or None.
    """
    if not size:
        return None
    seen = set()
    for start in range(len(token_ids) - size + 1):
        ngram = tuple(token_ids[start : start + size])
        if ngram in seen:
            return [*ngram]
        seen.add(ngram)
    return None


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


def _longest_beginning(phrase: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """The length of the longest beginning of the phrase that the tokens end with."""
    return next(n for n in range(min(len(phrase), len(tokens)), -1, -1) if phrase[:n] == tokens[len(tokens) - n :])


class PhraseTables:
    """The phrases of a batch as tensors, so that a step need not wait for the device to look at its beams.

    Args:
        phrases (list): The `Phrases` of each of B sentences.
        device (torch.device): Where the search is.

    Attributes:
        lengths (torch.Tensor): [B, F] int64, 0 where a sentence has fewer phrases.
        tokens (torch.Tensor): [B, F, L + 1] int64, -1 behind the end of a phrase.
        firsts (torch.Tensor): [B, F, L] int64, the same with -1 for a token that the phrase has before.
        followers (torch.Tensor): [B, F, (L + 1) * (L + 1)] int64, the progress after a token, for each progress before and
            each place in `firsts`, the last one for all other tokens.
    """

    def __init__(self, phrases: list[Phrases], device: torch.device):
        number = max(1, max(len(wanted.phrases) for wanted in phrases))
        self.longest = max((len(phrase) for wanted in phrases for phrase in wanted.phrases), default=1)
        tables = [[_table(phrase, self.longest) for phrase in wanted.phrases] for wanted in phrases]
        nothing = _table((), self.longest)
        rows = [of_sentence + [nothing] * (number - len(of_sentence)) for of_sentence in tables]
        self.lengths, self.tokens, self.firsts, self.followers = (
            torch.tensor([[table[i] for table in row] for row in rows], device=device) for i in range(4)
        )

    def advanced(self, sentences: torch.Tensor, progress: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The progress after each of some tokens, as `Phrases.advanced` has it.

        Args:
            sentences (torch.Tensor): [N] int64.
            progress (torch.Tensor): [N, K, F] int64, that of the beams.
            tokens (torch.Tensor): [N, K, O] int64.

        Returns:
            torch.Tensor: [N, K, O, F] int64.
        """
        is_first = tokens[..., None, None] == self.firsts[sentences][:, None, None]
        place = is_first.byte().argmax(dim=-1).masked_fill(~is_first.any(dim=-1), self.longest)
        index = (progress.unsqueeze(2) * (self.longest + 1) + place).flatten(1, 2).transpose(1, 2)
        return self.followers[sentences].gather(2, index).transpose(1, 2).unflatten(1, tokens.shape[1:])

    def missing(self, sentences: torch.Tensor, progress: torch.Tensor) -> torch.Tensor:
        """The tokens after which all phrases can be there, as `Phrases.missing` has it.

        Args:
            sentences (torch.Tensor): [N] int64.
            progress (torch.Tensor): [N, K, O, F] int64.

        Returns:
            torch.Tensor: [N, K, O] int64.
        """
        lengths = self.lengths[sentences][:, None, None]
        is_missing = progress < lengths
        return (lengths * is_missing).sum(dim=-1) - (progress * is_missing).amax(dim=-1)

    def next_tokens(self, sentences: torch.Tensor, progress: torch.Tensor) -> torch.Tensor:
        """The token that brings each phrase forward, -1 where that is there.

        Args:
            sentences (torch.Tensor): [N] int64.
            progress (torch.Tensor): [N, K, F] int64.

        Returns:
            torch.Tensor: [N, K, F] int64.
        """
        tokens = self.tokens[sentences].unsqueeze(1).expand(-1, progress.shape[1], -1, -1)
        return tokens.gather(3, progress.unsqueeze(3)).squeeze(3)


def _table(phrase: tuple[int, ...], longest: int) -> tuple[int, list[int], list[int], list[int]]:
    """What `PhraseTables` holds of a phrase."""
    behind = [-1] * (longest - len(phrase))
    firsts = [token if token not in phrase[:i] else -1 for i, token in enumerate(phrase)]
    followers = []
    for done in range(longest + 1):
        if done < len(phrase):
            ways = [_longest_beginning(phrase, (*phrase[:done], token)) for token in phrase]
            followers += [*ways, *[0] * (longest + 1 - len(phrase))]
        else:
            followers += [len(phrase)] * (longest + 1)
    return len(phrase), [*phrase, *behind, -1], [*firsts, *behind], followers


class PhraseSearch(BeamSearch):
    """The search for translations that contain phrases.

    Args:
        phrases (list): The `Phrases` of each of the B sentences.
        num_kept (int): Beams for each number of missing tokens; `num_beams` of the config is the number of all beams.
        *args: As `BeamSearch` has them.
        **kwargs: As `BeamSearch` has them.
    """

    of_sentences = (*BeamSearch.of_sentences, "progress")

    def __init__(self, phrases: list[Phrases], num_kept: int, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.num_kept = num_kept
        self.num_counted = self.num_full = num_kept
        # A sentence without phrases is searched as it would be by itself; one beam ends with its first `</s>`.
        has_none = torch.tensor([not wanted.phrases for wanted in phrases], device=self.limits.device)
        self.stops_when_full = has_none & (self.stops_when_full | (num_kept == 1))
        # Beams that may not end yet have no guess of what they will come to.
        self.is_exact |= ~has_none
        self.searched, self.tables = self.sentences, PhraseTables(phrases, self.limits.device)
        # How many of a beam's tokens are looked at: some end it, some bring phrases forward or begin them again.
        ends = 0 if self.eos is None else len(self.eos)
        options = [num_kept + ends + 2 * len(wanted.phrases) for wanted in phrases]
        self.num_options, self.most_options = torch.tensor(options, device=self.limits.device), max(options)
        self.most_missing = max(wanted.length for wanted in phrases)
        self.capacity = _capacity(self.limits, self.prompt_length, self.config)
        begun = []
        for sentence, prompt in zip(self.sentences.tolist(), self.sequences[:, 0].tolist(), strict=True):
            progress = phrases[sentence].progress(prompt)
            begun.append([*progress, *[0] * (self.tables.lengths.shape[1] - len(progress))])
        # [N, K, F] int64: the progress of each beam.
        self.progress = torch.tensor(begun, device=self.limits.device)[:, None].expand(-1, self.num_beams, -1)

    def take_over(self, search: BeamSearch) -> None:
        """Take the results of the sentences that were not searched here.

        Args:
            search (BeamSearch): Which has searched them all, with fewer beams.
        """
        others = torch.ones_like(self.limits, dtype=torch.bool)
        others[self.searched] = False
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
            before = gather_beams(self.progress, self.parents)
            self.progress = self.tables.advanced(self.sentences, before, self.sequences[:, :, -1:]).squeeze(2)
        scores, tokens, missing = self._options(log_probs)
        parents = torch.arange(scores.shape[1], device=scores.device).view(1, -1, 1).expand_as(tokens)
        scores, index = scores.flatten(1).sort(descending=True, stable=True)
        tokens, missing, parents = (values.flatten(1).gather(1, index) for values in (tokens, missing, parents))
        # First what ends, of the best complete ones; then for each number of missing tokens the best that go on.
        is_last = self.limits[self.sentences].unsqueeze(1) <= self.num_new + 1
        ends = is_last if self.eos is None else is_last | torch.isin(tokens, self.eos)
        is_possible = scores > NOTHING / 2
        is_complete_enough = ((missing == 0) & is_possible).cumsum(dim=1) <= self.num_kept
        # Ways that go on, numbered among those that miss as many tokens.
        numbers = torch.arange(self.most_missing + 1, device=scores.device)
        ranks = ((missing.unsqueeze(2) == numbers) & (is_possible & ~ends).unsqueeze(2)).cumsum(dim=1)
        is_good_enough = ranks.gather(2, missing.unsqueeze(2)).squeeze(2) <= self.num_kept
        is_kept = is_possible & torch.where(ends, is_complete_enough, is_good_enough)
        width = self.num_kept + self.num_beams
        order, chosen = torch.where(is_kept, 1 - ends.long(), 2).sort(dim=1, stable=True)
        is_nothing = order[:, :width] == 2
        found = []
        for values, nothing in ((scores, NOTHING), (parents, 0), (tokens, max(self.fill, 0))):
            values = values.gather(1, chosen[:, :width]).masked_fill(is_nothing, nothing)
            found.append(torch.nn.functional.pad(values, (0, width - values.shape[1]), value=nothing))
        return Candidates(*found)

    def _options(self, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ways to go on that leave capacity for the missing tokens: scores, tokens and missing tokens [N, K or 1, O].

        The score of a way that does not is below that of nothing.
        """
        progress = self.progress[:, : log_probs.shape[1]]
        total = log_probs + self.scores[:, : log_probs.shape[1], None]
        scores, tokens = total.topk(min(self.most_options, total.shape[2]), dim=2)
        columns = torch.arange(tokens.shape[2], device=tokens.device)
        is_one = (columns < self.num_options[self.sentences].unsqueeze(1)).unsqueeze(1).expand_as(tokens)
        # Those that bring a phrase forward are looked at however improbable they are.
        added = self.tables.next_tokens(self.sentences, progress)
        is_known = ((added.unsqueeze(3) == tokens.unsqueeze(2)) & is_one.unsqueeze(2)).any(dim=3)
        is_known |= (added.unsqueeze(3) == added.unsqueeze(2)).tril(-1).any(dim=3)
        scores = torch.cat((scores, total.gather(2, added.clamp(min=0))), dim=2)
        is_one = torch.cat((is_one, (added >= 0) & ~is_known), dim=2)
        tokens = torch.cat((tokens, added.clamp(min=0)), dim=2)
        missing = self.tables.missing(self.sentences, self.tables.advanced(self.sentences, progress, tokens))
        capacity = (self.capacity[self.sentences] - self.num_new - 1).view(-1, 1, 1)
        if self.eos is not None:
            capacity = capacity.expand_as(tokens).masked_fill(torch.isin(tokens, self.eos), 0)
        return scores.masked_fill(~is_one | (missing > capacity), 2 * NOTHING), tokens, missing


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
        ValueError: If the phrases are not lists of lists of token ids, tokens are sampled, or there is a cache.
        PhraseError: If a setting forbids a phrase.
    """
    lists = [must_contain, *must_contain] if isinstance(must_contain, (list, tuple)) else [must_contain]
    for one in lists:
        if one is not None and not isinstance(one, (list, tuple)):
            raise ValueError(
                "`must_contain` must be a list with a list of phrases for each sentence, each a list of token ids, but has "
                f"a {type(one).__name__} in place of a list; `.tolist()` makes one of a tensor."
            )
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
            if (forbidden := forbidden_tokens(phrase, config)) is not None:
                raise PhraseError(sentence, [[*phrase]], f"{forbidden} in it; leave one of them out")
            if (ngram := repeated_ngram(phrase, config.no_repeat_ngram_size)) is not None:
                raise PhraseError(
                    sentence,
                    [[*phrase]],
                    f"`no_repeat_ngram_size` is {config.no_repeat_ngram_size} and forbids {ngram} twice, as it has it; leave "
                    "one of them out",
                )
    if config.do_sample:
        raise ValueError("`must_contain` cannot be combined with `do_sample`; leave one of them out.")
    if has_own_cache:
        raise ValueError("`must_contain` cannot be combined with `past_key_values`; leave one of them out.")


def search_again(
    task: Any, config: GenerationConfig, must_contain: Sequence[Sequence[Sequence[int]]], search: BeamSearch
) -> BeamSearch:
    """The search for translations that contain phrases, of the sentences whose translations lack one so far.

    A sentence for which nothing is found with all phrases is searched with the most of them that are possible, taken in
    their order; with none of them it keeps what was found before.

    Args:
        task (Any): The batch, as `generate` searches it.
        config (GenerationConfig): The settings.
        must_contain (Sequence): For each sentence its phrases, lists of token ids.
        search (BeamSearch): The search without phrases, when it is over; most translations contain them by themselves.

    Returns:
        BeamSearch: One with all results.

    Raises:
        ValueError: If there are not as many lists of phrases as sentences, or the phrases of one are too long.
    """
    if len(must_contain) != len(task.prompt):
        raise ValueError(
            f"`must_contain` must have a list of phrases for each sentence, but has {len(must_contain)} for "
            f"{len(task.prompt)} sentences."
        )
    found = search.results()[0].view(len(must_contain), config.num_return_sequences, -1).tolist()
    # The phrases of each sentence that is searched again.
    wanted: dict[int, list[Sequence[int]]] = {}
    for sentence, phrases in enumerate(must_contain):
        if not all(map(Phrases(phrases or ()).are_in, found[sentence])):
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
    task: Any, config: GenerationConfig, wanted: dict[int, list[Sequence[int]]], search: BeamSearch
) -> PhraseSearch:
    """The search with these phrases of some sentences; the others keep what the search without phrases has found.

    Raises:
        PhraseError: If the phrases of a sentence do not fit into its translation.
    """
    num_sentences = len(task.prompt)
    capacities = _capacity(task.arguments[0], task.prompt.shape[1], config).tolist()
    phrases = []
    for sentence, (prompt, capacity) in enumerate(zip(task.prompt.tolist(), capacities, strict=True)):
        fitting = _fitting_phrases(wanted.get(sentence, []), prompt, capacity)
        if fitting is None:
            asked = [[*phrase] for phrase in wanted[sentence]]
            end = " before `forced_eos_token_id`" if config.forced_eos_token_id is not None else ""
            raise PhraseError(
                sentence,
                asked,
                f"these are {Phrases(asked).length} tokens, and the translation has room for no more than {capacity}{end}; give "
                "a larger `max_new_tokens` or fewer phrases",
            )
        phrases.append(Phrases(fitting))
    grid = copy.copy(config)
    grid.num_beams = config.num_beams * (1 + max(of_sentence.length for of_sentence in phrases))
    # Outputs of each step are those of all sentences, as rules of users are; the ones that lack nothing are searched as before.
    kept = sorted(wanted) if search.may_leave else range(num_sentences)
    search_class = partial(PhraseSearch, phrases, config.num_beams)
    sentences = torch.tensor(kept, device=task.prompt.device)
    inputs = [_selected(of_model, sentences, task.prompt, grid) for of_model in task.inputs]
    found = replace(task, inputs=inputs).run(grid, search_class, sentences)
    if search.may_leave:
        found.take_over(search)
    return found


def _capacity(limits: torch.Tensor, prompt_length: int, config: GenerationConfig) -> torch.Tensor:
    """The tokens [B] that phrases may take, for limits [B] of new tokens: not the last one if a setting forces that."""
    has_forced_end = config.forced_eos_token_id is not None
    is_longest = limits == config.max_length - prompt_length
    return limits - (is_longest & has_forced_end).long()


def _fitting_phrases(
    phrases: list[Sequence[int]], prompt: Sequence[int], capacity: int
) -> Sequence[Sequence[int]] | None:
    """The phrases, or if they fit only where they overlap the shortest row of tokens that has all; None if that is too long."""
    asked = Phrases(phrases)
    if asked.missing(asked.progress(prompt)) <= capacity:
        return phrases
    merged = _shortest_row([phrase for phrase in asked.phrases if not Phrases([phrase]).are_in(prompt)])
    row = Phrases([merged])
    return [merged] if row.missing(row.progress(prompt)) <= capacity else None


def _shortest_row(phrases: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shortest row of tokens with all phrases; of more phrases than six only their own order is tried."""
    orders = itertools.permutations(phrases) if len(phrases) <= 6 else [tuple(phrases)]
    rows = []
    for order in orders:
        row: tuple[int, ...] = ()
        for phrase in order:
            if not Phrases([phrase]).are_in(row):
                row += phrase[_longest_beginning(phrase, row) :]
        rows.append(row)
    return min(rows, key=len)


def unmet_phrases(
    search: BeamSearch, must_contain: Sequence[Sequence[Sequence[int]]]
) -> list[list[list[Sequence[int]]]]:
    """For each sentence and each of its results the phrases that the result lacks.

    Args:
        search (BeamSearch): The search, when it is over.
        must_contain (Sequence): For each sentence its phrases, lists of token ids.
    """
    sequences, scores, _ = search.results()
    num_results = search.config.num_return_sequences
    unmet: list[list[list[Sequence[int]]]] = [[] for _ in must_contain]
    for row, (tokens, score) in enumerate(zip(sequences.tolist(), scores.tolist(), strict=True)):
        phrases = must_contain[row // num_results] or () if score > NOTHING else ()
        unmet[row // num_results].append([phrase for phrase in phrases if not Phrases([phrase]).are_in(tokens)])
    return unmet


def warn_of_unmet_phrases(unmet: list[list[list[Sequence[int]]]], config: GenerationConfig) -> None:
    """Warn of each sentence whose best translation lacks a phrase.

    Args:
        unmet (list): From `unmet_phrases`.
        config (GenerationConfig): The settings.
    """
    for sentence, (best, *_) in enumerate(unmet):
        if best:
            logger.warning(
                f"`must_contain` has {', '.join(str([*phrase]) for phrase in best)} for sentence {sentence} of the batch, but "
                f"no translation with that was found under {forbidding_settings(config)}; the translation is without it."
            )


def _selected(
    inputs: dict[str, Any], kept: torch.Tensor, prompt: torch.Tensor, config: GenerationConfig
) -> dict[str, Any]:
    """The arguments of a model for some sentences, `kept` [N] int64, with another number of beams."""
    selected = {name: value for name, value in inputs.items() if name != "past_key_values"}
    selected["encoder_outputs"] = BaseModelOutput(inputs["encoder_outputs"][0][kept])
    if "attention_mask" in inputs:
        selected["attention_mask"] = inputs["attention_mask"][kept]
    if "decoder_attention_mask" in inputs:
        rows = inputs["decoder_attention_mask"].unflatten(0, (len(prompt), -1))[kept, 0]
        selected["decoder_attention_mask"] = rows.repeat_interleave(config.num_beams, dim=0)
    return selected
