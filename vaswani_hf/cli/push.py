"""`vaswani push`."""

from .options import Options, on_command_line


class PushOptions(Options):
    """The options of `vaswani push`."""

    checkpoint: str = on_command_line(positional=True)
    """a checkpoint folder"""
    repository: str = on_command_line(positional=True)
    """user/name; made if there is none"""
    private: bool = False
    """make the repository as a private one"""
    revision: str | None = None
    """a branch, made if there is none, or refs/pr/N; main by default"""
    create_pr: bool = False
    """open a pull request to main"""
    tag: str | None = None
    """a new tag for the commit, such as v1.0"""
    license: str | None = None
    """the licence for the card, as the Hub names it, such as cc-by-4.0"""
    base_model: str | None = None
    """for the card: the repository whose model this one was made from"""


def run(options: PushOptions) -> None:
    """Publish the checkpoint."""
    from ..publish.push import push

    push(**options.given())
