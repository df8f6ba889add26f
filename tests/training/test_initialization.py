"""Runs that start from the weights of another model, and frozen parts."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from sentences import contains, rows
from tiny_runs import same, unfinished, weights, write_pairs

from vaswani_hf.checkpoint.tokenizers import load_tokenizers
from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.model.tokenizing_vaswani import tags_of
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training.recipe_model import build_model
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments

# Options of a run that does not change the weights.
AT_REST = "--max_steps=1 --learning_rate_factor=0"


@pytest.fixture
def copy_without_checkpoints(finished, tmp_path):
    """Copy the files of the finished run to a folder of this name."""

    def copy(name):
        return shutil.copytree(finished, tmp_path / name, ignore=shutil.ignore_patterns("checkpoint-*"))

    return copy


def test_a_run_begins_with_the_weights_and_the_tokenizers_of_a_model(run, finished, capsys):
    folder = run("next", f"--init_from={finished}", AT_REST)
    assert same(weights(folder), weights(finished))
    assert (folder / "tokenizer.json").read_bytes() == (finished / "tokenizer.json").read_bytes()
    assert (
        f"the run begins with the weights of '{finished}'; its vocabulary covers 100.0% of the vocabulary of the run\n"
        in capsys.readouterr().out
    )
    recorded = load_recipe(folder / "recipe.yaml").model
    assert recorded.init_from == str(finished)
    assert recorded.d_model == 16
    section = load_recipe(folder / "recipe.yaml").tokenizer
    assert (section.vocab_size, section.lowercase) == (len(load_tokenizers(finished)[0]), False)
    trained = run("trained", f"--init_from={finished} --max_steps=2 --save_steps=2 --eval_steps=9")
    assert not same(weights(trained), weights(finished))


@pytest.mark.parametrize("shared", ["true", "false"])
def test_new_tokenizers_keep_the_rows_of_known_pieces(run, finished, shared):
    options = f"--keep=false --vocab_size=300 --numbers_train_size=40 --shared_vocabulary={shared}"
    folder = run("next", f"--init_from={finished}", options, AT_REST)
    (source, target), (before, _) = load_tokenizers(folder), load_tokenizers(finished)
    assert len(source) == 300
    known, tables = before.get_vocab(), [("model.shared.weight", source)]
    if shared == "false":
        tables = [
            ("model.encoder.embed_tokens.weight", source),
            ("model.decoder.embed_tokens.weight", target),
        ]
    found, old = weights(folder), weights(finished)
    for name, tokenizer in tables:
        pairs = [(index, known[piece]) for piece, index in tokenizer.get_vocab().items() if piece in known]
        ids, base_ids = map(list, zip(*pairs, strict=True))
        assert 260 < len(ids) < 280
        assert ids != base_ids
        assert torch.equal(found[name][ids], old["model.shared.weight"][base_ids])
    assert all(torch.equal(found[name], old[name]) for name in old if ".layers." in name)


def test_a_model_in_half_precision_is_begun_with(run, finished, copy_without_checkpoints):
    base = copy_without_checkpoints("base")
    halved = {name: tensor.bfloat16() for name, tensor in weights(finished).items()}
    save_file(halved, base / "model.safetensors", {"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    found = weights(run("next", f"--init_from={base}", AT_REST))
    assert all(torch.equal(found[name], tensor.float()) for name, tensor in halved.items())


def test_a_resumed_run_needs_the_model_it_began_with_no_more(run, copy_without_checkpoints, tmp_path):
    base = copy_without_checkpoints("base")
    short = "--dropout=0.3 --save_steps=1 --eval_steps=9 --max_steps="
    whole = run("whole", f"--init_from={base}", short + "3")
    run("part", f"--init_from={base}", short + "1")
    shutil.rmtree(base)
    # The base model may move, because a run compares only the name of its folder.
    options = f"--init_from={tmp_path}/moved/base --resume=true {short}"
    assert same(weights(run("part", options + "3")), weights(whole))
    assert load_recipe(tmp_path / "part" / "recipe.yaml").model.init_from == str(base)
    # A record that was fetched from the Hub has only the name of the folder.
    record = tmp_path / "part" / "recipe.yaml"
    record.write_text(record.read_text().replace(str(base), "base"))
    run("part", options + "3")
    refused = r"^`model.init_from` is None, but the run in '.*' that is to be resumed has 'base'"
    with pytest.raises(ValueError, match=refused):
        run("part", "--resume=true", short + "3")
    with pytest.raises(ValueError, match=r"^`model.init_from` must be a checkpoint folder"):
        run("part", f"--init_from={tmp_path}/another --resume=true", short + "3")


def test_a_run_killed_before_its_first_checkpoint_takes_the_model_where_it_is_now(
    run, finished, copy_without_checkpoints, tmp_path
):
    base = copy_without_checkpoints("base")
    folder = unfinished(run("next", f"--init_from={base}", AT_REST))
    shutil.rmtree(folder / "checkpoint-1")
    (tmp_path / "moved").mkdir()
    moved = base.rename(tmp_path / "moved" / "base")
    run("next", f"--init_from={moved}", AT_REST, "--resume=true")
    assert same(weights(folder), weights(finished))
    assert load_recipe(folder / "recipe.yaml").model.init_from == str(moved)
    # The card names the folder without its path.
    card = model_card(folder, "user/name").content
    words = "The training started from the weights of another model, `base`."
    assert words in card
    assert str(tmp_path) not in card


def test_a_second_stage_may_ask_again_for_more_pieces_than_a_small_corpus_had(run):
    options = f"--numbers_train_size=2 {AT_REST} --vocab_size="
    base = run("base", options + "400")
    pieces = len(load_tokenizers(base)[0])
    assert pieces < 400
    folder = run("next", f"--init_from={base}", options + "400")
    assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    with pytest.raises(
        ValueError, match=f"^`tokenizer.vocab_size` is 401, but the tokenizers of .* have {pieces}; "
    ):
        run("other", f"--init_from={base}", options + "401")


def test_a_trainer_freezes_parts_and_turns_gradient_checkpointing_on(finished):
    recipe = load_recipe(finished / "recipe.yaml", is_recorded=True)
    task = recipe.make_task()
    corpus = task.load_corpus(finished, new_tokenizers=False)
    frozen = ["encoder.layers", "model.decoder.layers.0.self_attn", "lm_head"]
    training = recipe.training.replace(frozen=frozen, gradient_checkpointing=True)
    trainer = VaswaniTrainer(
        corpus,
        training,
        task=task,
        model=build_model(recipe.model, task.model_class, corpus, {}, recipe.seed),
        args=training_arguments(training, str(finished), recipe.seed, validates=False),
    )
    found = {name for name, weight in trainer.model.named_parameters() if not weight.requires_grad}
    # The output projection is the table of both embeddings.
    parts = ("model.encoder.", "model.decoder.layers.0.self_attn.", "model.shared.")
    assert found == {name for name in weights(finished) if name.startswith(parts)}
    # The name of the property of the model depends on the version of transformers.
    assert trainer.model.model.decoder.gradient_checkpointing


ERRORS = """
--init_from=BASE --d_model=32 | `model.d_model` is 32, but 'BASE', the model of `model.init_from`, has 16; leave `model.d_model` out, or
--init_from=BASE/nothing | `model.init_from` must be a checkpoint folder or user/name on the Hub, but there is no folder 'BASE/nothing'; check the name.
--init_from=BASE --vocab_size=300 | `tokenizer.vocab_size` is 300, but the tokenizers of 'BASE' ... have 280; leave `tokenizer.vocab_size` out, or
--init_from=BASE --frozen=encodr | `training.frozen` must name parts of the model, but has 'encodr'; the nearest part is 'encoder'.
--init_from=BASE --frozen=encoder,decoder,shared | `training.frozen` must not name all weights of the model, but is ['encoder', 'decoder',
--init_from=BERT | bert
--init_from=BASE --both_directions=true | `data.both_directions: true` needs the tag >>en<< in the vocabulary, but the tokenizers of 'BASE' ... do not have it; train new tokenizers with `tokenizer.keep: false`.
"""


@pytest.mark.parametrize(("options", "parts"), rows(ERRORS))
def test_bad_initializations_are_one_sentence(train_command, finished, tmp_path, options, parts):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    code, _, said = train_command(options.replace("BASE", str(finished)).replace("BERT", f"{tmp_path}/bert"))
    assert code == 2 and contains(said, parts.replace("BASE", str(finished))), said
    assert not (tmp_path / "run").exists()


def test_a_shape_that_does_not_fit_the_recipe_is_refused(run, train_command):
    base = run("base", "--position_embedding=learned --max_position_embeddings=64 --max_steps=1")
    code, _, said = train_command(f"--init_from={base} --data.max_length=90")
    assert code == 2
    assert said.startswith("`model.max_position_embeddings` must be at least 90")


def test_muon_may_have_no_matrices(run):
    folder = run("run", "--optimizer=muon --frozen=encoder.layers,decoder.layers --max_steps=1")
    assert (folder / "results.json").exists()


def test_the_card_names_the_base_model_of_the_hub_and_no_folder(copied):
    text = (copied / "recipe.yaml").read_text()
    for begun_with, base_model in {
        "user/name@main": "user/name",
        "user/name": "user/name",
        "/home/me/run": None,
        "run_of_a_folder": None,
    }.items():
        recipe = text.replace("model:\n", f"model:\n  init_from: {begun_with}\n", 1)
        (copied / "recipe.yaml").write_text(recipe)
        card = model_card(copied, "user/new")
        assert card.data.base_model == base_model
        assert "/home/me" not in str(card)


def test_a_model_of_both_directions_is_fine_tuned_on_one(run, tmp_path, capsys):
    """Train on weighted corpora in both directions, then on one corpus in one direction."""
    for name, size in (("a", 200), ("b", 40)):
        write_pairs(tmp_path / f"{name}.jsonl", number_pairs(size, 1, "train"))
    options = f"--train_pairs={tmp_path}/a.jsonl,{tmp_path}/b.jsonl --corpus=null --both_directions=true --vocab_size=290"
    weighted = f"--train_weights=0.25,3 --test_pairs={tmp_path}/b.jsonl --max_steps=2 --save_steps=2"
    base = run("base", options, weighted)
    printed = capsys.readouterr().out
    assert "train, each pair in both directions: 480 pairs read, 480 kept" in printed
    assert f"train, '{tmp_path}/a.jsonl': 400 pairs, 100 in an epoch (weight 0.25)\n" in printed
    assert f"train, '{tmp_path}/b.jsonl': 80 pairs, 240 in an epoch (weight 3)\n" in printed
    card = model_card(base, "user/name").content
    also = "`en` to `de`. It also translates from `de` to `en` if the text begins with `>>en<<` and a space."
    assert also in card
    counted = "480 of 480 sentence pairs, each pair in both directions, weights of the corpora: 0.25 and 3"
    assert counted in card
    refused = (
        r"^`data.train_weights` is \[0.25, 2\], but the run in .* has \[0.25, 3\]; give `data.train_weights`"
    )
    with pytest.raises(ValueError, match=refused):
        run("base", options, "--resume=true --max_steps=3 --train_weights=0.25,2")
    next_one = run("next", f"--init_from={base} --vocab_size=290", AT_REST)
    assert same(weights(next_one), weights(base))
    assert "its vocabulary covers 100.0% of the vocabulary of the run" in capsys.readouterr().out
    tokenizer, _ = load_tokenizers(next_one)
    assert list(tags_of(tokenizer)) == [">>en<<"]
    assert load_recipe(next_one / "recipe.yaml").tokenizer.vocab_size == len(tokenizer)
    assert "also translates" not in model_card(next_one, "user/name").content
    both = run("further", f"--init_from={base} --both_directions=true --vocab_size=290", AT_REST)
    assert same(weights(both), weights(base))


def test_new_tokenizers_have_the_tag_that_the_model_lacks(run, finished):
    folder = run(
        "next", f"--init_from={finished} --both_directions=true --keep=false --vocab_size=290", AT_REST
    )
    assert list(tags_of(load_tokenizers(folder)[0])) == [">>en<<"]
