"""`vaswani demo`: opens a page in the browser on which people try one or several models."""

import sys
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ..model.errors_vaswani import InvalidValueError
from ..version import are_installed, install_command
from .options import CodeOptions, DeviceOptions, check_different, on_command_line


class DemoOptions(DeviceOptions, CodeOptions):
    """The options of `vaswani demo`."""

    models: list[str] = on_command_line(positional=True, metavar="MODEL")
    """checkpoint folders or repositories on the Hub; with two models of opposite directions, the page can
    swap the languages
    """
    host: str = "127.0.0.1"
    """the address of the page"""
    port: int = Field(7860, ge=0, le=65535)
    """the port of the page; 0 selects a free port"""
    open_browser: bool = True
    """open the page in the browser of this machine"""

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        check_different("models", self.models)
        return self


def run(options: DemoOptions) -> None:
    """Serve the page until a signal ends the command."""
    if not are_installed(["gradio"]):
        raise InvalidValueError(
            f"`vaswani demo` needs more libraries; install them with `{install_command('demo')}`."
        )
    from ..demo.models import load_directions
    from ..serving.server import http_address, listening_socket

    # Open and close the port before the models are loaded, so that an error about the port is reported early.
    # After the models are loaded, gradio opens the port again.
    with listening_socket(options.host, options.port) as listening:
        port = listening.getsockname()[1]
    directions = load_directions(options.models, options.device)
    # Import demo/interface.py after the models are loaded, because demo/interface.py imports gradio, and the
    # import of gradio takes seconds.
    from ..demo.interface import launch

    address = http_address(options.host, port)
    print(f"vaswani starts a page at {address} (Ctrl-C ends the page)", file=sys.stderr)
    launch(
        directions,
        " and ".join(Path(name).name for name in options.models),
        server_name=options.host,
        server_port=port,
        inbrowser=options.open_browser,
        show_error=True,
        # Gradio would print the address again, and would advise the user to make the page public.
        quiet=True,
    )
