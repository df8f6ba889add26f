"""Defines `vaswani push`, the command that uploads a checkpoint to the Hub."""

from .options import CodeOptions, on_command_line


class PushOptions(CodeOptions):
    """The options of `vaswani push`."""

    checkpoint: str = on_command_line(positional=True)
    """a checkpoint folder"""
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
    """the licence of the model, which the model card states, as an identifier of the Hub such as cc-by-4.0"""
    base_model: str | None = None
    """the repository of the model that the training started from, which the model card names"""


def run(options: PushOptions) -> None:
    """Upload the checkpoint."""
    from ..publish.push import push

    arguments = options.given()
    # Do not execute the file of `--code` here, because the command has already executed the file.
    arguments.pop("code", None)
    push(**arguments)
