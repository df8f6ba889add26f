"""Translating streams: order, windows, empty and over-long lines, limits of length; scoring; the command line."""

import io
import json
import subprocess
import sys

import pytest
import sacrebleu
import torch
from transformers import set_seed

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.cli import main
from vaswani_hf.evaluation import evaluate_translator, negative_log_likelihood, perplexity
from vaswani_hf.tokenization import save_tokenizers, train_tokenizer
from vaswani_hf.translation import Translator, batches_by_length

LINES = ["one two three", "", "four five three two one four five three", "two", "   ", "three one"]


@pytest.fixture(scope="module")
def translator():
    set_seed(0)
    tokenizer = train_tokenizer(["one two three four five", "eins zwei drei vier"], 280, model_max_length=40)
    config = VaswaniConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        # A tied random model repeats its input token.
        tie_word_embeddings=False,
    )
    model = VaswaniForSeq2SeqLM(config).eval()
    # The source decides more than in other random models, so that translations differ.
    with torch.no_grad():
        model.model.decoder.layers[0].encoder_attn.out_proj.weight.mul_(10)
    return Translator(model, tokenizer, tokenizer)


@pytest.fixture(scope="module")
def checkpoint(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    translator.model.save_pretrained(folder)
    save_tokenizers(translator.source_tokenizer, translator.target_tokenizer, folder)
    return str(folder)


def alone(translator, line):
    inputs = translator.source_tokenizer(line, return_tensors="pt")
    output = translator.model.generate(**inputs, max_new_tokens=8)
    return " ".join(translator.target_tokenizer.decode(output[0], skip_special_tokens=True).split("\n"))


def test_each_line_is_translated_as_if_it_were_alone_and_in_order(translator):
    expected = [alone(translator, line) if line.strip() else "" for line in LINES]
    assert len(set(expected)) > 2
    for window, budget in ((1, 4096), (2, 20), (100, 50), (100, 4096)):
        assert list(translator.translate(LINES, window=window, tokens_per_batch=budget, max_new_tokens=8)) == expected


def test_no_more_lines_are_read_than_the_window_holds(translator):
    read = []
    translations = translator.translate((read.append(line) or line for line in LINES), window=2, max_new_tokens=2)
    next(translations)
    assert len(read) == 2


def test_a_line_that_is_too_long_is_translated_in_pieces_cut_between_words(translator, caplog):
    line = " ".join(["three", "four"] * 40)
    pieces = translator._pieces(line, 7)
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= translator.max_length == 40
    decode = translator.source_tokenizer.decode
    assert "".join(" " + decode(piece, skip_special_tokens=True) for piece in pieces).split() == line.split()
    with caplog.at_level("WARNING"):
        translation = list(translator.translate([line, "one"], max_new_tokens=4))
    assert len(translation) == 2
    assert translation[0] == " ".join(
        translator._generate([piece], {"max_new_tokens": 4})[0].replace("\n", " ") for piece in pieces
    )


def test_a_word_longer_than_a_piece_is_cut_as_well(translator):
    pieces = translator._pieces("x" * 500, 1)
    assert max(map(len, pieces)) == 40
    assert sum(len(piece) - 1 for piece in pieces) == len(translator.source_tokenizer("x" * 500)["input_ids"]) - 1


def test_length_is_limited_by_the_input_unless_someone_says_otherwise(translator):
    ids = torch.zeros(1, 7, dtype=torch.long)
    assert translator._length_limit(ids, {}) == {"max_new_tokens": 57}
    assert translator._length_limit(ids, {"max_length": 3}) == {"max_length": 3}
    translator.model.generation_config.max_length = 9
    assert translator._length_limit(ids, {}) == {}
    output = translator.model.generate(
        ids, **translator._length_limit(ids, {"max_new_tokens": 12, "eos_token_id": 279})
    )
    translator.model.generation_config.max_length = None
    assert output.shape == (1, 13)


def test_batches_hold_each_piece_once_within_the_budget():
    pieces = [[0] * length for length in (3, 9, 1, 4, 4, 20)]
    batches = list(batches_by_length(pieces, 10))
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    assert batches[0] == [5]
    assert all(len(b) == 1 or len(b) * max(len(pieces[i]) for i in b) <= 10 for b in batches)


def test_scores_are_sacrebleu_s_and_the_perplexity_is_per_token(translator):
    sources, references = ["one two", "three"], ["eins zwei", "drei "]
    results = evaluate_translator(translator, sources, references, max_new_tokens=5)
    expected = sacrebleu.BLEU().corpus_score(results["translations"], [["eins zwei", "drei"]])
    assert results["bleu"] == pytest.approx(expected.score)
    nats = tokens = 0
    for source, target in zip(sources, references, strict=True):
        inputs = translator.source_tokenizer(source, return_tensors="pt")
        labels = translator.target_tokenizer(text_target=target.strip(), return_tensors="pt")["input_ids"]
        nats += translator.model(**inputs, labels=labels).loss.item() * labels.numel()
        tokens += labels.numel()
    assert results["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert results["perplexity"] == pytest.approx(perplexity(nats / tokens), rel=1e-5)


def test_the_likelihood_is_neither_smoothed_nor_dropped_out_and_leaves_the_mode_alone(translator):
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 8, 2, -100]])}
    expected = translator.model(**batch).loss.item() * 3
    translator.model.config.label_smoothing = 0.5
    translator.model.train()
    assert negative_log_likelihood(translator.model, [batch]) == (pytest.approx(expected, rel=1e-6), 3)
    assert translator.model.training
    translator.model.eval()
    translator.model.config.label_smoothing = 0.0


def run_main(monkeypatch, capfdbinary, argv, stdin=b""):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    code = main(argv)
    sys.stdout.flush()
    out, errors = capfdbinary.readouterr()
    return code, out.decode(), errors.decode()


def test_translate_reads_standard_input_and_keeps_odd_characters_in_their_line(monkeypatch, capfdbinary, checkpoint):
    stdin = "one\u2028two\n\nthree\r\nfour".encode() + b" \xff\n"
    code, out, errors = run_main(
        monkeypatch, capfdbinary, ["translate", checkpoint, "--max_new_tokens", "3", "--device", "cpu"], stdin
    )
    assert code == 0
    assert len(out.split("\n")) == 5
    assert out.split("\n")[1] == ""


def test_translate_one_text(monkeypatch, capfdbinary, checkpoint, translator):
    argv = ["translate", checkpoint, "--text", "one two three", "--max_new_tokens", "8", "--device", "cpu"]
    assert run_main(monkeypatch, capfdbinary, argv)[1] == alone(translator, "one two three") + "\n"


def test_evaluate_prints_signatures_or_json(monkeypatch, capfdbinary, checkpoint, tmp_path):
    (tmp_path / "s").write_text("one two\nthree\n")
    (tmp_path / "r").write_text("eins zwei\ndrei\n")
    files = ["--source", str(tmp_path / "s"), "--reference", str(tmp_path / "r"), "--max_new_tokens", "4"]
    code, out, _ = run_main(monkeypatch, capfdbinary, ["evaluate", checkpoint, *files, "--lowercase"])
    assert code == 0
    assert "case:lc|eff:no|tok:13a" in out and "sentences/s" in out
    options = ["--json", "--tokenize", "none", "--output", str(tmp_path / "o")]
    code, out, _ = run_main(monkeypatch, capfdbinary, ["evaluate", checkpoint, *files, *options])
    assert "tok:none" in json.loads(out)["bleu_signature"]
    assert len((tmp_path / "o").read_text().split("\n")) == 3


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["train", "no.yaml"], "The recipe 'no.yaml' cannot be read: No such file or directory."),
        (["train", "configuration/numbers.yaml", "--max_stepz", "3"], "the nearest key is `--max_steps`."),
        (["evaluate", "nowhere", "--source", "no.en", "--reference", "no.de"], "no.en"),
        (["translate", "./nowhere", "--text", "x"], "./nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_an_exit_code(monkeypatch, capfdbinary, argv, expected):
    code, out, errors = run_main(monkeypatch, capfdbinary, argv)
    assert code == 1
    assert out == ""
    last = errors.strip().split("\n")[-1]
    assert last.startswith("vaswani: ") and expected in last
    assert "Traceback" not in errors


def test_misaligned_evaluation_names_both_files_and_counts(monkeypatch, capfdbinary, checkpoint, tmp_path):
    (tmp_path / "s").write_text("one\ntwo\n")
    (tmp_path / "r").write_text("eins\n")
    files = ["--source", str(tmp_path / "s"), "--reference", str(tmp_path / "r")]
    code, _, errors = run_main(monkeypatch, capfdbinary, ["evaluate", checkpoint, *files])
    assert code == 1
    expected = f"vaswani: {tmp_path / 's'} and {tmp_path / 'r'} must have equally many lines, but have 2 and 1."
    assert errors.strip().split("\n")[-1] == expected


def test_a_reader_that_has_enough_gets_no_traceback(checkpoint):
    process = subprocess.run(
        f"yes one | head -3000 | {sys.executable} -m vaswani_hf.cli translate {checkpoint} --window 10 "
        "--max_new_tokens 2 | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.stdout.count("\n") == 1
    assert "Traceback" not in process.stderr and "BrokenPipe" not in process.stderr
