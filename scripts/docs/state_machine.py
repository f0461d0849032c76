"""Pages of the core: life cycles, errors, limits, commands, events."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import msgspec
from scripts.docs.ladders import ladder, mermaid
from scripts.docs.markdown import annotation, class_fields, code, module_names, page, prose, table

from mintyard.domain import commands, errors, events, lifecycle, limits
from mintyard.domain.errors import Broken, Conflict, Exit, Refused, Unavailable

_FAMILIES = (
    (Refused, "Refused", "Yours to correct: as it is, the request can't be granted."),
    (Conflict, "Conflict", "The thing has changed or is in another state: look at it again."),
    (Unavailable, "Unavailable", "It passes: send the same request again."),
    (Broken, "Broken", "A fault of ours."),
)


def pages() -> dict[str, str]:
    made = {
        "life-cycles.md": _life_cycles(),
        "errors.md": _errors(),
        "limits.md": _limits(),
        "commands.md": _tagged("Commands of the core", commands, commands.Command),
        "events.md": _tagged("Events of the core", events, events.AnyEvent),
    }
    return made | {f"life-cycles/{cycle.what}.svg": ladder(cycle) for cycle in lifecycle.ALL}


def _life_cycles() -> str:
    parts = [
        (
            "Every change of state in the core goes through these tables (`domain/lifecycle.py`); a move that is not in them "
            "raises `illegal_transition`. Each drawing has a column for a state and a row for a move; a thick bar begins a "
            "move that several states have."
        )
    ]
    for cycle in lifecycle.ALL:
        rows = [(code(source), code(by), code(to)) for (source, by), to in cycle.moves.items()]
        parts += [
            f"## {cycle.what.capitalize()}",
            f"![Life cycle of: {cycle.what}](life-cycles/{cycle.what}.svg)",
            f"Begins as `{cycle.initial}`, ends as {', '.join(map(code, cycle.terminal)) or 'nothing'}.",
            mermaid(cycle),
            table(("from", "by", "to"), rows),
        ]
    return page("Life cycles", *parts)


def _errors() -> str:
    parts = [
        (
            "Each error has one class, and from it come the problem document over HTTP "
            "([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)), the exit status of the command line and the exception of "
            "the SDK. `code` and parameters (`{...}`) are stable; messages may be worded better."
        ),
        "## Exit status",
        table(("status", "name"), [(int(status), status.name.lower()) for status in Exit]),
    ]
    for family, title, about in _FAMILIES:
        kinds = sorted(
            (kind for kind in errors.REGISTRY.values() if issubclass(kind, family)),
            key=lambda kind: kind.code,
        )
        rows = [
            (code(kind.code), kind.status, f"{int(kind.exit_status)}", kind.message, kind.remedy)
            for kind in kinds
        ]
        parts += [f"## {title}", about, table(("code", "HTTP", "exit", "message", "remedy"), rows)]
    return page("Errors", *parts)


def _limits() -> str:
    rows = [(code(name), f"{getattr(limits, name):,}", about) for name, about in module_names(limits).items()]
    return page("Limits", prose(limits.__doc__), table(("name", "value", "about"), rows))


def _tagged(title: str, module: Any, union: Any) -> str:
    kinds = sorted(get_args(union), key=lambda kind: kind.__struct_config__.tag)
    rows = [(kind.__struct_config__.tag, f"[{kind.__name__}](#{kind.__name__.lower()})") for kind in kinds]
    parts = [prose(module.__doc__), table(("tag", "kind"), rows)]
    for kind in kinds:
        parts.append(f"## {kind.__name__}")
        if kind.__dict__.get("__doc__"):
            parts.append(prose(kind.__doc__))
        parts.append(_fields(kind))
    return page(title, *parts)


def _fields(kind: Any) -> str:
    notes = class_fields(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        written = _annotation(kind, field.name)
        default = "required" if field.required else code(_shown(field.default))
        rows.append((code(field.name), code(written), default, notes.get(field.name, "")))
    return table(("field", "type", "default", "about"), rows)


def _annotation(kind: type, field: str) -> str:
    owner = next(base for base in kind.__mro__ if field in inspect.get_annotations(base))
    return annotation(owner, field)


def _shown(default: Any) -> str:
    if default is msgspec.NODEFAULT:
        return "{}"
    return (
        str(default) if isinstance(default, int | float) and not isinstance(default, bool) else repr(default)
    )
