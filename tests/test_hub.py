"""Pushing through the real client to a server of the tests on loopback, in a fresh process."""

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vaswani_hf.hub import push_checkpoint


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a push needs: files are kept in `server.files`, the token in `server.tokens`."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.tokens.add(self.headers["Authorization"])
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            return self.answer({"url": f"{self.server.url}/user/name"})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            return self.answer({"files": modes})
        if "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            return self.answer({"commitUrl": f"{self.server.url}/user/name/commit/{'0' * 40}", "commitOid": "0" * 40})
        return self.answer({"error": "not here"}, 404)

    def do_GET(self):
        self.answer({"id": "user/name", "sha": "1" * 40, "siblings": [], "tags": []})

    def answer(self, content, status=200):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.files, server.tokens, server.created = {}, set(), None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_run_pushes_what_a_checkpoint_is_and_nothing_else(hub, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"output_dir: {tmp_path / 'out'}\n"
        "data: {source_language: en, target_language: de, corpus: numbers, numbers_train_size: 100, max_length: 64}\n"
        "tokenizer: {vocab_size: 270}\n"
        "model: {d_model: 8, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 8, decoder_ffn_dim: 8}\n"
        "training: {max_steps: 2, save_steps: 1, source_tokens_per_batch: 500, target_tokens_per_batch: 500}\n"
        "decoding: {num_beams: 1, max_length: 4}\n"
        "publishing: {push_to_hub: true, hub_model_id: user/name, hub_private_repo: true}\n"
    )
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING")) and "proxy" not in k.lower()
    }
    environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")}
    environment |= {"HF_TOKEN": "hf_secret", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "vaswani_hf.cli", "train", str(recipe)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert f"pushed to {hub.url}/user/name/commit/" in result.stdout
    assert hub.created["name"] == "name" and hub.created["organization"] == "user"
    assert hub.created["visibility"] == "private"
    assert set(hub.files) == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    }
    assert hub.files["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()
    assert hub.tokens == {"Bearer hf_secret"}
    everything = (
        result.stdout + result.stderr + "".join(p.read_text("latin-1") for p in (tmp_path / "out").glob("*.*"))
    )
    assert "hf_secret" not in everything


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint to push"):
        push_checkpoint(tmp_path, "user/name")
