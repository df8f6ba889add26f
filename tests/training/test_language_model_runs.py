"""Recipes of language models: plain text to a scored checkpoint, resumed runs, weights in other models."""

import gzip
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from factories import tiny_tokenizer, write_recipe
from sentences import contains, rows
from tiny_runs import metrics, results, same, weights
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, pipeline

from vaswani_hf import VaswaniForCausalLM, VaswaniForMaskedLM
from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.data.tokenizer_training import SENTENCE, with_form
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks.language_modeling import (
    CausalLanguageModelingTask,
    MaskedLanguageModelingTask,
    MaskingCollator,
    evaluate_texts,
    text_scores_as_text,
)
from vaswani_hf.training import InterruptedRunError, train

CLASSES = {"causal_lm": VaswaniForCausalLM, "masked_lm": VaswaniForMaskedLM}
STACKS = {"causal_lm": "decoder", "masked_lm": "encoder"}
TEXTS = ["twenty-three = dreiundzwanzig", "", "five = fünf"]
# Nothing is learned.
AT_REST = "--max_steps=1 --learning_rate_factor=0"
tasks = pytest.mark.parametrize("task", CLASSES)


def write_text_recipe(folder, task):
    """Write the recipe of a language model, or the tiny recipe for translation."""
    path = folder / f"{task}.yaml"
    if task not in CLASSES:
        return write_recipe(path)
    changes = {
        "tokenizer.vocab_size": 300,
        "training.text_tokens_per_batch": 1500,
        "training.source_tokens_per_batch": None,
        "training.target_tokens_per_batch": None,
    }
    shape = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
    model = {f"{STACKS[task]}_{name}": size for name, size in shape.items()}
    data = {"language": "en", "corpus": "numbers", "numbers_train_size": 300, "max_length": 100}
    return write_recipe(
        path, changes, task=task, data=data, model=model | {"d_model": 16, "dropout": 0.1}, decoding=None
    )


def train_task(folder, task, name="run", options=""):
    """Train the recipe of a task with these options in a folder of this name, and give the folder."""
    words = [f"--output_dir={folder / name}", *options.split()]
    train(load_recipe(write_text_recipe(folder, task), words))
    return folder / name


@pytest.fixture
def run_task(tmp_path):
    return partial(train_task, tmp_path)


@pytest.fixture(scope="module")
def trained(small_held_out, tmp_path_factory):
    """The folder of a finished run of each task."""
    return {task: train_task(tmp_path_factory.mktemp(task), task) for task in CLASSES}


@tasks
def test_a_run_ends_with_a_scored_checkpoint_that_pipelines_load(trained, task):
    folder = trained[task]
    model, tokenizer = CLASSES[task].from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    test = results(folder)["test"]
    assert test["texts"] == 20
    assert test["perplexity"] == pytest.approx(math.exp(test["loss"]))
    losses = [row["eval_loss"] for row in metrics(folder) if "eval_loss" in row]
    assert all(loss < math.log(len(tokenizer)) for loss in losses)
    if task == "causal_lm":
        generate = pipeline("text-generation", model=str(folder))
        texts = generate(["five =", "six"], max_new_tokens=4)
        for text, begin in zip(texts, ("five =", "six"), strict=True):
            assert text[0]["generated_text"].startswith(begin)
        assert tokenizer("a")["input_ids"][0] == model.config.bos_token_id
        # The pipeline decodes only the new tokens, but shows the same text as decoding all tokens.
        prompts = tokenizer(["five =", "twenty-one = ein"], padding=True, return_tensors="pt")
        together = tokenizer.decode(model.generate(**prompts, max_new_tokens=4), skip_special_tokens=True)
        for prompt, whole in zip(["five =", "twenty-one = ein"], together, strict=True):
            assert generate(prompt, max_new_tokens=4, do_sample=False) == [{"generated_text": whole}]
    else:
        found = pipeline("fill-mask", model=str(folder))("twenty-<mask> = dreiundzwanzig")
        assert len(found) == 5 and all(0 < one["score"] <= 1 for one in found)
    card = str(model_card(folder, "user/name"))
    assert f"pipeline_tag: {'text-generation' if task == 'causal_lm' else 'fill-mask'}" in card
    assert "translat" not in card.split("`vaswani train` used this recipe:")[0]


@tasks
def test_a_broken_run_ends_as_if_it_had_not_been(trained, run_task, before_method, task):
    def stop(trainer):
        raise KeyboardInterrupt

    before_method(5, stop)
    with pytest.raises((KeyboardInterrupt, InterruptedRunError)):
        run_task(task, "broken")
    folder = run_task(task, "broken", "--resume=true")
    assert same(weights(folder), weights(trained[task]))


@tasks
def test_each_token_of_a_text_is_counted_once(tmp_path, task):
    recipe = load_recipe(write_text_recipe(tmp_path, task))
    corpus = recipe.make_task().load_corpus(tmp_path, new_tokenizers=True)
    assert corpus.count_train_tokens() == sum(map(len, corpus.train["input_ids"]))


@pytest.fixture
def masked_tokenizer():
    return tiny_tokenizer(
        ["one two three four five six seven"] * 3, 320, form=MaskedLanguageModelingTask.form
    )


def test_what_is_hidden_follows_from_seed_epoch_and_text_alone(masked_tokenizer):
    tokenizer = masked_tokenizer
    ids = tokenizer("one two three four five six seven one two three four five")["input_ids"]
    collate = MaskingCollator(tokenizer, 3)
    examples = [{"input_ids": ids, "epoch": epoch} for epoch in range(300)]
    batch = collate(examples)
    again = MaskingCollator(tokenizer, 3)(examples[::-1])
    assert torch.equal(batch["labels"], again["labels"].flip(0))
    assert not torch.equal(batch["labels"], MaskingCollator(tokenizer, 4)(examples)["labels"])
    chosen = batch["labels"] != -100
    # The collator masks 15 % of the 12 words, rounded to a whole number, and never masks `</s>`.
    words = len(ids) - 1
    assert set(chosen.sum(dim=1).tolist()) == {max(1, round(0.15 * words))} and not chosen[:, -1].any()
    hidden = (batch["input_ids"] == tokenizer.mask_token_id)[chosen].float().mean().item()
    kept = (batch["input_ids"] == torch.tensor(ids))[chosen].float().mean().item()
    assert hidden == pytest.approx(0.8, abs=0.06) and kept == pytest.approx(0.1, abs=0.05)
    others = set(batch["input_ids"].unique().tolist()) - {tokenizer.mask_token_id, tokenizer.eos_token_id}
    assert not others & set(tokenizer.all_special_ids)
    assert torch.equal(batch["labels"][chosen], torch.tensor(ids).expand(300, -1)[chosen])
    assert torch.equal(batch["input_ids"][~chosen], torch.tensor(ids).expand(300, -1)[~chosen])


def test_the_collator_of_transformers_takes_the_tokenizer(masked_tokenizer):
    tokenizer = masked_tokenizer
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=1)
    batch = collate([tokenizer("one two three"), tokenizer("four")])
    assert (batch["labels"] != -100).any() and not (batch["labels"] == tokenizer.eos_token_id).any()
    assert tokenizer("one <mask> three")["input_ids"].count(tokenizer.mask_token_id) == 1


def test_a_tokenizer_keeps_its_pieces_in_another_task():
    causal = tiny_tokenizer(["one two three"] * 3, 300, form=CausalLanguageModelingTask.form)
    masked = with_form(causal, MaskedLanguageModelingTask.form)
    both = with_form(masked, SENTENCE)
    assert causal("one")["input_ids"] == [0, *masked("one")["input_ids"][:-1]]
    assert masked.mask_token_id == len(causal) == len(masked) - 1
    assert both("one </s>")["input_ids"][:-1] == causal("one </s>")["input_ids"][1:]
    assert masked("a <mask>")["input_ids"][-2] == masked.mask_token_id


@tasks
def test_scores_of_texts_are_those_of_their_tokens(trained, task, caplog):
    model, tokenizer = CLASSES[task].from_pretrained(trained[task]).eval(), load_tokenizers(trained[task])[0]
    scores = evaluate_texts(model, tokenizer, TEXTS, tokens_per_batch=30)
    assert scores.texts == 2 and caplog.messages == ["1 of 3 texts are empty and are left out."]
    if task == "causal_lm":
        nats, count = 0.0, 0
        for text in TEXTS:
            if text:
                ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
                log_probs = model(ids).logits[0, :-1].log_softmax(-1)
                nats -= log_probs.gather(1, ids[0, 1:, None]).sum().item()
                count += ids.shape[1] - 1
        num_bytes = sum(len(text.encode()) + 1 for text in TEXTS if text)
        assert scores.tokens == count and scores.loss == pytest.approx(nats / count, rel=1e-4)
        assert scores.bits_per_byte == pytest.approx(nats / num_bytes / np.log(2), rel=1e-4)
        assert f"bits per byte {scores.bits_per_byte:.4f}" in text_scores_as_text(scores)
    else:
        assert "bits_per_byte" not in scores.as_json() and "bits per byte" not in text_scores_as_text(scores)
        again = evaluate_texts(model, tokenizer, TEXTS).as_json() | {"seconds": scores.seconds}
        # Batches of another size give other rounding errors, so allow a small difference.
        assert scores.as_json() == pytest.approx(again, rel=1e-5)
    with pytest.raises(
        ValueError, match=r"^There must be at least one text to evaluate, but there is none\.$"
    ):
        evaluate_texts(model, tokenizer, [" "])


@pytest.mark.parametrize("keep", [True, False])
def test_a_translation_model_begins_with_both_of_them(trained, capsys, tmp_path, keep):
    causal, masked = str(trained["causal_lm"]), str(trained["masked_lm"])
    tokenizer = {} if keep else {"vocab_size": 290, "keep": False}
    changes = {"model.init_from": {"encoder": masked, "decoder": causal}}
    path = write_recipe(tmp_path / "both.yaml", changes, tokenizer=tokenizer)
    folder = tmp_path / "both"
    train(load_recipe(path, [f"--output_dir={folder}", *AT_REST.split()]))
    found = weights(folder)
    for task, stack in STACKS.items():
        begun = weights(trained[task])
        layers = {name: weight for name, weight in begun.items() if ".layers." in name}
        assert layers and all(
            torch.equal(found[name.replace("model.", f"model.{stack}.", 1)], weight)
            for name, weight in layers.items()
        )
    printed = capsys.readouterr().out
    assert f"; the shared embedding of encoder and decoder comes from '{causal}'" in printed
    if keep:
        # Both tokenizers were trained on the same text; only one of them has `<mask>`.
        assert "their vocabularies cover 99.8% of the vocabulary of the run" in printed
        embedding = weights(trained["causal_lm"])["model.embed_tokens.weight"]
        assert torch.equal(found["model.shared.weight"][:300], embedding)
    recorded = load_recipe(folder / "recipe.yaml").model.init_from
    assert recorded.by_stack() == {"encoder": masked, "decoder": causal}
    assert "The training started from the weights of another model" in str(model_card(folder, "user/name"))


@tasks
def test_a_language_model_begins_with_a_part_of_a_translation_model(finished, run_task, task):
    folder = run_task(task, "part", f"--init_from={finished} --vocab_size=280 {AT_REST}")
    found, stack = weights(folder), f"model.{STACKS[task]}."
    begun = {name: weight for name, weight in weights(finished).items() if name.startswith(f"{stack}layers")}
    begun = {name: weight for name, weight in begun.items() if "encoder_attn" not in name}
    assert begun and all(torch.equal(found[name.replace(stack, "model.", 1)], begun[name]) for name in begun)
    table = weights(finished)["model.shared.weight"]
    assert torch.equal(found["model.embed_tokens.weight"][: len(table)], table)


ERRORS = """
masked_lm | --init_from=CAUSAL | `model.init_from` needs a model with an encoder, but
translation | --init_from=CAUSAL | `model.init_from` needs a model with an encoder, but
causal_lm | --init_from=CAUSAL --decoder_layers=2 | `model.decoder_layers` is 2, but
causal_lm | --train_text=none.txt --corpus=null | `data`, train split: `train_text` must be an existing file
masked_lm | --vocab_size=259 | `tokenizer.vocab_size` must be 260 or more
"""


@pytest.mark.parametrize(("task", "options", "parts"), rows(ERRORS))
def test_bad_input_is_one_sentence_and_leaves_nothing(trained, run_task, tmp_path, task, options, parts):
    with pytest.raises(ValueError) as error:
        run_task(task, "bad", options.replace("CAUSAL", str(trained["causal_lm"])))
    assert contains(str(error.value), parts)
    assert not (tmp_path / "bad" / "model.safetensors").exists()


COMMANDS = """
translate CAUSAL --text=five | `model` must be a translation model, but
evaluate CAUSAL --text_file=none | `--text_file` must be an existing file, but is
evaluate CAUSAL | `--source` must be given to evaluate translations
evaluate MASKED --text_file=TEXT --num_beams=2 | `--num_beams` has no effect with `--text_file`
"""


def test_the_commands_say_what_they_need(trained, vaswani, tmp_path):
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress("five = fünf\n\nsix = sechs\n".encode()))
    places = {"CAUSAL": trained["causal_lm"], "MASKED": trained["masked_lm"], "TEXT": text}
    code, out, _ = vaswani("evaluate", places["CAUSAL"], f"--text_file={text}")
    assert code == 0 and out.splitlines()[0].startswith("perplexity per token ")
    code, out, _ = vaswani("evaluate", places["MASKED"], f"--text_file={text}", "--json")
    assert code == 0 and json.loads(out)["texts"] == 2
    for words, parts in rows(COMMANDS):
        code, out, sentence = vaswani(
            *(places.get(word, word) for word in words.replace("=TEXT", f"={text}").split())
        )
        assert code == 2 and contains(sentence, parts)
