"""Application: the tree of commands. A noun's module is loaded when the noun is used, so that each command starts fast."""

from __future__ import annotations

from functools import cache
from typing import Final

from cyclopts import App, Parameter

from mintyard import __version__

_HELP: Final = """The control plane of an AI compute centre: compute tokens backed by a ledger, joined to a scheduler.

Start a hub with `mintyard up`, then `mintyard onboard acme --money 100` and `mintyard job submit --wrap "echo hello"`."""
NOUNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("job", "mintyard.cli.commands.job:app", "Submit jobs, look at them and steer them."),
    ("quote", "mintyard.cli.commands.submit:quote", "Ask what work would cost and when it would start."),
)
"""Name, where it is, and what it is for."""


@cache
def application() -> App:
    """The application, without any of its commands loaded."""
    app = App(
        name="mintyard",
        help=_HELP,
        version=__version__,
        version_flags=["--version", "-V"],
        result_action="return_value",
        help_format="plaintext",
        default_parameter=Parameter(show_default=lambda value: str(value) if value else ""),
    )
    for name, place, about in NOUNS:
        app.command(place, name=name, help=about)
    return app
