"""YAML as a tree of text with line numbers: no types, tags, anchors or surprises.

Scalars stay what the author typed (`on`, `010`, `1:30:00` and `2030-01-01` are text); the fields' own readers give them
meaning. Aliases, which make bombs, explicit tags, duplicate keys, deep nesting and more than one document are refused.
The tree is built from parser events without recursion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from mintyard.domain.errors import InvalidRequest, TooLarge
from mintyard.domain.limits import MAX_BODY_BYTES

MAX_DEPTH: Final = 16
MAX_NODES: Final = 1_000_000
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Scalar(msgspec.Struct, frozen=True):
    """`text` as written; `is_null` for an empty, `~` or `null` plain scalar."""

    line: int
    text: str
    is_null: bool = False


class Sequence(msgspec.Struct, frozen=True):
    line: int
    items: list[Node] = []


class Mapping(msgspec.Struct, frozen=True):
    line: int
    items: dict[str, Node] = {}
    lines: dict[str, int] = {}
    """The line of each key."""


Node = Scalar | Sequence | Mapping


def parse_yaml(text: str | bytes) -> Node | None:
    """The one document in `text`, None when there is none. Errors: `TooLarge`, `InvalidRequest` with the line."""
    try:
        body = text.encode() if isinstance(text, str) else text
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(what="The file in bytes", size=len(body), limit=MAX_BODY_BYTES)
        body.decode()
    except UnicodeError:
        raise InvalidRequest(why="the file is not UTF-8 text") from None
    try:
        return _build(yaml.parse(body, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise InvalidRequest(why=f"{where}not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(why=f"not YAML: {str(error).splitlines()[0]}") from None


def _build(events: Iterator[Any]) -> Node | None:
    root: Node | None = None
    documents = nodes = 0
    stack: list[Sequence | Mapping] = []
    keys: list[str | None] = []
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise InvalidRequest(why=f"line {line}: a second document; list several jobs under `jobs:`")
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            stack.pop()
            keys.pop()
        elif isinstance(event, yaml.NodeEvent):
            nodes += 1
            if nodes > MAX_NODES:
                raise TooLarge(
                    what="The number of values in the file", size=f"over {MAX_NODES}", limit=MAX_NODES
                )
            _check_plain(event, line)
            is_key = bool(stack) and isinstance(stack[-1], Mapping) and keys[-1] is None
            node = _node(event, line)
            if is_key:
                keys[-1] = _key(stack[-1], node)
                continue
            if not stack:
                root = node
            else:
                _attach(stack[-1], keys, node)
            if not isinstance(node, Scalar):
                stack.append(node)
                keys.append(None)
                if len(stack) > MAX_DEPTH:
                    raise InvalidRequest(why=f"line {line}: nested deeper than {MAX_DEPTH}")
    return root


def _check_plain(event: Any, line: int) -> None:
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise InvalidRequest(
            why=f"line {line}: anchors and aliases are not taken; put what jobs share under `defaults:`"
        )
    if event.tag is not None and event.tag != "!":
        raise InvalidRequest(why=f"line {line}: the tag {event.tag[:40]} is not taken; write plain values")


def _node(event: Any, line: int) -> Node:
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(line, event.value, is_null=not event.style and event.value in _NULLS)
    return Sequence(line, []) if isinstance(event, yaml.SequenceStartEvent) else Mapping(line, {}, {})


def _key(mapping: Any, node: Node) -> str:
    if not isinstance(node, Scalar):
        raise InvalidRequest(why=f"line {node.line}: a key must be a word")
    if node.text in mapping.items:
        raise InvalidRequest(why=f"line {node.line}: {node.text[:40]!r} is given twice")
    mapping.lines[node.text] = node.line
    return node.text


def _attach(parent: Sequence | Mapping, keys: list[str | None], node: Node) -> None:
    if isinstance(parent, Mapping):
        parent.items[keys[-1] or ""] = node
        keys[-1] = None
    else:
        parent.items.append(node)
