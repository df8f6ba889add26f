"""The custom handler that runs this model on Inference Endpoints
(https://huggingface.co/docs/inference-endpoints).

The package vaswani_hf pushes this file with each model that `transformers.pipeline` can load. The handler
runs the model code in this repository, and does not need the package vaswani_hf. `requirements.txt` lists the
library versions that the code needs.

A request is a JSON object: `inputs` is a text or a list of texts, and `parameters` has the arguments of the
pipeline, such as {"num_beams": 4, "return_scores": true}.
"""

import json
from pathlib import Path
from typing import Any

import transformers

# Maps the `model_type` in config.json to the task of the pipeline.
TASKS = {"vaswani": "translation", "vaswani_decoder": "text-generation", "vaswani_encoder": "fill-mask"}


class EndpointHandler:
    """Answers the requests to an endpoint."""

    def __init__(self, path: str = ""):
        """Load the model from the folder `path`."""
        version = transformers.__version__
        if int(version.split(".")[0]) < 5:
            raise RuntimeError(
                f"This model needs transformers 5, but transformers {version} is installed; install the "
                "versions in requirements.txt."
            )
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
        task: Any = TASKS[config["model_type"]]
        self.pipeline: Any = transformers.pipeline(task, model=path, trust_remote_code=True)

    def __call__(self, data: dict[str, Any]) -> Any:
        """Return the output of the pipeline for `data["inputs"]`."""
        if not isinstance(data, dict):
            raise ValueError(
                f'A request must be a JSON object, such as {{"inputs": "…"}}, but is {repr(data)[:100]}.'
            )
        inputs = data.get("inputs")
        if not isinstance(inputs, (str, list)):
            raise ValueError(f"The key `inputs` must be a text or a list of texts, but is {inputs!r}.")
        return self.pipeline(inputs, **(data.get("parameters") or {}))
