"""The handler for Inference Endpoints answers requests from the files that a push has sent, without the
package.
"""

import json
import subprocess
from dataclasses import fields

import pytest
from huggingface_hub import snapshot_download
from sentences import refused
from transformers import GenerationConfig

from vaswani_hf.model.inputs_vaswani import SearchSettings, TranslationOptions
from vaswani_hf.publish.handler import PARAMETERS, EndpointHandler
from vaswani_hf.translation.translator import Translator

# The toolkit of Inference Endpoints imports handler.py from the folder of the model, and calls the handler.
TOOLKIT = """
import importlib.util, json, sys
sys.modules["vaswani_hf"] = None
path = sys.argv[1]
spec = importlib.util.spec_from_file_location("handler", f"{path}/handler.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
handler = module.EndpointHandler(path)
print(json.dumps([handler(json.loads(request)) for request in sys.argv[2:]]))
"""


def test_the_pushed_handler_answers_without_the_package(
    hub, repo_id, copier_checkpoint, copied_words, vaswani, fresh_python
):
    assert vaswani("push", copier_checkpoint, repo_id)[0] == 0
    folder = snapshot_download(repo_id)
    texts = [" ".join(copied_words[:3]), copied_words[4]]
    options = {"num_beams": 2, "return_scores": True}
    requests = [{"inputs": texts[0]}, {"inputs": texts, "parameters": options}]
    command = [fresh_python, "-c", TOOLKIT, folder, *map(json.dumps, requests)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    one, both = json.loads(result.stdout)
    expected = list(Translator.from_pretrained(copier_checkpoint).translate(texts))
    assert [answer["translation_text"] for answer in one] == expected[:1]
    assert [answer["translation_text"] for answer in both] == expected
    assert 0 < both[0]["confidence"] <= 1


def test_an_old_version_of_transformers_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.__version__", "4.57.1")
    message = (
        "This model needs transformers 5, but transformers 4.57.1 is installed; install the versions in "
    )
    with refused(f"{message}requirements.txt.", RuntimeError):
        EndpointHandler(str(tmp_path))


def test_each_option_of_a_translation_is_a_parameter_or_refused():
    options = {option.name for option in (*fields(TranslationOptions), *fields(SearchSettings))}
    refused = {"decode", "generate", "glossary", "min_confidence", "tokenize", "warn_of_limit", "window"}
    assert options - PARAMETERS - vars(GenerationConfig()).keys() == refused


NO_OBJECT = 'A request must be a JSON object, such as {"inputs": "…"}, but is '


@pytest.mark.parametrize(
    ("request_data", "message"),
    [
        ({"parameters": {}}, "The key `inputs` must be a text or a list of texts, but is None."),
        (["eins"], f"{NO_OBJECT}['eins']."),
        (None, f"{NO_OBJECT}None."),
        ({"inputs": "eins", "parameters": "a"}, "The key `parameters` must be a JSON object, but is 'a'."),
        *(
            (
                {"inputs": "eins", "parameters": {"num_beams": 2, name: True}},
                f"An endpoint does not accept the parameter '{name}'; leave the parameter out.",
            )
            for name in ("custom_generate", "trust_remote_code", "glossary", "inputs", "generation_config")
        ),
    ],
)
def test_a_wrong_request_is_one_sentence(copier_checkpoint, request_data, message):
    with refused(message):
        EndpointHandler(copier_checkpoint)(request_data)
