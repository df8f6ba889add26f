"""The attention weights that the pictures show."""

import pytest
import torch
from factories import save_checkpoint, tiny_model, tiny_tokenizer

from vaswani_hf.checkpoint.results import ExampleRecord
from vaswani_hf.pictures import style
from vaswani_hf.pictures.attention import attention_picture, pair_attention, read_tokens, word_weights
from vaswani_hf.training import run_results


def test_weights_are_those_of_the_model(copier, monkeypatch):
    """The weights are those of `output_attentions`, with the start token before the translation."""
    text = "der Hund läuft über die Straße"
    # The decoder of this model starts with `bos_token_id`.
    monkeypatch.setattr(copier.model.config, "decoder_start_token_id", None)
    attention = pair_attention(copier, text, text)
    ids = copier.source_tokenizer(text)["input_ids"]
    start_id = copier.model.config.bos_token_id
    with torch.no_grad():
        outputs = copier.model(
            torch.tensor([ids]),
            decoder_input_ids=torch.tensor([[start_id, *ids[:-1]]]),
            output_attentions=True,
        )
    torch.testing.assert_close(attention.encoder, torch.cat(outputs.encoder_attentions))
    torch.testing.assert_close(attention.decoder, torch.cat(outputs.decoder_attentions))
    torch.testing.assert_close(attention.cross, torch.cat(outputs.cross_attentions))
    assert attention.decoder_inputs == ["<s>", *attention.target.texts[:-1]]


def test_words_of_tokens(copier):
    """A word consists of all its tokens. Punctuation marks and special tokens are words."""
    tokens = read_tokens("eins zwei, größer!", copier.source_tokenizer)
    assert tokens.words == ["eins", "zwei", ",", "größer", "!", "</s>"]
    of_word = [""] * len(tokens.words)
    for word, text in zip(tokens.word_of_token, tokens.texts, strict=True):
        of_word[word] += text
    assert [text.strip() for text in of_word if "\\x" not in text] == [
        word for word, text in zip(tokens.words, of_word, strict=True) if "\\x" not in text
    ]


def test_weights_of_words(copier):
    """A row of weights between words adds up to 1, and a key word has the weights of all its tokens."""
    text = "größer, der Hund"
    attention = pair_attention(copier, text, text)
    tokens = attention.source
    weights = word_weights(attention.encoder, tokens, tokens)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    first = [index for index, word in enumerate(tokens.word_of_token) if word == 0]
    expected = attention.encoder[..., first, :][..., first].sum(dim=-1).mean(dim=-1)
    torch.testing.assert_close(weights[..., 0, 0], expected)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_picture(copier, tmp_path, suffix):
    """The picture of a translation is a file in the format of its suffix."""
    path = tmp_path / f"attention.{suffix}"
    translation = attention_picture(copier, "der Hund kostet $ 3. $", path)
    assert translation
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


@pytest.mark.filterwarnings("error")
def test_characters_that_the_font_lacks(tmp_path, caplog, monkeypatch):
    """One sentence names the remedy for boxes in place of characters."""
    monkeypatch.setattr(style.logger, "warning_once", style.logger.warning)
    figure = style.new_figure(2, 2)
    figure.text(0, 0, "漢字")
    style.save(figure, tmp_path / "x.svg")
    (record,) = caplog.records
    assert record.message.startswith("Pictures show boxes in place of some characters")


def test_empty_text(copier, tmp_path):
    """An empty text is an error."""
    with pytest.raises(ValueError, match="`text` must contain a word, but is"):
        attention_picture(copier, " ", tmp_path / "attention.png")


def test_a_run_draws_the_first_example_that_can_be_drawn(tmp_path, monkeypatch):
    """A text without words, and a text that is longer than the position table, are no error."""
    monkeypatch.setattr(run_results, "attention_picture", attention_picture)
    tokenizer = tiny_tokenizer()
    model = tiny_model(vocab_size=280, position_embedding="learned", max_position_embeddings=8)
    model.generation_config.max_length = 4
    save_checkpoint(tmp_path, model, tokenizer)
    impossible = ["?", "one two three " * 8]
    for texts in (impossible, [*impossible, "one"]):
        examples = [ExampleRecord(source=text, output="", confidence=1.0) for text in texts]
        run_results.draw_attention(tmp_path, examples)
        assert (tmp_path / "attention.png").exists() == ("one" in texts)
