"""The CTranslate2 export: the same log-probabilities for every config, and the same search as `generate`."""

import copy
import re

import pytest
import torch
from factories import UNLIKE_STACKS, tiny_config, tiny_model, tiny_tokenizer
from sentences import refused
from transformers import AutoModelForSeq2SeqLM
from word_model import WORDS, trained_on_words

from vaswani_hf.checkpoint.tokenizers import save_tokenizers
from vaswani_hf.cli import main

pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")

import ctranslate2
from ctranslate2.converters import TransformersConverter

from vaswani_hf.convert import comparison
from vaswani_hf.convert.comparison import largest_difference_of_rows as largest_difference
from vaswani_hf.convert.ctranslate2 import ACTIVATIONS, to_ctranslate2
from vaswani_hf.convert.export import export
from vaswani_hf.model.backend_vaswani import Segment
from vaswani_hf.model.configuration_vaswani import decoder_start_token_id, eos_token_ids
from vaswani_hf.translation.ctranslate2 import CTranslate2Backend, load_ctranslate2_translator

SOURCES = ["one two three four five four two", "three one", "five", "two two one four"]
TARGETS = ["eins zwei drei vier zwei", "drei eins vier", "", "vier"]
PRE_POST = {"norm_position": "pre", "norm_position_of_decoder": "post"}
EXPRESSIBLE = {
    "the paper": {},
    "post-norm with final norm": {"final_norm": True},
    "pre-norm encoder, post-norm decoder": PRE_POST,
    "the same without final norm": {**PRE_POST, "final_norm": False},
    "other positions": {"position_timescales": "tensor2tensor", "position_offset": 2},
    "output bias, padding is the end": {"lm_head_bias": True, "pad_token_id": 2},
    "zero start": {"zero_start_embedding": True, "pad_token_id": 0, "lm_head_bias": True},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 40},
    "no positions": {"position_embedding": "none"},
    "no scaling": {"scale_embedding": False},
    "large epsilon": {"layer_norm_eps": 0.1},
    "unlike stacks": UNLIKE_STACKS,
    "narrow heads": {"d_k": 4, "d_v": 4},
    "wide heads": {"d_k": 12, "d_v": 12, "attention_bias": True},
    "narrow keys": {"d_k": 3, "attention_bias": True},
    "narrow values": {"d_v": 5, "norm_position": "pre"},
    "own projection": {"tie_word_embeddings": False},
    "padding is the start": {"pad_token_id": 0},
    "several ends": {"eos_token_id": [7, 2]},
    "no padding": {"pad_token_id": None},
    "start by default": {"decoder_start_token_id": None, "bos_token_id": 4},
    "spare classes": {"vocab_size": 300},
    **{name: {"activation_function": name} for name in ACTIVATIONS},
    "dot": {"attention_score": "dot", "d_k": 5},
    "mean of products": {"attention_score": "dot_mean", "d_v": 5},
    "general": {"attention_score": "general", "attention_bias": True, "d_k": 4},
    "general source": {"cross_attention_score": "general"},
}
GNMT = {"length_penalty_type": "gnmt"}
NEVER = {"early_stopping": "never"}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "power": {"num_beams": 4, "length_penalty": 0.6, **NEVER},
    "the paper's": {"num_beams": 4, "length_penalty": 0.6, **GNMT},
    "long translations": {"num_beams": 3, "length_penalty": 2.5, **GNMT, **NEVER},
    "no length penalty": {"num_beams": 3, "length_penalty": 0.0, **NEVER},
    "coverage": {"num_beams": 4, **GNMT, "coverage_penalty": 0.2},
    "n-best": {"num_beams": 5, "num_return_sequences": 3, **GNMT},
    "limits of sentences": {"num_beams": 3, "max_length_a": 0.5, "max_length_b": 2, **GNMT},
    "as many as beams": {"num_beams": 4, "length_penalty": 3.0, "early_stopping": True},
    "one limit": {"num_beams": 3, "max_new_tokens": 4, **GNMT},
    "transformers' limit": {"num_beams": 3, "max_length": 5, **GNMT},
    "two limits": {"num_beams": 2, "max_length": 6, "max_length_a": 0, "max_length_b": 3, **NEVER},
}


@pytest.fixture(scope="module")
def tokenizers():
    texts = [" ".join(WORDS), " ".join(WORDS.values())]
    return [tiny_tokenizer(texts * 3, size, model_max_length=40) for size in (290, 280)]


@pytest.fixture(scope="module")
def joint(tokenizers):
    return tokenizers[0], tokenizers[0]


@pytest.fixture(scope="module")
def searching(joint, tmp_path_factory):
    """A model after a short training, whose translations end and are uncertain, and its export."""
    tokenizer = joint[0]
    model = trained_on_words(tiny_config(vocab_size=len(tokenizer), d_model=32), tokenizer)
    folder = tmp_path_factory.mktemp("searching") / "ctranslate2"
    to_ctranslate2(model, joint, folder)
    return model, CTranslate2Backend(folder)


def ids_of(tokenizer, texts):
    return tokenizer(texts)["input_ids"]


def search(backend, source_ids, prefixes=None, **settings):
    prefixes = prefixes or [[]] * len(source_ids)
    segments = [Segment("", ids, [], prefix=prefix) for ids, prefix in zip(source_ids, prefixes, strict=True)]
    return backend.search(segments, **settings)


def log_probs_of(model, source_ids, target_ids):
    """The log-probabilities of each token and of `</s>` by the original model."""
    return comparison.log_probs_of(model, source_ids, target_ids, decoder_start_token_id(model.config))


@pytest.mark.parametrize("fields", EXPRESSIBLE.values(), ids=EXPRESSIBLE)
def test_log_probabilities_are_the_same(joint, tmp_path, fields):
    model = tiny_model(**{"vocab_size": len(joint[0])} | fields)
    to_ctranslate2(model, joint, tmp_path / "out")
    end = eos_token_ids(model.config)[0]
    source, target = ids_of(joint[0], SOURCES), [[*ids[:-1], end] for ids in ids_of(joint[1], TARGETS)]
    scores = CTranslate2Backend(tmp_path / "out").log_probs(source, [ids[:-1] for ids in target])
    assert largest_difference(scores, log_probs_of(model, source, target)) < 1e-4
    with torch.no_grad():
        for name in ("encoder.layers.0.self_attn.out_proj.weight", "decoder.layers.1.fc1.bias"):
            if name.split(".")[2] < str(model.config.decoder_layers):
                model.model.get_parameter(name)[:2] += 1
    assert largest_difference(scores, log_probs_of(model, source, target)) > 1e-3


def test_two_vocabularies(tokenizers, tmp_path):
    sizes = {"vocab_size": len(tokenizers[0]), "decoder_vocab_size": len(tokenizers[1])}
    model = tiny_model(share_encoder_decoder_embeddings=False, **sizes)
    to_ctranslate2(model, tokenizers, tmp_path / "out")
    translator = CTranslate2Backend(tmp_path / "out")
    assert [len(t) for t in (translator.source_tokenizer, translator.target_tokenizer)] == list(
        sizes.values()
    )
    source, target = ids_of(tokenizers[0], SOURCES), ids_of(tokenizers[1], TARGETS)
    scores = translator.log_probs(source, [ids[:-1] for ids in target])
    assert largest_difference(scores, log_probs_of(model, source, target)) < 1e-4


def compare_searches(searching, settings, prefixes=None, **prompt):
    """Compare hypotheses and scores of both searches. The hypotheses must differ from each other."""
    model, translator = searching
    inputs = translator.source_tokenizer(SOURCES, return_tensors="pt", padding=True)
    found = search(translator, ids_of(translator.source_tokenizer, SOURCES), prefixes, **settings)
    found = [hypothesis for hypotheses in found for hypothesis in hypotheses]
    outputs = model.generate(**inputs, **prompt, **settings, return_dict_in_generate=True, output_scores=True)
    expected = [[i for i in row if i > 2] for row in outputs.sequences.tolist()]
    assert [[i for i in hypothesis.token_ids if i > 2] for hypothesis in found] == expected
    assert len({tuple(ids) for ids in expected}) == len(expected)
    if settings["num_beams"] > 1:
        scores = torch.tensor([hypothesis.score for hypothesis in found])
        torch.testing.assert_close(scores, outputs.sequences_scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES)
def test_the_search_is_that_of_generate(searching, settings):
    compare_searches(searching, settings)


def test_every_end_ends(searching, joint, tmp_path):
    model = copy.deepcopy(searching[0])
    source = ids_of(joint[0], SOURCES)
    # The first token of the longest translation is in no other translation.
    model.generation_config.eos_token_id = [2, search(searching[1], source)[0][0].token_ids[0]]
    to_ctranslate2(model, joint, tmp_path / "out")
    ends = model.generation_config.eos_token_id
    cut = 0
    for ids, (hypothesis,) in zip(source, search(CTranslate2Backend(tmp_path / "out"), source), strict=True):
        expected = model.generate(torch.tensor([ids]))[0, 1:].tolist()
        assert hypothesis.token_ids == expected and expected[-1] in ends
        cut += expected[-1] != 2
    assert 0 < cut < len(source)


def test_the_start_is_that_of_generate(searching, checkpoint, joint, tmp_path):
    model = copy.deepcopy(searching[0])
    model.generation_config.decoder_start_token_id = joint[0].convert_tokens_to_ids("v")
    folder = checkpoint(d_model=32)
    model.save_pretrained(folder)
    export(folder, tmp_path / "out", "ctranslate2")
    source, backend = ids_of(joint[0], SOURCES), CTranslate2Backend(tmp_path / "out")
    expected = [model.generate(torch.tensor([ids]))[0, 1:].tolist() for ids in source]
    assert [found[0].token_ids for found in search(backend, source)] == expected
    assert [found[0].token_ids for found in search(searching[1], source)] != expected


def test_bad_words_are_forbidden(searching, joint, tmp_path, caplog):
    model, source = copy.deepcopy(searching[0]), ids_of(joint[0], SOURCES)
    word = search(searching[1], source, num_beams=1)[0][0].token_ids[:2]
    # `</s>` stays possible, as in `generate`.
    model.generation_config.bad_words_ids = [[1], [2], word]
    to_ctranslate2(model, joint, tmp_path / "out")
    backend = CTranslate2Backend(tmp_path / "out")
    assert not caplog.records
    found = [hypotheses[0].token_ids for hypotheses in search(backend, source, num_beams=1)]
    assert found == [model.generate(torch.tensor([ids]), num_beams=1)[0, 1:].tolist() for ids in source]
    assert found != [hypotheses[0].token_ids for hypotheses in search(searching[1], source, num_beams=1)]


@pytest.mark.parametrize("name", ["greedy", "the paper's", "limits of sentences", "one limit"])
def test_the_search_after_a_prefix_is_that_of_generate(searching, name):
    prefixes = [
        ids[:-1] for ids in ids_of(searching[1].target_tokenizer, ["zwei vier", "drei", "", "eins zwei drei"])
    ]
    longest = max(map(len, prefixes))
    rows = [[1] * (longest - len(ids)) + [0, *ids] for ids in prefixes]
    compare_searches(searching, SEARCHES[name], prefixes, decoder_input_ids=torch.tensor(rows))


def test_a_hypothesis_says_whether_it_was_cut(searching):
    _, translator = searching
    source = ids_of(translator.source_tokenizer, SOURCES)
    for limit, is_complete in ((1, {False}), (200, {True})):
        found = search(translator, source, num_beams=1, max_new_tokens=limit)
        assert {hypotheses[0].token_ids[-1] == 2 for hypotheses in found} == is_complete


@pytest.mark.parametrize("num_beams", [1, 4])
def test_attention_is_the_mean_of_the_last_layer(searching, num_beams):
    model, translator = searching
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    source = ids_of(translator.source_tokenizer, SOURCES)
    found = search(translator, source, num_beams=num_beams, with_attention=True)
    for ids, (hypothesis,) in zip(source, found, strict=True):
        with torch.no_grad():
            labels = torch.tensor([hypothesis.token_ids])
            outputs = model(torch.tensor([ids]), labels=labels, output_attentions=True)
        torch.testing.assert_close(
            torch.tensor(hypothesis.attention), outputs.cross_attentions[-1][0].mean(0), rtol=0, atol=1e-5
        )
    assert search(translator, source)[0][0].attention is None


def test_sampling_gives_what_the_seed_says(joint, tmp_path):
    to_ctranslate2(tiny_model(vocab_size=len(joint[0])), joint, tmp_path / "out")
    source = ids_of(joint[0], SOURCES[:1])

    def draw(seed):
        translator.seed(seed)
        settings = {"do_sample": True, "num_return_sequences": 5, "top_k": 0, "max_new_tokens": 8}
        return [hypothesis.token_ids for hypothesis in search(translator, source, **settings)[0]]

    translator = CTranslate2Backend(tmp_path / "out")
    assert draw(1) == draw(1) != draw(2)
    assert len({tuple(ids) for ids in draw(1)}) > 2
    greedy = search(translator, source)[0][0].token_ids
    assert search(translator, source, do_sample=True, top_k=1)[0][0].token_ids == greedy
    assert search(translator, source, do_sample=True, top_k=0, top_p=1e-6)[0][0].token_ids == greedy
    assert search(translator, source, do_sample=True, top_k=0, temperature=1e-4)[0][0].token_ids == greedy


def test_repeated_n_grams_are_forbidden(searching):
    _, translator = searching
    source = ids_of(translator.source_tokenizer, SOURCES)
    for (hypothesis,) in search(translator, source, num_beams=2, no_repeat_ngram_size=1):
        assert len(set(hypothesis.token_ids)) == len(hypothesis.token_ids)


def test_settings_come_from_the_checkpoint_and_others_are_named(joint, tmp_path, caplog):
    model = tiny_model(vocab_size=len(joint[0]))
    model.generation_config.update(num_beams=3, num_return_sequences=2, max_length=6, repetition_penalty=1.2)
    to_ctranslate2(model, joint, tmp_path / "out")
    translator = CTranslate2Backend(tmp_path / "out")
    (record,) = caplog.records
    message = (
        "`repetition_penalty` is 1.2 in the generation config, which CTranslate2 cannot express: its search "
    )
    assert record.getMessage().startswith(message)
    source = ids_of(joint[0], SOURCES)
    for hypotheses in search(translator, source):
        assert len(hypotheses) == 2
        assert max(len(hypothesis.token_ids) for hypothesis in hypotheses) <= 5
    assert search(translator, []) == []


@pytest.mark.parametrize("quantization", ["int8", "float16"])
def test_quantization_makes_it_smaller_and_changes_nothing_in_memory(joint, tmp_path, quantization):
    model = tiny_model(vocab_size=len(joint[0]))
    before = copy.deepcopy(model.state_dict())
    for name, kind in (("full", None), ("small", quantization)):
        to_ctranslate2(model, joint, tmp_path / name, kind)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("small", "full")]
    assert sizes[0] < sizes[1]
    source, target = ids_of(joint[0], SOURCES), ids_of(joint[1], TARGETS)
    scores = CTranslate2Backend(tmp_path / "small").log_probs(source, [ids[:-1] for ids in target])
    expected = log_probs_of(model, source, target)
    pairs = [pair for rows in zip(scores, expected, strict=True) for pair in zip(*rows, strict=True)]
    # On some processors the int8 sums saturate, so the log-probability of one token may be far off.
    assert 0 < sum(abs(a - b) for a, b in pairs) / len(pairs) < 0.5


@pytest.fixture(scope="module")
def checkpoint(joint, tmp_path_factory):
    """Make a checkpoint folder with these fields changed."""

    def make(with_tokenizers=True, dtype=torch.float32, **fields):
        folder = tmp_path_factory.mktemp("checkpoint")
        tiny_model(vocab_size=len(joint[0]), **fields).to(dtype).save_pretrained(folder)
        if with_tokenizers:
            save_tokenizers(*joint, folder)
        return folder

    return make


@pytest.mark.parametrize(("dtype", "quantization"), [(torch.float32, None), (torch.bfloat16, "int8")])
def test_export_says_how_far_it_is_off(checkpoint, tmp_path, capsys, dtype, quantization):
    arguments = ["export", str(checkpoint(dtype=dtype)), str(tmp_path / "out"), "--format", "ctranslate2"]
    assert main([*arguments, *(["--quantization", quantization] if quantization else [])]) == 0
    line = capsys.readouterr().out
    found = re.fullmatch(
        r"Largest difference between the log-probabilities of CTranslate2 and those of the checkpoint on sample inputs: (\S+)\.\n",
        line,
    )
    # With int8 the largest measured difference is 2.1, on a processor whose int8 sums saturate.
    assert float(found.group(1)) < (4 if quantization else 1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    for device in (None, "cpu"):
        translator = load_ctranslate2_translator(tmp_path / "out", device)
        assert len(search(translator.backend, [[5, 6, 2]])) == 1


def test_ctranslate2s_own_converter_takes_our_checkpoints(checkpoint, joint, tmp_path):
    folder = checkpoint()
    TransformersConverter(str(folder)).convert(str(tmp_path / "out"))
    # Without the number of threads, CTranslate2 would change the setting of torch.
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=torch.get_num_threads())
    (result,) = translator.score_batch([["t", "w", "</s>"]], [["v"]])
    ids = [joint[0].convert_tokens_to_ids([*word, "</s>"]) for word in ("tw", "v")]
    expected = log_probs_of(AutoModelForSeq2SeqLM.from_pretrained(folder), ids[:1], ids[1:])
    assert largest_difference([result.log_probs], expected) < 1e-4


def test_a_checkpoint_without_tokenizers_is_refused(checkpoint, tmp_path):
    folder = checkpoint(with_tokenizers=False)
    with refused(
        f"'{folder}' must hold the tokenizer of the checkpoint, but has no tokenizer.json; copy or download the file again."
    ):
        export(folder, tmp_path / "out", "ctranslate2")


def test_positions_go_as_far_as_inputs_and_outputs(joint, tmp_path):
    model = tiny_model(vocab_size=len(joint[0]))
    model.generation_config.max_length = 1300
    to_ctranslate2(model, joint, tmp_path / "out")
    backend = CTranslate2Backend(tmp_path / "out")
    assert load_ctranslate2_translator(tmp_path / "out").segmenter.max_length == 40
    source, target = [[*[5, 9] * 600, 2]], [[*[8] * 1298, 2]]
    scores = backend.log_probs(source, [target[0][:-1]])
    assert largest_difference(scores, log_probs_of(model, source, target)) < 1e-4
    learned = tiny_model(vocab_size=len(joint[0]), position_embedding="learned", max_position_embeddings=12)
    to_ctranslate2(learned, joint, tmp_path / "learned")
    translator = load_ctranslate2_translator(tmp_path / "learned")
    assert translator.segmenter.max_length == 12
    (found,) = search(translator.backend, [[5, 9, 2]], num_beams=1, max_new_tokens=100)
    assert len(found[0].token_ids) <= 12
