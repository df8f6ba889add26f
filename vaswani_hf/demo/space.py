"""Creates a Space on the Hub. The Space shows a page that translates texts with a model."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import RepoCard, SpaceCardData
from huggingface_hub.utils import validate_repo_id

from ..checkpoint.files import CARD_FILE, REQUIREMENTS_FILE, RESULTS_FILE
from ..checkpoint.languages import recorded_languages
from ..publish.model_card import pipeline_of, read_record
from ..publish.push import Destination, check_destination, check_token, only_hub_errors, refuse_tokens, send
from ..version import minimum_versions

# The page was tested with this version of gradio. The Space installs the same version.
GRADIO_VERSION = "6.31.0"
# Set the Python version of the Space, because the default is Python 3.10 and the code of a model needs Python
# 3.11 or later.
_PYTHON_VERSION = "3.12"
_INTERFACE_FILE = "interface.py"
_APP_FILE = "app.py"
_README = """# {title}

This Space translates with the model [{model}](https://huggingface.co/{model}). `{app}` runs the code of the model's repository at
the commit `{commit}`. `vaswani push --space` wrote the files.
"""
_APP = '''"""Translates with a model of the Hub, on a page of gradio."""

from interface import Direction, launch
from transformers import pipeline

MODEL = {model}
# The code of the repository runs on this machine. Read the code before you change the commit.
COMMIT = {commit}

translate = pipeline("translation", model=MODEL, revision=COMMIT, trust_remote_code=True)
examples = {examples}
launch([Direction({label}, translate, num_beams={num_beams}, examples=examples)], {title})
'''


def check_space(checkpoint: str | Path, space: str) -> None:
    """Raise a ValueError if the name of the Space is invalid, or if the checkpoint is not a translation
    model.
    """
    validate_repo_id(space)
    if pipeline_of(Path(checkpoint)) != "translation":
        raise ValueError(
            f"`--space` is for a model that translates, but '{checkpoint}' does not translate; leave `--space` out."
        )


def push_space(
    checkpoint: str | Path,
    model: str,
    commit: str,
    space: str,
    *,
    private: bool = False,
    token: str | bool | None = None,
) -> str:
    """Create or update the Space of a pushed checkpoint. Then download the Space, and compare the downloaded
    files with the pushed files.

    Args:
        checkpoint (str or Path): The folder of the checkpoint.
        model (str): The repository of the checkpoint, as user/name.
        commit (str): The commit of `model` whose code the Space runs.
        space (str): The repository of the Space, as user/name.
        private (bool): If True, a new Space is private.
        token (str or bool, optional): The access token, see `push`.

    Returns:
        str: The URL of the commit in the Space.

    Raises:
        HubError: If the Space cannot be written.
    """
    with only_hub_errors(), TemporaryDirectory() as name:
        to = Destination(space, private, token=token, repo_type="space")
        check_token(to)
        to = check_destination(to)
        staged = Path(name)
        stage_space(Path(checkpoint), staged, model, commit)
        refuse_tokens(staged)
        return send(to, staged, "Push a Space of vaswani_hf", replaced=())


def stage_space(checkpoint: Path, staged: Path, model: str, commit: str) -> None:
    """Write the files of the Space into the folder `staged`."""
    languages = recorded_languages(checkpoint)
    examples = read_record(checkpoint / RESULTS_FILE).get("examples") or []
    generation = read_record(checkpoint / "generation_config.json")
    title = model.split("/")[-1]
    values: dict[str, Any] = {
        "model": model,
        "commit": commit,
        "examples": [example["source"] for example in examples],
        "label": " → ".join(languages) if languages else title,
        "num_beams": generation.get("num_beams") or 1,
        "title": title,
    }
    # Write the values as JSON. The JSON of a text, a number or a list of texts is also valid Python code.
    literals = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    (staged / _APP_FILE).write_text(_APP.format(**literals), encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name(_INTERFACE_FILE), staged / _INTERFACE_FILE)
    (staged / REQUIREMENTS_FILE).write_text(minimum_versions("torch", "transformers"), encoding="utf-8")
    data = SpaceCardData(
        title=title,
        sdk="gradio",
        sdk_version=GRADIO_VERSION,
        python_version=_PYTHON_VERSION,
        app_file=_APP_FILE,
        suggested_hardware="cpu-basic",
        short_description="Translate with a Transformer of 2017",
        models=[model],
        preload_from_hub=[model],
        tags=["translation", "vaswani"],
    )
    text = _README.format(title=title, model=model, app=_APP_FILE, commit=commit)
    (staged / CARD_FILE).write_text(str(RepoCard(f"---\n{data}\n---\n\n{text}")), encoding="utf-8")
