"""Markdown of tables, and what source code says of its names: docstrings after assignments, fields of classes."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

MADE = "<!-- Made by `make docs` from the code; edit the code instead. -->"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([MADE, f"# {title}", *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def cell(value: Any) -> str:
    """One line of text that no table breaks at."""
    return " ".join(str(value).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def code(value: Any) -> str:
    return f"`{value}`" if str(value) else ""


def prose(docstring: str | None) -> str:
    """A docstring as one paragraph per paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(docstring or "").split("\n\n"))


def sentence(docstring: str | None) -> str:
    """The first paragraph of a docstring in one line."""
    return prose(docstring).split("\n\n")[0]


def explained(body: Sequence[ast.stmt]) -> dict[str, str]:
    """The docstring after each assignment of `body`."""
    found: dict[str, str] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        target = (
            statement.target
            if isinstance(statement, ast.AnnAssign)
            else statement.targets[0]
            if isinstance(statement, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name):
            found[target.id] = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[target.id] = prose(str(following.value.value))
    return found


def module_names(module: ModuleType) -> dict[str, str]:
    """The public names that `module` assigns, in order, with their docstrings."""
    names = explained(ast.parse(inspect.getsource(module)).body)
    return {name: about for name, about in names.items() if not name.startswith("_")}


def class_fields(kind: type) -> dict[str, str]:
    """The fields of a class in order with the docstrings after them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    assert isinstance(tree.body[0], ast.ClassDef)
    return explained(tree.body[0].body)


def annotation(kind: type, field: str) -> str:
    """The type of a field as it is written, without what bounds it."""
    written = kind.__annotations__[field]
    text = written if isinstance(written, str) else getattr(written, "__name__", str(written))
    bounded = re.fullmatch(r"Annotated\[(.*), Meta\(.*\)\]", text)
    return bounded[1] if bounded else text
