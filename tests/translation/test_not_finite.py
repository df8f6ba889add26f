"""If logits are NaN or infinite, an error of one sentence names the text, and other texts are not
affected.
"""

import copy
import pickle
import re
import types

import pytest
import torch
from factories import tiny_tokenizer
from search_models import EOS, OTHER_VOCABULARY, PREFIXES, SCORED, SOURCES, batch_of, translator
from transformers import T5Config, T5ForConditionalGeneration, TextStreamer, pipeline

from vaswani_hf.evaluation.evaluate import evaluate
from vaswani_hf.model import fast_path_vaswani
from vaswani_hf.model.search_errors_vaswani import NotFiniteError
from vaswani_hf.translation.translator import Translator

# Only the second of three sentences contains the damaged token.
BROKEN_TOKEN = SOURCES[1][0]
THREE = [SOURCES[2], SOURCES[1], SOURCES[4]]
SEARCHES = {
    "greedy": {"num_beams": 1},
    "the paper's": {"num_beams": 4, "length_penalty_type": "gnmt", "coverage_penalty": 0.2},
    "draws of beams": {"num_beams": 2, "do_sample": True},
    "draws of few tokens": {"num_beams": 1, "do_sample": True, "num_return_sequences": 2, "top_k": 3},
    "phrases": {"num_beams": 2, "must_contain": [[[7]], [[8, 9]], []]},
    "ensemble": {"num_beams": 2, "ensemble": True},
    "outputs": {"num_beams": 2, **SCORED},
    "processors": {"num_beams": 2, "no_repeat_ngram_size": 2},
}
searches = pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)


@pytest.fixture(scope="module")
def healthy():
    """A model with a separate source vocabulary, which the tests do not change."""
    return translator(**OTHER_VOCABULARY)


@pytest.fixture(scope="module")
def broken(healthy):
    """The model `healthy` with a damaged embedding of one source token."""
    model = copy.deepcopy(healthy)
    model.get_encoder().embed_tokens.weight[BROKEN_TOKEN] = torch.nan
    return model


def generated(model, sources, options, **more):
    options = {"max_new_tokens": 6, **options, **more}
    if options.get("ensemble") is True:
        options["ensemble"] = [model]
    return model.generate(**batch_of(sources), **options)


@searches
@pytest.mark.parametrize("as_on_a_gpu", [False, True], ids=["at once", "late"])
def test_every_search_names_the_broken_sentence_only(broken, options, as_on_a_gpu, monkeypatch):
    if as_on_a_gpu:
        monkeypatch.setattr(fast_path_vaswani, "QUEUING_DEVICES", ("cpu",))
    message = "^The model's logits for sentence 1 of the batch are NaN or infinite"
    with pytest.raises(NotFiniteError, match=message) as error:
        generated(broken, THREE, options)
    assert error.value.sentence == 1 and isinstance(error.value, ValueError)
    with pytest.raises(NotFiniteError):
        generated(broken, THREE, options | {"must_contain": None}, max_new_tokens=1)
    # The other sentences are translated, also with padding.
    generated(broken, [*THREE[:1], *THREE[2:], SOURCES[3]], options)


def test_a_search_of_few_sentences_names_the_place_in_the_batch(broken):
    # Sentences that end early are removed from the batch, but the error names the index in the call.
    model = copy.deepcopy(broken)
    own = model.logits

    def breaks_late(self, states):
        logits = own(states)
        return logits.index_fill(-1, torch.tensor([5]), torch.inf) if len(states) <= 2 else logits

    model.logits = types.MethodType(breaks_late, model)
    with pytest.raises(NotFiniteError) as error:
        generated(model, [[14, EOS], [14, EOS], SOURCES[3], SOURCES[3]], {"num_beams": 2}, max_new_tokens=20)
    assert error.value.sentence == 2


def with_logits(model, value: float, classes: list[int]):
    """A copy of the model whose logits of these classes are `value`."""
    model = copy.deepcopy(model)
    model.lm_head.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(-1, torch.tensor(classes), value)
    )
    return model


@searches
def test_one_infinite_logit_is_an_error_and_minus_infinity_only_for_all_classes(healthy, options):
    # The class 0 is one that no search would choose.
    with pytest.raises(NotFiniteError):
        generated(with_logits(healthy, torch.inf, [0]), THREE, options)
    found = []
    for model in (healthy, with_logits(healthy, -torch.inf, [0])):
        torch.manual_seed(0)
        outputs = generated(model, THREE, options)
        found.append(outputs if isinstance(outputs, torch.Tensor) else outputs.sequences)
    # In sampling, the class 0 changes the probabilities of the other classes.
    assert "do_sample" in options or torch.equal(*found)
    impossible = with_logits(healthy, -torch.inf, [*range(healthy.config.decoder_vocab_size)])
    impossible.config.pad_token_id = impossible.generation_config.pad_token_id = None
    with pytest.raises(NotFiniteError):
        generated(impossible, THREE[:1], options | {"must_contain": None, "pad_token_id": 1})


def test_float16_that_overflows_and_encoder_states_that_are_nan(healthy):
    model = copy.deepcopy(healthy).half()
    model.lm_head.weight *= 2.0**14
    with pytest.raises(NotFiniteError, match="if the dtype is float16, try bfloat16 or float32"):
        generated(model, THREE, {"num_beams": 2})
    states = healthy.get_encoder()(**batch_of(THREE))
    states.last_hidden_state[2] = torch.nan
    mask = batch_of(THREE)["attention_mask"]
    with pytest.raises(NotFiniteError) as error:
        healthy.generate(encoder_outputs=states, attention_mask=mask, num_beams=2)
    assert error.value.sentence == 2


def test_whoever_removes_invalid_values_gets_what_transformers_gives(broken):
    for options in ({"num_beams": 2}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}):
        generated(broken, THREE, options, remove_invalid_values=True)


def test_prefixes_and_masked_classes_are_no_errors(healthy):
    options = {"num_beams": 2, "suppress_tokens": [3, 4, 5], "max_new_tokens": 5}
    healthy.generate(**batch_of(SOURCES, "left", PREFIXES), **options)


@pytest.fixture
def checkpoint(tiny_checkpoint):
    """Make a folder whose model is broken for texts with an ä."""

    def make(**fields):
        folder = tiny_checkpoint(two_vocabularies=True, **fields)
        translator = Translator.from_pretrained(str(folder))
        known = set(translator.source_tokenizer("Hund")["input_ids"])
        ids = set(translator.source_tokenizer("ä")["input_ids"]) - known
        with torch.no_grad():
            translator.model.get_encoder().embed_tokens.weight[list(ids)] = torch.nan
        translator.model.save_pretrained(folder)
        return folder

    return make


TEXTS = ["der Hund", "", "ein Hund läuft und läuft und läuft und läuft", "Hund der"]
MESSAGE = (
    "The model's logits for the text 'ein Hund läuft und läuft und läuft und l' are NaN or infinite: the "
    "weights of the model are damaged, or too large for their dtype; if the dtype is float16, try bfloat16 or float32."
)


def test_translator_pipeline_and_evaluation_name_the_text(checkpoint):
    folder = checkpoint()
    translator = Translator.from_pretrained(str(folder))
    pipe = pipeline("translation", model=str(folder))
    for translate in (
        lambda texts, **options: list(translator.translate(texts, **options)),
        lambda texts, **options: pipe(texts, **options),
        lambda texts, **options: evaluate(translator, texts, ["dog"] * len(texts), **options),
        lambda texts, **options: list(translator.score(texts, ["dog"] * len(texts))),
    ):
        with pytest.raises(NotFiniteError, match=f"^{re.escape(MESSAGE)}$"):
            translate(TEXTS)
        assert len(translate([TEXTS[0], TEXTS[3]])) >= 2


def test_a_reference_that_the_search_never_reads_is_named_too(checkpoint, monkeypatch):
    translator = Translator.from_pretrained(str(checkpoint(tie_word_embeddings=False)))
    token_id = (set(translator.target_tokenizer("s")["input_ids"]) - {EOS}).pop()
    with torch.no_grad():
        translator.model.get_decoder().embed_tokens.weight[token_id] = torch.nan
    monkeypatch.setattr(translator, "translate", lambda texts, **options: iter(["dog"] * len(texts)))
    with pytest.raises(NotFiniteError, match="'Hund der'"):
        evaluate(translator, ["der Hund", "Hund der"], ["dog", "runs so"])


def test_commands_name_the_line(checkpoint, vaswani, tmp_path):
    folder, source, target = checkpoint(), tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    target.write_text("dog\n\ndog\ndog\n", encoding="utf-8")
    found = vaswani("translate", folder, "--input", source, "--stream")
    assert found[::2] == (1, f"Line 3 of {source}: {MESSAGE}")
    found = vaswani("score", folder, "--source", source, "--target", target)
    assert found[::2] == (1, f"Line 3 of {source} and {target}: {MESSAGE}")
    code, _, sentence = vaswani("evaluate", folder, "--source", source, "--reference", target)
    assert code == 1 and sentence.endswith(MESSAGE)


def test_streaming_shows_nothing_of_it(broken, capsys):
    streamer = TextStreamer(tiny_tokenizer(["der Hund läuft"], 270), skip_special_tokens=True)
    for do_sample in (False, True):
        with pytest.raises(NotFiniteError):
            generated(broken, [SOURCES[1]], {"num_beams": 1, "do_sample": do_sample}, streamer=streamer)
    assert capsys.readouterr().out.strip() == ""


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_beams": 1, "do_sample": True}], ids=str)
def test_models_of_others_are_looked_at_too(options):
    tokenizer = tiny_tokenizer(["der Hund läuft"], 270)
    torch.manual_seed(0)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **shape, **ids)).eval()
    pipe = pipeline("translation", model=model, tokenizer=tokenizer)
    pipe(TEXTS, max_new_tokens=4, **options)
    # Only the source embedding of the letter is broken, not its class.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.shared.weight[tokenizer.convert_tokens_to_ids(tokenizer.tokenize("ä"))] = torch.inf
    with pytest.raises(NotFiniteError, match="ein Hund läuft"):
        pipe(TEXTS, max_new_tokens=4, **options)


def test_ctranslate2_says_it_too(tiny_checkpoint, vaswani, tmp_path):
    pytest.importorskip("ctranslate2")
    folder = tiny_checkpoint()
    assert vaswani("export", folder, tmp_path / "ct2", "--format", "ctranslate2")[0] == 0
    from vaswani_hf.translation.ctranslate2 import load_ctranslate2_translator

    translator = load_ctranslate2_translator(tmp_path / "ct2", "cpu")
    result = types.SimpleNamespace(
        hypotheses=[["a"]], attention=[[[1.0]]], scores=[torch.nan], log_probs=[torch.nan] * 3
    )

    def damaged(source, *args, **kwargs):
        return [result] * len(source)

    translator.backend._translator = types.SimpleNamespace(translate_batch=damaged, score_batch=damaged)
    with pytest.raises(NotFiniteError, match="'der Hund'"):
        list(translator.translate(["der Hund"]))
    with pytest.raises(NotFiniteError, match="'der Hund'"):
        list(translator.score(["der Hund"], ["Hund"]))


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(NotFiniteError(3, "ein Text")))
    assert (error.sentence, error.text) == (3, "ein Text") and "'ein Text'" in str(error)
