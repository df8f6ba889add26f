"""Loading from the Hub: with the package and without it, a private repository, a revision, offline."""

import json
import subprocess

import torch
from factories import CODE_FILES, files_in
from transformers import AutoConfig, AutoModel, pipeline

import vaswani_hf
from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM

TEXT = "der Hund läuft"
# The first lines of each program that must run as if the package were not installed.
WITHOUT_PACKAGE = """
import sys
# Python raises ModuleNotFoundError for a module that is None.
sys.modules["vaswani_hf"] = None
import json, torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
"""
LOAD_ALL = """
name, text, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options["trust_remote_code"] = True
tokenizer = AutoTokenizer.from_pretrained(name, **options)
ids = tokenizer(text, return_tensors="pt")["input_ids"]
found = {"config": type(AutoConfig.from_pretrained(name, **options)).__module__, "ids": ids.tolist()}
model = AutoModelForSeq2SeqLM.from_pretrained(name, **options).eval()
found["logits"] = model(ids, decoder_input_ids=ids).logits.tolist()
found["hidden"] = AutoModel.from_pretrained(name, **options).eval()(ids, decoder_input_ids=ids)[0].tolist()
found["code"] = type(model).__module__
translator = pipeline("translation", model=name, **options)
found["translation"] = translator(text)
print(json.dumps(found))
"""


def test_model_and_tokenizer_push_their_parts_which_combine(hub, repo_id, copier):
    copier.model.push_to_hub(repo_id)
    copier.source_tokenizer.push_to_hub(repo_id)
    files = hub.repository(repo_id).files()
    parts = {".gitattributes", "README.md", "config.json", "generation_config.json", "model.safetensors"}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert set(files) == parts | tokenizer | CODE_FILES
    config = json.loads(files["config.json"])
    assert config["auto_map"] == {
        "AutoConfig": "configuration_vaswani.VaswaniConfig",
        "AutoModel": "modeling_vaswani.VaswaniModel",
        "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForSeq2SeqLM",
    }
    assert config["custom_pipelines"]["translation"]["impl"] == "pipeline_vaswani.TranslationPipeline"


def test_without_the_package_everything_loads_and_is_pushed_again(
    hub, copier_repository, alice, copier, tmp_path, fresh_python
):
    before, commit = copier_repository.files(), copier_repository.head()
    # The later commits of the branch contain other code, which must not be loaded.
    marker = tmp_path / "was_run"
    copier_repository.commit(
        {name: f"open({str(marker)!r}, 'w')".encode() for name in before if name.endswith(".py")}
    )
    program = """
name, again = sys.argv[1], sys.argv[4]
for load in (AutoConfig, AutoModel, AutoModelForSeq2SeqLM, lambda name: pipeline("translation", model=name)):
    try:
        getattr(load, "from_pretrained", load)(name)
    except ValueError as error:
        assert "trust_remote_code=True" in str(error)
    else:
        raise SystemExit("code was run without the flag")
"""
    name = copier_repository.id
    again, options = f"{name}-again", json.dumps({"revision": commit})
    # The code in the repository contains the whole search, with ensembles and phrases.
    push = """
phrase = ids[0, :1].tolist()
both = translator.model.generate(ids, ensemble=[model], must_contain=[[phrase]], num_beams=2)
assert phrase[0] in both[0, 1:].tolist()
translator.push_to_hub(again)
"""
    program = WITHOUT_PACKAGE + program + LOAD_ALL + push
    environment = hub.environment(alice.token) | {"HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    command = [fresh_python, "-c", program, name, TEXT, options, again]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert not marker.exists()
    # transformers prints its own questions before the program prints the result.
    found = json.loads(result.stdout[result.stdout.index('{"config"') :].splitlines()[0])
    assert found["code"].startswith("transformers_modules.") and commit in found["code"]
    ids = copier.source_tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert found["ids"] == ids.tolist()
    assert torch.equal(torch.tensor(found["logits"]), copier.model(ids, decoder_input_ids=ids).logits)
    assert torch.equal(torch.tensor(found["hidden"]), copier.model.model(ids, decoder_input_ids=ids)[0])
    assert found["translation"] == [{"translation_text": TEXT}]
    after = hub.repository(again).files()
    assert {name for name in before if name.endswith(".py")} == {
        name for name in after if name.endswith(".py")
    }
    assert all(before[name] == after[name] for name in before if name.endswith((".py", "safetensors")))
    assert json.loads(after["config.json"]) == json.loads(before["config.json"])


def test_with_the_package_no_flag_is_needed(copier_repository):
    published = copier_repository.id
    assert type(AutoConfig.from_pretrained(published)) is VaswaniConfig
    assert type(AutoModel.from_pretrained(published)) is vaswani_hf.VaswaniModel
    # The pipeline works without the card's pipeline_tag, and with `trust_remote_code`.
    for task, flag in (("translation", {}), ("translation_de_to_de", {"trust_remote_code": True})):
        translator = pipeline(task, model=published, **flag)
        assert translator(TEXT) == [{"translation_text": TEXT}]
        assert type(translator.model) is VaswaniForSeq2SeqLM


def test_the_target_tokenizer_of_a_private_repository_and_a_revision(
    hub, alice, repo_id, tiny_checkpoint, monkeypatch, tmp_path
):
    two_vocabularies = tiny_checkpoint(two_vocabularies=True)
    repository = hub.create_repository(repo_id, private=True)
    repository.refs["refs/tags/v2"] = repository.commit(files_in(two_vocabularies))
    # The next commit damages the files of the branch, but not the files of the tag.
    repository.commit({"target_tokenizer/tokenizer.json": None, "tokenizer.json": b"{}"})
    monkeypatch.delenv("HF_TOKEN")
    cache = {"model_kwargs": {"cache_dir": tmp_path / "cache"}}
    translator = pipeline("translation", model=repo_id, revision="v2", token=alice.token, **cache)
    local = pipeline("translation", model=str(two_vocabularies))
    assert translator.target_tokenizer.get_vocab() == local.target_tokenizer.get_vocab()
    assert translator.target_tokenizer.get_vocab() != translator.tokenizer.get_vocab()
    assert translator("the dog", max_new_tokens=8) == local("the dog", max_new_tokens=8)


def test_the_package_needs_no_connection_to_be_imported_and_none_offline(
    hub, copier_repository, tmp_path, fresh_python
):
    # Start to count connections after the imports and before the first request.
    program = """
import socket, sys
connect, connections = socket.socket.connect, []
socket.socket.connect = lambda self, place: connections.append(place) or connect(self, place)
import vaswani_hf, vaswani_hf.publish.push, vaswani_hf.training.run
assert not connections
from transformers import pipeline
print(pipeline("translation", model=sys.argv[1])(sys.argv[2])[0]["translation_text"])
"""
    command = [fresh_python, "-c", program, copier_repository.id, TEXT]
    environment = hub.environment() | {"HF_HOME": str(tmp_path / "home")}
    for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
        hub.clear()
        result = subprocess.run(command, capture_output=True, text=True, env=environment | offline)
        assert TEXT in result.stdout, result.stderr
        assert bool(hub.requests) != bool(offline)
