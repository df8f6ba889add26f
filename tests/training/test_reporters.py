"""The settings of Trackio reach the arguments of transformers, and the tags of a reporter reach the model
card.
"""

from sentences import refused
from transformers import TrainerCallback

from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.settings.sections import PublishingSettings
from vaswani_hf.training import run as run_module
from vaswani_hf.training.trainer import training_arguments

TRACKIO = {
    "project": "words",
    "trackio_space_id": "alice/log",
    "trackio_bucket_id": "alice/bucket",
    "trackio_static_space_id": False,
}


class Reporter(TrainerCallback):
    """Adds a tag to the model, as the reporter of Trackio does."""

    def on_train_end(self, args, state, control, model=None, **kwargs):
        model.add_model_tags(["trackio", "trackio:https://huggingface.co/spaces/alice/log"])


def test_the_settings_of_trackio_are_passed_to_transformers(finished):
    training = load_recipe(finished / "recipe.yaml").training
    publishing = PublishingSettings(**TRACKIO, hub_private_repo=True)
    arguments = training_arguments(training, "out", 1, validates=False, publishing=publishing)
    assert {name: getattr(arguments, name) for name in TRACKIO} == TRACKIO
    assert arguments.hub_private_repo is True
    arguments = training_arguments(training, "out", 1, validates=False)
    assert (arguments.project, arguments.hub_private_repo) == ("huggingface", None)


def test_settings_of_trackio_without_trackio(run):
    with refused(
        "`publishing.project` and `publishing.trackio_space_id` need `training.report_to: [trackio]`, but "
        "`training.report_to` is []; add trackio, or leave the settings of Trackio out."
    ):
        run("run", "--project=words --trackio_space_id=alice/log")


def test_the_tags_that_a_reporter_adds_are_on_the_card_of_a_resumed_run_too(run, monkeypatch):
    add_callbacks = run_module.add_callbacks

    def add_reporter(trainer, publishing):
        add_callbacks(trainer, publishing)
        trainer.add_callback(Reporter())

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "add_callbacks", add_reporter)
        folder = run("run")
    tags = ["trackio", "trackio:https://huggingface.co/spaces/alice/log"]
    assert model_card(folder, "alice/words").data.tags[-2:] == tags
    run("run", "--resume=true --num_beams=1")
    assert model_card(folder, "alice/words").data.tags[-2:] == tags
