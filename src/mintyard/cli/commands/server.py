"""`up`, `replay` and `journal`: what runs here, with the server half (mintyard[hub])."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mintyard.cli.options import Output
from mintyard.cli.printer import Printer
from mintyard.cli.quantities import moment
from mintyard.domain.errors import Exit, InvalidSpec
from mintyard.wire.bounds import format_instant

if TYPE_CHECKING:
    from mintyard.app.config import Config

journal = App(
    name="journal",
    help="Verify, read and replay the journal of a hub on this machine; rebuild what is made from it.",
)
_OUT = Output()
Folder = Annotated[str, Parameter(name="--folder", help="The hub's folder (MINTYARD_FOLDER).")]
Store = Annotated[
    str, Parameter(name="--store", help="URL of the journal's store, where it is not in the folder.")
]


def replay(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Replay a real trace through the production core on a virtual clock: `mintyard replay --help` tells more."""
    from mintyard.app.trace_replay import main

    return main(list(words))


def load(folder: str, store: str) -> Config:
    """The configuration of the hub whose journal is meant."""
    from mintyard.app.config import load_config

    return load_config({"folder": folder or None, "store": store or None})


@contextmanager
def _opened(folder: str, store: str) -> Iterator[Any]:
    """The journal's store, to read from. A hub may be running on it."""
    from mintyard.app.journal_store import open_store

    config = load(folder, store)
    _check_exists(config)
    opened = open_store(config.store_url)
    try:
        yield opened
    finally:
        opened.close()


def _check_exists(config: Config) -> None:
    """Looking must not make a journal where there is none."""
    from pathlib import Path

    from mintyard.domain.errors import NotFound

    path = config.store_url.removeprefix("sqlite:///")
    if config.store_url.startswith("sqlite:") and not Path(path).exists():
        raise NotFound(what="journal", name=path)


def _checkpoint(text: str) -> Any:
    from mintyard.app.journal import Checkpoint

    seq, colon, chain = text.partition(":")
    try:
        made = Checkpoint(int(seq), bytes.fromhex(chain))
    except ValueError:
        made = None
    if not colon or made is None or len(made.chain) != 32 or made.seq < 1:
        raise InvalidSpec(field="--expect", why=f"{text[:80]!r} is not SEQ:CHAIN, a number and 64 hex digits")
    return made


@journal.command
def verify(
    *,
    folder: Folder = "",
    store: Store = "",
    expect: Annotated[
        str, Parameter(name="--expect", help="SEQ:CHAIN known from elsewhere; shows a cut tail.")
    ] = "",
    out: Output = _OUT,
) -> int:
    """Verify every record's hash chain; exit status 11 when one was altered, cut out or swapped."""
    from mintyard.app.journal import stream, verify_store
    from mintyard.app.journal import verify as verify_records

    expected = _checkpoint(expect) if expect else None
    with _opened(folder, store) as opened:
        if out.is_json or out.quiet or not sys.stderr.isatty():
            report = verify_store(opened, expected)
        else:
            from mintyard.app.journal import checkpoints

            known = checkpoints(opened)
            with _progress("verifying", max((one.seq for one in known), default=0)) as advance:
                report = verify_records(advance(stream(opened)), expected, known=known)
    if out.is_json:
        out.printer.json(
            {
                "verified": True, "records": report.records, "last_seq": report.last_seq, "chain": report.chain.hex(),
                "last_term": report.last_term, "bytes": report.body_bytes,
                "at": format_instant(report.last_now) if report.records else None,
            }
        )  # fmt: skip
    elif not out.quiet:
        out.printer.line(f"{report.records} records verified, {report.body_bytes} bytes")
        if report.records:
            out.printer.pairs(
                [
                    ("head", f"{report.last_seq}:{report.chain.hex()}"),
                    ("written", moment(format_instant(report.last_now))),
                    ("term", str(report.last_term)),
                ]
            )
    return Exit.OK


@contextmanager
def _progress(what: str, total: int) -> Iterator[Any]:
    """Wraps an iterable of records so that a bar on stderr follows it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total or None)

        def advance(records: Any) -> Iterator[Any]:
            for record in records:
                if record.seq % 100 == 0:
                    bar.update(task, completed=record.seq)
                yield record

        yield advance


@journal.command
def show(
    first: Annotated[int, Parameter(help="The first record.")] = 1,
    last: Annotated[int | None, Parameter(help="The last one; else only the first is shown.")] = None,
    *,
    folder: Folder = "",
    store: Store = "",
    out: Output = _OUT,
) -> int:
    """Show records of the journal: when, in which term, which commands came in and what they did."""
    from mintyard.app.journal import stream
    from mintyard.app.record import decode_body

    upto = first if last is None else last
    if not 1 <= first <= upto:
        raise InvalidSpec(field="FIRST", why=f"to LAST is {first} to {upto}; records count from 1")
    shown = 0
    with _opened(folder, store) as opened:
        for record in stream(opened, first - 1):
            if record.seq > upto:
                break
            body = decode_body(record)
            shown += 1
            _show_record(out.printer, record, body)
    if not shown:
        from mintyard.domain.errors import NotFound

        raise NotFound(what="record", name=first)
    return Exit.OK


def _show_record(printer: Printer, record: Any, body: Any) -> None:
    told = {
        "seq": record.seq,
        "term": record.term,
        "at": format_instant(record.now),
        "format": record.format,
        "chain": record.chain.hex(),
        "inputs": [_named(command) for command in body.inputs],
        "events": [_named(event) for event in body.events],
    }
    if printer.is_json:
        printer.json_line(told)
        return
    printer.line(
        f"record {record.seq}, term {record.term}, {moment(told['at'])}, chain {told['chain'][:16]}…"
    )
    for title in ("inputs", "events"):
        for one in told[title]:
            fields = " ".join(f"{name}={_short(value)}" for name, value in one.items() if name != "kind")
            printer.line(f"  {'<' if title == 'inputs' else '>'} {one['kind']} {fields}")


def _named(struct: Any) -> dict[str, Any]:
    """A command's or event's fields by name; bytes as their length, since payloads may be long."""
    fields = {name: _value(getattr(struct, name)) for name in struct.__struct_fields__}
    return {"kind": type(struct).__name__, **fields}


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if hasattr(value, "__struct_fields__"):
        return {name: _value(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list | set | frozenset):
        return [_value(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, dict):
        return {str(key): _value(item) for key, item in value.items()}
    return value


def _short(value: Any) -> str:
    from mintyard.cli.tables import plain

    text = plain(str(value))
    return text if len(text) <= 120 else text[:119] + "…"


@journal.command(name="replay")
def replay_journal(*, folder: Folder = "", store: Store = "", out: Output = _OUT) -> int:
    """Decide every recorded input again and compare with what was recorded; exit status 11 at the first difference."""
    from mintyard.app.journal import stream
    from mintyard.app.replay_journal import replay as decide_again

    with _opened(folder, store) as opened:
        head = opened.head()
        if out.is_json or out.quiet or not sys.stderr.isatty():
            report = decide_again(stream(opened))
        else:
            with _progress("replaying", head.seq if head else 0) as advance:
                report = decide_again(advance(stream(opened)))
    if report.difference is not None:
        raise report.difference.error()
    told = {
        "records": report.records, "inputs": report.inputs, "events": report.events,
        "state_hash": report.state_hash.hex() if report.state_hash else None,
    }  # fmt: skip
    if out.is_json:
        out.printer.json(told)
    elif not out.quiet:
        out.printer.line(
            f"{report.records} records, {report.inputs} inputs, {report.events} events decided alike"
        )
        out.printer.pairs([("state hash", told["state_hash"] or "")])
    return Exit.OK


@journal.command
def rebuild(*, folder: Folder = "", store: Store = "", out: Output = _OUT) -> int:
    """Make the read model anew from the journal. A running hub's readers see it grow; it may be broken off and run again."""
    from mintyard.app.bootstrap import prepare_folder
    from mintyard.app.projector import rebuild as project_again
    from mintyard.app.read_model.database import open_read_model

    config = load(folder, store)
    with _opened(folder, store) as opened:
        prepare_folder(config)
        model = open_read_model(config.read_model_url, migrate=True)
        try:
            made = project_again(opened, model)
        finally:
            model.close()
    told = {"seq": made.seq, "rows": made.rows}
    if out.is_json:
        out.printer.json(told)
    elif not out.quiet:
        out.printer.line(f"{made.rows} rows written from {made.seq} records")
    return Exit.OK
