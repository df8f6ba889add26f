"""`vaswani push`: uploads a checkpoint to the Hub."""

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
    """the licence of the model for the card, by its identifier on the Hub, such as cc-by-4.0"""
    base_model: str | None = None
    """the repository of the model that this model was trained from, for the card"""


def run(options: PushOptions) -> None:
    """Upload the checkpoint."""
    from ..publish.push import push

    push(**options.given())
