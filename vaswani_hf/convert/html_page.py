"""Converts a checkpoint to one HTML page that translates in the browser, without a server or a network
connection.

The exported folder contains:

- index.html: the page with the weights, the tokenizers and the scripts.

- vaswani.mjs: a JavaScript module with the translator of the page, for other pages and for Node.js.

- README.md: instructions for the use of `index.html` and `vaswani.mjs`.

The scripts are in the folder `browser/translate`. The beam search in JavaScript follows the same rules as the
beam search in `beam_search_vaswani.py`.
"""

import base64
import copy
import html
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData
from safetensors.torch import save
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..browser.page import fill_page, json_in_script, view_script, view_style
from ..checkpoint.files import write_whole
from ..checkpoint.search_settings import NotExpressibleError, SupportedSettings
from ..checkpoint.tokenizers import Tokenizers, is_tree_tokenizer
from ..model import text_rules_vaswani as text_rules
from ..model.configuration_vaswani import decoder_start_token_id, eos_token_ids
from ..model.inputs_vaswani import NEUTRAL_SETTINGS
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.precedence_vaswani import DEFAULT_SEARCH
from ..settings.names import alternatives
from .comparison import largest_difference_of_rows, log_probs_of, report, sample_ids
from .export_formats import (
    ExportFormat,
    Expressible,
    Limit,
    needs_end_token,
    needs_start_token,
    one_of,
    write_card,
)
from .html_engine import MODULE_FILE, PAGE_FILE, HtmlEngine
from .simplify import SCALED_DOT_FIELDS, SCALED_DOT_LIMITS, with_scaled_dot

_SCRIPTS = Path(__file__).parent.parent / "browser" / "translate"
# The JavaScript files that the export joins to the module vaswani.mjs. Each script must come after the
# scripts that it imports.
_MODULE = (
    *("tokenizer.mjs", "options.mjs", "text_rules.mjs", "matrix.mjs", "model.mjs", "search.mjs"),
    *("phrases.mjs", "translator.mjs", "explain.mjs"),
)
_PAGE = ("page.mjs",)
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=async|function|class|const)", re.MULTILINE)

_TITLE = "HTML"
_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish", "tanh")
_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend")
_POSITIONS = ("sinusoidal", "learned", "none")
# The search settings that the page supports.
_SETTINGS = """
    num_beams num_return_sequences length_penalty length_penalty_type coverage_penalty early_stopping
    no_repeat_ngram_size max_length max_new_tokens max_length_a max_length_b
""".split()
# The number of random texts on which the export compares the tokenizers, and the maximum length of a text in
# tokens.
_NUM_TEXTS = 50
_NUM_TOKENS = 12
# The largest absolute value of a weight in int8. A weight is its int8 value multiplied by the scale of its
# row.
_LARGEST = 127


def export_html(
    model: VaswaniForSeq2SeqLM,
    tokenizers: Tokenizers | None,
    folder: Path,
    quantization: str | None = None,
) -> str:
    """Write the HTML page and the JavaScript module. If Node.js 16.6 or newer is installed, compare the
    outputs of the page with the outputs of the model and the tokenizers.
    """
    assert tokenizers is not None
    model = with_scaled_dot(model).float()
    is_int8 = quantization != "float32"
    source, target = tokenizers
    settings = {
        "name": "{{model}}",
        "config": {name: getattr(model.config, name) for name in sorted(SCALED_DOT_FIELDS | _LIMITS.keys())},
        "generation": _generation_settings(model.generation_config),
        "start_token_id": decoder_start_token_id(model.config),
        "end_token_ids": eos_token_ids(model.config),
        "excluded_token_id": model.excluded_class(0.0, None),
        "source_tokenizer": _tokenizer_settings(source),
        "target_tokenizer": None if target is source else _tokenizer_settings(target),
        "text_rules": page_text_rules(),
    }
    folder.mkdir()
    write_whole(folder / MODULE_FILE, _joined(_MODULE) + "\nexport { Translator, explain, readPage };\n")
    page = (_SCRIPTS / "page.html").read_text(encoding="utf-8")
    contents = {
        "style": view_style() + (_SCRIPTS / "page.css").read_text(encoding="utf-8"),
        "view": view_script(),
        "settings": json_in_script(json.dumps(settings, ensure_ascii=False, separators=(",", ":"))),
        "weights": base64.b64encode(packed_weights(model, is_int8)).decode(),
        "script": _joined([*_MODULE, *_PAGE]),
    }
    write_whole(folder / PAGE_FILE, fill_page(page, contents))
    if not HtmlEngine.is_available():
        return (
            "The page was not compared with the checkpoint, because Node.js 16.6 or newer is not installed."
        )
    engine = HtmlEngine(folder)
    _compare_tokenizers(engine, source, target)
    return _compare_log_probs(engine, with_int8_weights(model) if is_int8 else model)


def _joined(names: Any) -> str:
    """Return the scripts as one script without import and export statements."""
    texts = []
    for name in names:
        text = (_SCRIPTS / name).read_text(encoding="utf-8")
        texts.append(_EXPORT.sub("", _IMPORT.sub("", text)).strip())
    return "\n\n".join(texts) + "\n"


def _generation_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the search settings of the page, with their values."""
    defaults = NEUTRAL_SETTINGS | {"num_beams": DEFAULT_SEARCH["num_beams"]}
    settings = defaults | {name: value for name, value in vars(config).items() if value is not None}
    return {name: settings[name] for name in _SETTINGS}


def page_text_rules() -> dict[str, Any]:
    """Return the constants of text_rules_vaswani.py that the script `text_rules.mjs` reads."""
    return {
        "words": {
            "abbreviations": sorted(text_rules.ABBREVIATIONS),
            "before_numbers": sorted(text_rules.BEFORE_NUMBERS),
            "sentence_starters": sorted(text_rules.SENTENCE_STARTERS),
            "before_ordinals": sorted(text_rules.BEFORE_ORDINALS),
            "after_ordinals": sorted(text_rules.AFTER_ORDINALS),
        },
        "patterns": {
            "line_break": text_rules.LINE_BREAK.pattern,
            "candidate": text_rules.CANDIDATE.pattern,
            "spaced_abbreviation": text_rules.SPACED_ABBREVIATION.pattern,
            "ordinal": text_rules.ORDINAL.pattern,
            "initial": text_rules.INITIAL.pattern,
        },
        "opening": text_rules.OPENING,
        "wide_stops": text_rules.WIDE_STOPS,
        "wide_closing": text_rules.WIDE_CLOSING,
        "punctuation": text_rules.PUNCTUATION,
        "word_repeats": text_rules.WORD_REPEATS,
        "phrase_repeats": text_rules.PHRASE_REPEATS,
        "characters_of_loop": text_rules.CHARACTERS_OF_LOOP,
        "longest_unit": text_rules.LONGEST_UNIT,
        "short_text": text_rules.SHORT,
    }


def _tokenizer_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the settings of a tokenizer. Raise an error if the JavaScript code of the page (`tokenizer.mjs`)
    does not support the tokenizer.
    """
    if is_tree_tokenizer(tokenizer):
        raise NotExpressibleError(
            f"The target tokenizer makes parse trees, which {_TITLE} cannot express: the page generates only "
            "texts."
        )
    file = json.loads(tokenizer.backend_tokenizer.to_str())
    settings = {
        "file": file,
        "split_special_tokens": bool(tokenizer.split_special_tokens),
        "model_max_length": tokenizer.model_max_length,
    }
    foreign = next(_foreign_parts(file, settings["split_special_tokens"]), None)
    if foreign is not None:
        name, value = foreign
        raise NotExpressibleError(
            f"`{name}` of tokenizer.json is {json.dumps(value, ensure_ascii=False):.80}, which {_TITLE} cannot express: the "
            "page supports only byte-level BPE."
        )
    file["truncation"] = file["padding"] = None
    return settings


def _foreign_parts(file: dict[str, Any], split_special_tokens: bool) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each part of tokenizer.json that `tokenizer.mjs` does not support."""
    model = file["model"]
    supported = {
        "type": ("BPE",),
        "dropout": (None, 0.0),
        "continuing_subword_prefix": (None, ""),
        "end_of_word_suffix": (None, ""),
        "byte_fallback": (False,),
    }
    for name, values in supported.items():
        if model.get(name, values[0]) not in values:
            yield f"model.{name}", model[name]
    missing = sorted(set(ByteLevel.alphabet()) - set(model["vocab"]))
    if missing:
        yield "model.vocab", f"without the byte {missing[0]}"
    for step in _steps(file["normalizer"], "normalizers"):
        if step["type"] not in _NORMALIZERS:
            yield "normalizer", step
    if (file["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        yield "pre_tokenizer", file["pre_tokenizer"]
    template = file["post_processor"]
    if template is not None and (template["type"] != "TemplateProcessing" or not _has_one_text(template)):
        yield "post_processor", template
    for step in _steps(file["decoder"], "decoders"):
        is_supported = (
            step["type"] == "ByteLevel"
            or (step["type"] == "Replace" and "String" in step["pattern"])
            or (step["type"] == "Strip" and step["stop"] == 0)
        )
        if not is_supported:
            yield "decoder", step
    for token in file["added_tokens"]:
        is_found = not (token["special"] and split_special_tokens)
        if is_found and (token["normalized"] or token["single_word"]):
            yield "added_tokens", token


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's normalizer or decoder as a list. `part` is the JSON object of the
    normalizer or the decoder.
    """
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    steps: list[dict[str, Any]] = []
    for step in part[name]:
        steps += _steps(step, name)
    return steps


def _has_one_text(template: dict[str, Any]) -> bool:
    return sum("Sequence" in part for part in template["single"]) == 1


def packed_weights(model: VaswaniForSeq2SeqLM, is_int8: bool) -> bytes:
    """Return the weights in the safetensors format, tied weights only once. If `is_int8` is True, a matrix
    `NAME` [m, n] is int8, with one scale for each row in `NAME.scale` [m]. All other tensors are float32.
    """
    tied = model.all_tied_weights_keys
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        if is_int8 and tensor.dim() == 2:
            tensors[name], tensors[f"{name}.scale"] = _quantized(tensor)
        else:
            tensors[name] = tensor.float().contiguous()
    return save(tensors)


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix [m, n]. Return the int8 matrix [m, n], and one float32 scale for each row [m]."""
    largest = weight.float().abs().amax(dim=1)
    # A row of zeros gets the scale 1, because the weights are divided by the scale.
    scales = torch.where(largest > 0, largest / _LARGEST, 1.0)
    integers = (weight.float() / scales.unsqueeze(1)).round().clamp(-_LARGEST, _LARGEST)
    return integers.to(torch.int8), scales


def with_int8_weights(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """Return a float32 copy of the model, with the weight matrices rounded to the values that
    `packed_weights` stores in int8.
    """
    rounded = copy.deepcopy(model).float()
    with torch.no_grad():
        for weight in rounded.parameters():
            if weight.dim() == 2:
                integers, scales = _quantized(weight)
                weight.copy_(integers.float() * scales.unsqueeze(1))
    return rounded.eval()


def _compare_tokenizers(engine: HtmlEngine, source: Any, target: Any) -> None:
    """Raise a ValueError if the page decodes random token ids, or encodes the decoded texts, differently from
    the checkpoint.
    """
    rng = random.Random(0)
    rows = []
    for _ in range(_NUM_TEXTS):
        rows.append([rng.randrange(len(target)) for _ in range(rng.randint(1, _NUM_TOKENS))])
    texts = [target.decode(row, skip_special_tokens=True) for row in rows]
    if engine.run("decode", token_ids=rows) != texts:
        raise ValueError(
            "The page and the checkpoint convert token ids to different texts; nothing was written."
        )
    if engine.run("encode", texts=texts) != source(texts)["input_ids"]:
        raise ValueError(
            "The page and the checkpoint encode a text to different tokens; nothing was written."
        )


def _compare_log_probs(engine: HtmlEngine, model: VaswaniForSeq2SeqLM) -> str:
    """Return a line about the largest difference between the log-probabilities that the page and the model
    compute.
    """
    source_ids, target_ids = sample_ids(model.config)
    log_probs = engine.log_probs(source_ids, target_ids)
    expected = log_probs_of(model, source_ids, target_ids, decoder_start_token_id(model.config))
    return report("log-probabilities of the page", largest_difference_of_rows(log_probs, expected))


def describe_html(folder: Path, name: str, data: ModelCardData) -> None:
    """Write the name and the languages of the model into the exported page, and write the model card."""
    source, target = list(data.language or ("", ""))
    names = [LANGUAGES.get(code, code).capitalize() for code in (source, target)]
    contents = {
        "name": name,
        "languages": f"From {names[0]} to {names[1]}. " if source else "",
        "source_language": source,
        "target_language": target,
    }
    page = (folder / PAGE_FILE).read_text(encoding="utf-8")
    contents = {key: html.escape(value) for key, value in contents.items()}
    contents["model"] = json_in_script(json.dumps(name)[1:-1])
    write_whole(folder / PAGE_FILE, fill_page(page, contents))
    write_card(folder, data, _USE.format(name=name))


_USE = """# {name} as one HTML page

`index.html` translates in the browser. Open the file, or put it on any web server. The page needs no network, because
the weights are in the file. `vaswani export --format html` of vaswani_hf wrote
the page.

`vaswani.mjs` is the same translator as a JavaScript module without dependencies, for other pages and for Node.js:

```js
import {{ readFileSync }} from "node:fs";
import {{ readPage }} from "./vaswani.mjs";

const translator = readPage(readFileSync("index.html", "utf-8"));
const [best] = translator.translate("A sentence of the source language.", {{ num_beams: 4 }});
console.log(best.text, best.score);
```
"""


_LIMITS: dict[str, Limit] = {
    **SCALED_DOT_LIMITS,
    "activation_function": one_of(
        "activation_function", _ACTIVATIONS, f"the page supports only {alternatives(_ACTIVATIONS)}"
    ),
    "position_embedding": one_of(
        "position_embedding", _POSITIONS, f"the page supports only {alternatives(_POSITIONS)}"
    ),
    "decoder_start_token_id": needs_start_token,
    "eos_token_id": needs_end_token,
}
HTML = ExportFormat(
    name="html",
    expressible=Expressible(_TITLE, SCALED_DOT_FIELDS, _LIMITS),
    settings=SupportedSettings(_TITLE, _SETTINGS),
    export=export_html,
    quantizations=("int8", "float32"),
    needs_tokenizers=True,
    engine=HtmlEngine,
    describe=describe_html,
    certified=("float32", "int8"),
    main_file=PAGE_FILE,
    library_name="vaswani_hf",
)
