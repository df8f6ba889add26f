"""Records all tokens that a beam search considers, while the search runs. Recording does not change the
result of the search.

The beam search of this package calls a function of the type `CandidateSelection` at each step to select the
candidates. `CandidateRecorder` implements `CandidateSelection`: the recorder records the step, and then calls
the default function `best_candidates`. The beam search of transformers calls logits processors at each step.
`ProcessorRecorder` is a logits processor that records the step and returns the log-probabilities unchanged.
Each recorder records the search of one sentence.

In shapes, K is the number of beams, T the number of tokens so far including the prompt, and V the size of the
vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor

from ..model.beams_vaswani import Candidates, exists
from ..model.configuration_vaswani import eos_token_ids
from ..model.length_limits_vaswani import TRANSFORMERS_LIMIT, max_new_tokens_of
from ..model.precedence_vaswani import config_of_call, setting_of
from ..model.search_strategies_vaswani import (
    PenaltyScorer,
    RunningSearch,
    Scorer,
    best_candidates,
)
from .explanation import TEMPERATURES, Finished, Node, SearchRecord, display_texts


class TreeRecorder:
    """Builds the tree of a `SearchRecord` from the steps of a beam search."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        # For each node, the sum of the log-probabilities of the tokens from the root to the node. The sums
        # are in float32 as in the search, so that equal sums in the search are also equal in the record.
        self.sums: list[np.float32] = []
        self._node_of: dict[tuple[int, ...], int] = {}

    def record_step(
        self,
        sequences: torch.Tensor,
        log_probs: torch.Tensor,
        num_candidates: int,
        coverage: torch.Tensor | None = None,
    ) -> None:
        """Before a step, record the beams `sequences` [K, T], and the most probable next tokens of each beam.

        `log_probs` [K or 1, V] are the log-probabilities of the next token. `coverage` [K] is the result of
        `coverage_score` for each beam.
        """
        if not self.nodes:
            self._add((), sequences[0].tolist(), Node(-1, int(sequences[0, -1]), 0.0, 0, "beam"))
        best, tokens = log_probs.topk(min(num_candidates, log_probs.shape[1]))
        temperatures = log_probs.new_tensor(TEMPERATURES).view(-1, 1, 1)
        normalizers = (log_probs / temperatures).logsumexp(dim=-1).T.tolist()  # [K or 1][temperatures]
        for row, sequence in enumerate(sequences.tolist()[: len(log_probs)]):
            index = self._node_of.get(tuple(sequence))
            # Record equal beams only once, because all beams are equal at the start. Skip beams that have no
            # node in the tree. If a step finds fewer than K beams, the search fills the remaining places with
            # beams that have no node.
            if index is None or self.nodes[index].normalizers is not None:
                continue
            node = self.nodes[index]
            node.state = "beam"
            node.normalizers = normalizers[row]
            if coverage is not None:
                node.coverage = float(coverage[row])
            for log_prob, token in zip(best[row].tolist(), tokens[row].tolist(), strict=True):
                if exists(log_prob):
                    self._add(sequence, [token], Node(index, token, log_prob, node.step + 1))

    def _add(self, sequence: Sequence[int], new: list[int], node: Node) -> None:
        self._node_of[*sequence, *new] = len(self.nodes)
        parent_sum = self.sums[node.parent] if node.parent >= 0 else np.float32(0)
        self.sums.append(parent_sum + np.float32(node.log_prob))
        self.nodes.append(node)

    def complete(self, record: SearchRecord, scorer: Scorer, tokenizer: Any) -> SearchRecord:
        """Return the record of the finished search. The argument `record` contains the settings of the
        search, but no nodes.
        """
        finished = [Finished(index, self._score(index, scorer)) for index in self._finish(record)]
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        token_ids = sorted({node.token for node in self.nodes})
        texts = {
            str(token_id): text
            for token_id, text in zip(token_ids, display_texts(token_ids, tokenizer), strict=True)
        }
        return replace(record, nodes=self.nodes, finished=finished, texts=texts)

    def _score(self, index: int, scorer: Scorer) -> float:
        node = self.nodes[index]
        coverage = self.nodes[node.parent].coverage
        return float(
            scorer(
                torch.tensor(self.sums[index]),
                node.step,
                None if coverage is None else torch.tensor(coverage),
            )
        )

    def _finish(self, record: SearchRecord) -> list[int]:
        """Set `Node.state` of the finished hypotheses and of the beams of the last step, and set `Node.left`
        of all nodes. Return the index of the last node (token) of each finished hypothesis.
        """
        finished: list[int] = []
        last_step = max(node.step for node in self.nodes)
        for step in range(1, last_step + 1):
            candidates = self._candidates(step)[: record.num_candidates]
            ended = [i for i in candidates if self.nodes[i].token in record.end_ids or step == record.limit]
            for index in candidates[: record.num_beams]:
                if index in ended:
                    self.nodes[index].state = "finished"
                    finished.append(index)
            if step == last_step:
                # Only at the start of the next step, `record_step` learns which candidates of a step have
                # become beams. `record_step` is not called after the last step. Therefore `_finish` sets the
                # field `state` of the last step's beams to "beam".
                for index in [i for i in candidates if i not in ended][: record.num_beams]:
                    self.nodes[index].state = "beam"
        self._set_left(last_step)
        return finished

    def _candidates(self, step: int) -> list[int]:
        """Return the indices of the nodes that a search step considered. The node at the end of the most
        probable hypothesis comes first.
        """
        of_step = [index for index, node in enumerate(self.nodes) if node.step == step]
        return sorted(of_step, key=lambda index: -self.sums[index])

    def _set_left(self, last_step: int) -> None:
        # Visit the last node first, so that each node is visited after its children.
        latest = [node.step for node in self.nodes]
        survives = [
            node.state == "finished" or (node.state == "beam" and node.step == last_step)
            for node in self.nodes
        ]
        for index in range(len(self.nodes) - 1, 0, -1):
            parent = self.nodes[index].parent
            latest[parent] = max(latest[parent], latest[index])
            survives[parent] = survives[parent] or survives[index]
        for index, node in enumerate(self.nodes):
            node.left = None if survives[index] else latest[index]


class CandidateRecorder:
    """Records a beam search of this package. Pass a `CandidateRecorder` as the argument `candidates` of
    `SearchStrategies`.

    Example:
        >>> recorder = CandidateRecorder()
        >>> strategies = SearchStrategies(candidates=recorder)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.tree = TreeRecorder()
        # The search that is recorded, or None before the first step.
        self.search: RunningSearch | None = None

    def __call__(self, search: RunningSearch, log_probs: torch.Tensor) -> Candidates:
        """Record the step, and select the best candidates (see `CandidateSelection`)."""
        self.search = search
        coverage = search.coverage_scores()
        if coverage is not None:
            coverage = coverage[0]
        self.tree.record_step(search.beams.sequences[0], log_probs[0], search.num_candidates, coverage)
        return best_candidates(search, log_probs)

    def record(self, tokenizer: Any) -> SearchRecord:
        """Return the record of the finished search. The tokenizer converts the token ids to texts."""
        search: Any = self.search
        rule = search.stopping_rule
        record = SearchRecord(
            num_beams=search.num_beams,
            length_penalty=search.config.length_penalty,
            length_penalty_type=getattr(search.config, "length_penalty_type", None) or "power",
            coverage_penalty=getattr(search.config, "coverage_penalty", None) or 0.0,
            limit=int(search.task.limits[0]),
            num_counted=rule.num_counted,
            considers_all_lengths=bool(rule.considers_all_lengths[0]),
            stops_when_full=bool(rule.stops_when_full[0]),
            num_candidates=search.num_candidates,
            end_ids=search.eos.tolist(),
        )
        return self.tree.complete(record, search.scorer, tokenizer)


class ProcessorRecorder(LogitsProcessor):
    """Records a search of transformers' `generate`. The recorder must be the last logits processor, because
    the recorder must receive the log-probabilities that the search uses.
    """

    def __init__(self, settings: Mapping[str, Any], generation_config: Any):
        self.tree = TreeRecorder()
        self.settings = settings
        self.generation_config = generation_config
        self.prompt_length = 0
        self.num_beams = self._setting("num_beams")
        self.end_ids = eos_token_ids(generation_config)
        self.num_candidates = max(2, 1 + len(self.end_ids)) * self.num_beams

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Record the beams `input_ids` [K, T] and the log-probabilities [K, V]. Return `scores`."""
        self.prompt_length = self.prompt_length or input_ids.shape[1]
        # The argument `scores` contains logits in greedy search, and log-probabilities in beam search.
        log_probs = scores.float().log_softmax(dim=-1) if self.num_beams == 1 else scores
        self.tree.record_step(input_ids, log_probs, self.num_candidates)
        return scores

    def _setting(self, name: str) -> Any:
        return setting_of(name, self.settings, self.generation_config)

    def _limit(self) -> int:
        config = config_of_call(self.settings, self.generation_config)
        # In the search of transformers, the length limit does not depend on the source length.
        return max_new_tokens_of(config, 0, self.prompt_length, default=TRANSFORMERS_LIMIT)

    def record(self, tokenizer: Any) -> SearchRecord | None:
        """Return the record of the search, or None if the search has not called the recorder."""
        if not self.tree.nodes:
            return None
        early_stopping = self._setting("early_stopping")
        config = GenerationConfig(length_penalty=self._setting("length_penalty"))
        record = SearchRecord(
            num_beams=self.num_beams,
            length_penalty=config.length_penalty,
            length_penalty_type="power",
            coverage_penalty=0.0,
            limit=self._limit(),
            num_counted=self.num_beams,
            considers_all_lengths=early_stopping == "never",
            stops_when_full=early_stopping is True or self.num_beams == 1,
            num_candidates=self.num_candidates,
            end_ids=self.end_ids,
        )
        return self.tree.complete(record, PenaltyScorer(config), tokenizer)
