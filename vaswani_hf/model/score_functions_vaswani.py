"""Other score functions of attention than the paper's: `attention_score` and `cross_attention_score` of the config.

This file travels with every checkpoint because a config may choose one of them. For a query q and a key k of a head:
- "scaled_dot": q k / sqrt(d_k), Section 3.2.1, Eq. (1) of the paper.
- "dot": q k, Luong et al. 2015 (arXiv 1508.04025), Section 3.1.
- "dot_mean": q k / d_k, the mean over the features, Yang et al. 2022 (arXiv 2203.03466), Definition 4.1.
- "general": q W k with a matrix W per head, Luong et al. 2015, Section 3.1.
- "additive_linear": w_q q + w_k k with two vectors per head, Veličković et al. 2018 (arXiv 1710.10903), Eq. (3) without its
  LeakyReLU. Of a softmax over keys w_q q is no part: every query gives the same weights.
- "additive": v tanh(W q + U k) with two matrices and a vector per head, Bahdanau et al. 2015 (arXiv 1409.0473), A.1.2.

The first three differ by a factor, and "general" by a projection of the query, so that every implementation computes
them; the others have no fused kernel. Parameters are of the deviation that gives scores of features of variance 1 a
variance of about 1. Letters of shapes: B batch, T queries, S keys, H heads, K key width per head.
"""

import torch
from torch import nn
from transformers import initialization as init

from .attention_vaswani import VaswaniAttention, declare_shortcuts


class LearnedScores(VaswaniAttention):
    """An attention whose scores have parameters [H, numbers]."""

    def __init__(self, config, num_heads, layer_idx, **kwargs):
        super().__init__(config, num_heads, layer_idx, **kwargs)
        for name, (numbers, _) in self.score_parameters().items():
            setattr(self, name, nn.Parameter(torch.empty(num_heads, numbers)))

    def score_parameters(self) -> dict[str, tuple[int, float]]:
        """For each parameter its numbers per head, and one divided by the variance that it is drawn with."""
        raise NotImplementedError

    def init_scores(self) -> None:
        """Draw the parameters."""
        for name, (_, inverse_variance) in self.score_parameters().items():
            init.normal_(getattr(self, name), std=inverse_variance**-0.5)


class GeneralAttention(LearnedScores):
    """q W k: `score_weight` [H, K * K] projects the queries, and dot products do the rest."""

    def score_parameters(self):
        return {"score_weight": (self.d_k**2, self.d_k**2)}

    def projected(self, query: torch.Tensor) -> torch.Tensor:
        """The queries [B, H, T, K] whose dot products with the keys are the scores."""
        return torch.matmul(query, self.score_weight.view(-1, self.d_k, self.d_k))

    def attend(self, query, *args, **kwargs):
        return super().attend(self.projected(query), *args, **kwargs)

    def attend_fused(self, query, *args, **kwargs):
        return super().attend_fused(self.projected(query), *args, **kwargs)


class AdditiveLinearAttention(LearnedScores):
    """w_q q + w_k k: `score_query` and `score_key` [H, K]."""

    def score_parameters(self):
        return dict.fromkeys(("score_query", "score_key"), (self.d_k, 2 * self.d_k))

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        of_query = torch.matmul(query, self.score_query[..., None])
        return of_query + torch.matmul(key, self.score_key[..., None]).transpose(2, 3)


class AdditiveAttention(LearnedScores):
    """v tanh(W q + U k): `score_query` and `score_key` [H, K * K], `score_vector` [H, K]."""

    def score_parameters(self):
        matrices = dict.fromkeys(("score_query", "score_key"), (self.d_k**2, 2 * self.d_k))
        # The square of tanh of a variable of variance 1 is 0.39 on average.
        return matrices | {"score_vector": (self.d_k, 0.39 * self.d_k)}

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        weights = (weight.view(-1, self.d_k, self.d_k) for weight in (self.score_query, self.score_key))
        query, key = (torch.matmul(states, weight) for states, weight in zip((query, key), weights, strict=True))
        # [B, H, T, S, K]
        summed = (query.unsqueeze(3) + key.unsqueeze(2)).tanh_()
        return torch.matmul(summed, self.score_vector[:, None, :, None]).squeeze(-1)


# Scores that a factor does not express; the others are those of `VaswaniAttention` itself.
OTHER_SCORES = {"general": GeneralAttention, "additive_linear": AdditiveLinearAttention, "additive": AdditiveAttention}
# Scores without a fused kernel.
UNFUSED_SCORES = ("additive_linear", "additive")
declare_shortcuts(GeneralAttention, "attend")
