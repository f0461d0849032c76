"""Units and permissions are written on the command line as everywhere else, by their values."""

from __future__ import annotations

from typing import get_args

import pytest

from mintyard.cli.application import application
from mintyard.cli.options import ScopeName, UnitName
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit


def test_the_words_are_those_of_the_core() -> None:
    assert set(get_args(UnitName)) == {unit.value for unit in Unit}
    assert set(get_args(ScopeName)) == {scope.value for scope in Scope}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["grant", "create", "acme", "5", "--unit", "cpu_core_hours"], "unit", "cpu_core_hours"),
        (["grant", "ls", "-u", "gpu_hours"], "unit", "gpu_hours"),
        (["statement", "--unit", "input_tokens"], "unit", "input_tokens"),
        (
            ["token", "narrow", "--scope", "job:submit", "--scope", "job:read"],
            "scope",
            ["job:submit", "job:read"],
        ),
    ],
)
def test_commands_take_them(words: list[str], name: str, value: object) -> None:
    _, bound, _ = application().parse_args(words, exit_on_error=False, print_error=False)
    assert bound.arguments[name] == value
