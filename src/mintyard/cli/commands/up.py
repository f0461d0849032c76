"""`up`: run a hub in the foreground (needs mintyard[hub]). Each setting of the hub's configuration is a flag."""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import time
from dataclasses import make_dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from mintyard.app import config as settings
from mintyard.app.config import Config, load_config
from mintyard.cli.printer import Printer
from mintyard.domain.errors import ConfigInvalid, MintyardError

LOGIN_WITHIN_S = 60.0


def _remarks() -> dict[str, str]:
    """What the configuration says about each setting, from its source."""
    tree = ast.parse(inspect.getsource(settings))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    found: dict[str, str] = {}
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            remark = (
                after.value.value
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                else ""
            )
            found[node.target.id] = " ".join(str(remark).split())
    return found


def _flags() -> type:
    remarks = _remarks()
    fields: list[Any] = [
        (
            name,
            Annotated[
                str | None,
                Parameter(name="--" + name.replace("_", "-"), help=remarks.get(name, ""), group="Settings"),
            ],
            None,
        )
        for name in Config.__struct_fields__
    ]
    made = make_dataclass("Flags", fields, frozen=True)
    made.__module__ = __name__  # the parser takes classes of no module for plain values
    return Parameter(name="*")(made)


Flags: Any = _flags()
_NONE = Flags()


def up(
    *,
    config: Annotated[str, Parameter(name="--config", help="A settings file (MINTYARD_CONFIG).")] = "",
    no_login: Annotated[bool, Parameter(name="--no-login", negative="")] = False,
    flags: Flags = _NONE,  # pyright: ignore[reportInvalidTypeForm] (a class made at run time)
) -> int:
    """Run a hub here until Ctrl-C. The first start founds it and leaves you its administrator's token.

    Settings come from flags, environment (MINTYARD_PORT), file (mintyard.toml in the folder) and defaults, in this order.

    Parameters
    ----------
    no_login
        Don't store the administrator's token as your login.
    """
    given = {name: getattr(flags, name) for name in Config.__struct_fields__}
    if given.get("engine_options") is not None:
        given["engine_options"] = _table(given["engine_options"])
    loaded = load_config(given, file=config or None)
    from mintyard.app.supervisor import run
    from mintyard.telemetry.logs import configure_logs

    configure_logs(loaded.log_level, loaded.log_format)
    printer = Printer()

    def told(line: str) -> None:
        printer.line(line, flush=True)
        if "ready" in line and not no_login:
            # The writer may still be founding the hub, or stand by; the supervisor must not wait for that.
            threading.Thread(target=_log_in, args=(loaded, printer), name="login", daemon=True).start()

    return int(run(loaded, told))


def _log_in(config: Config, printer: Printer) -> None:
    """Make the administrator's token this user's login once it exists; that it can't be stored must not stop a hub."""
    from mintyard.app.bootstrap import ADMIN_CONTEXT, admin_credentials, adopt_admin
    from mintyard.app.instance import read_ready

    deadline = time.monotonic() + LOGIN_WITHIN_S
    try:
        while ADMIN_CONTEXT not in admin_credentials(config).contexts():
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        ready = read_ready(config)
        if adopt_admin(config, ready.url if ready else ""):
            printer.line(
                f"you are logged in as its administrator ({config.name}); try: mintyard node ls", flush=True
            )
    except (MintyardError, OSError) as error:
        print(
            f"warning: the administrator's token could not be stored as your login: {error}",
            file=sys.stderr,
            flush=True,
        )


def _table(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigInvalid(
            source="flags", field="engine_options", why=f"no JSON object ({error})", suggestion=""
        ) from None
