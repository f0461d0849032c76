"""Application: the tree of commands. A noun's module is loaded when the noun is used, so that each command starts fast."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from cyclopts import App, Parameter

from mintyard import __version__

_HELP: Final = """The control plane of an AI compute centre: compute tokens backed by a ledger, joined to a scheduler.

Start a hub with `mintyard up`, then `mintyard onboard acme --money 100` and `mintyard job submit --wrap "echo hello"`."""
NOUNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("up", "up:up", "Run a hub here."),
    ("onboard", "account:onboard", "Set up an account, a grant and a token in one step."),
    ("job", "job:app", "Submit jobs, look at them and steer them."),
    ("quote", "submit:quote", "Ask what work would cost and when it would start."),
    ("token", "token:app", "Mint compute tokens, narrow them offline, look at them, end them."),
    ("account", "account:app", "Open accounts and see what they have."),
    ("grant", "account:grants", "Give accounts what they may spend."),
    ("hold", "books:holds", "Set amounts aside for something that is not a job, or give them to a holder."),
    ("statement", "books:statement", "Show what moved at an account."),
    ("price", "books:prices", "See and set prices."),
    ("node", "books:nodes", "See nodes, and say which take work."),
    ("queue", "queue:app", "Share the machines between queues: quotas, borrowing, who may submit."),
    ("watch", "session:watch", "Show what changes, as it happens."),
    ("whoami", "session:whoami", "Ask the hub what the token in use may do."),
    ("login", "session:login", "Store a token for a hub and use it from now on."),
    ("logout", "session:logout", "Forget a stored login."),
    ("config", "session:config", "See the stored logins and what is in force."),
    ("doctor", "doctor:doctor", "Look for what is wrong, with cause and cure."),
    ("journal", "server:journal", "Verify, read and replay the journal of a hub on this machine."),
    ("replay", "server:replay", "Replay a real trace through the production core."),
    ("completion", "session:completion", "Write a shell's completion script."),
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
        default_parameter=Parameter(show_default=False),
    )
    for name, place, about in NOUNS:
        extra: dict[str, Any] = {"help_flags": [], "version_flags": []} if name == "replay" else {}
        app.command(f"mintyard.cli.commands.{place}", name=name, help=about, **extra)
    return app
