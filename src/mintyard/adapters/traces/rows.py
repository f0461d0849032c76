"""Lines, rows and numbers of trace files, read with bounds: what the readers of all formats stand on.

Files may be gzip, whatever their name; a missing `x.csv` is looked for as `x.csv.gz`. Every fault names file and line.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Final

from mintyard.domain.errors import NotFound, TraceMalformed
from mintyard.ports.traces import TraceJob

MAX_LINE_CHARS: Final = 65_536
MAX_ROWS: Final = 10_000_000
MAX_MS: Final = 100 * 366 * 86_400_000
"""A hundred years: no instant or duration of a trace is longer."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


def find(path: Path) -> Path:
    """`path`, or its gzipped twin; `NotFound` when neither is a file."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise NotFound(what="trace file", name=str(path))


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that isn't blank, without its end. Errors: `NotFound`, `TraceMalformed`."""
    number = 0
    try:
        with _open(find(path)) as stream:
            while line := stream.readline(MAX_LINE_CHARS + 1):
                number += 1
                if len(line) > MAX_LINE_CHARS:
                    raise TraceMalformed(
                        path=str(path), line=number, why=f"longer than {MAX_LINE_CHARS} characters"
                    )
                if number > MAX_ROWS:
                    raise TraceMalformed(path=str(path), line=number, why=f"more than {MAX_ROWS} lines")
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError:
        raise TraceMalformed(path=str(path), line=number + 1, why="not UTF-8 text") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceMalformed(path=str(path), line=number + 1, why=f"damaged gzip data ({error})") from None


def _open(path: Path) -> IO[str]:
    with path.open("rb") as stream:
        zipped = stream.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rt", encoding="utf-8-sig") if zipped else path.open(encoding="utf-8-sig")


class Row:
    """One record with its place; fields are read by name, with bounds."""

    __slots__ = ("_columns", "_values", "line", "path")

    def __init__(self, path: Path, line: int, columns: dict[str, int], values: Sequence[str]) -> None:
        self.path = path
        self.line = line
        self._columns = columns
        self._values = values

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def refuse(self, why: str) -> TraceMalformed:
        return TraceMalformed(path=str(self.path), line=self.line, why=why)

    def text(self, column: str) -> str:
        """The field without blanks around it; empty when the file has no such column."""
        index = self._columns.get(column)
        return "" if index is None else self._values[index].strip()

    def count(self, column: str, lowest: int, highest: int) -> int:
        """A whole number within bounds."""
        text = self.text(column)
        if (
            text.isascii()
            and text.lstrip("-").isdigit()
            and len(text) < 20
            and lowest <= int(text) <= highest
        ):
            return int(text)
        raise self.refuse(f"{column} is {text[:40]!r}, allowed are whole numbers from {lowest} to {highest}")

    def seconds_ms(self, column: str, lowest_s: int = 0) -> int:
        """A decimal number of seconds in ms, rounded; finite and at most a hundred years."""
        text = self.text(column)
        try:
            seconds = Decimal(text)
        except InvalidOperation:
            seconds = Decimal("NaN")
        if len(text) > 40 or not seconds.is_finite() or not lowest_s * 1_000 <= seconds * 1_000 <= MAX_MS:
            raise self.refuse(
                f"{column} is {text[:40]!r}, allowed are seconds from {lowest_s} to {MAX_MS // 1_000}"
            )
        return round(seconds * 1_000)


def read_csv(path: Path, required: Sequence[str]) -> Iterator[Row]:
    """The rows below a header that names at least the `required` columns. Quoted line breaks are refused."""
    lines = open_lines(path)
    number, header = next(lines, (1, ""))
    names = _cut(path, number, header)
    columns = {name.strip(): index for index, name in enumerate(names)}
    missing = [name for name in required if name not in columns]
    if missing:
        raise TraceMalformed(path=str(path), line=number, why=f"the header lacks {', '.join(missing)}")
    if len(columns) != len(names):
        raise TraceMalformed(path=str(path), line=number, why="the header names a column twice")
    for number, line in lines:
        values = _cut(path, number, line)
        if len(values) != len(names):
            why = f"{len(values)} fields, the header has {len(names)}"
            raise TraceMalformed(path=str(path), line=number, why=why)
        yield Row(path, number, columns, values)


def first_line(path: Path) -> str:
    """The first line that isn't blank, empty when there is none."""
    return next((line for _, line in open_lines(path)), "")


def has_columns(path: Path, columns: Sequence[str]) -> bool:
    """Whether the first line names all the columns."""
    return set(columns) <= {column.strip() for column in first_line(path).split(",")}


def _cut(path: Path, number: int, line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise TraceMalformed(path=str(path), line=number, why=f"not CSV: {error}") from None


def in_order(jobs: list[TraceJob]) -> list[TraceJob]:
    """By submit time, equal ones in the file's order."""
    jobs.sort(key=lambda job: job.submit_ms)
    return jobs


def counts(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
