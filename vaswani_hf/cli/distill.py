"""`vaswani distill`: translates the training sources of a recipe with a teacher model, to train a student
model. training/distillation.py describes the file that the command writes.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sized
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import model_validator

from ..messages import counted
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import Request
from .lines import CountedRequests, LineReport, json_line
from .options import (
    EngineOptions,
    LanguageOptions,
    SearchOptions,
    WorkerOptions,
    check_different,
    on_command_line,
    translation_option,
)
from .output import check_output, output_file
from .train import RecipeOptions


class DistillOptions(SearchOptions, LanguageOptions, EngineOptions, WorkerOptions, RecipeOptions):
    """The options of `vaswani distill`."""

    num_return_sequences: int | None = on_command_line(None, ge=1, group="search")
    """number of translations of each source sentence; by default the value in the checkpoint"""
    repetition_guard: bool = translation_option("repetition_guard")
    on_error: Literal["fail", "skip"] = "fail"
    """what to do with an invalid source sentence; skip: report the sentence, write no pair for the sentence,
    and continue; the exit code is 1 if all sentences are invalid"""
    teacher: list[str] = on_command_line(group="search", metavar="MODEL")
    """a checkpoint folder or a repository on the Hub; several teachers must have the same vocabulary, and
    their probabilities are averaged"""
    output: str
    """a new file of JSON lines (.jsonl); `vaswani train RECIPE --train_pairs FILE` trains the student on this
    file
    """
    keep_references: bool = False
    """also write the original training pairs, with the reference translations as targets"""
    resume: bool = False
    """continue an existing --output file; the last training pair in the file is translated again, because it
    may be incomplete
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_different("--teacher", self.teacher)
        if self.engine == "ctranslate2" and len(self.teacher) > 1:
            raise InvalidValueError(
                "`--teacher` must be one model with `--engine ctranslate2`, but is "
                f"{len(self.teacher)} models; give one model, because CTranslate2 has no ensembles."
            )
        if not self.output.endswith(".jsonl"):
            raise InvalidValueError(
                f"`--output` must end in .jsonl, but is {self.output}; `--train_pairs` recognises JSON lines by "
                "this ending."
            )
        check_output(self.output, {}, resume=self.resume, can_resume=True)
        return self


def run(options: DistillOptions) -> None:
    """Write the sentence pairs to the output, and print how many pairs were written."""
    from ..recipe.loading import load_recipe
    from ..training import distillation

    recipe = load_recipe(options.recipe, options.overrides)
    languages = distillation.languages_of(recipe.task, recipe.data)
    distillation.check_is_no_input(options.output, recipe.data)
    tag = distillation.tag_for_teachers(options.teacher, options.engine, languages)
    chosen = TranslationOptions.of(**options.translation_settings())
    # Lock the output file before reading the finished part of the file, because another process can write to
    # the file.
    with output_file(
        options.output,
        "free disk space and run the command again with `--resume`",
        resume=options.resume,
        can_resume=True,
    ) as file:
        finished = distillation.read_finished_part(options.output)
        pairs, dataset_revision = distillation.training_pairs(recipe.data, recipe.seed, finished.metadata)
        file.keep(finished.size)
        metadata = distillation.metadata_of_distillation(
            options.teacher, chosen, options.keep_references, dataset_revision
        )
        header: dict[str, Any] = {}
        counts = Counter[str]()
        verb = "are in"
        if finished.size:
            distillation.refuse_other_metadata(metadata, finished.metadata or {}, options.output)
            # Do not count the last training pair of the earlier file, because its lines are written again.
            counts.update(sentences=-1, pairs=-finished.num_removed)
            verb = "were added to"
        else:
            header = {"distillation": metadata}
        for number, pair, translation in _translated(options, chosen, pairs, tag, finished.num_pairs):
            rows = []
            for target in distillation.targets_of(pair, translation, options.keep_references):
                sides = dict(zip(languages, (pair["source"], target), strict=True))
                rows.append({"translation": sides, "pair": number})
            if rows:
                rows[0] = header | rows[0]
                header = {}
                file.write(b"".join(map(json_line, rows)))
            is_skipped = bool(getattr(translation, "error", None))
            counts.update(sentences=1, pairs=len(rows), skipped=is_skipped, empty=not rows and not is_skipped)
        if header:
            raise ValueError(
                f"Each of the {counts['sentences']:,} sentences of the training split is empty or has an "
                f"empty translation by `--teacher` {', '.join(options.teacher)}; give a trained teacher, or "
                "other training data."
            )
    print(_summary(counts, verb, options.output))


def _summary(counts: Counter[str], verb: str, output: str) -> str:
    pairs, sentences = counted(counts["pairs"], "pair"), counted(counts["sentences"], "sentence")
    text = f"{pairs} from {sentences} {verb} '{output}'"
    if counts["empty"]:
        text += f"; for {counted(counts['empty'], 'sentence')}, the source or the translation is empty"
    if counts["skipped"]:
        text += f"; the command skipped {counted(counts['skipped'], 'sentence')}"
    return text


def _translated(
    options: DistillOptions, chosen: TranslationOptions, pairs: Any, tag: str, done: int
) -> Iterator[tuple[int, dict[str, str], Any]]:
    """For each training pair after the first `done` pairs, yield the number of the pair, the pair, and the
    translation of the source text.
    """
    from ..translation.workers import translate_remaining

    waiting: deque[tuple[int, dict[str, str]]] = deque()

    requests = CountedRequests(_requests(pairs, tag, done, waiting))
    # Search for the best translations, even if generation_config.json of the teacher has `do_sample: true`.
    chosen = replace(chosen, generate={**chosen.generate, "do_sample": False})
    first, *others = options.teacher
    load = options.translator_loader(first, others)
    total = len(pairs) if isinstance(pairs, Sized) else None
    translations = translate_remaining(
        load, requests, chosen, done, num_workers=options.workers, dtype=options.dtype
    )
    with closing(translations), LineReport("the training split", done, requests) as report:
        report.show_progress("distilling", total, to_file=True)
        for translation in translations:
            report.add(translation)
            number, pair = waiting.popleft()
            yield number, pair, translation
    if done and requests.num_read <= done:
        raise InvalidValueError(
            f"`--output` must not have more training pairs than the recipe, but {options.output} has "
            f"{done + 1:,}; give another name."
        )


def _requests(
    pairs: Any, tag: str, done: int, waiting: deque[tuple[int, dict[str, str]]]
) -> Iterator[Request]:
    """Yield a request for each training pair. The first `done` pairs have translations already. Add only the
    pairs after the first `done` pairs to `waiting`.
    """
    for number, pair in enumerate(pairs, 1):
        if number > done:
            waiting.append((number, pair))
        yield Request(tag + pair["source"])
