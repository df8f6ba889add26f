"""Defines `vaswani push`, the command that uploads a checkpoint or an export to the Hub."""

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from .options import CodeOptions, on_command_line


class PushOptions(CodeOptions):
    """The options of `vaswani push`."""

    checkpoint: str = on_command_line(positional=True)
    """a checkpoint folder, or a folder that `vaswani export` has written"""
    repository: str = on_command_line(positional=True)
    """the repository on the Hub, as user/name; a missing repository is created"""
    private: bool = False
    """make a new repository private"""
    revision: str | None = None
    """a branch or refs/pr/N; a missing branch is created; main by default"""
    create_pr: bool = False
    """open a pull request to main instead of a commit to main"""
    tag: str | None = None
    """a new tag for the commit, such as v1.0"""
    license: str | None = None
    """the licence of the model for the model card, as an identifier of the Hub such as cc-by-4.0"""
    base_model: str | None = None
    """the repository of the model that the training started from, or of the model that was exported; the
    model card names this repository"""
    space: str | None = None
    """also create or update a Space, as user/name, with a page on which people try the model; the Space of a
    private model is private"""
    space_sdk: Literal["gradio", "static"] | None = None
    """the SDK of the Space; gradio runs the model in Python on a machine of the Hub and is the default;
    static is the page of `vaswani export --format html`, which runs the model in the browser
    """

    @model_validator(mode="after")
    def _check_space(self) -> Self:
        if self.space is not None and self.create_pr:
            raise InvalidValueError(
                "`--space` must not be given with `--create_pr`, because the Space would load the model "
                "from an open pull request; leave out `--space` or `--create_pr`."
            )
        if self.space is None and self.space_sdk is not None:
            raise InvalidValueError(
                "`--space_sdk` must not be given without `--space`; name the Space with `--space user/name`."
            )
        return self


def run(options: PushOptions) -> None:
    """Upload the checkpoint."""
    from ..convert.export import format_of_export
    from ..convert.push_export import push_export
    from ..demo.space import push_with_space
    from ..publish.push import push

    checkpoint = options.checkpoint
    export_format = format_of_export(Path(checkpoint))
    space = options.space
    arguments = options.model_dump(
        include={"private", "revision", "create_pr", "tag", "license", "base_model"}, exclude_unset=True
    )
    if export_format is not None:
        if options.license is not None:
            raise InvalidValueError(
                f"`--license` is for a checkpoint, but '{checkpoint}' is an export, and an export has the "
                "licence of `--base_model`; leave `--license` out."
            )
        if space is not None:
            raise InvalidValueError(
                f"`--space` is for a checkpoint, but '{checkpoint}' is an export; leave `--space` out."
            )
        push_export(Path(checkpoint), export_format, options.repository, **arguments)
    elif space is None:
        push(checkpoint, options.repository, **arguments)
    else:
        sdk = options.space_sdk or "gradio"
        push_with_space(checkpoint, options.repository, space, sdk, **arguments)
