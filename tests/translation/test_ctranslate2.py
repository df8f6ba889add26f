"""`--engine ctranslate2`: the same options and the same output as the search of this package."""

import json
from dataclasses import replace

import pytest
import torch

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.checkpoint.tokenizers import save_tokenizers
from vaswani_hf.cli import main
from vaswani_hf.data.tokenizer_training import train_tokenizer
from vaswani_hf.translation.translator import Request, TranslationOptions, Translator

pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install vaswani_hf[ctranslate2]")


from vaswani_hf.convert.export import export
from vaswani_hf.translation.ctranslate2 import CTranslate2Backend, load_ctranslate2_translator

LINES = ["one two three", "", "five four", "three three two one", "two\u2028five", "four"]


@pytest.fixture(scope="module")
def folders(tiny_config, tmp_path_factory):
    """A checkpoint whose translations end and are not certain, and the folder that is exported from it."""
    folder = tmp_path_factory.mktemp("engine")
    tokenizer = train_tokenizer(["one two three four five eins zwei drei vier fünf"] * 4, vocab_size=300)
    torch.manual_seed(8)
    model = VaswaniForSeq2SeqLM(tiny_config(vocab_size=len(tokenizer))).eval()
    with torch.no_grad():
        model.lm_head.weight[model.config.eos_token_id] += 0.2
        model.lm_head.weight.mul_(3)
    for name, value in {
        "num_beams": 4,
        "length_penalty_type": "gnmt",
        "length_penalty": 0.6,
        "max_length_b": 12,
    }.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder / "checkpoint")
    save_tokenizers(tokenizer, tokenizer, folder / "checkpoint")
    export(folder / "checkpoint", folder / "exported", "ctranslate2")
    return str(folder / "checkpoint"), str(folder / "exported")


def both(folders, **options):
    ours, theirs = Translator.from_pretrained(folders[0], "cpu"), load_ctranslate2_translator(folders[1], "cpu")
    return list(ours.translate(LINES, **options)), list(theirs.translate(LINES, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 2, "window": 2},
        {"num_beams": 1},
        {"split_sentences": True, "length_penalty_type": "power", "early_stopping": "never"},
        {"target_prefixes": ["eins", None, "zwei", None, None, None]},
        {"repetition_guard": True, "max_new_tokens": 5},
    ],
    ids=str,
)
def test_translations_are_the_same(folders, options):
    ours, theirs = both(folders, **options)
    assert theirs == ours
    assert ours[1] == "" and len(set(ours)) > 2


def test_scores_words_and_alternatives_are_the_same(folders):
    ours, theirs = both(folders, return_scores=True, return_alignments=True, num_return_sequences=2)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip([mine, *(mine.alternatives or [])], [other, *(other.alternatives or [])], strict=True):
            assert (a.text, a.tokens) == (b.text, b.tokens)
            assert b.score == pytest.approx(a.score, abs=1e-4) and b.confidence == pytest.approx(
                a.confidence, abs=1e-4
            )
            assert b.token_log_probs == pytest.approx(a.token_log_probs, abs=1e-4)
            assert [word.word for word in a.words] == [word.word for word in b.words]
            # CTranslate2 aligns by one layer and we by two: as many pairs, not the same ones.
            assert len(a.alignment.split()) == len(b.alignment.split())


def test_the_command_line_gives_the_same_lines(folders, tmp_path, capfdbinary):
    source = tmp_path / "in.txt"
    source.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    outputs = []
    for engine, folder in zip(("torch", "ctranslate2"), folders, strict=True):
        assert main(["translate", folder, "--engine", engine, "--input", str(source), "--json"]) == 0
        outputs.append([json.loads(line)["text"] for line in capfdbinary.readouterr().out.split(b"\n")[:-1]])
    assert outputs[0] == outputs[1] and len(outputs[0]) == len(LINES)


def test_a_seed_draws_the_same_with_any_number_of_threads_and_from_any_window(folders):
    settings = {"do_sample": True, "num_beams": 1, "top_k": 20, "temperature": 2.0}
    options = TranslationOptions.of(window=10, seed=5, tokens_per_batch=40, **settings)
    requests = [Request(f"{one} {other}") for one in LINES[2:] for other in LINES[2:]]

    def drawn(num_threads: int, first: int, options: TranslationOptions) -> list[str]:
        backend = CTranslate2Backend(folders[1], "cpu", num_threads)
        translator = Translator(backend, backend.source_tokenizer, backend.target_tokenizer)
        return list(translator.translate_requests(requests[first:], options, first + 1))

    whole = drawn(1, 0, options)
    assert drawn(3, 0, options) == whole
    assert drawn(2, 10, options) == whole[10:]
    assert drawn(1, 0, replace(options, seed=6)) != whole
    # The largest seed asks CTranslate2 for one by chance.
    largest = replace(options, seed=2**32 - 1 - 1)
    assert drawn(1, 0, largest) == drawn(1, 0, largest)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--stream", "--text", "one"], b"`--stream` must come without `--engine ctranslate2`"),
        (["--ensemble", "x", "--text", "one"], b"`ensemble` must be left out with the engine ctranslate2"),
        (["--max_length_a", "-1", "--text", "one"], b"`max_length_a` must be a number of 0 or more"),
    ],
)
def test_what_it_cannot_is_one_sentence(folders, capfdbinary, words, sentence):
    assert main(["translate", folders[1], "--engine", "ctranslate2", *words]) == 1
    errors = capfdbinary.readouterr().err
    assert sentence in errors and errors.count(b"\n") == 1


def test_phrases_are_refused(folders):
    engine = load_ctranslate2_translator(folders[1], "cpu")
    with pytest.raises(ValueError, match="`must_contain` must be left out with the engine ctranslate2"):
        list(engine.translate(["one"], must_contain=[["eins"]]))


def test_a_checkpoint_that_was_not_exported_is_named(folders, capfdbinary):
    assert main(["translate", folders[0], "--engine", "ctranslate2", "--text", "one"]) == 1
    assert b"must be a folder that `vaswani export --format ctranslate2` wrote" in capfdbinary.readouterr().err
