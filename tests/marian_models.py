"""A MarianMT checkpoint of transformers in the form of OPUS-MT models: two SentencePiece models and
`vocab.json`.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from factories import stacks
from shared_weights import train_once
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from vaswani_hf.data.toy_corpora import english_words, german_words

TAGS = (">>deu<<", ">>nld<<")
# Texts with characters that the SentencePiece models do not contain, and with other forms of known
# characters.
RARE_TEXTS = (
    "",
    " ",
    "  two   spaces  ",
    "\ttab\nnew line",
    "one\u00a0two\u3000three",
    "\u200bzero\u200b width",
    "Ärger, naïve: 3.14 €!",
    "cafe\u0301 Tie\u0302\u0301ng",
    "ﬁve ½ x² №",
    "日本語 и русский",
    "да д日 дд рус русд",
    "👩\u200d👩\u200d👧 one",
    "▁one a ▁ b",
    "“two” — three’s … (four)",
    ">>deu<< one two",
    ">>deu<<one",
    "Ⅷ ⁸ İ ẞ ǆ",
)


def digit_pairs(num_pairs: int, seed: int) -> list[dict[str, str]]:
    """Sequences of one to six numbers below 20 in English words and in German words."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(num_pairs):
        numbers = [rng.randrange(20) for _ in range(rng.randint(1, 6))]
        source, target = (" ".join(map(words, numbers)) for words in (english_words, german_words))
        pairs.append({"source": source, "target": target})
    return pairs


def write_sentencepiece(texts: list[str], path: Path, vocab_size: int = 120, **options) -> list[str]:
    """Train a SentencePiece model on these texts, write the model, and return the pieces without special
    pieces.
    """
    import sentencepiece

    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
    model = sentencepiece.SentencePieceProcessor(str(path))
    pieces = [model.id_to_piece(number) for number in range(len(model))]
    return [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]


def write_marian_tokenizer(
    folder: Path, pairs: list[dict[str, str]], separate: bool = False, tags: Sequence[str] = TAGS
) -> MarianTokenizer:
    """Write `source.spm`, `target.spm` and the vocabularies. The ids are in another order than the pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = []
    for side in ("source", "target"):
        texts = [pair[side] for pair in pairs]
        pieces.append(write_sentencepiece(texts, folder / f"{side}.spm"))
    rare = ["д", "рус", "日本"]
    if separate:
        # Both vocabularies have the same size, because `<pad>` has the same id in both.
        others = [f"<other {number}>" for number in range(len(pieces[1]) - len(pieces[0]))]
        _write_vocabulary(folder / "vocab.json", pieces[0] + others, tags)
        others = [f"<other {number}>" for number in range(len(pieces[0]) - len(pieces[1]))]
        _write_vocabulary(folder / "target_vocab.json", pieces[1] + others, tags)
    else:
        _write_vocabulary(folder / "vocab.json", pieces[0] + pieces[1] + rare, tags)
    settings = {"source_lang": "eng", "target_lang": "deu", "separate_vocabs": separate}
    settings |= {"tokenizer_class": "MarianTokenizer", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return MarianTokenizer.from_pretrained(folder)


def _write_vocabulary(path: Path, pieces: list[str], tags: Sequence[str]) -> None:
    pieces = sorted(set(pieces))
    random.Random(0).shuffle(pieces)
    tokens = ["</s>", "<unk>", *pieces, *tags, "<pad>"]
    path.write_text(json.dumps({token: number for number, token in enumerate(tokens)}, ensure_ascii=False))


def marian_config(vocab_size: int, decoder_vocab_size: int | None = None, **fields) -> MarianConfig:
    """The config of a small OPUS-MT model."""
    last = (decoder_vocab_size or vocab_size) - 1
    sizes = stacks(layers=2, attention_heads=4, ffn_dim=64)
    return MarianConfig(
        **{
            "vocab_size": vocab_size,
            "decoder_vocab_size": decoder_vocab_size,
            "share_encoder_decoder_embeddings": decoder_vocab_size is None,
            "d_model": 32,
            **sizes,
            "activation_function": "swish",
            "scale_embedding": True,
            "max_position_embeddings": 512,
            "eos_token_id": 0,
            "bos_token_id": None,
            "pad_token_id": last,
            "decoder_start_token_id": last,
            "forced_eos_token_id": 0,
            **fields,
        }
    )


def random_marian(config: MarianConfig) -> MarianMTModel:
    """A MarianMT model with random weights. The embedding of `<pad>` is zero, as in OPUS-MT models."""
    torch.manual_seed(0)
    model = MarianMTModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for stack in (model.get_encoder(), model.get_decoder()):
            stack.embed_tokens.weight[min(config.pad_token_id, stack.embed_tokens.num_embeddings - 1)] = 0
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, config.pad_token_id] = 0
    return model.eval()


def train_marian(folder: Path, tags: Sequence[str] = TAGS, steps: int = 400) -> None:
    """Train a small MarianMT model on number words, and write it to a folder, with tokenizers. Models with
    equally many tags have the same weights, because the training texts contain no tags.
    """
    pairs = digit_pairs(2000, seed=0)
    tokenizer = write_marian_tokenizer(folder, pairs, tags=tags)
    torch.manual_seed(0)
    model = MarianMTModel(marian_config(len(tokenizer), dropout=0.0))
    # Train the bias, because random output biases would hide an import without the bias.
    model.final_logits_bias = torch.nn.Parameter(0.1 * torch.randn(1, len(tokenizer)))
    train_once(model, lambda: _train(model, tokenizer, pairs, steps), ("marian", len(tokenizer), steps))
    bias = model.final_logits_bias.detach().clone()
    del model.final_logits_bias
    model.register_buffer("final_logits_bias", bias)
    model.generation_config = GenerationConfig(
        num_beams=4,
        max_length=512,
        bad_words_ids=[[tokenizer.pad_token_id]],
        forced_eos_token_id=0,
        eos_token_id=0,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model.eval().save_pretrained(folder)


def _train(model: MarianMTModel, tokenizer: MarianTokenizer, pairs: list[dict[str, str]], steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    # Encode all pairs once, because this tokenizer is slow.
    encoded = tokenizer(
        [pair["source"] for pair in pairs],
        text_target=[pair["target"] for pair in pairs],
        return_tensors="pt",
        padding=True,
    )
    encoded["labels"][encoded["labels"] == tokenizer.pad_token_id] = -100
    for step in range(steps):
        chosen = random.Random(step).sample(range(len(pairs)), 32)
        batch = {name: tensor[chosen] for name, tensor in encoded.items()}
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 30, (steps - step) / 50)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            # Marian starts the decoder from zeros, so the embedding of `<pad>` stays zero.
            model.model.shared.weight[tokenizer.pad_token_id] = 0
        optimizer.zero_grad()
