"""The memory of a training step (bytes), by formulas: weights, gradients, Adam's moments, activations, loss.

What the layers keep for the backward pass is, per position, with b bytes a number (4; under autocast to bfloat16 2), m bytes
a number of a dropout mask (b on a processor, whose masks are factors; else 1), D the model width, K and V the widths of all
heads' keys and values, h heads, F the feed-forward width:

- each residual sum, which its layer norm reads, and two statistics: 4 D + 8; the mask of its sub-layer's dropout: m D
- self-attention: its input, b D, under autocast once for each of three projections; queries, keys and values, b (2 K + V);
  the weighted values b V, and one number per head, 4 h. No scores: the fused kernels compute them again. Where there is no
  such kernel (additive scores; on a processor also where d_k is not d_v, and with dropout of weights), 4 h per key of a query, twice with that dropout.
- cross-attention: the same, but that keys and values, b (K + V), and their inputs are of the source. The encoder's output is
  one for all layers, or, under autocast, b 2 D in each of them.
- feed-forward: b D + b F, twice b F where the activation is not relu, which needs no more than its output
- embeddings: a mask of D numbers on each side

On a processor the fused kernel computes in float32 under autocast too, and keeps its inputs and its output so.
With gradient checkpointing a layer keeps 4 D, and one layer at a time has all of the above. What additive scores keep beside
their weights, and the blocks of an `attention_window`, are left out.
"""

from dataclasses import dataclass

from ..model.configuration_vaswani import VaswaniConfig
from ..model.loss_vaswani import rows_per_chunk
from ..model.score_functions_vaswani import UNFUSED_SCORES


@dataclass(frozen=True)
class StepSettings:
    """What beside the model decides the memory of a step: the device, the dtype, the batch and what is kept between.

    `positions` are those of source and target that are computed at once, `length` that of a sentence (tokens).
    """

    positions: tuple[int, int]
    length: int
    device: str = "cuda"
    bf16: bool = False
    gradient_checkpointing: bool = False
    # Gradients of earlier batches of the step lie beside the activations.
    accumulates: bool = False
    # "simcut" or "r_drop": both passes are computed at once.
    second_pass: str | None = None
    # A moving average of the weights, in float32.
    has_average: bool = False
    # The weights that Muon is for have one moment each.
    num_muon: int = 0

    @property
    def width(self) -> int:
        """The bytes of a number that a product reads."""
        return 2 if self.bf16 else 4

    @property
    def rows(self) -> tuple[int, int]:
        """The positions of source and target that go through the layers at once, in one pass or two."""
        passes = 1 if self.second_pass is None else 2
        return self.positions[0] * passes, self.positions[1] * passes


def step_memory(config: VaswaniConfig, parameters: int, matrices: int, settings: StepSettings) -> dict[str, int]:
    """The memory of a step by its parts, and its peak (bytes), without PyTorch itself and what an allocator leaves unused.

    Weights, their average and the moments are always there. The activations and the loss are largest where the forward pass ends, the
    gradients where the backward pass does, which has freed the activations by then; the peak is the larger of both. Where
    gradients are accumulated they are there all the time.

    Args:
        config (VaswaniConfig): The shape.
        parameters (int): The number of parameters, each counted once.
        matrices (int): Those that autocast keeps a copy of, in bfloat16, during a step.
        settings (StepSettings): The device and the batch.

    Returns:
        dict: `weights`, `gradients`, `optimizer`, `activations`, `loss` and `peak`.
    """
    weights = 4 * parameters * (2 if settings.has_average else 1) + (2 * matrices if settings.bf16 else 0)
    activations, loss = activation_memory(config, settings), loss_memory(config, settings)
    # The gradient of an embedding is whole before it is added to that of another use of it.
    whole_gradients = 4 * parameters + 4 * _classes(config) * config.d_model
    forward = activations + loss + (4 * parameters if settings.accumulates else 0)
    parts = {
        "weights": weights,
        "gradients": 4 * parameters,
        "optimizer": 8 * parameters - 4 * settings.num_muon,
        "activations": activations,
        "loss": loss,
    }
    return parts | {"peak": weights + parts["optimizer"] + max(forward, whole_gradients)}


def loss_memory(config: VaswaniConfig, settings: StepSettings) -> int:
    """What the loss has beside the layers at its peak (bytes).

    It computes its gradients in the forward pass: of the states, 4 D per target position, and of the output projection, 4 D per
    class. Beside them it has the logits of a chunk, 4 bytes each, under autocast twice more, 2 bytes each, for the product and
    the difference; afterwards, in their place, the gradients a second time, scaled. A divergence of two passes has gradients of
    both and of the projection too, and beside them probabilities, differences and terms of sums, as many numbers as 6 times the
    logits with SimCut and 9 times with R-Drop.

    Args:
        config (VaswaniConfig): The shape.
        settings (StepSettings): The device and the batch.

    Returns:
        int: Bytes.
    """
    classes, target, passes = _classes(config), settings.positions[1], 2 if settings.second_pass == "r_drop" else 1
    rows = min(rows_per_chunk(settings.device, classes), target)
    gradients = 4 * config.d_model * (passes * target + classes)
    if settings.second_pass is None:
        return gradients + max(rows * classes * (8 if settings.bf16 else 4), gradients)
    of_divergence = 4 * config.d_model * (2 * target + classes)
    chunk = 4 * rows * classes * (9 if settings.second_pass == "r_drop" else 6)
    return gradients + of_divergence + max(chunk, of_divergence)


def activation_memory(config: VaswaniConfig, settings: StepSettings) -> int:
    """What the layers keep for the backward pass (bytes); the formulas stand at the top of this file.

    Args:
        config (VaswaniConfig): The shape.
        settings (StepSettings): The device and the batch.

    Returns:
        int: Bytes.
    """
    source, target = settings.rows
    states = config.d_model * (source + target)
    encoder, decoder = _encoder_layer(config, settings), _decoder_layer(config, settings)
    shared = 0 if settings.bf16 else 4 * config.d_model * source
    if settings.gradient_checkpointing:
        inputs = 4 * config.d_model * (config.encoder_layers * source + config.decoder_layers * target)
        layers = inputs + max(encoder, decoder) + 4 * config.d_model * source
    else:
        layers = config.encoder_layers * encoder + config.decoder_layers * decoder + shared
    last_norms = 4 * states if config.norm_position == "pre" else 0
    # The embeddings are summed in float32.
    masks = states * (4 if settings.device == "cpu" else 1) if config.dropout else 0
    return layers + last_norms + masks


def _classes(config: VaswaniConfig) -> int:
    return config.decoder_vocab_size or config.vocab_size


def _encoder_layer(config: VaswaniConfig, settings: StepSettings) -> int:
    source, heads = settings.rows[0], config.encoder_attention_heads
    self_attention = source * (_inputs(config, settings) + _attention(config, settings, heads))
    return (
        self_attention
        + source * _keys_and_values(config, settings, heads)
        + _rest(config, settings, source, sublayers=2, inner=config.encoder_ffn_dim)
    )


def _decoder_layer(config: VaswaniConfig, settings: StepSettings) -> int:
    (source, target), heads, width = settings.rows, config.decoder_attention_heads, settings.width
    attention, keys_and_values = _attention(config, settings, heads), _keys_and_values(config, settings, heads)
    self_attention = target * (_inputs(config, settings) + attention + keys_and_values)
    cross_attention = target * (width * config.d_model + attention) + source * keys_and_values
    if settings.bf16:
        # Keys and values have a copy of the encoder's output each.
        cross_attention += source * 2 * width * config.d_model
    rest = _rest(config, settings, target, sublayers=3, inner=config.decoder_ffn_dim)
    return self_attention + cross_attention + rest


def _inputs(config: VaswaniConfig, settings: StepSettings) -> int:
    return settings.width * config.d_model * (3 if settings.bf16 else 1)


def _widths(config: VaswaniConfig, heads: int) -> tuple[int, int]:
    return heads * (config.d_k or config.d_model // heads), heads * (config.d_v or config.d_model // heads)


def _attention(config: VaswaniConfig, settings: StepSettings, heads: int) -> int:
    """Queries, weighted values and weights of a position."""
    keys, values = _widths(config, heads)
    in_float32 = settings.bf16 and settings.device == "cpu"
    kept = 4 * (keys + values) if in_float32 else settings.width * keys
    has_no_kernel = settings.device == "cpu" and (keys != values or config.attention_dropout)
    scores = settings.length * (8 if config.attention_dropout else 4)
    is_unfused = has_no_kernel or {config.score_of(False), config.score_of(True)} & set(UNFUSED_SCORES)
    return kept + settings.width * values + heads * (scores if is_unfused else 4)


def _keys_and_values(config: VaswaniConfig, settings: StepSettings, heads: int) -> int:
    return (4 if settings.device == "cpu" else settings.width) * sum(_widths(config, heads))


def _rest(config: VaswaniConfig, settings: StepSettings, positions: int, *, sublayers: int, inner: int) -> int:
    """Residual sums, norms and dropout of a layer, and its feed-forward network."""
    width, mask = settings.width, settings.width if settings.device == "cpu" else 1
    norms = sublayers * (4 * config.d_model + 8)
    masks = sublayers * mask * config.d_model if config.dropout else 0
    masks += mask * inner if config.activation_dropout else 0
    hidden = width * inner * (1 if config.activation_function == "relu" and not config.activation_dropout else 2)
    return positions * (norms + masks + width * config.d_model + hidden)
