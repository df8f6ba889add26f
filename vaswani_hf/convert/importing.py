"""Imports a checkpoint of another library. To add a format, add one file to this folder and one entry to the
table `IMPORT_FORMATS`.
"""

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, NamedTuple

import torch
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from yaml import YAMLError

from ..checkpoint.files import (
    CARD_FILE,
    CONFIG_FILE,
    CTRANSLATE2_KEY,
    DamagedFileError,
    new_folder,
    read_json_object,
)
from ..checkpoint.loading import checkpoint_folder, load_model, load_with_report, refuse_load_faults
from ..checkpoint.manifest import describe
from ..checkpoint.results import DataRecord, OriginRecord, Results, write_results
from ..checkpoint.tokenizers import save_tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..model.loss_vaswani import EXCLUDED_LOGIT
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..model.tokenizing_vaswani import check_tokenizers
from ..publish.model_card import model_card
from ..settings.base import first_line_of
from ..settings.names import alternatives
from ..version import are_installed, install_command
from .annotated_transformer import ANNOTATED_TRANSFORMER
from .comparison import TOLERANCE, largest_difference, sample_batch
from .eole import EOLE
from .export import format_of_export
from .fairseq import FAIRSEQ
from .fsmt_m2m100 import FSMT, M2M100
from .import_formats import (
    Imported,
    ImportFormat,
    Logits,
    ReadOptions,
    UnsupportedError,
    generation_config,
)
from .joeynmt import JOEYNMT
from .marian import MARIAN, MARIAN_MT
from .marian_npz import MARIAN_NPZ_IMPORT
from .marian_npz_export import MARIAN_NPZ
from .onnx import ONNX
from .opennmt import OPENNMT_PY
from .sockeye import SOCKEYE
from .tensor2tensor import TENSOR2TENSOR
from .torch_transformer import TORCH_TRANSFORMER

IMPORT_FORMATS: dict[str, ImportFormat] = {
    entry.name: entry
    for entry in (
        MARIAN_MT,
        MARIAN_NPZ_IMPORT,
        FSMT,
        M2M100,
        FAIRSEQ,
        TORCH_TRANSFORMER,
        ANNOTATED_TRANSFORMER,
        OPENNMT_PY,
        EOLE,
        JOEYNMT,
        SOCKEYE,
        TENSOR2TENSOR,
    )
}
# The export formats that `vaswani import` can also read.
_IMPORTABLE = (MARIAN, MARIAN_NPZ)
# Patterns of the names of weight files. A repository can contain weights and also an export, for example to
# transformers.js. `vaswani import` does not refuse such a repository because of the export.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.npz", "*.ckpt*", "params.*")
# A pointer of git-lfs begins with these bytes. If git-lfs is not installed, a clone has pointers in place of
# large files.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class ImportReport(NamedTuple):
    """The result of an import.

    Attributes:
        format (str): The name of the format, such as "marian_mt".
        difference (float, optional): The largest difference (nats) between the log-probabilities of the
            written checkpoint and the log-probabilities of the original library, on sample inputs. None if
            the import cannot run the original model, for example because the original library is not
            installed.
        text (str): The lines that the command `vaswani import` prints.
    """

    format: str
    difference: float | None
    text: str


def import_checkpoint(
    source: str | os.PathLike,
    output: str | os.PathLike,
    format: str | None = None,
    *,
    timescales: Literal["paper", "tensor2tensor"] | None = None,
    vocabularies: tuple[str | os.PathLike, ...] = (),
    config: str | os.PathLike | None = None,
) -> ImportReport:
    """Write a checkpoint of this package that computes the same function as a checkpoint of another library.

    The weights are written in float32. For most formats, if the library of the source checkpoint is
    installed, the import compares the log-probabilities of the library and of the written checkpoint on
    sample inputs.

    Example:
        >>> from vaswani_hf import import_checkpoint
        >>> report = import_checkpoint("Helsinki-NLP/opus-mt-en-de", "opus-en-de")  # doctest: +SKIP
        >>> print(report.text)  # doctest: +SKIP

    Args:
        source (str or PathLike): The checkpoint of the other library: a file, a local folder, or a repository
            on the Hub (user/name or user/name@revision).
        output (str or PathLike): The path of a new or empty folder. The import does not create the folder if
            log-probabilities of the two models differ by more than 1e-4 nats.
        format (str, optional): The name of a format, such as "marian_mt". By default, the format is
            recognised from the files.
        timescales (str, optional): The timescales (in tokens) of the sinusoids, "paper" or "tensor2tensor".
            Give `timescales` only if the sinusoids of the model differ from the default of the model's
            library.
        vocabularies (tuple): The path of one joint vocabulary file, or the paths of the source and the target
            vocabulary file. `vocabularies` is necessary only if the checkpoint does not contain the
            vocabularies.
        config (str or PathLike, optional): A JSON or YAML file with settings that the checkpoint does not
            contain. Only some import formats use `config`.

    Returns:
        ImportReport: The format, the largest difference between log-probabilities, and the text that the
            command prints.

    Raises:
        ValueError: If an argument is invalid, the format is not recognised, a library is missing, this
            package cannot express the model, or the imported model and the original model have different
            outputs.
    """
    if format is not None and format not in IMPORT_FORMATS:
        raise InvalidValueError(f"`format` must be {alternatives(IMPORT_FORMATS)}, but is {format!r}.")
    options = ReadOptions(
        timescales, tuple(map(Path, vocabularies)), None if config is None else Path(config)
    )
    with new_folder(Path(output)) as folder:
        path = _local_path(source, format)
        _refuse_other_folders(path, source)
        try:
            entry = _recognised(path, source) if format is None else IMPORT_FORMATS[format]
            _check(entry, options)
            imported = _read(entry, path, source, options)
        except (InvalidValueError, UnsupportedError):
            raise
        except Exception as error:
            # Catch every exception, because a library can raise any exception for a file that is only a
            # pointer of git-lfs, or for a checkpoint of another format.
            _refuse_lfs_pointers(path)
            if format is not None and not entry.recognise(path):
                raise ValueError(
                    f"'{source}' is not recognised as a checkpoint of {entry.title}, and cannot be read "
                    f"({first_line_of(error)}); name another format with `--from`, or check the path."
                ) from error
            raise
        imported.facts = {**_facts_of_card(path), **imported.facts}
        imported.config.validate_architecture()
        _write(imported, folder, source)
        difference = _difference(imported, folder)
        _write_card(entry, imported, folder, source, Path(output).name, difference)
        if difference is None:
            lines = [
                f"The outputs were not compared, because {entry.title} is not installed or the import cannot run it."
            ]
        else:
            lines = [
                f"Largest difference between the log-probabilities of {entry.title} and of the checkpoint on "
                f"sample inputs: {difference:.2g}."
            ]
        return ImportReport(entry.name, difference, "\n".join([*imported.notes, *lines]))


def _local_path(source: str | os.PathLike, format: str | None) -> Path:
    """Return the local path of the checkpoint. Download a repository on the Hub first."""
    if Path(source).is_file():
        return Path(source)
    entries = IMPORT_FORMATS.values() if format is None else [IMPORT_FORMATS[format]]
    files = sorted({pattern for entry in entries for pattern in entry.files})
    # Also download `ONNX.main_file`, a file without weights, because `_refuse_other_folders` recognises an
    # export to ONNX by this file.
    return checkpoint_folder(source, option="source", files=[*files, CARD_FILE, CONFIG_FILE, ONNX.main_file])


def _refuse_other_folders(path: Path, source: str | os.PathLike) -> None:
    """Raise a ValueError for a checkpoint of this package, for a CTranslate2 folder, and for a folder that
    `vaswani export` has written in a format that no import reads.
    """
    config = read_json_object(path, CONFIG_FILE, source) if (path / CONFIG_FILE).is_file() else {}
    # Look only at config.json, because the import does not download the weights of a CTranslate2 repository.
    if CTRANSLATE2_KEY in config:
        raise ValueError(
            f"'{source}' is a CTranslate2 folder, and CTranslate2 models can be exported but not imported; "
            "import the checkpoint from which the folder was converted."
        )
    entry = format_of_export(path) if path.is_dir() else None
    has_weights = any(file for pattern in _WEIGHTS for file in path.glob(pattern))
    if entry is not None and entry not in _IMPORTABLE and not has_weights:
        raise ValueError(
            f"'{source}' is an export to {entry.expressible.title}, and models in this format cannot be "
            "imported; use the checkpoint from which the export was made."
        )
    if config.get("model_type") == VaswaniConfig.model_type:
        raise ValueError(
            f"'{source}' is already a checkpoint of this package; use the checkpoint without an import."
        )


def _recognised(path: Path, source: str | os.PathLike) -> ImportFormat:
    """Return the format. Raise a ValueError if no format or several formats recognise the checkpoint."""
    found = [entry for entry in IMPORT_FORMATS.values() if entry.recognise(path)]
    if len(found) == 1:
        return found[0]
    if found:
        names = alternatives(entry.name for entry in found)
        raise ValueError(f"'{source}' fits several formats, {names}; name the format with `--from`.")
    titles = ", ".join(entry.title for entry in IMPORT_FORMATS.values())
    remedy = "check the name, or name the format with `--from`"
    if len([*path.glob("*.pt"), *path.glob("*.pth")]) > 1:
        remedy = "give the path of one of its weight files, or name the format with `--from`"
    raise ValueError(
        f"'{source}' is not recognised as a checkpoint of a format that can be imported ({titles}); {remedy}."
    )


def _refuse_lfs_pointers(path: Path) -> None:
    """Raise a ValueError if a file is a pointer of git-lfs: a short text in place of the content."""
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        if not file.is_file():
            continue
        with file.open("rb") as opened:
            is_pointer = opened.read(len(_LFS_POINTER)) == _LFS_POINTER
        if is_pointer:
            raise ValueError(
                f"'{file.name}' is a pointer of git-lfs and not the file itself; download the file with `git "
                "lfs pull` in the clone of the repository."
            )


def _facts_of_card(path: Path) -> dict[str, Any]:
    """Return a dict with the `license` of the imported checkpoint's model card, or an empty dict."""
    if not (path / CARD_FILE).is_file():
        return {}
    try:
        license = ModelCard.load(path / CARD_FILE).data.get("license")
    except (ValueError, YAMLError):
        # A model card that cannot be parsed does not prevent an import.
        return {}
    return {"license": license} if isinstance(license, str) else {}


def _check(entry: ImportFormat, options: ReadOptions) -> None:
    """Raise a ValueError for unused options, more than two vocabularies, or missing libraries."""
    given = {"timescales": options.timescales, "vocabularies": options.vocabularies, "config": options.config}
    for name, value in given.items():
        if value and name not in entry.options:
            raise InvalidValueError(
                f"`{name}` has no effect on an import from {entry.title}; leave `{name}` out."
            )
    if len(options.vocabularies) > 2:
        raise InvalidValueError(
            f"`vocabularies` must name one or two files, but names {len(options.vocabularies)}; name the "
            "joint file, or the source file and the target file."
        )
    if not are_installed(entry.libraries):
        raise ValueError(
            f"An import from {entry.title} needs more libraries; install them with "
            f"`{install_command(entry.name)}`."
        )


def _read(entry: ImportFormat, path: Path, source: str | os.PathLike, options: ReadOptions) -> Imported:
    """Read the checkpoint. Raise a DamagedFileError that names the checkpoint if a weight file is damaged."""
    try:
        return entry.read(path, options)
    except (SafetensorError, UnpicklingError, EOFError, RuntimeError) as error:
        # Among RuntimeErrors, only an error whose message contains `PytorchStreamReader` means a damaged
        # file: PyTorch raises this error if a part of a zip file is missing.
        if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
            raise
        raise DamagedFileError(f"A weight file of '{source}' is damaged or incomplete") from None


def _write(imported: Imported, folder: Path, source: str | os.PathLike) -> None:
    state = {name: tensor.float() for name, tensor in imported.state_dict.items()}
    model, report = load_with_report(VaswaniForSeq2SeqLM, None, config=imported.config, state_dict=state)
    refuse_load_faults(report, source)
    model.generation_config = imported.generation_config or generation_config(imported.config)
    model.save_pretrained(folder)
    if imported.tokenizers is not None:
        check_tokenizers(model, *imported.tokenizers, str(source))
        save_tokenizers(*imported.tokenizers, folder)


def _difference(imported: Imported, folder: Path) -> float | None:
    """Return the largest difference (nats) between the log-probabilities of the original checkpoint and of
    the written checkpoint. Return None if the import cannot run the original model, for example because the
    original library is not installed.
    """
    if imported.compare is not None:
        largest = imported.compare(load_model(folder))
    elif imported.logits is not None:
        largest = _difference_of_batch(imported.config, imported.logits, load_model(folder))
    else:
        return None
    # Every comparison with NaN is False. Use `not <=` instead of `>`, so that NaN raises the error too.
    if not largest <= TOLERANCE:
        raise ValueError(
            "The largest difference between the log-probabilities of the original and of the imported model "
            f"must be at most {TOLERANCE:g}, but is {largest:.2g}; nothing was written."
        )
    return largest


def _difference_of_batch(config: VaswaniConfig, theirs: Logits, model: VaswaniForSeq2SeqLM) -> float:
    batch = sample_batch(config)
    with torch.no_grad():
        written = model(**batch).logits
        original = theirs(batch)
    # Give `<pad>` the probability 0 in the outputs of the original model too, because the search of the
    # original library never chooses `<pad>`.
    excluded = model.excluded_class(0.0, None)
    if excluded is not None:
        original[..., excluded] = EXCLUDED_LOGIT
    return largest_difference(
        written.log_softmax(dim=-1), original.log_softmax(dim=-1), batch["decoder_attention_mask"]
    )


def _write_card(
    entry: ImportFormat,
    imported: Imported,
    folder: Path,
    source: str | os.PathLike,
    name: str,
    difference: float | None,
) -> None:
    """Write results.json with the origin of the checkpoint, and the model card."""
    is_on_hub = not os.path.exists(source)
    origin = OriginRecord(
        format=entry.title,
        # Write no local path into results.json, because users can publish results.json.
        name=str(source) if is_on_hub else Path(os.path.abspath(source)).name,
        is_on_hub=is_on_hub,
        difference=difference,
        notes=imported.notes,
    )
    results = Results(origin=origin, data=DataRecord(**imported.facts))
    # Write results.json twice, because the model card contains facts of results.json.
    write_results(folder, results)
    model_card(folder, name).save(folder / CARD_FILE)
    origin.card_sha256 = describe(folder / CARD_FILE)["sha256"]
    write_results(folder, results)
