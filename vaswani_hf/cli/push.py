"""`vaswani push`: uploads a checkpoint or an export to the Hub."""

from pathlib import Path

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
    """the repository of the model whose weights were the initial weights of the training, for the model
    card; for an export, the repository of the model that was exported"""


def run(options: PushOptions) -> None:
    """Upload the checkpoint."""
    from ..convert.push_export import is_export, push_export
    from ..publish.push import push

    arguments = options.given()
    # Do not execute the file of `--code` here, because the command has already executed the file.
    arguments.pop("code", None)
    checkpoint = arguments.pop("checkpoint")
    repository = arguments.pop("repository")
    if is_export(Path(checkpoint)):
        if options.license is not None:
            raise ValueError(
                f"`--license` is for a checkpoint, but '{checkpoint}' is an export, and an export has the licence of "
                "`--base_model`; leave `--license` out."
            )
        push_export(checkpoint, repository, **arguments)
    else:
        push(checkpoint, repository, **arguments)
