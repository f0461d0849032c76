"""Options that commands share, and the session they open: which hub, as whom, and how answers are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Parameter

from mintyard.cli.printer import Printer
from mintyard.domain.errors import InvalidSpec

if TYPE_CHECKING:
    from mintyard.sdk.address import Address
    from mintyard.sdk.sync.hub import Hub

RETRY_S = 5.0
"""How long a command is patient with a hub that is busy or restarting."""
PATIENT_RETRY_S = 120.0
"""The same for commands that wait anyway."""
UnitName: TypeAlias = Literal[
    "money", "gpu_hours", "cpu_core_hours", "memory_gb_hours", "storage_tb_hours", "input_tokens", "output_tokens"
]  # fmt: skip
"""`domain.units.Unit` as people write it; an enum would be asked for by the names that it has in Python."""
ScopeName: TypeAlias = Literal[
    "job:submit", "job:read", "job:control", "job:operate", "token:mint", "token:revoke", "account:read",
    "account:write", "grant:write", "hold:write", "queue:write", "node:read", "node:write", "price:write",
    "audit:read",
]  # fmt: skip
"""`domain.tokens.authority.Scope` as people write it."""
_JOB = re.compile(r"[1-9][0-9]{0,17}(_[0-9]{1,9})?")


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How answers are written."""

    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], group="Output")] = "table"
    """table or json."""
    json: Annotated[bool, Parameter(name="--json", negative="", group="Output")] = False
    """Short for -o json."""
    no_headers: Annotated[bool, Parameter(name="--no-headers", negative="", group="Output")] = False
    """Tables without their first line."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", group="Output")] = False
    """Only ids, and no remarks."""

    @property
    def is_json(self) -> bool:
        return self.json or self.output == "json"

    @cached_property
    def printer(self) -> Printer:
        return Printer(json=self.is_json, headers=not self.no_headers, quiet=self.quiet)


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Which hub, and with which token."""

    hub: Annotated[str, Parameter(name="--hub", group="Hub")] = ""
    """URL of the hub (MINTYARD_HUB)."""
    context: Annotated[str, Parameter(name="--context", group="Hub")] = ""
    """A stored login, see `mintyard config show` (MINTYARD_CONTEXT)."""

    def address(self) -> Address:
        from mintyard.sdk.address import address

        return address(self.hub or None, context=self.context)

    def connect(self, retry_s: float = RETRY_S, timeout_s: float = 30.0, found: Address | None = None) -> Hub:
        """A client. The token never comes from the command line, where others could read it."""
        skip_httpx_command_line()
        from mintyard.sdk.sync.hub import Hub

        return Hub(address_found=found or self.address(), retry_s=retry_s, timeout_s=timeout_s, fresh=True)


def skip_httpx_command_line() -> None:
    """httpx loads its own command line (click, pygments, rich) when it finds click; that takes longer than a request."""
    import sys

    if "httpx" not in sys.modules:
        sys.modules["httpx._main"] = None  # pyright: ignore[reportArgumentType] (the import system's way to say absent)
        try:
            import httpx  # noqa: F401
        finally:
            sys.modules.pop("httpx._main", None)


def job_name(text: str) -> str:
    """A job's number or `ARRAY_INDEX`; `InvalidSpec` for anything else."""
    if not _JOB.fullmatch(text):
        raise InvalidSpec(
            field="job", why=f"{text[:40]!r} is no job; write its number, or ARRAY_INDEX such as 12_3"
        )
    return text
