"""Creates a Space on the Hub. The Space shows a page that translates texts with a model.

A Space with the SDK "gradio" runs the model in Python, and shows the page of `vaswani demo`. A Space with the
SDK "static" has the page of `vaswani export --format html`, which runs the model in the browser of the
reader.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from huggingface_hub import RepoCard, SpaceCardData
from huggingface_hub.utils import validate_repo_id

from ..checkpoint.files import CARD_FILE, REQUIREMENTS_FILE
from ..checkpoint.languages import recorded_languages
from ..checkpoint.results import read_results
from ..checkpoint.tokenizers import load_tokenizers
from ..convert.export import export
from ..convert.html_engine import MODULE_FILE, PAGE_FILE
from ..messages import say
from ..model.errors_vaswani import InvalidValueError
from ..model.tokenizing_vaswani import languages_of
from ..publish.destination import Destination, check_destination
from ..publish.model_card import pipeline_of
from ..publish.push import commit_and_check, only_hub_errors, push
from ..publish.staging import refuse_tokens
from ..version import minimum_versions

# The version of gradio that the Space installs. The page of the Space was tested with this version of gradio.
GRADIO_VERSION = "6.31.0"
# Set the Python version of the Space, because the default is Python 3.10 and the code of a model needs Python
# 3.11 or later.
_PYTHON_VERSION = "3.12"
_INTERFACE_FILE = "interface.py"
_APP_FILE = "app.py"
# The folder in the Space for the modules that explain a translation. The push copies the folder `model` of
# the package into the folder `_VIEW`. From the folder `browser` of the package, the push copies the folder
# `view` and the modules `_VIEW_FILES`. The modules in `_VIEW_FILES` import no modules of the package except
# each other and the modules of the folder `model`.
_VIEW = "attention_view"
_VIEW_FILES = ("__init__.py", "explain.py", "explanation.py", "page.py", "recording.py")
# Names and patterns of files that a push deletes from an existing Space if the push does not write a new file
# with the same name. For example, a push deletes the files of the old SDK if the SDK of a Space changes.
_REPLACED = (_APP_FILE, _INTERFACE_FILE, REQUIREMENTS_FILE, f"{_VIEW}/*", PAGE_FILE, MODULE_FILE)
_ABOUT_GRADIO = "`{app}` runs the code of the model's repository at the commit `{commit}`."
_ABOUT_STATIC = "The model runs in the browser, with weights in int8. The page needs no server."
_README = """# {title}

This Space translates with the model [{model}](https://huggingface.co/{model}). {about} `vaswani push --space` wrote the
files.
"""
_APP = '''"""Translates with a model of the Hub, on a page of gradio."""

from attention_view.browser.explain import explain
from attention_view.browser.page import page_of
from attention_view.model.translator_vaswani import BaseTranslator
from interface import Direction, launch
from transformers import pipeline

MODEL = {model}
# The code of the repository runs on this machine. Read the code before you change the commit.
COMMIT = {commit}

translate = pipeline("translation", model=MODEL, revision=COMMIT, trust_remote_code=True)
translator = BaseTranslator(translate.model, translate.tokenizer, translate.target_tokenizer)


def show_attention(text, num_beams):
    """Return a page with the attention."""
    return page_of(explain(translator, text, name={title}, num_beams=num_beams))


examples = {examples}
launch(
    [
        Direction(
            {label},
            translate,
            num_beams=translator.setting("num_beams"),
            examples=examples,
            explain=show_attention,
        )
    ],
    {title},
)
'''


def push_with_space(
    checkpoint: str,
    repository: str,
    space: str,
    sdk: Literal["gradio", "static"],
    *,
    private: bool = False,
    **options: Any,
) -> None:
    """Push a checkpoint, and create or update its Space. `options` are further arguments of `push`.

    The Space of a private model is private. The permissions for the model repository and for the Space are
    checked before the push.
    """
    check_space(checkpoint, space)
    with only_hub_errors(), TemporaryDirectory() as folder:
        model = check_destination(Destination(repository, private, revision=options.get("revision")))
        to = check_destination(Destination(space, model.private, repo_type="space", space_sdk=sdk))
        page = None
        if sdk == "static":
            # Export the page before the push, so that nothing is uploaded if the page does not support the
            # model.
            page = export_page(checkpoint, repository, Path(folder))
        url = push(checkpoint, repository, private=private, **options)
        # The URL of a commit ends with a slash and the hash of the commit.
        push_space(checkpoint, model.repo_id, url.split("/")[-1], to, page=page)
    if model.private and page is None:
        say(
            "the Space needs the secret HF_TOKEN in its settings, because the model is private",
            is_important=True,
        )


def check_space(checkpoint: str | Path, space: str) -> None:
    """Raise an error if the name of the Space is invalid, or if the page of the Space does not support the
    checkpoint.
    """
    validate_repo_id(space)
    if pipeline_of(Path(checkpoint)) != "translation":
        raise InvalidValueError(
            f"`--space` is for a model that translates, but '{checkpoint}' does not translate; leave `--space` out."
        )
    if languages_of(load_tokenizers(checkpoint)[0]):
        raise InvalidValueError(
            f"`--space` is for a model without language tokens, but '{checkpoint}' has language tokens; leave "
            "`--space` out."
        )


def export_page(checkpoint: str | Path, repository: str, folder: Path) -> Path:
    """Export the page of a static Space. The title of the page is the name of the model's repository."""
    page = folder / repository.split("/")[-1]
    say(export(checkpoint, page, "html"), is_important=True)
    return page


def push_space(
    checkpoint: str | Path,
    model: str,
    commit: str,
    to: Destination,
    *,
    page: Path | None = None,
) -> str:
    """Create or update the Space `to` of a pushed checkpoint. Download the Space again, and check that all
    files have arrived unchanged.

    A Space with the SDK "gradio" runs the code of the commit `commit` of the repository `model`. For a static
    Space, `page` is the result of `export_page`. Return the URL of the commit in the Space.
    """
    with TemporaryDirectory() as name:
        staged = Path(name)
        if page is None:
            stage_space(Path(checkpoint), staged, model, commit)
        else:
            stage_static_space(page, staged, model)
        refuse_tokens(staged)
        return commit_and_check(to, staged, "Push a Space of vaswani_hf", replaced=_REPLACED)


def stage_space(checkpoint: Path, staged: Path, repository: str, commit: str) -> None:
    """Write the files of a Space with the SDK "gradio" into the folder `staged`."""
    languages = recorded_languages(checkpoint)
    examples = read_results(checkpoint).examples or []
    title = repository.split("/")[-1]
    values: dict[str, Any] = {
        "model": repository,
        "commit": commit,
        "examples": [example.source for example in examples],
        "label": " → ".join(languages) if languages else title,
        "title": title,
    }
    # Insert the values of the dict `values` into app.py as JSON. The JSON of a text, a number or a list of
    # texts is also valid Python code.
    literals = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    (staged / _APP_FILE).write_text(_APP.format(**literals), encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name(_INTERFACE_FILE), staged / _INTERFACE_FILE)
    (staged / REQUIREMENTS_FILE).write_text(minimum_versions("torch", "transformers"), encoding="utf-8")
    _stage_view(staged / _VIEW)
    about = _ABOUT_GRADIO.format(app=_APP_FILE, commit=commit)
    _stage_card(
        staged,
        repository,
        about,
        sdk="gradio",
        sdk_version=GRADIO_VERSION,
        python_version=_PYTHON_VERSION,
        app_file=_APP_FILE,
        suggested_hardware="cpu-basic",
        preload_from_hub=[repository],
    )


def _stage_view(folder: Path) -> None:
    """Copy the modules that explain a translation into a new folder."""
    (folder / "browser").mkdir(parents=True)
    (folder / "__init__.py").touch()
    package = Path(__file__).parent.parent
    for name in _VIEW_FILES:
        shutil.copyfile(package / "browser" / name, folder / "browser" / name)
    shutil.copytree(package / "browser" / "view", folder / "browser" / "view")
    shutil.copytree(package / "model", folder / "model", ignore=shutil.ignore_patterns("__pycache__"))


def stage_static_space(page: Path, staged: Path, repository: str) -> None:
    """Write the files of a static Space into the folder `staged`. `page` is the result of `export_page`."""
    for name in (PAGE_FILE, MODULE_FILE):
        shutil.copyfile(page / name, staged / name)
    _stage_card(staged, repository, _ABOUT_STATIC, sdk="static", app_file=PAGE_FILE)


def _stage_card(staged: Path, repository: str, about: str, **settings: Any) -> None:
    """Write the README.md of a Space. `settings` are arguments of `SpaceCardData`."""
    title = repository.split("/")[-1]
    data = SpaceCardData(
        title=title,
        short_description="Translate with a Transformer of 2017",
        models=[repository],
        tags=["translation", "vaswani"],
        **settings,
    )
    text = _README.format(title=title, model=repository, about=about)
    (staged / CARD_FILE).write_text(str(RepoCard(f"---\n{data}\n---\n\n{text}")), encoding="utf-8")
