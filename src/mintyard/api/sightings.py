"""Sightings: durable events as a watcher may see them - what happened, to whose thing, and which scope shows it.

Only outcomes that people wait for are told; amounts become decimal strings here. Whose a job, grant, token or
hold is, does not change, so it is looked up once and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import select

from mintyard.app.read_model import schema
from mintyard.app.read_model.database import ReadModel
from mintyard.app.record import decode_body
from mintyard.domain import events as e
from mintyard.domain.ids import ROOT
from mintyard.domain.lifecycle import JOB
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit, format_amount
from mintyard.ports.store import Record
from mintyard.wire.bounds import instant_or_none

MAX_OWNERS: Final = 200_000
_IDS_A_QUERY: Final = 500
_FINAL: Final = {trigger: state for (_, trigger), state in JOB.moves.items() if state in JOB.terminal}


class Sighting(msgspec.Struct, frozen=True):
    """One event: `id` is record and place in it, `account` its owner (`/` and `shared` for what every account
    may see)."""

    id: str
    at: int
    kind: str
    scope: Scope
    account: str
    data: dict[str, Any]
    job: int = 0
    shared: bool = False


class _Told(msgspec.Struct, frozen=True):
    """How a kind of event is told: `owner` names whose it is (a table and a key, or an account), `data` its
    fields."""

    kind: str
    scope: Scope
    owner: Callable[[Any], tuple[str, int | str]]
    data: Callable[[Any], dict[str, Any]]


def _account(event: Any) -> tuple[str, str]:
    return ("", event.account)


def _job(event: Any) -> tuple[str, int]:
    return ("jobs", event.job)


def _grant(event: Any) -> tuple[str, int]:
    return ("grants", event.grant)


def _token(event: Any) -> tuple[str, str]:
    return ("tokens", event.token)


def _hold(event: Any) -> tuple[str, int]:
    return ("holds", event.hold)


def _all(event: Any) -> tuple[str, str]:
    return ("shared", ROOT)


def _amounts(flat: tuple[Any, ...]) -> dict[str, str]:
    return {
        unit: format_amount(amount, Unit(unit)) for unit, amount in zip(flat[::2], flat[1::2], strict=True)
    }


def _node(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in ("node", "cpus_milli", "memory_mib", "gpus", "gpu_model")}


def _ended(event: e.JobEnded) -> dict[str, Any]:
    return {
        "state": _FINAL[event.trigger],
        "attempt": event.attempt,
        "exit_code": event.exit_code,
        "signal": event.signal,
        "run_ms": event.run_ms,
        "cost": format_amount(event.cost, Unit.MONEY),
        "message": event.message,
    }


_J, _A, _N = Scope.JOB_READ, Scope.ACCOUNT_READ, Scope.NODE_READ
TOLD: Final[dict[type, _Told]] = {
    e.AccountOpened: _Told("account.opened", _A, _account, lambda v: {}),
    e.AccountMoved: _Told("account.moved", _A, _account, lambda v: {"trigger": v.trigger}),
    e.AccountTokensRevoked: _Told("account.tokens_revoked", _A, _account, lambda v: {}),
    e.GrantCreated: _Told(
        "grant.created",
        _A,
        _account,
        lambda v: {
            "grant": v.grant,
            "unit": v.unit,
            "amount": format_amount(v.amount, v.unit),
            "note": v.note,
        },
    ),
    e.GrantAdjusted: _Told(
        "grant.adjusted", _A, _grant, lambda v: {"grant": v.grant, "priority": v.priority}
    ),
    e.GrantClosed: _Told("grant.closed", _A, _grant, lambda v: {"grant": v.grant, "trigger": v.trigger}),
    e.Refunded: _Told(
        "grant.refunded",
        _A,
        lambda v: ("grants", v.legs[0] if v.legs else 0),
        lambda v: {"grant": v.legs[0] if v.legs else None, "cause": v.cause},
    ),
    e.TokenRegistered: _Told(
        "token.registered",
        _A,
        _account,
        lambda v: {"token": v.token, "name": v.name, "expires_at": instant_or_none(v.expires_at)},
    ),
    e.TokenMoved: _Told("token.moved", _A, _token, lambda v: {"token": v.token, "trigger": v.trigger}),
    e.BlockRevoked: _Told("token.block_revoked", _A, _token, lambda v: {"token": v.token, "block": v.block}),
    e.HoldPlaced: _Told(
        "hold.placed",
        _A,
        _account,
        lambda v: {"hold": v.hold, "holder": v.holder, "expires_at": instant_or_none(v.expires_at)},
    ),
    e.HoldExtended: _Told(
        "hold.extended", _A, _hold, lambda v: {"hold": v.hold, "expires_at": instant_or_none(v.expires_at)}
    ),
    e.HoldDrawn: _Told("hold.drawn", _A, _hold, lambda v: {"hold": v.hold, "spent": _amounts(v.units)}),
    e.HoldClosed: _Told(
        "hold.closed",
        _A,
        _account,
        lambda v: {"hold": v.hold, "trigger": v.trigger, "used": _amounts(v.used)},
    ),
    e.JobAdmitted: _Told(
        "job.admitted",
        _J,
        _job,
        lambda v: {"state": v.state, "array_job": v.array_job or None, "array_index": v.array_index},
    ),
    e.JobMoved: _Told("job.moved", _J, _job, lambda v: {"trigger": v.trigger, "reason": v.reason}),
    e.JobPlaced: _Told("job.placed", _J, _job, lambda v: {"attempt": v.attempt}),
    e.AttemptBegan: _Told("job.started", _J, _job, lambda v: {"attempt": v.attempt}),
    e.JobRequeued: _Told(
        "job.requeued", _J, _job, lambda v: {"attempt": v.attempt, "cause": v.cause, "message": v.message}
    ),
    e.JobEnded: _Told("job.ended", _J, _job, _ended),
    e.JobUpdated: _Told("job.updated", _J, _job, lambda v: {}),
    e.NodeJoined: _Told("node.joined", _N, _all, _node),
    e.NodeChanged: _Told("node.changed", _N, _all, _node),
    e.NodeMoved: _Told(
        "node.moved", _N, _all, lambda v: {"node": v.node, "trigger": v.trigger, "reason": v.reason}
    ),
    e.PricesSet: _Told(
        "prices.set", _N, _all, lambda v: {"effective_from": instant_or_none(v.book.effective_from)}
    ),
}
KINDS: Final = tuple(sorted(told.kind for told in TOLD.values()))


class Owners:
    """Whose things are, looked up in the read model and kept, the longest unused forgotten first. Used by one
    thread."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._known: OrderedDict[tuple[str, int | str], str] = OrderedDict()

    def find(self, wanted: Iterable[tuple[str, int | str]], seq: int) -> dict[tuple[str, int | str], str]:
        """The account of each (table, id); ids that nobody has are left out. Waits for the read model to reach
        `seq`."""
        found: dict[tuple[str, int | str], str] = {}
        missing: dict[str, set[int | str]] = {}
        for key in wanted:
            owner = self._known.get(key)
            if owner is None:
                missing.setdefault(key[0], set()).add(key[1])
            else:
                self._known.move_to_end(key)
                found[key] = owner
        if missing:
            with self._model.read(seq) as (connection, _):
                for name, ids in missing.items():
                    table = schema.metadata.tables[name]
                    listed = sorted(ids, key=str)
                    for at in range(0, len(listed), _IDS_A_QUERY):
                        query = select(table.c.id, table.c.account).where(
                            table.c.id.in_(listed[at : at + _IDS_A_QUERY])
                        )
                        for id, account in connection.execute(query):
                            found[name, id] = self._known[name, id] = account
            while len(self._known) > MAX_OWNERS:
                self._known.popitem(last=False)
        return found


def sightings(record: Record, owners: Owners) -> list[Sighting]:
    """What a record tells. Holds of jobs are left out: the job's own events say it."""
    told: list[tuple[int, Any, _Told, tuple[str, int | str]]] = []
    for place, event in enumerate(decode_body(record).events):
        how = TOLD.get(type(event))
        if how is not None and not (how.kind.startswith("hold.") and getattr(event, "job", 0)):
            told.append((place, event, how, how.owner(event)))
    known = owners.find([owner for *_, owner in told if owner[0] not in ("", "shared")], record.seq)
    made: list[Sighting] = []
    for place, event, how, owner in told:
        direct = owner[0] in ("", "shared")
        account = str(owner[1]) if direct else known.get(owner, "")
        if account:
            job = event.job if owner[0] == "jobs" else 0
            made.append(
                Sighting(
                    f"{record.seq}.{place}",
                    record.now,
                    how.kind,
                    how.scope,
                    account,
                    how.data(event),
                    job,
                    owner[0] == "shared",
                )
            )
    return made
