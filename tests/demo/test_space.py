"""A Space runs from the files that a push has sent, without the package."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from factories import save_checkpoint, tiny_model, tiny_tokenizer
from huggingface_hub import snapshot_download
from sentences import refused

from vaswani_hf.convert.html_engine import HtmlEngine
from vaswani_hf.demo.models import load_directions
from vaswani_hf.demo.space import check_space
from vaswani_hf.model.tokenizing_vaswani import LANGUAGE_TOKENS

WITHOUT_PACKAGE = """
import runpy, sys
sys.modules["vaswani_hf"] = None
sys.path.insert(0, ".")
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.fixture
def space_id(repo_id) -> str:
    return f"{repo_id}-space"


def test_the_pushed_space_translates_without_the_package(hub, repo_id, space_id, vaswani, both_directions):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    client = pytest.importorskip("gradio_client")
    assert vaswani("push", both_directions[0], repo_id, "--space", space_id)[0] == 0
    folder = snapshot_download(space_id, repo_type="space")
    # Start a new interpreter, because a fork of a running interpreter hangs in gradio with Python 3.13.
    command = [sys.executable, "-u", "-c", WITHOUT_PACKAGE]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        address = _address_of(process)
        page = client.Client(address, verbose=False)
        translation, words, *_ = page.predict("en → de", "der Hund", 2, 1, api_name="/translate")
        sliders = [one["props"] for one in page.config["components"] if one["type"] == "slider"]
        view = page.predict("en → de", "der Hund", 2, api_name="/explain")
    finally:
        process.terminate()
        process.communicate()
    assert translation == "der Hund" and "Hund<rt>" in words
    # The default of the pipeline is 4 beams.
    assert [slider["value"] for slider in sliders if slider["label"] == "Beams"] == [4]
    assert view.startswith("<iframe") and "vaswaniView.show" in view and "cross" in view


def test_the_space_names_its_model_and_pins_its_versions(hub, repo_id, space_id, vaswani, both_directions):
    code, out, _ = vaswani("push", both_directions[0], repo_id, "--space", space_id, "--private")
    assert code == 0
    space = hub.repository(space_id, "space")
    commit = hub.repository(repo_id).head()
    assert out.endswith(
        f"pushed to {hub.endpoint}/{space.path}/commit/{space.head()}\n"
        f"checked: downloaded at {space.head()[:7]}, same files\n"
        "the Space needs the secret HF_TOKEN in its settings, because the model is private\n"
    )
    assert space.private
    files = space.files()
    of_view = {name for name in files if name.startswith("attention_view/")}
    assert set(files) - of_view == {
        ".gitattributes",
        "README.md",
        "app.py",
        "interface.py",
        "requirements.txt",
    }
    front_matter = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (front_matter["sdk"], front_matter["python_version"]) == ("gradio", "3.12")
    assert front_matter["sdk_version"].count(".") == 2
    assert front_matter["models"] == front_matter["preload_from_hub"] == [repo_id]
    assert len(front_matter["short_description"]) <= 60
    app = files["app.py"].decode()
    assert f'MODEL = "{repo_id}"' in app and f'COMMIT = "{commit}"' in app


def test_a_static_space_replaces_the_files_of_a_gradio_space_and_translates(
    hub, repo_id, space_id, vaswani, both_directions
):
    assert vaswani("push", both_directions[0], repo_id, "--space", space_id)[0] == 0
    code, out, _ = vaswani("push", both_directions[0], repo_id, "--space", space_id, "--space_sdk", "static")
    assert code == 0 and out.endswith("same files\n")
    files = hub.repository(space_id, "space").files()
    assert set(files) == {".gitattributes", "README.md", "index.html", "vaswani.mjs"}
    front_matter = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (front_matter["sdk"], front_matter["app_file"]) == ("static", "index.html")
    assert front_matter["models"] == [repo_id] and "sdk_version" not in front_matter
    assert f"<title>{repo_id.split('/')[1]}</title>" in files["index.html"].decode()
    if HtmlEngine.is_available():
        folder = Path(snapshot_download(space_id, repo_type="space"))
        assert HtmlEngine(folder).translate(["der Hund"], 2) == ["der Hund"]


def test_a_space_is_checked_before_the_push_and_is_as_private_as_the_model(
    hub, repo_id, space_id, vaswani, both_directions
):
    words = ("push", both_directions[0], repo_id)
    code, _, sentence = vaswani(*words, "--space", "bob/space")
    assert code == 1 and sentence.startswith("There is no repository 'bob/space', and the token of alice")
    assert ("model", repo_id) not in hub.repositories
    model = hub.create_repository(repo_id, private=True)
    space = hub.create_repository(space_id, "space")
    code, _, sentence = vaswani(*words, "--space", space_id)
    assert code == 2 and sentence.startswith(
        f"The Space of a private model must be private, but '{space_id}'"
    )
    assert model.titles() == space.titles() == ["initial commit"]
    code, out, _ = vaswani(*words, "--space", f"{space_id}-new")
    assert code == 0 and hub.repository(f"{space_id}-new", "space").private
    assert out.endswith("the Space needs the secret HF_TOKEN in its settings, because the model is private\n")


def test_a_space_that_cannot_be_made_is_one_sentence(hub, repo_id, space_id, vaswani, tiny_checkpoint):
    folder = tiny_checkpoint(attention_window=3)
    static = ("--space_sdk", "static")
    for words, message in (
        (("--space", space_id, *static), "`attention_window` is 3, which HTML cannot express"),
        (static, "`--space_sdk` must not be given without `--space`"),
        (("--space", space_id, "--create_pr"), "`--space` must not be given with `--create_pr`"),
        (("--space", "a/b/c"), "Repo id must be in the form"),
    ):
        code, _, sentence = vaswani("push", folder, repo_id, *words)
        assert code == 2 and sentence.startswith(message)
    assert not hub.repositories.keys() & {("model", repo_id), ("space", space_id)}


def test_a_model_with_language_tokens_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.init_kwargs[LANGUAGE_TOKENS] = {"en": "x", "de": "y"}
    folder = save_checkpoint(tmp_path, tiny_model(vocab_size=len(tokenizer)), tokenizer)
    fault = f"without language tokens, but '{folder}' has language tokens; "
    with refused(f"`--space` is for a model {fault}leave `--space` out."):
        check_space(folder, "alice/space")
    with refused(f"`models` must be models {fault}use `vaswani serve` with `--languages`."):
        load_directions([str(folder)], "cpu")


def _address_of(process: subprocess.Popen) -> str:
    """Read the output of the Space until gradio has chosen a free port and the page answers."""
    for line in process.stdout:
        if "Running on local URL" in line:
            return line.split()[-1]
    raise AssertionError("The Space has ended.")
