"""Fixtures of several test files: a local Hub, one thread, and models that are small enough for slow
loops.
"""

import contextlib
import functools
import gc
import itertools
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pytest
import torch
from local_hub import LocalHub
from warm_python import PACKAGE, TORCH, warm_python

if "huggingface_hub" in sys.modules:
    raise RuntimeError(
        "huggingface_hub reads its environment when it is imported, which was before the tests' Hub began."
    )

_FOLDER = tempfile.TemporaryDirectory(prefix="vaswani_tests_", ignore_cleanup_errors=True)
_HUB = LocalHub()
# Variables of a shell that change what the libraries do. Three variables for tests are no such variables.
_OF_SHELL = re.compile(
    "(?!TRANSFORMERS_SOURCE|VASWANI_OLDEST|VASWANI_SCREENSHOT)"
    "(TRANSFORMERS|DATASETS|ACCELERATE|FSDP|OMP|GOMP|KMP|MKL|MASTER|VASWANI)_|(LOCAL_)?RANK$|WORLD_SIZE$"
)
_ENVIRONMENT = {name: value for name, value in _HUB.environment().items() if not _OF_SHELL.match(name)}
_ENVIRONMENT |= {
    "HF_HOME": str(Path(_FOLDER.name) / "home"),
    "ORT_DISABLE_TELEMETRY": "1",
    # No test needs a GPU.
    "CUDA_VISIBLE_DEVICES": "",
}
# The processes that tests start inherit these environment variables.
_ENVIRONMENT["OMP_NUM_THREADS"] = "1"
for _name in os.environ.keys() - _ENVIRONMENT.keys():
    del os.environ[_name]
os.environ.update(_ENVIRONMENT)

import factories  # noqa: E402
import shared_weights  # noqa: E402
from shared_weights import train_once  # noqa: E402
from transformers import PreTrainedTokenizerBase  # noqa: E402

from vaswani_hf import VaswaniForSeq2SeqLM  # noqa: E402
from vaswani_hf.cli import main  # noqa: E402
from vaswani_hf.translation.translator import Translator  # noqa: E402

torch.set_num_threads(1)
# Waiting for the disk takes a fifth of a tiny run, and matters only after a power failure.
os.fsync = lambda descriptor: None
# Compiling the template of the model card takes longer than most other parts of a tiny push.
jinja2.Template = functools.cache(jinja2.Template)
# A job that a script starts in the background ignores SIGINT. Processes of tests inherit the handlers.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _one_thread():
    """Reset the number of threads after each test, because more threads make later tests slower."""
    yield
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    assert number == 1, f"torch has {number} threads after this test."


@pytest.fixture(autouse=True, scope="module")
def _seed_of_module():
    """Let the fixtures of a module create the same random weights in each run. With other weights, two
    translations can have almost equal scores.
    """
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def _seed_of_test():
    """Let each test draw the same random numbers in each run and after any other test."""
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def _no_request_to_another_host():
    """Check after each test that the test and its fixtures asked no other host."""
    yield
    strangers, _HUB.strangers = _HUB.strangers, []
    assert not strangers, f"Somebody wanted to leave loopback: {strangers}"


def _set_bfloat16(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    capabilities = {**capabilities, **dict.fromkeys(("amx_bf16", "avx512_bf16", "bf16"), is_there)}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)


@pytest.fixture
def set_bfloat16(monkeypatch):
    """A function that makes PyTorch report bfloat16 instructions of the processor as present or as absent."""
    return functools.partial(_set_bfloat16, monkeypatch)


@pytest.fixture(params=[True, False], ids=["bfloat16 in hardware", "no bfloat16 in hardware"])
def bfloat16_in_hardware(request, set_bfloat16) -> bool:
    """Run the test as on a processor with bfloat16 instructions, and as on a processor without them. A test
    whose outcome depends on the processor uses this fixture or `set_bfloat16`.

    All other tests set the precision: recipes have the key `bf16`, and translators get a `dtype`.
    """
    set_bfloat16(request.param)
    return request.param


@pytest.fixture(scope="module")
def quick_workers(python):
    """Processes of multiprocessing start in a Python that has imported the package."""
    multiprocessing.set_executable(python)
    yield
    multiprocessing.set_executable(sys.executable)


COPYING_STEPS = 400


def _wait_for_imports(executable: str) -> str:
    """The imports take minutes on a busy machine, and must not count towards the time limit of a command."""
    subprocess.run([executable, "-c", "pass"], check=True)
    return executable


@pytest.fixture(scope="session")
def fresh_python(request) -> Iterator[str]:
    """The path of a `python` that has imported torch, but neither huggingface_hub nor transformers nor the
    package.
    """
    path = shared_weights.folder / "fresh_python"
    if hasattr(request.config, "workerinput"):
        yield _wait_for_imports(str(path))
        return
    with warm_python(path, TORCH) as executable:
        yield _wait_for_imports(executable)


@pytest.fixture(scope="session")
def python(fresh_python) -> Iterator[str]:
    """The path of a `python` that has already imported the package."""
    with warm_python(Path(_FOLDER.name) / "python", PACKAGE, start=fresh_python) as executable:
        yield _wait_for_imports(executable)


@pytest.fixture(autouse=True, scope="session")
def _curves_drawn_once():
    """Draw each kind of picture once per process, because drawing takes a quarter of a tiny run."""
    results = sys.modules.get("vaswani_hf.training.run_results")
    if results is None:
        yield
        return
    draw, drawn = results.plot_training_curve, {}

    def plot(metrics, path):
        kind = frozenset(
            name
            for name in ("loss", "eval_loss", "eval_bleu")
            if any(row.get(name) is not None for row in metrics)
        )
        if kind in drawn:
            Path(path).write_bytes(drawn[kind])
        else:
            draw(metrics, path)
            if kind:
                drawn[kind] = Path(path).read_bytes()

    draw_attention, pictures = results.attention_picture, []

    def picture(model, text, path):
        if not pictures:
            draw_attention(model, text, path)
            pictures.append(Path(path).read_bytes())
        Path(path).write_bytes(pictures[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "plot_training_curve", plot)
        patch.setattr(results, "attention_picture", picture)
        yield


# A small vocabulary splits some of these words, and splits some characters into bytes.
COPIED_WORDS = (
    "der Hund läuft über die Straße Mr. 3. Mai weiß größer. eins zwei, drei! ja? nein Öl Łódź 日本".split()
)


@pytest.fixture(scope="session")
def copied_words() -> list[str]:
    """The words that the copier knows."""
    return COPIED_WORDS


@pytest.fixture(scope="session")
def copier() -> Translator:
    """A translator that copies texts of a few of the words in `COPIED_WORDS`."""
    tokenizer = factories.tiny_tokenizer([" ".join(COPIED_WORDS)] * 2, 320, model_max_length=64)
    shape = {"d_model": 48, **factories.stacks(layers=1, ffn_dim=64)}
    config = factories.tiny_config(vocab_size=len(tokenizer), label_smoothing=0.0, **shape)
    torch.manual_seed(1)
    model = VaswaniForSeq2SeqLM(config)
    train_once(model, lambda: _train_to_copy(model, tokenizer), "copier")
    return Translator(model.eval(), tokenizer, tokenizer)


def _train_to_copy(model: VaswaniForSeq2SeqLM, tokenizer: PreTrainedTokenizerBase) -> None:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.03, total_iters=COPYING_STEPS)
    for _ in range(COPYING_STEPS):
        choices = torch.randint(len(COPIED_WORDS), (32, int(torch.randint(1, 6, ()))))
        texts = [" ".join(COPIED_WORDS[i] for i in row) for row in choices.tolist()]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@pytest.fixture(scope="session")
def copier_checkpoint(copier, tmp_path_factory) -> str:
    """The folder of a checkpoint with the model and the tokenizer of the copier."""
    folder = tmp_path_factory.mktemp("copier")
    return str(factories.save_checkpoint(folder, copier.model, copier.source_tokenizer))


@dataclass(frozen=True)
class User:
    name: str
    token: str


def pytest_configure(config):
    """Start the interpreter that all test processes of pytest-xdist share, in the process that starts
    them.
    """
    shared_weights.folder = Path(getattr(config, "workerinput", {}).get("shared_folder", _FOLDER.name))
    if hasattr(config, "workerinput") or not config.getoption("tx", None):
        return
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    stack.enter_context(warm_python(Path(_FOLDER.name) / "fresh_python", TORCH))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a test process the path of the folder that all test processes share."""
    node.workerinput["shared_folder"] = _FOLDER.name


def pytest_collection_finish():
    """The trainer collects garbage in each run, which takes a third of the run if it visits all imported
    modules.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Stop the local Hub, and delete its temporary folder."""
    _HUB.stop()
    _FOLDER.cleanup()


@pytest.fixture(scope="session")
def _users() -> dict[str, User]:
    return {name: User(name, _HUB.add_token(name)) for name in ("alice", "bob")}


@pytest.fixture
def hub(_users):
    """The local Hub."""
    _HUB.clear()
    yield _HUB
    _HUB.clear()


@pytest.fixture(params=["Git LFS", pytest.param("xet", marks=pytest.mark.slow)])
def transfer(request, monkeypatch) -> str:
    """The way in which large files move to and from the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", request.param == "Git LFS")
    return request.param


@pytest.fixture
def alice(hub, _users, monkeypatch) -> User:
    """A user who is logged in and may write to her own repositories."""
    monkeypatch.setenv("HF_TOKEN", _users["alice"].token)
    return _users["alice"]


@pytest.fixture
def bob(hub, _users) -> User:
    """Another user, who is not logged in."""
    return _users["bob"]


_NUMBERS = itertools.count(1)


@pytest.fixture
def repo_id(alice) -> str:
    """The name of a repository of alice that no other test uses."""
    return f"alice/model-{next(_NUMBERS)}"


@pytest.fixture
def copier_repository(hub, repo_id, copier_checkpoint):
    """A repository of alice with the files of the copier."""
    repository = hub.create_repository(repo_id)
    repository.commit(factories.files_in(Path(copier_checkpoint)))
    return repository


@pytest.fixture
def tiny_checkpoint(tmp_path):
    """Make the folder of a checkpoint with weights that no other checkpoint has, and with given config
    fields.

    The folder has the files of `save_pretrained` and `save_tokenizers`, but no record of a run.
    """

    def make(name: str = "checkpoint", *, two_vocabularies: bool = False, **fields) -> Path:
        source = factories.tiny_tokenizer("der Hund läuft", 270, model_max_length=64)
        target = source
        if two_vocabularies:
            target = factories.tiny_tokenizer("the dog runs", 266, model_max_length=64)
        fields |= {"vocab_size": len(source), "decoder_vocab_size": len(target)}
        model = factories.tiny_model(share_encoder_decoder_embeddings=not two_vocabularies, **fields)
        with torch.no_grad():
            model.model.encoder.layers[0].fc1.bias[0] = next(_NUMBERS)
        model.generation_config.max_new_tokens = 5
        return factories.save_checkpoint(tmp_path / name, model, source, target)

    return make


@pytest.fixture
def transformers_log(caplog):
    """Collect the warnings of transformers, because transformers does not pass warnings to the root
    logger.
    """
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def few_numbers(monkeypatch):
    """Score runs on the corpus of numbers on ten pairs instead of a thousand pairs, to save time."""
    monkeypatch.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 10)


@pytest.fixture
def vaswani(capsys):
    """Run `vaswani` in this process: its exit code, its standard output, and the sentence that it ends
    with.
    """

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        sentences = [
            line.removeprefix("vaswani: ") for line in err.splitlines() if line.startswith("vaswani: ")
        ]
        assert len(sentences) == (code != 0), err
        return code, out, sentences[0] if sentences else ""

    names = ("vaswani_hf", "vaswani_hf.messages", "transformers", "datasets")
    levels = {name: logging.getLogger(name).level for name in names}
    yield run
    # The options `--quiet` and `--verbose` change the logging of this process.
    logging.captureWarnings(False)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
