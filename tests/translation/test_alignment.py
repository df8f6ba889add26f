"""The words of a translation's tokens, for tokenizers of all kinds, and how much work it is to find them."""

import os
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vaswani_hf.data.tokenizer_training import train_tokenizer
from vaswani_hf.model.text_rules_vaswani import target_word_indices, words_at


def slow_word_indices(token_ids, tokenizer):
    """As `target_word_indices`, but every beginning is decoded as a whole."""
    text, special = tokenizer.decode(token_ids, skip_special_tokens=True), set(tokenizer.all_special_ids)
    begun = [tokenizer.decode(token_ids[:i], skip_special_tokens=True) for i in range(len(token_ids))]
    starts = [len(os.path.commonprefix([text, beginning])) for beginning in begun]
    own = [-1 if i in special else start for i, start in zip(token_ids, starts, strict=True)]
    return text.split(), words_at(text, own)


def tokenizers_of_all_kinds():
    text = ["Łódź und 日本 größer. Mr. Öl, 100 % (ja!) x\ty", "zwei drei vier zweiundzwanzig"] * 20
    kinds = {
        "metaspace": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer, pre_tokenizers.Metaspace(), decoders.Metaspace()),
        "unigram": (models.Unigram(), trainers.UnigramTrainer, pre_tokenizers.Metaspace(), decoders.Metaspace()),
        "wordpiece": (
            models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer, pre_tokenizers.Whitespace(), decoders.WordPiece()
        ),
    }  # fmt: skip
    yield pytest.param(train_tokenizer(text, 280), id="bytes")
    for name, (model, trainer, pre_tokenizer, decoder) in kinds.items():
        backend = Tokenizer(model)
        backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
        known = {"unk_token": "<unk>"} if name == "unigram" else {}
        backend.train_from_iterator(text, trainer(vocab_size=90, special_tokens=["</s>", "<unk>"], **known))
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
        yield pytest.param(fast, id=name)


@pytest.mark.parametrize("tokenizer", list(tokenizers_of_all_kinds()))
def test_words_of_any_tokens_are_found_in_linear_time(tokenizer, monkeypatch):
    generator = random.Random(1)
    sequences = [generator.choices(range(len(tokenizer)), k=generator.randrange(1, 40)) for _ in range(100)]
    for token_ids in sequences:
        assert target_word_indices(token_ids, tokenizer) == slow_word_indices(token_ids, tokenizer)
    decoded, decode = [], tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda ids, **kwargs: decoded.append(len(ids)) or decode(ids, **kwargs)
    )
    text = " ".join(["zwei drei größer"] * 100)
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert target_word_indices(token_ids, tokenizer)[0] == text.split()
    assert sum(decoded) < 12 * len(token_ids)
