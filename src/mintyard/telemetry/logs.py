"""Logs: structured lines, JSON for machines or coloured for people, from structlog and the standard library alike.

No secret may leave: whatever looks like a token, a key or a password in a URL is masked in every value, exceptions included.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import IO, Any, Final

import structlog

from mintyard.credentials import PATTERN

MASK: Final = "***"
_SECRET_NAMES: Final = re.compile(
    r"(?i)(token|secret|password|passwd|authorization|private|credential|cookie|api_?key)"
)
_HARMLESS_NAMES: Final = frozenset({"token_id", "tokens", "input_tokens", "output_tokens", "token_misses"})
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_LONG_SECRET: Final = re.compile(
    r"(?i)\b((?:private|secret|password|token)[\"']?\s*[:=]\s*[\"']?)[A-Za-z0-9+/=_-]{8,}"
)
_MAX_DEPTH: Final = 6


def mask_text(text: str) -> str:
    """`text` without anything that looks like a token, an authorization header, or a password in a URL."""
    text = PATTERN.sub("mint_" + MASK, text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    return _LONG_SECRET.sub(rf"\1{MASK}", text)


def mask(value: Any, depth: int = 0) -> Any:
    """`value` with every text in it masked, and values under telling names replaced whole."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    if depth >= _MAX_DEPTH:
        return mask_text(repr(value))[:200]
    if isinstance(value, Mapping):
        return {
            mask_text(str(name)): MASK if _is_secret(str(name)) and item else mask(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [mask(item, depth + 1) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    return mask_text(repr(value))


def _is_secret(name: str) -> bool:
    return name not in _HARMLESS_NAMES and _SECRET_NAMES.search(name) is not None


def hide_secrets(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor; comes after exceptions were made into text."""
    for name, value in event.items():
        if name not in ("level", "timestamp"):
            event[name] = MASK if _is_secret(name) and value else mask(value)
    return event


def configure_logs(
    level: str = "info", form: str = "auto", process: str = "", to: IO[str] | None = None
) -> None:
    """Set up logging for this process: `form` is json, console or auto (console on a terminal). Lines go to stderr.

    `process` names the process in every line (writer, api, ...)."""
    stream: IO[str] = to or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        hide_secrets,
    ]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared[:-2], structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared[:-2],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *shared[-2:],
            renderer,
        ],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in ("alembic", "asyncio", "uvicorn"):
        logging.getLogger(library).setLevel(max(logging.WARNING, root.level))
    structlog.contextvars.clear_contextvars()
    if process:
        _name_process(process)


def _name_process(process: str) -> None:
    """In every line of this process, whatever thread writes it."""

    def add(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("process", process)
        return event

    config = structlog.get_config()
    structlog.configure(processors=[add, *config["processors"]])
