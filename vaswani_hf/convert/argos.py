"""Converts a checkpoint to a package of Argos Translate, which LibreTranslate can load too.

The exported folder contains one file `translate-FROM_TO-1_0.argosmodel`. The `.argosmodel` file is a zip
archive with one folder. The folder in the archive contains:

- model/: the CTranslate2 model. If the source tokenizer adds `</s>` to texts, the config of the CTranslate2
  model makes CTranslate2 add `</s>`, because Argos Translate does not add `</s>`.

- sentencepiece.model: the SentencePiece model that tokenizes source texts and decodes translations. Argos
  Translate has only one SentencePiece model for both languages. Therefore the SentencePiece model also
  contains the tokens of the target language. The type of the target tokens in the SentencePiece model is
  "unused", so that source texts are not split into target tokens.

- metadata.json: the codes and the names of the two languages.

- README.md

Argos Translate can run only SentencePiece tokenizers, and BPE tokenizers for text that the Moses tokenizer
has split into words. Therefore a checkpoint can be exported only if its source tokenizer was imported from a
unigram model of SentencePiece, such as the tokenizer of a MarianMT checkpoint.
"""

import json
import random
import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import ModelCardData
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..checkpoint.files import CARD_FILE, CONFIG_FILE, read_json, read_json_object, write_whole
from ..checkpoint.search_settings import NotExpressibleError, SupportedSettings
from ..checkpoint.tokenizers import Tokenizers, adds_end_token
from ..model.tokenizing_vaswani import languages_of, tags_of
from ..translation.ctranslate2_files import MODEL_FILE
from .ctranslate2_format import CTRANSLATE2
from .ctranslate2_limits import EXPRESSIBLE
from .export_formats import Engine, ExportFormat, Expressible
from .sentencepiece_models import sentencepiece_model, without_foreign_mark

_VERSION = "1.0"
# The tests load an exported package with this version of Argos Translate, 1.11.
_ARGOS_VERSION = "1.11"
_MODEL = "model"
_PIECES = "sentencepiece.model"
_METADATA = "metadata.json"
_SOURCE_VOCABULARY = "source_vocabulary.json"
_TARGET_VOCABULARY = "target_vocabulary.json"
# The number of random texts, and the number of tokens in a text. The export checks that the SentencePiece
# model and the tokenizer split these texts into the same tokens.
_NUM_TEXTS = 300
_NUM_TOKENS = 12


def export_argos(
    model: Any, tokenizers: Tokenizers | None, folder: Path, quantization: str | None = None
) -> str:
    """Write the models for Argos Translate. Compare the log-probabilities and the segmentation of texts with
    the original model and tokenizer.
    """
    assert tokenizers is not None
    source, target = tokenizers
    tags = [*tags_of(source), *languages_of(source)]
    if tags:
        raise NotExpressibleError(
            f"The tokenizer has several target languages, such as {tags[0]}, but a package of Argos "
            "Translate has one target language; use another format."
        )
    folder.mkdir()
    (folder / _PIECES).write_bytes(sentencepiece_model(source, target))
    _compare_segmentations(source, folder / _PIECES)
    with TemporaryDirectory() as temporary:
        converted = Path(temporary) / _MODEL
        compared = CTRANSLATE2.export(model, tokenizers, converted, quantization)
        _copy_model(converted, folder / _MODEL, adds_end_token(source))
    return compared


def _compare_segmentations(tokenizer: Any, path: Path) -> None:
    """Raise an error if the SentencePiece model splits a random text into other tokens than the tokenizer."""
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    rng = random.Random(0)
    for _ in range(_NUM_TEXTS):
        row = [rng.randrange(len(tokenizer)) for _ in range(_NUM_TOKENS)]
        text = tokenizer.decode(row, skip_special_tokens=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = tokenizer.convert_tokens_to_ids(pieces.encode(text, out_type=str))
        if ids != found:
            raise NotExpressibleError(
                "The SentencePiece model must split texts into the same tokens as the tokenizer of the "
                f"checkpoint, but splits {text!r} into other tokens; nothing was written."
            )


def _copy_model(converted: Path, folder: Path, add_source_eos: bool) -> None:
    folder.mkdir()
    shutil.copy(converted / MODEL_FILE, folder)
    config = read_json_object(converted, CONFIG_FILE, converted)
    config["add_source_eos"] = add_source_eos
    write_whole(folder / CONFIG_FILE, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    for path in converted.glob("*_vocabulary.json"):
        tokens = read_json(converted, path.name, converted)
        if path.name != _SOURCE_VOCABULARY:
            tokens = without_foreign_mark(tokens)
        write_whole(folder / path.name, json.dumps(tokens, indent=2, ensure_ascii=False) + "\n")


def describe_argos(folder: Path, name: str, data: ModelCardData) -> None:
    """Write metadata.json and the README, and replace all files of `folder` by one `.argosmodel` archive."""
    source, target = list(data.language or ())
    names = [LANGUAGES.get(code, code).capitalize() for code in (source, target)]
    metadata = {
        "package_version": _VERSION,
        "argos_version": _ARGOS_VERSION,
        "from_code": source,
        "from_name": names[0],
        "to_code": target,
        "to_name": names[1],
    }
    write_whole(folder / _METADATA, json.dumps(metadata, indent=2, ensure_ascii=False) + "\n")
    write_whole(
        folder / CARD_FILE, _README.format(name=name, names=names, license=data.license or "not known")
    )
    package = f"translate-{source}_{target}-{_VERSION.replace('.', '_')}"
    paths = sorted(folder.rglob("*"))
    with zipfile.ZipFile(folder / f"{package}.argosmodel", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            archive.write(path, f"{package}/{path.relative_to(folder).as_posix()}")
    for path in paths:
        if path.is_file():
            path.unlink()
    (folder / _MODEL).rmdir()


_README = """# {name}: {names[0]} to {names[1]}

This package translates from {names[0]} to {names[1]} in Argos Translate and in LibreTranslate. `vaswani export
--format argos` of vaswani_hf wrote the package. The licence of the model: {license}.
"""


class ArgosEngine(Engine):
    """Runs an exported model in Argos Translate, without sentence splitting and with greedy search, because
    beam search in Argos Translate has a fixed length penalty.
    """

    libraries = ("argostranslate",)
    beam_search = "none"
    installation = "pip install argostranslate"

    def __init__(self, folder: Path) -> None:
        import ctranslate2
        from argostranslate.package import Package

        # Keep a reference to the `TemporaryDirectory` object, because Python deletes the folder together with
        # the object.
        self._temporary = TemporaryDirectory()
        (archive,) = Path(folder).glob("*.argosmodel")
        with zipfile.ZipFile(archive) as file:
            file.extractall(self._temporary.name)
        (package,) = Path(self._temporary.name).iterdir()
        self._package = Package(package)
        self._translator = ctranslate2.Translator(str(package / _MODEL))
        self._end = read_json_object(package / _MODEL, CONFIG_FILE, package)["eos_token"]
        self._source_tokens, self._target_tokens = (
            read_json(
                package / _MODEL,
                name if (package / _MODEL / name).exists() else "shared_vocabulary.json",
                package,
            )
            for name in (_SOURCE_VOCABULARY, _TARGET_VOCABULARY)
        )

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        # Leave out `</s>` at the end of each sequence. CTranslate2 adds `</s>` to the target, and, if the
        # exported folder says so, to the source.
        sources = [[self._source_tokens[i] for i in ids] for ids in source_ids]
        sources = [tokens[:-1] if tokens[-1:] == [self._end] else tokens for tokens in sources]
        targets = [[self._target_tokens[i] for i in ids[:-1]] for ids in target_ids]
        results = self._translator.score_batch(sources, targets, max_input_length=0)
        return [list(result.log_probs) for result in results]

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        from argostranslate import settings, translate

        settings.beam_size = num_beams
        return [
            translate.apply_packaged_translation(self._package, text, self._translator, self, 1)[0].value
            for text in texts
        ]

    def split_sentences(self, text: str) -> list[str]:
        """Return the whole text as one sentence. Argos Translate calls this method."""
        return [text]


ARGOS = ExportFormat(
    name="argos",
    main_file="*.argosmodel",
    library_name="argostranslate",
    expressible=Expressible("Argos Translate", EXPRESSIBLE.fields, EXPRESSIBLE.limits),
    settings=SupportedSettings(
        "Argos Translate", (), left_out=None, search="Argos Translate has its own search settings"
    ),
    export=export_argos,
    libraries=("ctranslate2", "sentencepiece"),
    quantizations=CTRANSLATE2.quantizations,
    needs_tokenizers=True,
    describe=describe_argos,
    needs_languages=True,
    engine=ArgosEngine,
)
