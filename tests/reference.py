"""The paper "Attention Is All You Need" in slow loops, with which the tests compare the model.

One sentence pair at a time, so there is no batch, no padding, no mask and no dropout. Causality comes from
slicing: position t sees only the positions up to t. The reference shares no code with the package, uses only
    elementary differentiable operations, and computes in the dtype of its weights.

With `model.state_dict(keep_vars=True)` the weights are the model's own parameters, ties included, so that
`torch.autograd.grad(Reference(...).loss(...), model.parameters())` is comparable with the model's gradients.

Shapes: S source length, T target length (both in tokens), H heads, D model width, K key width per head (the
paper's d_k; d_v for values), V vocabulary. Every tensor is floating point; every sentence is a list of
integer ids.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Ids = list[int]


def softmax(scores: Tensor) -> Tensor:
    """Section 3.2.1: the softmax of Equation 1, over one vector [S]."""
    # Subtracting a constant changes no value and no gradient; it keeps exp from overflowing.
    exponentials = torch.exp(scores - scores.detach().max())
    return exponentials / exponentials.sum()


def log_softmax(scores: Tensor) -> Tensor:
    """Section 3.4: logarithm of the softmax that gives next-token probabilities, over one vector [V]."""
    shifted = scores - scores.detach().max()
    return shifted - torch.log(torch.exp(shifted).sum())


Score = Callable[[Tensor, Tensor], Tensor]


def dot(query: Tensor, key: Tensor) -> Tensor:
    """Section 3.2.1: return q k, the sum of the products of the features, for one query [K] and one key
    [K].
    """
    return (query * key).sum()


def score_function(name: str, of_head: dict[str, Tensor]) -> Score:
    """Return a score function for one query [K] and one key [K]; `of_head` has the parameters of one head.

    Section 3.2.1 has "scaled_dot" and "dot" (dot-product), and mentions "additive" (Bahdanau et al. 2015).
    """

    def matrix(which: str, width: int) -> Tensor:
        return torch.stack([of_head[which][row * width : (row + 1) * width] for row in range(width)])

    def additive(query: Tensor, key: Tensor) -> Tensor:
        width = len(query)
        summed = matrix("score_query", width).T @ query + matrix("score_key", width).T @ key
        return dot(of_head["score_vector"], torch.tanh(summed))

    return {
        "scaled_dot": lambda query, key: dot(query, key) / math.sqrt(len(query)),
        "dot": dot,
        "dot_mean": lambda query, key: dot(query, key) / len(query),
        "general": lambda query, key: dot(query, matrix("score_weight", len(query)) @ key),
        "additive_linear": lambda query, key: (
            dot(of_head["score_query"], query) + dot(of_head["score_key"], key)
        ),
        "additive": additive,
    }[name]


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, score: Score, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Section 3.2.1, Equation 1, one query at a time.

    Args:
        queries: [T, K].
        keys: [S, K].
        values: [S, d_v].
        causal: Section 3.2.3: show query t the keys 0 … t only.
        score: the function that computes the score of a query and a key.
        window: Section 4, restricted self-attention: show query t the keys t - window … t + window only.

    Returns:
        Outputs [T, d_v] and attention weights [T, S], 0 where a key was not shown.
    """
    outputs, rows = [], []
    for position, query in enumerate(queries):
        first = 0 if window is None else max(0, position - window)
        end = (
            position + 1 if causal else len(keys) if window is None else min(len(keys), position + window + 1)
        )
        weights = softmax(torch.stack([score(query, key) for key in keys[first:end]]))
        outputs.append(weights @ values[first:end])
        rows.append(torch.cat([weights.new_zeros(first), weights, weights.new_zeros(len(keys) - end)]))
    return torch.stack(outputs), torch.stack(rows)


def head_columns(states: Tensor, head: int, num_heads: int) -> Tensor:
    """Section 3.2.2: return the part [T, K] of the projected states [T, H * K] that belongs to one head."""
    width = states.shape[1] // num_heads
    return states[:, head * width : (head + 1) * width]


def sinusoid(position: int, d_model: int, timescales: str = "paper") -> list[float]:
    """Section 3.5: the encoding of one position (counted from 0), sine on even dimensions and cosine on odd
    ones.

    Differs from the paper: tensor2tensor spreads the timescales from 1 to 10000, both included.
    """
    encoding = []
    for dimension in range(d_model):
        pair = dimension // 2
        fraction = 2 * pair / d_model
        if timescales == "tensor2tensor":
            fraction = pair / (d_model // 2 - 1)
        angle = position / 10000**fraction
        encoding.append(math.sin(angle) if dimension % 2 == 0 else math.cos(angle))
    return encoding


def smoothed_cross_entropy(log_probs: Tensor, label: int, epsilon: float, form: str) -> Tensor:
    """Section 5.4: cross-entropy (nats) of log-probabilities [V] against one smoothed label.

    "t2t" puts 1 - epsilon on the label and epsilon / (V - 1) on each other class; "torch" puts 1 - epsilon on
    the label and, in addition, epsilon / V on every class. V does not count a class of probability 0.
    """
    classes = log_probs[log_probs > -math.inf]
    others = classes.sum() - log_probs[label]
    if form == "t2t":
        return -(1 - epsilon) * log_probs[label] - epsilon / (len(classes) - 1) * others
    if form == "torch":
        return -(1 - epsilon) * log_probs[label] - epsilon / len(classes) * classes.sum()
    raise ValueError(f'`form` must be "t2t" or "torch", but is "{form}".')


class Reference:
    """Section 3: the Transformer, computed from a state dict.

    Differs from the paper: The reference also supports `norm_position="pre"`, a LayerNorm at the end of a
    stack, other sinusoids, biases of attention and output, and other scores, because the model has these
    options.

    Attributes:
        attention_maps: the attention weights [H, T, S] of the latest calls, under the name that the sub-layer
            has in the state dict, as in "model.decoder.layers.0.encoder_attn".
    """

    def __init__(self, state_dict: Mapping[str, Tensor], config: Any):
        """Section 3.1: all sizes come from `config`, except d_k, d_v and d_ff, which follow from the weights.

        Args:
            state_dict: weights under the model's names, a linear map as [out_features, in_features].
            config: the model's configuration, or anything with the attributes that are read below.

        Raises:
            ValueError: If `activation_function` is not "relu", the activation of the paper.
        """
        if config.activation_function != "relu":
            raise ValueError(
                f'`activation_function` must be "relu" here, but is "{config.activation_function}".'
            )
        self.weights = state_dict
        self.config = config
        self.attention_maps: dict[str, Tensor] = {}

    def linear(self, name: str, states: Tensor) -> Tensor:
        """Section 3.2.2 and Equation 2: x W, plus b where the state dict holds a bias."""
        projected = states @ self.weights[f"{name}.weight"].T
        return projected + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else projected

    def layer_norm(self, name: str, states: Tensor) -> Tensor:
        """Section 3.1: layer normalization (Ba et al. 2016, Equation 4) of each position of [T, D]."""
        normalized = []
        for state in states:
            centered = state - state.sum() / len(state)
            variance = (centered * centered).sum() / len(state)
            normalized.append(centered / torch.sqrt(variance + self.config.layer_norm_eps))
        return torch.stack(normalized) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def multi_head_attention(
        self, name: str, num_heads: int, states: Tensor, memory: Tensor, causal: bool
    ) -> Tensor:
        """Section 3.2.2: Concat(head_1, …, head_h) W^O, one head at a time; from [T, D] and memory [S, D] to
        [T, D].
        """
        queries = self.linear(f"{name}.q_proj", states)
        keys = self.linear(f"{name}.k_proj", memory)
        values = self.linear(f"{name}.v_proj", memory)
        score_name = self.config.attention_score
        if name.endswith("encoder_attn") and self.config.cross_attention_score is not None:
            score_name = self.config.cross_attention_score
        own = {
            key.split(".")[-1]: value
            for key, value in self.weights.items()
            if key.startswith(f"{name}.score_")
        }
        heads, maps = [], []
        for head in range(num_heads):
            q, k, v = (head_columns(projected, head, num_heads) for projected in (queries, keys, values))
            score = score_function(score_name, {key: value[head] for key, value in own.items()})
            output, weights = attention(q, k, v, causal, score, self.window(name))
            heads.append(output)
            maps.append(weights)
        self.attention_maps[name] = torch.stack(maps).detach()
        return self.linear(f"{name}.out_proj", torch.cat(heads, dim=1))

    def window(self, name: str) -> int | None:
        """Section 4: the neighbourhood r of a self-attention; one for all layers, one per layer, or one per
        layer and stack.
        """
        windows = self.config.attention_window
        if windows is None or isinstance(windows, int) or name.endswith("encoder_attn"):
            return None if name.endswith("encoder_attn") else windows
        layer = int(name.split(".")[3])
        if len(windows) == self.config.encoder_layers + self.config.decoder_layers and ".decoder." in name:
            layer += self.config.encoder_layers
        return windows[layer]

    def feed_forward(self, layer: str, states: Tensor) -> Tensor:
        """Section 3.3, Equation 2: max(0, x W_1 + b_1) W_2 + b_2, for each position of [T, D] separately."""
        outputs = []
        for state in states:
            hidden = self.linear(f"{layer}.fc1", state)
            outputs.append(self.linear(f"{layer}.fc2", torch.where(hidden > 0, hidden, 0.0)))
        return torch.stack(outputs)

    def residual(self, norm: str, states: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Section 3.1: LayerNorm(x + Sublayer(x)); for pre-norm, x + Sublayer(LayerNorm(x))."""
        if self.norm_position(norm) == "pre":
            return states + sublayer(self.layer_norm(norm, states))
        return self.layer_norm(norm, states + sublayer(states))

    def norm_position(self, name: str) -> str:
        """Section 3.1: "post" or "pre", for the stack in a name such as "model.decoder.layers.0.fc1"."""
        if name.startswith("model.decoder.") and self.config.norm_position_of_decoder is not None:
            return self.config.norm_position_of_decoder
        return self.config.norm_position

    def embed(self, stack: str, input_ids: Ids) -> Tensor:
        """Sections 3.4 and 3.5: embeddings times sqrt(d_model), plus the position; [T, D] for stack
        "model.encoder".
        """
        table = self.weights[f"{stack}.embed_tokens.weight"]
        scale = math.sqrt(self.config.d_model) if self.config.scale_embedding else 1.0
        states = []
        for position, token_id in enumerate(input_ids):
            # Table 3, row (E): learned positions instead of sinusoids.
            if self.config.position_embedding == "learned":
                encoding = self.weights[f"{stack}.embed_positions.weight"][position]
            elif self.config.position_embedding == "none":
                encoding = 0
            else:
                place = position + self.config.position_offset
                encoding = table.new_tensor(
                    sinusoid(place, self.config.d_model, self.config.position_timescales)
                )
            states.append(table[token_id] * scale + encoding)
        return torch.stack(states)

    def encode(self, source_ids: Ids, stack: str = "encoder") -> Tensor:
        """Section 3.1, "Encoder": the encoder states [S, D].

        Differs from the paper: The stack "decoder" is a decoder without attention to a source.
        """
        states = self.embed(f"model.{stack}", source_ids)
        for index in range(getattr(self.config, f"{stack}_layers")):
            states = self.encoder_layer(f"model.{stack}.layers.{index}", states, stack)
        return self.end_of_stack(f"model.{stack}", states)

    def encoder_layer(self, layer: str, states: Tensor, stack: str) -> Tensor:
        """Section 3.1, "Encoder": two sub-layers, from [S, D] to [S, D]."""
        num_heads = getattr(self.config, f"{stack}_attention_heads")

        def attend_to_self(x: Tensor) -> Tensor:
            return self.multi_head_attention(f"{layer}.self_attn", num_heads, x, x, stack == "decoder")

        states = self.residual(f"{layer}.self_attn_layer_norm", states, attend_to_self)
        return self.residual(f"{layer}.final_layer_norm", states, lambda x: self.feed_forward(layer, x))

    def decode(self, target_ids: Ids, encoder_states: Tensor) -> Tensor:
        """Section 3.1, "Decoder": the decoder states [T, D] for decoder inputs (start id first) and states
        [S, D].
        """
        states = self.embed("model.decoder", target_ids)
        for index in range(self.config.decoder_layers):
            states = self.decoder_layer(f"model.decoder.layers.{index}", states, encoder_states)
        return self.end_of_stack("model.decoder", states)

    def decoder_layer(self, layer: str, states: Tensor, encoder_states: Tensor) -> Tensor:
        """Section 3.1, "Decoder": three sub-layers, from [T, D] and [S, D] to [T, D]."""
        num_heads = self.config.decoder_attention_heads

        def attend_to_self(x: Tensor) -> Tensor:
            return self.multi_head_attention(f"{layer}.self_attn", num_heads, x, x, causal=True)

        def attend_to_source(x: Tensor) -> Tensor:
            return self.multi_head_attention(
                f"{layer}.encoder_attn", num_heads, x, encoder_states, causal=False
            )

        states = self.residual(f"{layer}.self_attn_layer_norm", states, attend_to_self)
        states = self.residual(f"{layer}.encoder_attn_layer_norm", states, attend_to_source)
        return self.residual(f"{layer}.final_layer_norm", states, lambda x: self.feed_forward(layer, x))

    def end_of_stack(self, stack: str, states: Tensor) -> Tensor:
        """Section 3.1: a post-norm stack [T, D] ends as it is, a pre-norm stack with one more LayerNorm."""
        has_norm = self.config.final_norm
        if has_norm is None:
            has_norm = self.norm_position(f"{stack}.") == "pre"
        return self.layer_norm(f"{stack}.layer_norm", states) if has_norm else states

    def logits(self, source_ids: Ids, target_ids: Ids) -> Tensor:
        """Section 3.4: the pre-softmax linear transformation [T, V]; row t predicts what follows target t."""
        return self.linear("lm_head", self.decode(target_ids, self.encode(source_ids)))

    def log_probs(self, source_ids: Ids, target_ids: Ids, excluded_class: int | None = None) -> Tensor:
        """Section 3.4: log-probabilities [T, V] of the next token.

        Differs from the paper: `excluded_class` (the padding class) can be left out of the softmax and gets
        minus infinity, because no model may predict it.
        """
        logits = self.logits(source_ids, target_ids)
        kept = [token_id for token_id in range(logits.shape[1]) if token_id != excluded_class]
        log_probs = torch.full_like(logits, -math.inf)
        for position, scores in enumerate(logits):
            log_probs[position, kept] = log_softmax(scores[kept])
        return log_probs

    def loss(
        self,
        pairs: list[tuple[Ids, Ids]],
        label_smoothing: float,
        form: str,
        excluded_class: int | None = None,
    ) -> Tensor:
        """Section 5.4: smoothed cross-entropy (nats), averaged over all tokens of all pairs (source ids,
        labels).

        Section 3.1: the decoder inputs are the labels, shifted right behind `decoder_start_token_id`.
        """
        losses = []
        for source_ids, labels in pairs:
            target_ids = [self.config.decoder_start_token_id, *labels[:-1]]
            for row, label in zip(
                self.log_probs(source_ids, target_ids, excluded_class), labels, strict=True
            ):
                losses.append(smoothed_cross_entropy(row, label, label_smoothing, form))
        return torch.stack(losses).sum() / len(losses)

    @torch.no_grad()
    def greedy(
        self,
        source_ids: Ids,
        start_id: int,
        end_id: int,
        max_new_tokens: int,
        excluded_class: int | None = None,
    ) -> Ids:
        """Section 3.1: decode greedily, computing all again for each token; ids without start, with end."""
        target_ids = [start_id]
        for _ in range(max_new_tokens):
            target_ids.append(int(self.log_probs(source_ids, target_ids, excluded_class)[-1].argmax()))
            if target_ids[-1] == end_id:
                break
        return target_ids[1:]
