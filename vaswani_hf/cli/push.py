"""`vaswani push`."""

from .options import Options, on_command_line


class PushOptions(Options):
    """The options of `vaswani push`."""

    checkpoint: str = on_command_line(positional=True)
    """a checkpoint folder"""
    repository: str = on_command_line(positional=True)
    """the repository, user/name; it is created if it does not exist"""
    private: bool = False
    """create the repository as private"""
    revision: str | None = None
    """a branch (created if it does not exist) or refs/pr/N; main by default"""
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
