"""The custom handler that runs this model on Inference Endpoints
(https://huggingface.co/docs/inference-endpoints).

The package vaswani_hf pushes this file with each model that `transformers.pipeline` can load. The handler
runs the model code in this repository, and does not need the package vaswani_hf. `requirements.txt` lists the
library versions that the code needs.

A request is a JSON object: `inputs` is a text or a list of texts, and `parameters` has the arguments of the
pipeline, such as {"num_beams": 4, "return_scores": true}. A parameter must be a field of `GenerationConfig`,
or an entry of `PARAMETERS`.
"""

import json
from pathlib import Path
from typing import Any

import transformers

# Maps the `model_type` in config.json to the task of the pipeline.
TASKS = {"vaswani": "translation", "vaswani_decoder": "text-generation", "vaswani_encoder": "fill-mask"}
# The parameters that a request can have in addition to the fields of `GenerationConfig`: arguments of the
# three pipelines. All other arguments are refused, because `custom_generate` runs code, `glossary` reads a
# file of the endpoint, and other arguments need Python objects or return tensors.
PARAMETERS = frozenset(
    """
    batch_size clean_up_tokenization_spaces coverage_penalty handle_long_generation length_penalty_type max_length_a
    max_length_b must_contain on_error prefix repetition_guard return_alignments return_full_text
    return_scores return_text seed skip_special_tokens split_sentences src_lang stop_sequence
    target_prefix targets tgt_lang tokenizer_encode_kwargs tokenizer_kwargs tokens_per_batch truncation
    """.split()
)


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
        parameters = data.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise ValueError(f"The key `parameters` must be a JSON object, but is {repr(parameters)[:100]}.")
        allowed = PARAMETERS | vars(transformers.GenerationConfig()).keys()
        for name in parameters:
            if name not in allowed:
                raise ValueError(
                    f"An endpoint does not accept the parameter {name[:100]!r}; leave the parameter out."
                )
        return self.pipeline(inputs, **parameters)
