"""The schedule of Section 5.3 and checkpoint averaging of Section 6.1, by hand."""

import json
import shutil

import pytest
import torch
from factories import tiny_model
from safetensors.torch import save_file
from sentences import contains, rows
from tiny_runs import DAMAGES, results, weights
from transformers import Trainer

from vaswani_hf.checkpoint.files import STATE_FILE, checkpoints_in, read_state
from vaswani_hf.checkpoint.manifest import metadata_of, write_manifest
from vaswani_hf.optimization.optimizers.adam import AdamSettings, build_adam
from vaswani_hf.optimization.optimizers.adamw import AdamWSettings, build_adamw
from vaswani_hf.optimization.optimizers.muon import Muon, build_muon, orthogonalized
from vaswani_hf.optimization.schedules import learning_rate, scheduled_rate, scheduler_of
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training.averaging import average_weights
from vaswani_hf.translation.translator import Translator


def test_the_paper_s_own_numbers():
    # d_model 512, warmup 4000: the peak is 512^-0.5 · 4000^-0.5 = 1 / sqrt(2,048,000).
    assert learning_rate(4000, 512, 4000) == pytest.approx(2048000**-0.5)
    assert learning_rate(1, 512, 4000) == pytest.approx(2048000**-0.5 / 4000)
    assert learning_rate(16000, 512, 4000) == pytest.approx(2048000**-0.5 / 2)
    assert learning_rate(100, 64, 4000, factor=2.0) == pytest.approx(2 / 8 * 100 * 4000**-1.5)


@pytest.mark.parametrize(
    ("step", "warmup", "name", "value"), [(0, 5, "step", 0), (3, 0, "warmup_steps", 0), (-1, 5, "step", -1)]
)
def test_steps_count_from_one(step, warmup, name, value):
    with pytest.raises(ValueError, match=f"^`{name}` must be a positive integer, but is {value}\\.$"):
        learning_rate(step, 512, warmup)


def test_the_scheduler_gives_step_n_the_rate_of_step_n():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=123.0)
    training = EncoderDecoderTraining(warmup_steps=3, learning_rate_factor=0.5)
    scheduler = scheduler_of(optimizer, training, d_model=64, max_steps=7)
    for step in range(1, 8):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(learning_rate(step, 64, 3, 0.5))
        optimizer.step()
        scheduler.step()
    state = scheduler.state_dict()
    resumed = scheduler_of(torch.optim.Adam([weight], lr=1.0), training, d_model=64, max_steps=7)
    resumed.load_state_dict(state)
    assert resumed.get_last_lr() == scheduler.get_last_lr()


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("inverse_sqrt", [0.2, 0.4, 0.4 * (2 / 3) ** 0.5, 0.4 * (2 / 4) ** 0.5, 0.4 * (2 / 5) ** 0.5]),
        ("cosine", [0.2, 0.4, 0.4 * (2 + 2**0.5) / 4, 0.2, 0.4 * (2 - 2**0.5) / 4]),
        ("constant", [0.2, 0.4, 0.4, 0.4, 0.4]),
    ],
)
def test_other_schedules_rise_to_the_highest_rate_and_fall_as_they_say(kind, rates):
    training = EncoderDecoderTraining(lr_scheduler_type=kind, learning_rate=0.4, warmup_steps=2)
    assert [scheduled_rate(step, training, 64, 5) for step in range(1, 6)] == pytest.approx(rates)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norm_position": "pre", "position_embedding": "learned", "attention_bias": True},
        {"attention_score": "additive"},
        {"attention_score": "general", "tie_word_embeddings": False},
    ],
    ids=str,
)
def test_the_weights_that_decay_are_those_of_transformers(fields):
    model = tiny_model(**fields)
    optimizer = build_adamw(model, AdamWSettings(weight_decay=0.1), bf16=False)
    names = Trainer.get_decay_parameter_names(None, model)
    expected = [weight for name, weight in model.named_parameters() if name in names]
    decaying, others = optimizer.param_groups
    assert [id(weight) for weight in decaying["params"]] == [id(weight) for weight in expected]
    assert len(others["params"]) == sum(1 for _ in model.parameters()) - len(expected)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    # Adam has no weight decay (Section 5.3).
    assert {
        group["weight_decay"] for group in build_adam(model, AdamSettings(), bf16=False).param_groups
    } == {0}


@pytest.mark.usefixtures("bfloat16_in_hardware")
def test_muon_steps_are_those_of_pytorch_for_matrices_of_layers_and_those_of_adam_for_others():
    settings = AdamWSettings(weight_decay=0.1)
    models = [tiny_model() for _ in range(3)]
    found, by_adam, by_muon = (dict(model.named_parameters()) for model in models)
    matrices = {name for name, weight in found.items() if weight.dim() == 2 and ".layers." in name}
    optimizers = (
        build_muon(models[0], settings, bf16=False),
        build_adam(models[1], settings, bf16=False),
        torch.optim.Muon(
            [by_muon[name] for name in matrices], weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        ),
    )
    before = {name: weight.detach().clone() for name, weight in found.items()}
    for seed in range(3):
        for weights_by_name in (found, by_muon, by_adam):
            generator = torch.Generator().manual_seed(seed)
            for weight in weights_by_name.values():
                weight.grad = torch.randn(weight.shape, generator=generator)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            optimizer.step()
    for name, weight in found.items():
        expected = by_muon if name in matrices else by_adam
        # PyTorch's Muon computes in bfloat16.
        assert torch.allclose(weight, expected[name], atol=3e-4), name
        assert not torch.allclose(weight, before[name], atol=3e-3), name


def test_muon_ignores_the_scale_of_a_gradient():
    gradient = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    expected = orthogonalized(gradient, in_bfloat16=False)
    assert torch.allclose(orthogonalized(1e-3 * gradient, in_bfloat16=False), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("bf16", "shape", "dtype"),
    [
        (True, (128, 512), torch.bfloat16),
        (True, (512, 127), torch.float32),
        (False, (128, 512), torch.float32),
    ],
)
@pytest.mark.parametrize("has_hardware", [True, False])
def test_the_run_and_the_shape_decide_muon_s_precision(monkeypatch, bf16, shape, dtype, has_hardware):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_hardware}, raising=False)
    dtypes, addmm = set(), torch.addmm
    monkeypatch.setattr(
        torch, "addmm", lambda x, *args, **kwargs: (dtypes.add(x.dtype), addmm(x, *args, **kwargs))[1]
    )
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    Muon([weight], 0.0, bf16).step()
    assert dtypes == {dtype}


def test_the_average_is_the_mean_and_checkpoints_are_in_order(tmp_path):
    for step, value in ((200, 1.0), (1000, 5.0), (30, 3.0)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        weights = {name: torch.full((2,), value, dtype=torch.bfloat16) for name in "vw"}
        save_file(weights, folder / "model.safetensors")
    # One of the checkpoints has its weights in two shards.
    sharded = tmp_path / "checkpoint-30"
    (sharded / "model.safetensors").unlink()
    shards = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate("vw", 1)}
    for name, shard in shards.items():
        save_file({name: weights[name]}, sharded / shard)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (tmp_path / "checkpoint-best").mkdir()
    folders = checkpoints_in(tmp_path)
    assert [folder.name for folder in folders] == ["checkpoint-30", "checkpoint-200", "checkpoint-1000"]
    averaged = average_weights([folder / "model.safetensors" for folder in folders])
    for name in "vw":
        assert averaged[name].dtype == torch.bfloat16
        assert averaged[name].tolist() == [3.0, 3.0]


def test_different_models_are_not_averaged(tmp_path):
    for name, size in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.zeros(size)}, tmp_path / name / "model.safetensors")
    with pytest.raises(
        ValueError, match="`checkpoints` must be checkpoints of one run, but .* hold different models"
    ):
        average_weights([tmp_path / name / "model.safetensors" for name in ("a", "b")])


def test_the_command_averages_the_last_or_the_best_or_those_that_are_named(run, vaswani, tmp_path):
    folder = run(
        "run", "--max_steps=6 --save_steps=2 --eval_steps=2 --ema_decay=0.5 --learning_rate_factor=3"
    )
    checkpoints = checkpoints_in(folder)
    averages = "moving_average.safetensors"
    trained = "model.safetensors"
    assert len(checkpoints) == 3
    # Add a checkpoint that was saved because of a signal, and a folder that is not a checkpoint.
    shutil.copytree(checkpoints[0], folder / "checkpoint-5")
    manifest = folder / "checkpoint-5" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"scheduled": true', '"scheduled": false'))
    (folder / "checkpoint-1").mkdir()
    first, middle, last = checkpoints
    # In this log, the loss of the averages rises, and the loss of the weights falls.
    state = read_state(last)
    state["log_history"] = [
        {"step": step, "eval_loss": step, "eval_raw_loss": -step} for step in range(2, 7, 2)
    ]
    (last / STATE_FILE).write_text(json.dumps(state))
    write_manifest(last, metadata_of(last))
    for name, given, files in (
        ("last", [folder, "--last=2"], [middle / averages, last / averages]),
        ("raw", [folder, "--last=2", "--raw"], [middle / trained, last / trained]),
        ("best", [folder, "--best=2"], [first / averages, middle / averages]),
        ("best raw", [folder, "--best=2", "--raw"], [middle / trained, last / trained]),
        ("named", [first, last], [first / averages, last / averages]),
        ("with the end", [first, folder], [first / averages, folder / trained]),
    ):
        code, said, _ = vaswani("average", *given, f"--output={tmp_path / name}")
        assert code == 0
        assert said.startswith("the mean of checkpoint-")
        torch.testing.assert_close(weights(tmp_path / name), average_weights(files), rtol=1e-5, atol=1e-7)
    assert list(Translator.from_pretrained(tmp_path / "last").translate(["seven"]))
    (first / averages).unlink()
    (first / "manifest.json").unlink()
    code, _, said = vaswani("average", first, middle, f"--output={tmp_path / 'mixed'}")
    assert code == 2
    assert said == (
        f"`checkpoints` must all have {averages}, but '{middle}' has it and '{first}' has none; leave '{first}' out, or give "
        "`--raw` to average the trained weights."
    )
    # The average has the record of the run, so its card names the languages and the licence of the data.
    assert (tmp_path / "last" / "recipe.yaml").read_bytes() == (folder / "recipe.yaml").read_bytes()
    card = model_card(tmp_path / "last", "user/name").content
    assert "from `en` to `de`" in card
    names = [f"`{folder.name}/{checkpoint.name}`" for checkpoint in (middle, last)]
    assert f"The weights of the model are the mean of the weights of {', '.join(names)};" in card


ERRORS = """
RUN --last=9 | `checkpoints` must be a run with 9 numbered checkpoints, but 'RUN' has 2; ask for fewer.
RUN --best=1 --metric=bleu | `checkpoints` must be a run with 1 validated checkpoints (by bleu), but 'RUN' has 0; use the last checkpoints, or train with a
DAMAGED --last=2 | trainer_state.json of 'DAMAGED/checkpoint-8' is damaged; copy the checkpoint again, or remove the checkpoint.
RUN --last=1 --best=1 | `--last` and `--best` must not both be given, because each of them chooses checkpoints; leave out
RUN RUN --last=1 | `--last` and `--best` choose from one run, but 2 folders are given; give one folder.
RUN | `checkpoints` must be two or more folders, or one run with `--last` or `--best`, but is one folder.
RUN/checkpoint-4 RUN/checkpoint-8 RUN/./checkpoint-4 | `checkpoints` names RUN/./checkpoint-4 twice; name it once.
RUN --last=2 --metric=bleu | `--metric bleu` has an effect only with `--best`, which is not given; leave out `--metric`.
RUN --best=2 --metric=seconds | `--metric` must be a validation score, such as bleu, but is seconds, the duration of the validation; give
RUN/nothing --last=2 | `checkpoints` must be the folder of a run, but there is no folder 'RUN/nothing'.
RUN/checkpoint-4 OTHER | `checkpoints` must be checkpoints of one run, but 'OTHER' and 'RUN/checkpoint-4' are different models: `encoder_attention_heads` is 4 and 2.
RUN/checkpoint-4 BROKEN | 'BROKEN' cannot be averaged: model.safetensors has changed since it was saved; leave this checkpoint out.
RUN/checkpoint-4 RUN/nothing | `checkpoints` must be a checkpoint folder or user/name on the Hub, but there is no folder 'RUN/nothing'; check the name.
RUN --last=2 --output=NEW/checkpoint-9 | `--output` must not be inside a checkpoint or have the name of a checkpoint (checkpoint-STEP), but is 'NEW/checkpoint-9'; give
RUN --last=2 --output=LINK/checkpoint-4/mean | `--output` must not be inside a checkpoint
"""


@pytest.fixture(scope="module")
def places(whole, tmp_path_factory):
    """Make the folders of a run, of a damaged run, of another model, and of a damaged checkpoint."""
    folder, finished = tmp_path_factory.mktemp("places"), whole()
    broken = shutil.copytree(finished / "checkpoint-8", folder / "broken")
    DAMAGES["flipped"](broken / "model.safetensors")
    other = shutil.copytree(finished, folder / "other", ignore=shutil.ignore_patterns("checkpoint-*"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "encoder_attention_heads": 4}))
    damaged = shutil.copytree(finished, folder / "damaged")
    (damaged / "checkpoint-8" / "trainer_state.json").write_text('{"log')
    link = folder / "link"
    link.symlink_to(finished)
    return {"RUN": finished, "LINK": link, "BROKEN": broken, "OTHER": other, "DAMAGED": damaged}


@pytest.mark.parametrize(("given", "parts"), rows(ERRORS))
def test_impossible_averages_are_one_sentence_and_nothing_is_written(places, vaswani, tmp_path, given, parts):
    words = given if "--output" in given else f"{given} --output=NEW/mean"
    for name, place in (places | {"NEW": tmp_path}).items():
        words, parts = words.replace(name, str(place)), parts.replace(name, str(place))
    code, _, said = vaswani("average", *words.split())
    # The exit code is 1 for a damaged file, and 2 for a wrong option.
    assert code == (1 if "DAMAGED" in given or "BROKEN" in given else 2)
    assert contains(said, parts), said
    assert not list(tmp_path.iterdir()) and not list(places["RUN"].rglob("mean"))


@pytest.mark.parametrize("without_record", ["nothing", "the recipe", "a damaged recipe"])
def test_an_average_of_several_runs_has_the_record_of_the_first(finished, vaswani, tmp_path, without_record):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
        text, of_data = (folder / "recipe.yaml").read_text(), "license: null\n  attribution: null"
        assert of_data in text
        new = f"license: cc-by-4.0\n  attribution: Author of {folder.name}"
        (folder / "recipe.yaml").write_text(text.replace(of_data, new))
    expected = "Author of a"
    if without_record == "the recipe":
        (folders[0] / "recipe.yaml").unlink()
        expected = "Author of b"
    elif without_record == "a damaged recipe":
        (folders[1] / "recipe.yaml").write_text("training: {unknown: 1}")
    average = tmp_path / "average"
    assert vaswani("average", *folders, f"--output={average}")[0] == 0
    data = load_recipe(average / "recipe.yaml").data
    assert (data.license, data.attribution) == ("cc-by-4.0", expected)
    card = model_card(average, "user/name").content
    assert "The weights of the model are the mean of the weights of `a`, `b`;" in card
    assert "has no results" in card


def test_an_average_is_no_run_that_has_ended(finished, vaswani, tmp_path):
    other = shutil.copytree(finished, tmp_path / "other")
    (other / "recipe.yaml").write_text((other / "recipe.yaml").read_text().replace("seed: 1\n", "seed: 2\n"))
    average, folders = tmp_path / "average", (finished / "checkpoint-4", other / "checkpoint-4")
    assert vaswani("average", *folders, f"--output={average}")[0] == 0
    assert results(average) == {"average_of": ["run/checkpoint-4", "other/checkpoint-4"]}
    code, _, said = vaswani("train", average / "recipe.yaml", f"--output_dir={average}", "--resume=true")
    assert (code, "holds a finished model, but no checkpoint to continue from" in said) == (2, True)
