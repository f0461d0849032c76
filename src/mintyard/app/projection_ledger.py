"""Accounts, grants, holds and prices as rows; every amount that moves goes through `Projection.post`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from mintyard.app.projection import Handler, Projection
from mintyard.app.projection_jobs import settle_attempt, tell_refund
from mintyard.app.read_model.rows import AccountRow, GrantRow, HoldRow, PriceRow
from mintyard.app.read_model.views import HoldLine
from mintyard.domain import events as e
from mintyard.domain.ids import parent_of
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.lifecycle import ACCOUNT, GRANT, HOLD

_json = msgspec.json.Encoder(order="deterministic")
_lines_decoder = msgspec.json.Decoder(tuple[HoldLine, ...])
_ceilings_decoder = msgspec.json.Decoder(list[tuple[str, str, int]])
_amounts_decoder = msgspec.json.Decoder(dict[str, int])


@lru_cache(maxsize=4_096)
def _lines(text: str) -> tuple[HoldLine, ...]:
    """Many holds have the same lines: jobs of one spec and one payer."""
    return _lines_decoder.decode(text)


def text_of(value: object) -> str:
    """Canonical JSON text."""
    return _json.encode(value).decode()


def account_opened(p: Projection, event: e.AccountOpened) -> None:
    above = parent_of(event.account) or ""
    p.shelves.accounts.put(AccountRow(event.account, above, ACCOUNT.initial, p.now, p.now))


def account_moved(p: Projection, event: e.AccountMoved) -> None:
    row = p.shelves.accounts.change(event.account)
    row.state, row.moved_at = ACCOUNT.step(row.state, event.trigger), p.now


def grant_created(p: Projection, event: e.GrantCreated) -> None:
    p.shelves.grants.put(
        GrantRow(
            event.grant,
            event.account,
            event.unit.value,
            GRANT.initial,
            event.priority,
            event.starts_at,
            event.expires_at,
            event.note,
            p.now,
        )
    )
    p.post(event)


def grant_adjusted(p: Projection, event: e.GrantAdjusted) -> None:
    p.post(event)
    row = p.shelves.grants.change(event.grant)
    row.priority, row.expires_at = event.priority, event.expires_at


def grant_closed(p: Projection, event: e.GrantClosed) -> None:
    p.post(event)
    row = p.shelves.grants.change(event.grant)
    row.state, row.closed_at = GRANT.step(row.state, event.trigger), p.now


def prices_set(p: Projection, event: e.PricesSet) -> None:
    put_prices(p, event.book)


def put_prices(p: Projection, book: PriceBook) -> None:
    """Books are numbered in the order in which they were set; 0 is the default one."""
    p.shelves.prices.put(
        PriceRow(
            len(p.shelves.prices.rows),
            book.effective_from,
            p.now,
            book.gpu_nano,
            book.cpu_nano,
            book.memory_nano,
            book.storage_nano,
            text_of(book.gpu_models),
        )
    )


# --- holds ----------------------------------------------------------------------------------------------------------


def _hold_line(p: Projection, line: e.Line) -> HoldLine:
    """A line pays from grants of one account, so its first grant says which."""
    account = p.shelves.grants.get(line.legs[0]).account if line.legs else ""
    return HoldLine(account, line.unit, line.mask, line.amount, line.legs)


def hold_placed(p: Projection, event: e.HoldPlaced) -> None:
    ceilings = [event.ceilings[at : at + 3] for at in range(0, len(event.ceilings), 3)]
    p.shelves.holds.put(
        HoldRow(
            event.hold,
            event.account,
            event.job,
            event.attempt,
            HOLD.initial,
            text_of([_hold_line(p, line) for line in event.lines]),
            text_of(ceilings),
            "{}",
            "{}",
            event.book,
            event.holder,
            event.note,
            p.now,
            event.expires_at,
        )
    )
    p.post(event, event.hold, event.job, event.attempt)


def hold_extended(p: Projection, event: e.HoldExtended) -> None:
    row = p.shelves.holds.change(event.hold)
    row.state = HOLD.step(row.state, "extend")
    row.lines = text_of(
        [
            HoldLine(
                old.account, old.unit, old.resources, old.amount + new.amount, _merge(old.legs, new.legs)
            )
            for old, new in zip(_lines_decoder.decode(row.lines), event.lines, strict=True)
        ]
    )
    ceilings = {(block, unit): amount for block, unit, amount in _ceilings_decoder.decode(row.ceilings)}
    for at in range(0, len(event.ceilings), 3):
        block, unit, amount = event.ceilings[at : at + 3]
        key = (str(block), str(unit))
        ceilings[key] = ceilings.get(key, 0) + int(amount)
    row.ceilings = text_of([(block, unit, amount) for (block, unit), amount in ceilings.items()])
    row.expires_at = event.expires_at
    p.post(event, row.id, row.job, row.attempt)


def _merge(legs: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    merged: dict[int, int] = {}
    for flat in (legs, more):
        for at in range(0, len(flat), 2):
            merged[flat[at]] = merged.get(flat[at], 0) + flat[at + 1]
    return tuple(part for leg in merged.items() for part in leg)


def hold_drawn(p: Projection, event: e.HoldDrawn) -> None:
    row = p.shelves.holds.change(event.hold)
    row.state = HOLD.step(row.state, "draw")
    row.drawn = text_of(_amounts_decoder.decode(row.drawn) | _amounts(event.units))
    p.post(event, row.id, row.job, row.attempt)


def _amounts(flat: Sequence[str | int]) -> dict[str, int]:
    return {str(unit): int(amount) for unit, amount in zip(flat[::2], flat[1::2], strict=True)}


def hold_closed(p: Projection, event: e.HoldClosed) -> None:
    row = p.shelves.holds.change(event.hold)
    row.state, row.closed_at = HOLD.step(row.state, event.trigger), p.now
    row.used = text_of(_amounts(event.used))
    p.post(event, row.id, row.job, row.attempt)
    if row.job and event.trigger == "settle":
        settle_attempt(p, event, row.book, _lines(row.lines))


def refunded(p: Projection, event: e.Refunded) -> None:
    p.post(event, 0, event.job, event.attempt)
    if event.job:
        tell_refund(p, event)


HANDLERS: Final[dict[type, Handler]] = {
    e.AccountOpened: account_opened,
    e.AccountMoved: account_moved,
    e.GrantCreated: grant_created,
    e.GrantAdjusted: grant_adjusted,
    e.GrantClosed: grant_closed,
    e.PricesSet: prices_set,
    e.HoldPlaced: hold_placed,
    e.HoldExtended: hold_extended,
    e.HoldDrawn: hold_drawn,
    e.HoldClosed: hold_closed,
    e.Refunded: refunded,
}
