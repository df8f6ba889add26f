"""Creates a certificate for a checkpoint: exports the checkpoint to all formats, runs each exported model in
the library of its format, and measures how much the outputs differ from the outputs of the checkpoint.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..checkpoint.files import CHECKPOINT_FILES
from ..checkpoint.loading import checkpoint_folder
from ..evaluation.bleu import score_translations
from ..model.configuration_vaswani import eos_token_ids
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import SearchSettings, TranslationOptions
from ..model.length_limits_vaswani import max_new_tokens_of
from ..model.requests_vaswani import make_requests
from ..model.search_strategies_vaswani import considers_all_lengths
from ..model.tokenizing_vaswani import TOKENIZING
from ..processor import processor_name
from ..publish.certificate import Certificate, CertificateRow, hashes_of_weights
from ..settings.names import alternatives
from ..tasks.translation import TranslationEvaluation
from ..translation.translator import Translator
from ..version import __version__, are_installed, install_command
from .comparison import TOLERANCE, largest_difference_of_rows
from .export import EXPORT_FORMATS, LoadedCheckpoint, card_data, load_checkpoint, write_model
from .export_formats import SCORE_PER_TOKEN, Engine, ExportFormat, NotExpressibleError, TranslatorEngine

# The largest share of translations that may differ between the checkpoint and an exported model with float32
# weights. The limit is not 0, because float32 rounding can change the order of two candidates with almost
# equal scores.
_LARGEST_SHARE = 0.01
# The limits for an exported model with int8 weights: the largest share of translations that differ from the
# checkpoint's translations, and the largest decrease of BLEU (points).
_LARGEST_SHARE_IN_INT8 = 0.05
_LARGEST_LOSS_IN_INT8 = 0.3
# Before the speed is measured, each engine translates `_WARM_UP` sentences as a warm-up.
_WARM_UP = 8


class CertificateError(ValueError):
    """Raised if an exported float32 model fails, or differs too much from the checkpoint."""


class _Checkpoint(TranslatorEngine):
    def load(self, folder: Path) -> Translator:
        return Translator.from_pretrained(str(folder), "cpu", dtype="float32")


@dataclass
class _Expected:
    """The outputs of the checkpoint for one combination of search settings. `is_limited` marks each
    translation that the length limit stopped, or whose source text was translated in pieces.
    """

    row: CertificateRow
    translations: list[str]
    is_limited: list[bool]
    source_ids: list[list[int]]
    target_ids: list[list[int]]
    log_probs: list[list[float]]


def certify(
    model_name_or_path: str | os.PathLike,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    num_beams: int | None = None,
    formats: Sequence[str] = (),
    evaluation: TranslationEvaluation | None = None,
    test_set: str = "a test set",
    report: Callable[[str], None] = lambda line: None,
) -> Certificate:
    """Export a checkpoint to all formats, or to `formats`, and compare each engine with the checkpoint on the
    CPU. `report` receives a line of text after the measurement of each engine.

    Example:
        >>> from vaswani_hf.convert.certify import certify
        >>> certify("checkpoints/numbers", ["one"], ["eins"]).rows  # doctest: +SKIP
    """
    for name in formats:
        if name not in EXPORT_FORMATS:
            raise InvalidValueError(f"`formats` must be {alternatives(EXPORT_FORMATS)}, but has {name!r}.")
    if not sources:
        raise InvalidValueError("`sources` must have at least one sentence, but has none.")
    folder = checkpoint_folder(model_name_or_path)
    certification = _Certification(
        folder, sources, references, num_beams, evaluation or TranslationEvaluation()
    )
    jobs = []
    for name in formats or EXPORT_FORMATS:
        jobs += [(EXPORT_FORMATS[name], quantization) for quantization in EXPORT_FORMATS[name].certified]
    rows = []
    start = time.perf_counter()
    certification.expected(certification.num_beams, changes={})
    for number, (entry, quantization) in enumerate(jobs, 1):
        rows_of_job = certification.measure(entry, quantization)
        rows += rows_of_job
        left = (time.perf_counter() - start) / number * (len(jobs) - number)
        for row in rows_of_job:
            report(f"{number} of {len(jobs)}: {_in_words(row)}; about {left:,.0f} seconds left")
    return Certificate(
        rows=[*certification.own_rows(), *rows],
        test_set=test_set,
        sentences=len(sources),
        hardware=f"{processor_name()}, {torch.get_num_threads()} threads",
        versions={"vaswani_hf": __version__, "torch": torch.__version__},
        date=datetime.now(UTC).date().isoformat(),
        weights=hashes_of_weights(folder),
    )


def faults(certificate: Certificate) -> list[str]:
    """Return one line for each float32 engine with an error or with too large differences."""
    found = []
    for row in certificate.rows:
        has_failed = row.status == "failed" or (row.status == "measured" and row.message)
        if has_failed and row.weights == "float32":
            found.append(f"{row.engine}: {row.message}")
    return found


class _Certification:
    """Exports one checkpoint, and measures the exported models in their engines."""

    def __init__(
        self,
        folder: Path,
        sources: Sequence[str],
        references: Sequence[str],
        num_beams: int | None,
        evaluation: TranslationEvaluation,
    ):
        self.folder = folder
        self.sources = [source.strip() for source in sources]
        self.references = [reference.strip() for reference in references]
        self.evaluation = evaluation
        self.engine = _Checkpoint(folder)
        if self.engine.translator.segment_tokenizer.languages:
            raise InvalidValueError(
                f"A certificate is for a model without language tokens, but '{folder.name}' has language tokens; use "
                "the difference between checkpoint and export that `vaswani export` prints."
            )
        self.num_beams = num_beams or self.engine.translator.setting("num_beams")
        self._expected: dict[str, _Expected] = {}

    def own_rows(self) -> list[CertificateRow]:
        """Return the certificate's rows about the checkpoint itself, one row for each search."""
        return [expected.row for expected in self._expected.values()]

    def expected(self, num_beams: int, changes: Mapping[str, Any]) -> _Expected:
        """Return the checkpoint's outputs. In a beam search, `changes` replace search settings of the
        checkpoint.
        """
        search = {"num_beams": 1} if num_beams == 1 else self._search(num_beams, changes)
        key = json.dumps(search)
        if key not in self._expected:
            self._expected[key] = self._run_checkpoint(search)
        return self._expected[key]

    def _search(self, num_beams: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        search: dict[str, Any] = {"num_beams": num_beams}
        for name, default in SCORE_PER_TOKEN.items():
            value = self.engine.translator.setting(name, **changes)
            search[name] = default if value is None else value
        if considers_all_lengths(SearchSettings(**search)):
            # With the length penalty of Wu et al., `early_stopping` False and "never" give the same search.
            # Replace False by "never", so that the certificate does not measure the same search twice.
            search["early_stopping"] = "never"
        return search

    def _run_checkpoint(self, search: dict[str, Any]) -> _Expected:
        begin = time.perf_counter()
        translator = self.engine.translator
        options = TranslationOptions.of(**search)
        list(translator.translate(self.sources[:_WARM_UP], **search))
        start = time.perf_counter()
        found = list(translator.translations(make_requests(self.sources, None, None), options))
        seconds = time.perf_counter() - start
        translations = [of_text[0].text for of_text in found]
        with TOKENIZING:
            all_ids = translator.source_tokenizer(self.sources, verbose=False)["input_ids"]
        config = translator.backend.generation_config
        ends = eos_token_ids(config)
        is_limited = []
        source_ids = []
        target_ids = []
        for ids, (best, *_) in zip(all_ids, found, strict=True):
            token_ids = best.token_ids or []
            is_cut = len(ids) > translator.segmenter.max_length
            # A translation that the length limit stopped has no end token, or ends with the end token of
            # `forced_eos_token_id`.
            limit = max_new_tokens_of(config, len(ids), 1, translator.backend.max_positions)
            is_stopped = not token_ids or token_ids[-1] not in ends or len(token_ids) >= limit
            is_limited.append(is_cut or is_stopped)
            if not is_cut and token_ids[-1:] == ends[:1]:
                source_ids.append(ids)
                target_ids.append(token_ids)
        log_probs = self.engine.log_probs(source_ids, target_ids)
        row = CertificateRow(
            engine="vaswani_hf",
            weights="float32",
            status="measured",
            num_beams=search["num_beams"],
            length_penalty=_length_penalty(search),
            sentences=len(translations),
            bleu=self._bleu(translations),
            sentences_per_second=len(translations) / seconds,
            megabytes=_megabytes(
                {path for pattern in CHECKPOINT_FILES for path in self.folder.glob(pattern)}
            ),
            seconds=time.perf_counter() - begin,
        )
        return _Expected(row, translations, is_limited, source_ids, target_ids, log_probs)

    def measure(self, entry: ExportFormat, quantization: str | None) -> list[CertificateRow]:
        """Export the checkpoint, run the exported model, and compare its outputs with the outputs of the
        checkpoint. Return one row for each number of beams with which the engine is measured.
        """
        # `new_row` creates a row of the engine, and during a search a row of the search.
        new_row = partial(CertificateRow, engine=entry.expressible.title, weights=quantization or "float32")
        reason = missing_libraries(entry)
        if reason is not None:
            return [new_row(status="not installed", message=reason)]
        checkpoint = load_checkpoint(self.folder, needs_tokenizers=True)
        start = time.perf_counter()
        rows = []
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) / "exported"
            try:
                entry.check(checkpoint.model)
                beam_counts = entry.engine.beam_counts(self.num_beams)
                searches = [self.expected(num_beams, entry.engine.search) for num_beams in beam_counts]
                # Do not count the time in which the checkpoint itself translates the test set.
                start = time.perf_counter()
                engine = self._export(entry, checkpoint, quantization, folder)
                megabytes = _megabytes(path for path in folder.rglob("*") if path.is_file())
                for expected in searches:
                    own = expected.row
                    new_row = partial(new_row, num_beams=own.num_beams, length_penalty=own.length_penalty)
                    rows.append(self._measured(new_row, engine, expected, megabytes, start))
                    start = time.perf_counter()
                return rows
            except NotExpressibleError as error:
                status, message = "not expressible", str(error)
            except (ValueError, RuntimeError, OSError) as error:
                # Record the error of this engine, and continue with the next engine.
                status, message = "failed", " ".join(str(error).split())
        return [*rows, new_row(status=status, message=message, seconds=time.perf_counter() - start)]

    def _export(
        self, entry: ExportFormat, checkpoint: LoadedCheckpoint, quantization: str | None, folder: Path
    ) -> Engine:
        # Convert the model to float32 before the exports, because most exports store the dtype of the model,
        # and the limits, such as `_LARGEST_SHARE`, were chosen for float32.
        checkpoint.model.float()
        data = card_data(entry, self.folder)
        write_model(entry, checkpoint, folder, quantization)
        if entry.describe is not None and data is not None:
            entry.describe(folder, self.folder.name, data)
        return entry.engine(folder)

    def _measured(
        self,
        new_row: Callable[..., CertificateRow],
        engine: Engine,
        expected: _Expected,
        megabytes: float,
        start: float,
    ) -> CertificateRow:
        """Run the exported model, and return the row that `new_row` creates from the results. The time in
        the row starts at `start`.
        """
        num_beams = expected.row.num_beams
        engine.translate(self.sources[:_WARM_UP], num_beams)
        start_of_translation = time.perf_counter()
        translations = engine.translate(self.sources, num_beams)
        seconds = time.perf_counter() - start_of_translation
        log_probs = engine.log_probs(expected.source_ids, expected.target_ids)
        changed = 0
        changed_at_length_limit = 0
        for translation, own, is_limited in zip(
            translations, expected.translations, expected.is_limited, strict=True
        ):
            changed += translation != own and not is_limited
            changed_at_length_limit += translation != own and is_limited
        row = new_row(
            status="measured",
            largest_difference=largest_difference_of_rows(log_probs, expected.log_probs),
            changed=changed,
            changed_at_length_limit=changed_at_length_limit,
            sentences=len(translations),
            bleu=self._bleu(translations),
            sentences_per_second=len(translations) / seconds,
            megabytes=megabytes,
            seconds=time.perf_counter() - start,
        )
        row.message = _exceeded_limit(row, expected.row)
        return row

    def _bleu(self, translations: list[str]) -> float:
        scores: dict[str, Any] = score_translations(
            translations,
            self.references,
            tokenize=self.evaluation.tokenize,
            lowercase=self.evaluation.lowercase,
        )
        return scores["bleu"]


def missing_libraries(entry: ExportFormat) -> str | None:
    """Return a message that says how to install the libraries and the engine of a format. Return None if the
    libraries and the engine are installed.
    """
    if not are_installed(entry.libraries):
        return f"not installed; install it with `{install_command(entry.name)}`"
    if are_installed(entry.engine.libraries) and entry.engine.is_available():
        return None
    return f"not installed; install it with `{entry.engine.installation or install_command(entry.name)}`"


def _exceeded_limit(row: CertificateRow, own: CertificateRow) -> str:
    """Describe the first limit that the differences between an exported model and the checkpoint exceed.
    Return an empty string if the exported model is within all limits.
    """
    share = row.changed / row.sentences
    loss = own.bleu - row.bleu
    difference = row.largest_difference
    if row.weights != "float32":
        if share > _LARGEST_SHARE_IN_INT8:
            return f"{share:.1%} of the translations changed, more than {_LARGEST_SHARE_IN_INT8:.0%}"
        if loss > _LARGEST_LOSS_IN_INT8:
            return f"BLEU is lower by {loss:.2f}, more than {_LARGEST_LOSS_IN_INT8}"
        return ""
    # Use `not (difference <= TOLERANCE)` instead of `difference > TOLERANCE`, so that NaN also exceeds the
    # limit. Every comparison with NaN is False.
    if not (difference is not None and difference <= TOLERANCE):
        return f"the log-probabilities differ by {difference:.2g}, more than {TOLERANCE:g}"
    if share > _LARGEST_SHARE:
        return f"{share:.1%} of the translations changed, more than {_LARGEST_SHARE:.0%}"
    return ""


def _length_penalty(search: Mapping[str, Any]) -> str:
    """Describe the length penalty of a search, such as "gnmt 0.6". Return "" for greedy search."""
    if search["num_beams"] == 1:
        return ""
    text = f"{search['length_penalty_type']} {search['length_penalty']:g}"
    if search["length_penalty_type"] == "power" and search["early_stopping"] == "never":
        text += ", early stopping never"
    return text


def _megabytes(paths: Any) -> float:
    return sum(path.stat().st_size for path in paths) / 1e6


def _in_words(row: CertificateRow) -> str:
    name = f"{row.engine} ({row.weights})"
    if row.status != "measured":
        return f"{name}: {row.message}"
    beams = "1 beam" if row.num_beams == 1 else f"{row.num_beams} beams"
    text = (
        f"{name}: {beams}, largest difference {row.largest_difference:.1e}, {row.changed:,} translations changed, "
        f"{row.seconds:.0f} seconds"
    )
    return f"{text}; {row.message}" if row.message else text
