"""Tables and numbers as people see them."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.cli.printer import Printer
from mintyard.cli.quantities import age, clock, count, moment, money, seconds_of, size
from mintyard.cli.tables import Column, lay_out, pairs, plain, shorten, width
from mintyard.cli.watching import follow

COLUMNS = (
    Column("ID", lambda row: row[0], right=True),
    Column("NAME", lambda row: row[1], flexible=True, style=lambda row: "31"),
    Column("NOTE", lambda row: row[2], flexible=True),
)
text = st.text(max_size=60)


@given(text)
def test_nothing_that_a_terminal_obeys_gets_through(value: str) -> None:
    made = plain(value)
    assert made.isprintable()
    if value.isprintable():
        assert made == value


def test_escapes_are_spelled_out() -> None:
    assert plain("a\x1b[31mb\nc\u202e") == "a\\x1b[31mb\\nc\\u202e"
    assert plain("\ud800").isprintable()


@pytest.mark.parametrize(("value", "cells"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("", 0), ("🙂", 2)])
def test_widths(value: str, cells: int) -> None:
    assert width(value) == cells


@given(text, st.integers(1, 30))
def test_shortened_text_fits(value: str, cells: int) -> None:
    value = plain(value)
    made = shorten(value, cells)
    assert width(made) <= cells
    assert made == value or made.endswith("…")


@given(
    st.lists(st.tuples(text, text, text), min_size=1, max_size=8),
    st.none() | st.integers(30, 120),
    st.booleans(),
)
def test_columns_line_up_whatever_they_hold(
    rows: list[tuple[str, str, str]], cells: int | None, headers: bool
) -> None:
    lines = lay_out(rows, COLUMNS, cells=cells, headers=headers)
    assert len(lines) == len(rows) + headers
    assert all(line.isprintable() for line in lines)
    if cells is None and all(row[1].isascii() and row[1].isprintable() and row[0].isascii() for row in rows):
        lead = (
            max(width(plain(row[0])) for row in rows)
            if not headers
            else max(2, *(width(plain(row[0])) for row in rows))
        )
        for line, row in zip(lines[headers:], rows, strict=True):
            assert line[lead + 2 :].startswith(row[1].rstrip()) or not row[1].strip()


def test_a_very_long_name_gives_way_to_the_terminal() -> None:
    rows = [("1", "x" * 500, "short"), ("2", "日" * 100, "y" * 90)]
    for cells in (30, 60, 100):
        lines = lay_out(rows, COLUMNS, cells=cells)
        assert all(width(line) <= cells for line in lines)
        assert lines[1].split()[0] == "1"
    assert "x" * 500 in lay_out(rows, COLUMNS)[1]


def test_colours_only_when_asked_for_and_outside_the_padding() -> None:
    lines = lay_out([("1", "a", "b"), ("2", "ccc", "d")], COLUMNS, colours=True)
    assert lines[1] == " 1  \x1b[31ma\x1b[0m     b"
    assert "\x1b" not in lines[0]
    assert re.sub(r"\x1b\[\d*m", "", "\n".join(lines)) == "\n".join(
        lay_out([("1", "a", "b"), ("2", "ccc", "d")], COLUMNS)
    )


def test_pairs_leave_out_what_is_empty() -> None:
    assert pairs([("a", "1"), ("long name", "2\n3"), ("none", "")]) == ["a:         1", "long name: 2\\n3"]
    assert lay_out([], COLUMNS, headers=False) == []


def test_numbers() -> None:
    spans = (0, 999, 61_000, 3_600_000, 90_061_000)
    assert [clock(ms) for ms in spans] == ["0:00:00", "0:00:00", "0:01:01", "1:00:00", "1-1:01:01"]
    assert [size(mib) for mib in (1, 512, 1_024, 1_536, 1_048_576)] == ["1M", "512M", "1G", "1.5G", "1T"]
    assert [count(milli) for milli in (0, 500, 2_000, 1_250)] == ["0", "0.5", "2", "1.25"]
    assert [money(value, 4) for value in ("5", "0.12345", "0.000000001", "-1.5")] == [
        "5",
        "0.1234…",
        "<0.0001",
        "-1.5",
    ]


def test_instants_and_ages() -> None:
    now = 1_900_000_000.0
    assert seconds_of("2030-01-31T12:00:00.123456789Z") == pytest.approx(1_896_091_200.123456789)
    for back, told in ((0, "0s"), (59, "59s"), (60, "1m"), (7_200, "2h"), (200_000, "2d"), (-90, "-1m")):
        assert age(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - back)), now) == told
    assert (age(None), moment(None)) == ("", "")
    assert moment("2030-01-31T12:00:00Z").startswith("2030-01-31 ") or moment(
        "2030-01-31T12:00:00Z"
    ).startswith("2030-02-01 ")


def test_following_shows_changes_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mintyard.cli.watching.time.sleep", lambda _: None)
    looks = iter([[("1", "a", "")], [("1", "b", ""), ("2", "c", "")], [("1", "b", ""), ("2", "c", "")]])
    assert (
        follow(Printer(), [("1", "a", "")], lambda: next(looks), COLUMNS, key=lambda row: row[0], looks=3)
        == 0
    )
    assert capsys.readouterr().out.splitlines() == ["ID  NAME  NOTE", " 1  a", " 1  b", " 2  c"]
