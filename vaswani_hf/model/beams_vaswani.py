"""The tensors of a beam search. `Beams` contains the translations that the search extends. `Candidates`
contains continuations of the beams by one token. `FinishedTranslations` contains the translations that have
ended.

This file is saved with every checkpoint because `BeamSearch` of beam_search_vaswani uses these classes.

The docstring of the file beam_search_vaswani explains the letters in tensor shapes, such as N and K.
"""

from dataclasses import dataclass
from typing import Any

import torch

from .decoding_vaswani import gather_beams

# The score of an empty place in a list of beams, candidates or finished translations. transformers uses the
# same score.
EMPTY_SCORE = -1e9
# The score of a token, candidate or translation that the search must not choose. `EXCLUDED_SCORE` is lower
# than `EMPTY_SCORE`. Therefore the search prefers an empty place in a list to an excluded token, candidate or
# translation.
EXCLUDED_SCORE = 2 * EMPTY_SCORE


def exists(scores: Any) -> Any:
    """Return True for the score of a real beam, candidate or translation, and False for `EMPTY_SCORE` and
    `EXCLUDED_SCORE`.
    """
    # The scores of real translations are far above `EMPTY_SCORE / 2`.
    return scores > EMPTY_SCORE / 2


def rank_ended_last(scores: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
    """Lower the scores [N, C] of ended candidates, so that the search prefers candidates that have not
    ended.
    """
    return scores + ended * EMPTY_SCORE


@dataclass
class Candidates:
    """The candidates of one step of beam search. A candidate is a beam plus one new token. Without
    `do_sample`, the candidates that have not ended are sorted by score, best first.
    """

    scores: torch.Tensor  # [N, C] float32, the summed log-probabilities
    parents: torch.Tensor  # [N, C] int64, the indices of the extended beams
    tokens: torch.Tensor  # [N, C] int64, the new tokens


class Beams:
    """The K beams of each of the N sentences in the batch.

    Attributes:
        sentences: The indices of the sentences, [N] int64.
        scores: The summed log-probabilities of the beams, [N, K] float32.
        paths: The tokens of the beams, [N, K, T, 1] int64. With `return_dict_in_generate`, the shape of
            `paths` is [N, K, T, 2], and each token has two entries: the token id, and the row index of the
            beam that the token has extended.
        parents: The beam of the previous step that each beam extends, [N, K] int64. The attribute `parents`
            does not exist before the first step.
        is_open: True for each sentence that still accepts finished translations, [N] bool.
    """

    def __init__(self, prompts: torch.Tensor, sentences: torch.Tensor):
        # `prompts` [B, K, P, 1 or 2] contains the tokens of the prompts in the format of the attribute
        # `paths`.
        self.sentences = sentences
        self.paths = prompts[sentences]
        # Give all beams except the first the score `EMPTY_SCORE`, because all beams of a sentence are equal
        # at the start.
        self.scores = torch.full(self.paths.shape[:2], EMPTY_SCORE, device=prompts.device)
        self.scores[:, 0] = 0
        self.parents: torch.Tensor
        self.is_open = torch.ones(len(sentences), dtype=torch.bool, device=prompts.device)

    @property
    def sequences(self) -> torch.Tensor:
        """The tokens of the beams [N, K, T] int64, including prompts."""
        return self.paths[..., 0]

    def extended_paths(self, candidates: Candidates) -> torch.Tensor:
        """Return the paths of the candidates in the format of `paths`: [N, C, T + 1, 1], or [N, C, T + 1, 2]
        with `return_dict_in_generate`.
        """
        new = candidates.tokens.unsqueeze(2)  # [N, C, 1]
        if self.paths.shape[3] == 2:
            rows = candidates.parents + self.sentences.unsqueeze(1) * self.paths.shape[1]
            new = torch.stack((candidates.tokens, rows), dim=2)  # [N, C, 2]
        paths = gather_beams(self.paths, candidates.parents)  # [N, C, T, 1 or 2]
        return torch.cat((paths, new.unsqueeze(2)), dim=2)

    def replace(self, candidates: Candidates, paths: torch.Tensor, ended: torch.Tensor | None) -> None:
        """Replace the beams by the K best candidates that have not ended.

        `paths` [N, C, T, 1 or 2] contains the tokens of the candidates, in the format of `Beams.paths`.
        `ended` [N, C] is True for candidates that have ended. Pass None as `ended` only if no candidate has
        ended and the candidates are sorted by score.
        """
        num_beams = self.paths.shape[1]
        if ended is None:
            self.scores = candidates.scores[:, :num_beams]
            self.paths = paths[:, :num_beams]
            self.parents = candidates.parents[:, :num_beams]
        else:
            self.scores, best = rank_ended_last(candidates.scores, ended).topk(num_beams)
            self.paths = gather_beams(paths, best)
            self.parents = candidates.parents.gather(1, best)

    def select(self, staying: torch.Tensor) -> None:
        """Keep only the sentences at the positions `staying` [N'] of the batch."""
        self.sentences = self.sentences.index_select(0, staying)
        self.scores = self.scores.index_select(0, staying)
        self.paths = self.paths.index_select(0, staying)
        self.parents = self.parents.index_select(0, staying)
        self.is_open = self.is_open.index_select(0, staying)


class FinishedTranslations:
    """The K best finished translations of each of the B sentences, best first.

    Attributes:
        scores: The scores, [B, K] float32. The score of a missing translation is `EMPTY_SCORE`.
        lengths: The numbers of new tokens, [B, K] int64. A missing translation has the length 0.
        paths: The tokens, [B, K, T, 1 or 2] int64, in the format of `Beams.paths`. If a translation is
            missing, its row contains only the prompt and padding.
    """

    def __init__(self, prompts: torch.Tensor, fill: int):
        # `prompts` [B, K, P, 1 or 2] contains the tokens of the prompts in the format of `Beams.paths`.
        # `fill` is the id of the token that pads a row after the end of a translation.
        self.scores = torch.full(prompts.shape[:2], EMPTY_SCORE, device=prompts.device)
        self.lengths = torch.zeros(prompts.shape[:2], dtype=torch.int64, device=prompts.device)
        self.paths = prompts.clone()
        self.after_end = torch.tensor([fill, -1][: prompts.shape[3]], device=prompts.device)

    def add(self, sentences: torch.Tensor, scores: torch.Tensor, paths: torch.Tensor, length: int) -> None:
        """Add translations with `length` new tokens, and keep the K best translations of each sentence.
        `scores` [N, K] and `paths` [N, K, T, 1 or 2] belong to the sentences with the indices `sentences`
        [N].
        """
        both_scores = torch.cat((self.scores[sentences], scores), dim=1)
        self.scores[sentences], kept = both_scores.topk(scores.shape[1])
        both_lengths = torch.cat((self.lengths[sentences], torch.full_like(kept, length)), dim=1)
        self.lengths[sentences] = both_lengths.gather(1, kept)
        self.paths = self._padded(self.paths, paths.shape[2])
        both_paths = torch.cat((self.paths[sentences], paths), dim=1)
        self.paths[sentences] = gather_beams(both_paths, kept)

    def copy_from(self, earlier: "FinishedTranslations", sentences: torch.Tensor) -> None:
        """For each sentence with True in `sentences` [B], copy the finished translations (at most K) from
        `earlier`.
        """
        beams = slice(earlier.scores.shape[1])
        length = max(earlier.paths.shape[2], self.paths.shape[2])
        # Clone the tensors, because a tensor from inference mode cannot be changed outside of inference mode.
        self.paths = self._padded(self.paths, length).clone()
        self.paths[sentences, beams] = self._padded(earlier.paths, length)[sentences]
        self.scores = self.scores.clone()
        self.scores[sentences, beams] = earlier.scores[sentences]
        self.lengths = self.lengths.clone()
        self.lengths[sentences, beams] = earlier.lengths[sentences]

    def _padded(self, paths: torch.Tensor, length: int) -> torch.Tensor:
        missing = length - paths.shape[2]
        if missing == 0:
            return paths
        return torch.cat((paths, self.after_end.expand(*paths.shape[:2], missing, -1)), dim=2)
