"""`vaswani evaluate`: a test set in files, the translations of one system or several, and what is printed of them."""

import json
import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint.hub import HubError
from ..checkpoint.loading import check_config, checkpoint_folder
from ..data.lines import read_lines, refuse_blank
from ..translation.output import check_output, output_file, standard_output
from ..translation.translator import Translator
from .bleu import check_tokenizer, score_translations
from .comet import CometError, check_comet, comet_scores
from .comparison import COLORS, check_comparable, compare_systems, comparison_as_text, comparison_picture
from .evaluate import evaluate_translator, translate_test_set


@dataclass(frozen=True)
class EvaluationJob:
    """What `vaswani evaluate` is asked for.

    A system is a checkpoint folder, user/name or user/name@revision on the Hub, or a file of finished translations.

    Args:
        source (str): A file with sentences, one per line.
        reference (str): A file with their references.
        model (str, optional): The system; with `compare` the baseline.
        compare (tuple): Systems to compare with it, or with the first one of them.
        scoring (dict): `tokenize`, `lowercase` and `split_compounds`, as in `score_translations`.
        comet (str, optional): A model for `comet-score`.
        json (bool): Print JSON.
        output (str, optional): A new file for the translations of one model.
        picture (str, optional): A new PNG for the comparison.
        device (str, optional): As in `Translator.from_pretrained`.
        precision (dict): `dtype` and `quantization`, as in `Translator.from_pretrained`.
        options (dict): For `Translator.translate`.

    Raises:
        ValueError: If these contradict each other, or a file is missing or is no new one.
    """

    source: str
    reference: str
    model: str | None = None
    compare: tuple[str, ...] = ()
    scoring: Mapping[str, Any] = field(default_factory=dict)
    comet: str | None = None
    json: bool = False
    output: str | None = None
    picture: str | None = None
    device: str | None = None
    precision: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        inputs = {"--source": self.source, "--reference": self.reference}
        for name, path in inputs.items():
            if not Path(path).is_file():
                raise ValueError(f"`{name}` must be an existing file, but is {path}.")
        _refuse_contradictions(self)
        # Standard output may be a file too.
        inputs |= {f"--compare {name}" if self.compare else "model": name for name in self.systems if is_file(name)}
        for output, option in ((None, ""), (self.output, "--output"), (self.picture, "--picture")):
            check_output(output, inputs, option=option)
        check_tokenizer(self.scoring.get("tokenize", "13a"))
        if self.comet is not None:
            check_comet(self.comet)

    @property
    def systems(self) -> list[str]:
        """The systems, the baseline first."""
        return [*([] if self.model is None else [self.model]), *self.compare]


def is_file(system: str) -> bool:
    """True for a file of translations, false for a checkpoint.

    Args:
        system (str): Its name.
    """
    return Path(system).is_file()


def _refuse_contradictions(job: EvaluationJob) -> None:
    systems = job.systems
    # A folder by two names is one system.
    places = [os.path.realpath(name) if os.path.exists(name) else name for name in systems]
    twice = next((name for number, name in enumerate(systems) if places[number] in places[:number]), None)
    # A size of batches changes no translation, and is not asked about.
    of_models = {
        **job.precision,
        **job.options,
        "device": None if job.comet else job.device,
        "tokens_per_batch": None,
    }.items()
    unused = [name for name, value in of_models if value is not None and value is not False]
    refused = {
        "`vaswani evaluate` needs a model, a file of translations, or several of them as `--compare A B`.": not systems,
        f"`--compare` must have two systems or more, but there is only {systems and systems[0]}; name another one, or leave "
        "out `--compare`.": bool(job.compare) and len(systems) < 2,
        f"`--compare` must have different systems, but {twice} is there twice.": twice is not None,
        "`--output` is for the translations of one model; with `--compare` write those of each by `vaswani translate "
        "--output`, and compare the files.": bool(job.compare) and job.output is not None,
        f"`--output` is for translations of a model, but {job.model} is a file of translations; leave it out.": (
            job.output is not None and job.model is not None and is_file(job.model)
        ),
        f"`--{(unused or [''])[0]}` is for a model, but there are finished translations only ({', '.join(systems)}); leave it out.": (
            bool(systems and unused) and all(map(is_file, systems))
        ),
        "`--picture` shows a comparison and must come with `--compare`.": job.picture is not None and not job.compare,
        f"`--picture` must end in .png, but is {job.picture}.": not (job.picture or ".png").lower().endswith(".png"),
        f"`--picture` shows at most {len(COLORS)} systems, but there are {len(systems)}; leave some out.": (
            job.picture is not None and len(systems) > len(COLORS)
        ),
    }
    for sentence, applies in refused.items():
        if applies:
            raise ValueError(sentence)


def evaluate_files(job: EvaluationJob) -> None:
    """Score the systems of a job, and print the scores.

    Args:
        job (EvaluationJob): The work.

    Raises:
        ValueError: If files are empty, or have not as many lines, or a system is neither a file nor a checkpoint.
    """
    stdout = standard_output()
    sources, references = _test_set(job)
    if job.compare:
        check_comparable(len(sources))
    finished = {name: _translations_in(name, job.source, len(sources)) for name in job.systems if is_file(name)}
    for name in job.systems if job.compare else []:
        if name not in finished:
            _check_checkpoint(name)
    if job.comet is not None and len(finished) < len(job.systems):
        # A model that cannot be had is better known before hours of translating than after them.
        comet_scores(job.comet, {"": references[:1]}, sources[:1], references[:1], job.device)
    remedy = "free space and run it again with another name"
    with ExitStack() as files:
        outputs = {"--output": job.output, "--picture": job.picture}
        opened = {o: files.enter_context(output_file(p, remedy, o)) for o, p in outputs.items() if p is not None}
        evaluate = _compare if job.compare else _evaluate_one
        results, systems, failure = evaluate(job, sources, references, finished)
        as_text = comparison_as_text if job.compare else scores_as_text
        text = json.dumps(results, indent=2) if job.json else as_text(results)
        try:
            # A full disk costs no scores.
            stdout.write(f"{text}\n".encode(errors="replace"))
        finally:
            if "--output" in opened:
                opened["--output"].write(
                    "".join(f"{line}\n" for line in systems[job.systems[0]]).encode(errors="replace")
                )
            if "--picture" in opened:
                opened["--picture"].write(comparison_picture(results))
    if failure is not None:
        raise failure


def _test_set(job: EvaluationJob) -> tuple[list[str], list[str]]:
    """Sources and stripped references, equally many.

    Raises:
        ValueError: If one of the files holds no text, or they have not equally many lines.
    """
    # A corpus line may end in spaces, which are no part of the sentence; the model is given a source as it stands.
    sources, references = list(read_lines(job.source)), [line.strip() for line in read_lines(job.reference)]
    refuse_blank(sources, "`--source`", job.source)
    refuse_blank(references, "`--reference`", job.reference)
    _check_lines(job.source, len(sources), job.reference, len(references))
    return sources, references


def _translations_in(path: str, source: str, num_sentences: int) -> list[str]:
    translations = [line.strip() for line in read_lines(path)]
    _check_lines(source, num_sentences, path, len(translations))
    return translations


def _check_lines(path: str, number: int, other: str, other_number: int) -> None:
    if number != other_number:
        raise ValueError(f"{path} and {other} must have equally many lines, but have {number:,} and {other_number:,}.")


def _check_checkpoint(name: str) -> None:
    """Refuse what is no checkpoint, before others translate for a long time; one on the Hub is downloaded.

    Raises:
        ValueError: If it is neither a file nor a checkpoint.
    """
    if Path(name).is_dir():
        check_config(Path(name), name)
        return
    try:
        check_config(checkpoint_folder(name), name)
    except (ValueError, HubError) as error:
        raise ValueError(f"'{name}' is no file of translations; as a checkpoint: {error}") from error


def _translator(job: EvaluationJob, name: str) -> Translator:
    return Translator.from_pretrained(name, job.device, **job.precision)


Evaluated = tuple[dict[str, Any], dict[str, list[str]], CometError | None]


def _evaluate_one(
    job: EvaluationJob, sources: list[str], references: list[str], finished: Mapping[str, list[str]]
) -> Evaluated:
    """Scores, translations, and what became of COMET, which costs none of the others."""
    (name,) = job.systems
    if name in finished:
        results: dict[str, Any] = score_translations(finished[name], references, **job.scoring)
        results |= {"sentences": len(sources), "translations": finished[name]}
    else:
        results = evaluate_translator(_translator(job, name), sources, references, **job.scoring, **job.options)
    systems = {name: results.pop("translations")}
    comet, failure = _comet(job, systems, sources, references)
    if comet is not None:
        results |= {"comet": statistics.fmean(comet[name]), "comet_model": job.comet}
    return results, systems, failure


def _compare(
    job: EvaluationJob, sources: list[str], references: list[str], finished: Mapping[str, list[str]]
) -> Evaluated:
    systems = {}
    for name in job.systems:
        # One model at a time is in memory.
        systems[name] = finished.get(name) or translate_test_set(_translator(job, name), sources, name, **job.options)
    comet, failure = _comet(job, systems, sources, references)
    results = compare_systems(systems, sources, references, comet, **job.scoring)
    return results | ({"comet_model": job.comet} if comet is not None else {}), systems, failure


def _comet(
    job: EvaluationJob, systems: Mapping[str, list[str]], sources: list[str], references: list[str]
) -> tuple[dict[str, list[float]] | None, CometError | None]:
    if job.comet is None:
        return None, None
    try:
        return comet_scores(job.comet, systems, sources, references, job.device), None
    except CometError as error:
        return None, error


def scores_as_text(results: Mapping[str, Any]) -> str:
    """The scores of one system, a line each; perplexity and speed are those of a model.

    Args:
        results (Mapping): As from `evaluate_translator` or `score_translations`.
    """
    lines = [
        f"BLEU {results['bleu']:.2f}  {results['bleu_signature']}",
        f"chrF {results['chrf']:.2f}  {results['chrf_signature']}",
        f"exact match {results['exact_match']:.2f} %",
    ]
    if "comet" in results:
        lines.append(f"COMET {results['comet']:.4f}  {results['comet_model']}")
    if "perplexity" in results:
        value = results["perplexity"]
        lines.append(f"perplexity per token {'unknown' if value is None else f'{value:.3f}'}")
        speed = f"in {results['seconds']:.1f} s, {results['sentences_per_second']:.1f} sentences/s"
        lines.append(f"{results['sentences']:,} sentences {speed}")
    else:
        lines.append(f"{results['sentences']:,} sentences")
    return "\n".join([*lines, *([results["bleu_note"]] if "bleu_note" in results else [])])
