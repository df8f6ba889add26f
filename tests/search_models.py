"""Models for the tests of the search: the models are tiny, but trained, so their translations end at
different lengths.

A model with random weights repeats one token without end, and all beams are equal. A second of training on an
artificial language gives hypotheses of different lengths, and scores that are clearly different.
"""

import copy
import functools
import random
from collections.abc import Callable

import torch
from factories import tiny_config
from shared_weights import train_once
from transformers.generation import GenerationMixin

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.model.pretrained_vaswani import VaswaniPreTrainedModel

START, PAD, EOS = 0, 1, 2
SCORED = {"return_dict_in_generate": True, "output_scores": True}
CACHES = {"dynamic": {}, "static": {"cache_implementation": "static"}, "none": {"use_cache": False}}
SOURCES = [[5, 9, 4, 7, 13, EOS], [4, EOS], [8, 3, 8, EOS], [11, 6, 17, 20, 3, 9, 9, EOS], [14, 19, EOS]]
PREFIXES = [[START, 5], [START, 6, 8, 3], [START], [START, 21], [START, 7, 7]]
OTHER_VOCABULARY = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29}
VARIANTS = {
    "paper": {},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 16},
    "pre-norm": {"norm_position": "pre", "d_k": 5, "d_v": 3, "decoder_layers": 1},
    "imported": {
        "zero_start_embedding": True,
        "bos_token_id": None,
        "decoder_start_token_id": PAD,
        "lm_head_bias": True,
        "position_timescales": "tensor2tensor",
        "position_offset": 1,
    },
    "two vocabularies": OTHER_VOCABULARY,
    "padding is zero": {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1},
}


def made_up_pair(rng: random.Random, source_size: int, target_size: int) -> tuple[list[int], list[int]]:
    """A source and its translation: each word has two possible translations, and a particle may follow."""
    source = [rng.randrange(3, source_size) for _ in range(rng.randint(1, 7))]
    target = []
    for word in source:
        target.append(3 + (word + rng.choice([0, 0, 1])) % (target_size - 3))
        if rng.random() < 0.5:
            target.append(3 + (target[-1] + 4) % (target_size - 3))
    return [*source, EOS], [*target, EOS]


def pad(rows: list[list[int]], side: str = "right", value: int = PAD) -> torch.Tensor:
    length = max(map(len, rows))
    fill = [[value] * (length - len(row)) for row in rows]
    return torch.tensor([f + row if side == "left" else row + f for f, row in zip(fill, rows, strict=True)])


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@functools.cache
def _trained(seed: int, fields: tuple) -> VaswaniForSeq2SeqLM:
    torch.manual_seed(seed)
    model = VaswaniForSeq2SeqLM(tiny_config(**dict(fields)))
    # Few tests use each variant, so the training of a variant is short.
    num_steps = 60 if fields else 120
    train_once(model, lambda: _train(model, seed, num_steps), ("search", seed, fields))
    return model.eval().requires_grad_(False)


def _train(model: VaswaniForSeq2SeqLM, seed: int, num_steps: int) -> None:
    config = model.train().config
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rng = random.Random(seed)
    for _ in range(num_steps):
        pairs = [made_up_pair(rng, config.vocab_size, config.decoder_vocab_size) for _ in range(32)]
        sources, targets = zip(*pairs, strict=True)
        model(
            input_ids=pad(sources, value=config.pad_token_id), labels=pad(targets, value=-100)
        ).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def translator(seed: int = 0, **fields) -> VaswaniForSeq2SeqLM:
    """A new copy of a model after a short training on the artificial language."""
    return copy.deepcopy(_trained(seed, tuple(fields.items())))


def new_tokens(
    sequences: torch.Tensor, prompt_length: int = 1, end_ids: tuple[int, ...] = (EOS,)
) -> list[list[int]]:
    """Return the tokens of each row from the prompt to the end. Only padding follows the end."""
    rows = []
    for row in sequences[:, prompt_length:].tolist():
        ends = [index + 1 for index, token in enumerate(row) if token in end_ids]
        length = ends[0] if ends else row.index(PAD) if PAD in row else len(row)
        assert set(row[length:]) <= {PAD}
        rows.append(row[:length])
    return rows


def check_found(outputs, expected, prompt_length: int = 1, end_ids: tuple[int, ...] = (EOS,)) -> None:
    """Compare sequences and scores of `generate` with the hypotheses of the slow search."""
    is_plain = isinstance(outputs, torch.Tensor)
    sequences = outputs if is_plain else outputs.sequences
    assert new_tokens(sequences, prompt_length, end_ids) == [hypothesis.tokens for hypothesis in expected]
    if not is_plain and "sequences_scores" in outputs:
        close(outputs.sequences_scores, torch.tensor([hypothesis.score for hypothesis in expected]))


def contains(tokens: list[int], phrase: list[int]) -> bool:
    """True if the phrase is in the tokens."""
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens)))


def batch_of(
    sources: list[list[int]], side: str = "right", prefixes: list[list[int]] | None = None, pad_id: int = PAD
):
    """The arguments of `generate`, masks included."""
    batch = {"input_ids": pad(sources, side, pad_id)}
    batch["attention_mask"] = pad([[1] * len(source) for source in sources], side, 0)
    if prefixes is not None:
        batch["decoder_input_ids"] = pad(prefixes, "left", pad_id)
        batch["decoder_attention_mask"] = pad([[1] * len(prefix) for prefix in prefixes], "left", 0)
    return batch


@functools.cache
def log_probs_of(model: VaswaniForSeq2SeqLM) -> Callable:
    """The model as the slow search takes it: one row, no padding, no mask, no cache; results are kept."""

    @functools.cache
    def encoded(source: tuple[int, ...]):
        return model.get_encoder()(torch.tensor([source]))

    @functools.cache
    def log_probs(source: tuple[int, ...], target: tuple[int, ...]) -> list[float]:
        with torch.no_grad():
            states, ids = encoded(source), torch.tensor([target])
            logits = model(encoder_outputs=states, decoder_input_ids=ids, use_cache=False).logits
        return logits[0, -1].log_softmax(dim=-1).tolist()

    return lambda source, target: log_probs(tuple(source), tuple(target))


def attention_of(model: VaswaniForSeq2SeqLM) -> Callable:
    """The cross-attention of the last layer, averaged over the heads: a row for each token after the
    start.
    """
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")

    def attention(source: list[int], target: list[int]) -> list[list[float]]:
        ids = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target[:-1]])}
        with torch.no_grad():
            return eager(**ids, output_attentions=True).cross_attentions[-1][0].mean(dim=0).tolist()

    return attention


class TransformersSearch(VaswaniPreTrainedModel, GenerationMixin):
    """The same model with the unchanged `generate` of transformers. The caller must pass all masks."""

    def __init__(self, model: VaswaniForSeq2SeqLM):
        super().__init__(model.config)
        self.model = model.model
        self.whole = [model]
        # transformers 5.17 reads the number of target classes from `vocab_size`, the source vocabulary.
        self.config = copy.copy(model.config)
        self.config.share_encoder_decoder_embeddings = False
        self.config.vocab_size = model.config.decoder_vocab_size
        self.eval()

    @functools.wraps(VaswaniForSeq2SeqLM.forward)
    def forward(self, *args, **kwargs):
        return self.whole[0](*args, **kwargs)
