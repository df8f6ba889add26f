# %% [markdown]
# # The paper, line by line
#
# ## What the script does
#
# The script computes each equation of Vaswani et al. 2017, *Attention Is All You Need*
# ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)), on one sentence pair. For each equation, the script
# prints the lines of the package that compute the equation, and the results for the sentence pair. The script
# compares the results with `tests/reference.py`. The reference shares no code with the package. The reference
# uses slow loops over positions and heads, so that each line can be compared with an equation. The script
# stops if the results differ by more than rounding errors.
#
# The script takes less than two minutes on a CPU.
#
# Capital letters in the comments of the code are the sizes of tensors. B is the number of sentences, H the
# number of heads, T the number of target or query positions, S the number of source or key positions, D is
# `d_model`, K is `d_k`, and V is the size of the vocabulary.

# %%
import inspect
import random
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import torch

import vaswani_hf
from vaswani_hf import Translator, VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.data.tokenizer_training import train_tokenizer
from vaswani_hf.model.attention_vaswani import VaswaniAttention
from vaswani_hf.model.loss_vaswani import smoothed_cross_entropy, target_probabilities
from vaswani_hf.model.masks_vaswani import self_attention_masks
from vaswani_hf.model.modeling_vaswani import (
    VaswaniDecoderLayer,
    VaswaniEncoderLayer,
    VaswaniLayer,
    VaswaniStack,
    sinusoids,
)
from vaswani_hf.model.search_strategies_vaswani import length_penalty
from vaswani_hf.optimization.schedules import learning_rate
from vaswani_hf.pictures.attention import draw_sheets, pair_attention
from vaswani_hf.pictures.equations import draw_positions, draw_schedule, draw_targets
from vaswani_hf.pictures.style import Picture, save

# The folder of tests/reference.py in a clone of the repository.
sys.path[:0] = ["tests", str(Path(vaswani_hf.__file__).parents[1] / "tests")]
from reference import Reference, score_function, sinusoid  # noqa: E402
from reference import attention as attention_by_hand  # noqa: E402

torch.set_printoptions(precision=3, linewidth=110, sci_mode=False)
FOLDER = Path(tempfile.mkdtemp(prefix="paper_"))
PICTURES: list[Path] = []


def show(code) -> None:
    """Print the lines of a function or a method."""
    print(inspect.cleandoc("\n" + inspect.getsource(code)), end="\n\n")


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Print the largest difference between the outputs of the package and of tests/reference.py. Stop if this
    difference is 1e-6 or more.
    """
    difference = (ours.detach() - theirs.detach()).abs().max().item()
    assert difference < 1e-6, difference
    print(f"shape {list(ours.shape)}, largest difference from tests/reference.py: {difference:.0e}")


def show_picture(picture: Picture) -> None:
    """Write a picture as PNG, and show the picture if the script runs as a notebook."""
    path = FOLDER / f"{picture.name}.png"
    save(picture.figure, path)
    PICTURES.append(path)
    if "IPython" in sys.modules:
        from IPython.display import Image, display

        display(Image(path))
    print(textwrap.fill(picture.caption, 95))


# %% [markdown]
# ## The sentence pair
#
# The sentences come from a small grammar. A German article depends on the gender of the next noun, and on the
# role of this noun in the sentence. A model can therefore write the correct article only if it reads the noun
# first.

# %%
NOUNS = {"dog": "Hund", "man": "Mann", "cat": "Katze", "woman": "Frau", "child": "Kind", "horse": "Pferd"}
GENDERS = {"Hund": 0, "Mann": 0, "Katze": 1, "Frau": 1, "Kind": 2, "Pferd": 2}
VERBS = {"sees": "sieht", "hears": "hört", "finds": "findet"}
SUBJECT = {"the": ["der", "die", "das"], "a": ["ein", "eine", "ein"]}
OBJECT = {"the": ["den", "die", "das"], "a": ["einen", "eine", "ein"]}


def clause(rng: random.Random) -> tuple[list[str], list[str]]:
    """Return a random sentence and its translation, as words."""
    source: list[str] = []
    target: list[str] = []
    for articles in (SUBJECT, OBJECT):
        article, noun = rng.choice(list(articles)), rng.choice(list(NOUNS))
        source += [article, noun]
        target += [articles[article][GENDERS[NOUNS[noun]]], NOUNS[noun]]
    verb = rng.choice(list(VERBS))
    return [*source[:2], verb, *source[2:]], [*target[:2], VERBS[verb], *target[2:]]


def sentence_pair(rng: random.Random) -> tuple[str, str]:
    """Return two random clauses that are joined by "and", and their translation."""
    first, second = clause(rng), clause(rng)
    return " ".join([*first[0], "and", *second[0]]), " ".join([*first[1], "und", *second[1]])


generator = random.Random(1)
pairs = [sentence_pair(generator) for _ in range(3000)]
texts = [text for pair in pairs for text in pair]
tokenizer = train_tokenizer(texts, 340)
text, translation = (
    "the dog hears a cat and the woman sees a horse",
    "der Hund hört eine Katze und die Frau sieht ein Pferd",
)
source_ids = tokenizer(text)["input_ids"]
labels = tokenizer(translation)["input_ids"]

torch.manual_seed(0)
config = VaswaniConfig(
    vocab_size=len(tokenizer),
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    dropout=0.0,
    label_smoothing=0.1,
    attn_implementation="eager",
)
# Turn off dropout, because the reference implements no dropout. The model computes in float64. The package
# and the reference differ by up to 1e-7, because the position encodings of the package are float32.
model = VaswaniForSeq2SeqLM(config).double().eval()
by_hand = Reference(model.state_dict(), config)
target_ids = [config.decoder_start_token_id, *labels[:-1]]
encoder, decoder = model.model.encoder, model.model.decoder
source, target = torch.tensor([source_ids]), torch.tensor([target_ids])
print(tokenizer.convert_ids_to_tokens(source_ids))
print(f"{model.num_parameters():,} parameters")

# %% [markdown]
# ## 3.4 Embeddings, 3.5 Positional encoding
#
# The input of the first layer is the embedding times √d_model, plus the encoding of the position:
# PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model)).

# %% tags=["source"]
show(sinusoids)
show(VaswaniStack.add_positions)

# %%
encodings = sinusoids(torch.arange(len(source_ids)), config.d_model)
print(encodings[:3, :6])
agree(encodings, torch.tensor([sinusoid(position, 64) for position in range(len(source_ids))]))

positions = torch.arange(len(source_ids))[None]
with torch.no_grad():
    embedded = encoder.add_positions(encoder.embed_tokens(source), encoder.position_states(positions))[0]
agree(embedded, by_hand.embed("model.encoder", source_ids))

# %%
show_picture(draw_positions("positions", sinusoids(torch.arange(60), 512), "The paper's d_model is 512."))

# %% [markdown]
# The dot product of two encodings depends only on the distance between the positions, because
# sin(a) sin(b) + cos(a) cos(b) = cos(a − b).

# %% [markdown]
# ## 3.2.1 Scaled dot-product attention
#
# Equation (1): Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V.

# %% tags=["source"]
show(VaswaniAttention.scores)
show(VaswaniAttention.weights)

# %% [markdown]
# The reference computes one query at a time:

# %% tags=["source"]
show(attention_by_hand)

# %%
attention = encoder.layers[0].self_attn
with torch.no_grad():
    query = attention.q_proj(embedded)[:, : attention.d_k]
    key = attention.k_proj(embedded)[:, : attention.d_k]
    value = attention.v_proj(embedded)[:, : attention.d_v]
    weights = attention.weights(query[None, None], key[None, None], None)[0, 0]
_, weights_by_hand = attention_by_hand(
    query, key, value, causal=False, score=score_function("scaled_dot", {})
)
print("the weights of the first head for the first word:", weights[0])
agree(weights, weights_by_hand)

# %% [markdown]
# Why does the paper divide by √d_k? If the components of two vectors have variance 1, the dot product of the
# vectors has variance d_k. Without the division, the attention weights of large scores are close to 0 or 1,
# and the gradient of the softmax is close to 0:

# %%
for width in (4, 64, 512):
    queries, keys = torch.randn(2, 2000, width, generator=torch.manual_seed(0))
    dots = (queries * keys).sum(dim=-1)
    print(f"d_k {width}: variance {dots.var():.1f}, after the division {(dots / width**0.5).var():.2f}")

# %% [markdown]
# ## 3.2.2 Multi-head attention
#
# MultiHead(Q, K, V) = Concat(head₁, …, headₕ) W^O. The package computes all heads of all
# sentences at once.

# %% tags=["source"]
show(VaswaniAttention.forward)

# %%
states = embedded[None]
with torch.no_grad():
    attended = attention(states, output_attentions=True)[0][0]
name = "model.encoder.layers.0.self_attn"
agree(attended, by_hand.multi_head_attention(name, 4, embedded, embedded, causal=False))

# %% [markdown]
# ## 3.2.3 Masks
#
# A decoder position attends to earlier positions and to itself. With `causal=True`, the reference ends the
# loop over the keys at the position of the query. Instead of ending a loop, the package adds a mask to the
# scores:

# %%
mask = self_attention_masks([decoder.layers[0].self_attn], torch.zeros(1, 4, 64), None)[0]
print((mask[0, 0] == 0).int())

# %% [markdown]
# ## 3.3 Feed-forward networks
#
# Equation (2): FFN(x) = max(0, x W₁ + b₁) W₂ + b₂. Each sub-layer ends with a residual connection
# and a layer normalization (Section 3.1): LayerNorm(x + Sublayer(x)).

# %% tags=["source"]
show(VaswaniLayer._feed_forward)
show(VaswaniLayer._add_and_norm)

# %%
layer = encoder.layers[0]
with torch.no_grad():
    ours = layer._feed_forward(states)[0]
prefix = "model.encoder.layers.0"
agree(
    ours,
    by_hand.residual(f"{prefix}.final_layer_norm", embedded, lambda x: by_hand.feed_forward(prefix, x)),
)

# %% [markdown]
# ## 3.1 Encoder and decoder
#
# An encoder layer has two sub-layers. A decoder layer has a third sub-layer, the attention to the source.

# %% tags=["source"]
show(VaswaniEncoderLayer.forward)
show(VaswaniDecoderLayer.forward)

# %%
with torch.no_grad():
    encoded = encoder(source).last_hidden_state[0]
    logits = model(source, decoder_input_ids=target).logits[0]
agree(encoded, by_hand.encode(source_ids))

# %% [markdown]
# ## 3.4 Softmax
#
# The output projection and the target embedding share one weight matrix. The comparison excludes the logit of
# `<pad>`, because the model must never predict `<pad>`.

# %%
kept = [token_id for token_id in range(len(tokenizer)) if token_id != config.pad_token_id]
agree(logits[:, kept], by_hand.logits(source_ids, target_ids)[:, kept])
print(f"tied weights: {model.lm_head.weight is decoder.embed_tokens.weight}")

# %% [markdown]
# ## 5.3 Learning rate
#
# Equation (3): lrate = d_model^−0.5 · min(step^−0.5, step · warmup^−1.5).

# %% tags=["source"]
show(learning_rate)

# %%
for step in (1, 1000, 4000, 16000, 100000):
    print(step, f"{learning_rate(step, d_model=512, warmup_steps=4000):.2e}")


def paper_rate(step: int) -> float:
    """The learning rate of the paper's base model."""
    return learning_rate(step, d_model=512, warmup_steps=4000)


show_picture(draw_schedule(paper_rate, 100_000, [], "paper"))

# %% [markdown]
# ## 5.4 Regularization
#
# Label smoothing gives the reference token the probability 1 − ε, and shares ε between the other
# classes (`<pad>` is one of these classes). The model applies dropout to the output of each sub-layer, and to
# the sum of embedding and position encoding: see `_add_and_norm` and `add_positions` above.

# %% tags=["source"]
show(target_probabilities)
show(smoothed_cross_entropy)

# %%
# The loss of a model in training mode has label smoothing.
loss = model.train()(source, labels=torch.tensor([labels])).loss
loss.backward()
by_autograd = Reference(model.state_dict(keep_vars=True), config)
loss_by_hand = by_autograd.loss([(source_ids, labels)], 0.1, "t2t")
(gradient_by_hand,) = torch.autograd.grad(loss_by_hand, [encoder.layers[0].fc1.weight])
print(f"loss {loss.item():.6f} nats per token, by hand {loss_by_hand.item():.6f}")
# The package computes the loss in float32, so the tolerance is 1e-5.
assert abs(loss.item() - loss_by_hand.item()) < 1e-5
difference = (encoder.layers[0].fc1.weight.grad - gradient_by_hand).abs().max().item()
print(f"largest difference of a gradient: {difference:.0e}")
assert difference < 1e-6

# %%
show_picture(draw_targets(0.1, "t2t"))

# %% [markdown]
# ## 5 Training
#
# A model of this size learns the grammar in a few hundred training steps. The optimizer is Adam with the
# paper's β₁ = 0.9, β₂ = 0.98 and ε = 10⁻⁹.

# %%
torch.manual_seed(0)
small = VaswaniForSeq2SeqLM(config).train()
optimizer = torch.optim.Adam(small.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
STEPS, WARMUP = 250, 100
for step in range(1, STEPS + 1):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, config.d_model, WARMUP, factor=0.4)
    batch = generator.sample(pairs, 32)
    inputs = tokenizer([pair[0] for pair in batch], return_tensors="pt", padding=True)
    outputs = tokenizer([pair[1] for pair in batch], return_tensors="pt", padding=True)["input_ids"]
    outputs[outputs == config.pad_token_id] = -100
    loss = small(**inputs, labels=outputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

translator = Translator(small.eval(), tokenizer, tokenizer)
unseen = [sentence_pair(generator) for _ in range(100)]
found = list(translator.translate([pair[0] for pair in unseen], num_beams=1))
correct = sum(line == pair[1] for line, pair in zip(found, unseen, strict=True))
print(f"{correct} of {len(unseen)} new sentences are translated correctly")
print(next(iter(translator.translate([text]))))

# %% [markdown]
# ## 6.1 Beam search
#
# The paper uses 4 beams, a length penalty with α = 0.6, and outputs of at most 50 tokens more than the input.
# Equation (14) of Wu et al. 2016 defines the length penalty ((5 + length) / 6)^α.

# %% tags=["source"]
show(length_penalty)

# %%
(best,) = translator.translate(
    [text], num_beams=4, num_return_sequences=3, length_penalty=0.6, length_penalty_type="gnmt"
)
for result in (best, *best.alternatives):
    length = len(result.token_log_probs)
    assert abs(result.score - result.log_prob / ((5 + length) / 6) ** 0.6) < 1e-5
    print(f"{result.score:8.4f} = {result.log_prob:.4f} / ((5 + {length}) / 6)^0.6   {result.text}")

# %% [markdown]
# ## Attention visualizations
#
# The two pictures show the attention weights of all heads of the last layer for the sentence pair. The first
# picture shows the encoder, and the second picture the cross-attention. The label of a row in the second
# picture is the token that the decoder predicts at this position. An article depends on the gender of the
# noun, so some heads may attend to the noun at the position that predicts the article.
#
# The command `vaswani figures CHECKPOINT OUTPUT` draws the pictures of this page for a trained checkpoint,
# and the pictures of Figures 3 to 5 of the paper: [Pictures of a checkpoint](../how_to/figures.md).

# %%
weights_of_pair = pair_attention(translator, text, translation)
encoder_sheet, _, cross_sheet = draw_sheets(weights_of_pair, layer=None)
show_picture(encoder_sheet)
show_picture(cross_sheet)

# %% [markdown]
# ## Differs from the paper
#
# Many implementations differ from the paper. For each difference, the following table names the field of
# `VaswaniConfig`. The table also shows the number of parameters of a model that has the difference, and the
# largest change of a log-probability on the sentence pair. Each model with a difference starts from the
# trained weights of Section 5. Weights that the trained model does not have keep their initial values.

# %%
DIFFERENCES: list[tuple[str, dict[str, Any]]] = [
    ("LayerNorm before the sub-layers (most models since 2019)", {"norm_position": "pre"}),
    ("LayerNorm at the end of a post-norm stack (torch.nn.Transformer)", {"final_norm": True}),
    (
        "largest timescale exactly 10000 (tensor2tensor, Marian, fairseq)",
        {"position_timescales": "tensor2tensor"},
    ),
    ("positions counted from 2 (fairseq)", {"position_offset": 2}),
    ("learned positions (Table 3, row E)", {"position_embedding": "learned", "max_position_embeddings": 64}),
    ("embeddings not multiplied by sqrt(d_model)", {"scale_embedding": False}),
    ("separate source and target embeddings", {"share_encoder_decoder_embeddings": False}),
    ("output projection not tied", {"tie_word_embeddings": False}),
    ("biases of the attention projections (torch, fairseq, BERT)", {"attention_bias": True}),
    ("scores not divided by sqrt(d_k)", {"attention_score": "dot"}),
    ("GELU in place of ReLU (BERT, GPT)", {"activation_function": "gelu"}),
    ("epsilon of LayerNorm 1e-6 (tensor2tensor)", {"layer_norm_eps": 1e-6}),
]


def log_probs_of(other: VaswaniForSeq2SeqLM) -> torch.Tensor:
    """Return the log-probabilities [T, V] of a model on the sentence pair."""
    with torch.no_grad():
        return other(source, decoder_input_ids=target).logits[0].float().log_softmax(dim=-1)


trained_weights = small.state_dict()
baseline = log_probs_of(small)
print(f"{'difference':<67} {'parameters':>10} {'change':>7}  field")
print(f"{'none: the paper':<67} {small.num_parameters():>10,} {0:>7.3f}")
for difference_name, fields in DIFFERENCES:
    torch.manual_seed(0)
    other = VaswaniForSeq2SeqLM(VaswaniConfig(**config.to_diff_dict() | fields)).eval()
    other.load_state_dict(trained_weights, strict=False)
    change = (log_probs_of(other) - baseline)[:, kept].abs().max().item()
    print(f"{difference_name:<67} {other.num_parameters():>10,} {change:>7.3f}  {fields}")

# %% [markdown]
# The following differences change only the training. Some implementations also have dropout after the softmax
# of the attention and after the ReLU (`attention_dropout`, `activation_dropout`). Some implementations leave
# out the paper's dropout on the sum of embedding and position encoding. In this package, the field `dropout`
# sets the probability of the dropout on the sum of embedding and position encoding, and on the outputs of the
# sub-layers. PyTorch's label smoothing shares ε between all classes, including the reference token
# (`label_smoothing_form: torch`).

# %%
DROPOUTS = [{"dropout": 0.0}, {"dropout": 0.1}, {"dropout": 0.1, "attention_dropout": 0.1}]
for probabilities in DROPOUTS:
    other = VaswaniForSeq2SeqLM(VaswaniConfig(**config.to_diff_dict() | probabilities)).train()
    other.load_state_dict(trained_weights)
    torch.manual_seed(0)
    runs = torch.stack([log_probs_of(other)[:, kept] for _ in range(20)])
    print(
        f"{probabilities}: standard deviation of a log-probability between forward passes {runs.std(dim=0).mean():.3f}"
    )
for form in ("t2t", "torch"):
    gold, other_class = target_probabilities(0.1, form, 10)
    print(
        f"label_smoothing_form={form}, 10 classes: {gold:.3f} for the reference token, {other_class:.4f} "
        "for each other class"
    )

# %% [markdown]
# One difference has no effect: tensor2tensor writes all sines in the first half of an encoding and all
# cosines in the second half. The order of the sines and cosines does not change the dot products of
# encodings. If the weights are reordered in the same way, the outputs of the model do not change either.
# `vaswani import` reorders the weights of models with the order of tensor2tensor.

# %%
halves = torch.cat([encodings[:, 0::2], encodings[:, 1::2]], dim=1)
print((halves @ halves.T - encodings @ encodings.T).abs().max() < 1e-4)
print(f"pictures: {', '.join(path.name for path in PICTURES)} in {FOLDER}")
