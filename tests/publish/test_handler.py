"""The handler for Inference Endpoints answers requests from the files that a push has sent, without the
package.
"""

import json
import subprocess

import pytest
from huggingface_hub import snapshot_download
from sentences import refused

from vaswani_hf.publish.handler import EndpointHandler
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


NO_OBJECT = 'A request must be a JSON object, such as {"inputs": "…"}, but is '


@pytest.mark.parametrize(
    ("request_data", "message"),
    [
        ({"parameters": {}}, "The key `inputs` must be a text or a list of texts, but is None."),
        (["eins"], f"{NO_OBJECT}['eins']."),
        (None, f"{NO_OBJECT}None."),
    ],
)
def test_a_wrong_request_is_one_sentence(copier_checkpoint, request_data, message):
    with refused(message):
        EndpointHandler(copier_checkpoint)(request_data)
