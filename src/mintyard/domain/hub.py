"""The one door of the core: `decide` and `apply`.

`execute(state, command, now)` decides a command and applies its events, so that the next one sees them; a compound command
(engine reports, a batch of independent jobs) is taken part by part. `apply` alone folds a journal. Both are deterministic:
equal state, commands and times give equal events and an equal state, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, cast

import msgspec

from mintyard.domain import folding, queues
from mintyard.domain import nodes as nodes_room
from mintyard.domain import scheduling_round as rounds
from mintyard.domain.commands import (
    AdjustGrant,
    Command,
    ControlJobs,
    ControlNode,
    CreateGrant,
    DrawHold,
    EndGrant,
    ExtendHold,
    Found,
    LimitAccount,
    OpenAccount,
    PlaceHold,
    RaiseFormat,
    Refund,
    RegisterToken,
    RemoveQueue,
    RevokeAccountTokens,
    RevokeBlock,
    SetAccountState,
    SetPrices,
    SetQueue,
    SettleHold,
    SetTokenState,
    Submit,
    TakeReports,
    Tick,
    UpdateJob,
    VoidHold,
)
from mintyard.domain.errors import (
    AlreadyExists,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    InvalidRequest,
    LimitReached,
    MintyardError,
    Refused,
)
from mintyard.domain.events import AccountOpened, AnyEvent, FormatRaised, HubFounded, JobPlaced, KeyRemembered
from mintyard.domain.ids import ROOT, check_name
from mintyard.domain.jobs import admission, attempts, control
from mintyard.domain.jobs.bulk import ends, starts, submits
from mintyard.domain.jobs.reports import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsage,
    NodeSeen,
    Report,
)
from mintyard.domain.ledger import operations as ledger
from mintyard.domain.limits import IDEMPOTENCY_WINDOW_MS, MAX_CLOCK_SKEW_MS, MAX_IDEMPOTENCY_KEYS
from mintyard.domain.replies import Batch, Done, Refusal, Reply
from mintyard.domain.state import State
from mintyard.domain.tokens import registry
from mintyard.domain.units import NS_PER_MS

FORMAT = 1
"""Highest event format this version writes."""

_canonical = msgspec.msgpack.Encoder(order="deterministic")
_reply_decoder = msgspec.msgpack.Decoder(Reply)

Decider = Callable[[State, Any, int, list[AnyEvent]], Reply]


def found(state: State, command: Found, now: int, out: list[AnyEvent]) -> Done:
    if state.name:
        raise AlreadyExists(what="Hub", name=state.name)
    check_name("hub", command.name)
    check_name("currency", command.currency)
    out += [HubFounded(command.name, command.currency), AccountOpened(ROOT)]
    return Done(command.name, "founded")


def raise_format(state: State, command: RaiseFormat, now: int, out: list[AnyEvent]) -> Done:
    if not state.format <= command.format <= FORMAT:
        raise InvalidRequest(why=f"format {command.format} is not within {state.format} and {FORMAT}")
    if command.format > state.format:
        out.append(FormatRaised(command.format))
    return Done(command.format)


def tick(state: State, command: Tick, now: int, out: list[AnyEvent]) -> Done:
    ledger.expire_due(state, now, out)
    placed = rounds.place_pending(
        state, now, command.limit, command.policy, out, command.backfill, command.order
    )
    return Done(placed)


def decide_report(state: State, engine: str, report: Report, now: int, out: list[AnyEvent]) -> None:
    if isinstance(report, AttemptEnded):
        attempts.attempt_ended(state, report, now, out)
    elif isinstance(report, AttemptStarted):
        attempts.attempt_started(state, report, now, out)
    elif isinstance(report, AttemptUsage):
        attempts.attempt_usage(state, report, now, out)
    elif isinstance(report, NodeSeen):
        nodes_room.node_seen(state, engine, report, out)
    else:
        nodes_room.node_gone(state, engine, report, out)


def _run_reports(state: State, command: TakeReports, now: int, at_once: bool) -> tuple[list[AnyEvent], Reply]:
    """Reports one after the other, each on the state that the one before left; how many events they gave."""
    appliers = folding.APPLIERS
    engine = command.engine

    def alone(report: Report) -> list[AnyEvent]:
        out: list[AnyEvent] = []
        decide_report(state, engine, report, now, out)
        for event in out:
            appliers[type(event)](state, event)
        return out

    if at_once:
        done = ends.take_reports(state, command.reports, now, alone)
    else:
        done = [event for report in command.reports for event in alone(report)]
    return done, Done(len(done))


def _apply_round(state: State, events: Sequence[AnyEvent]) -> None:
    """Fold what a `Tick` gave, its placements at once."""
    placed = [event for event in events if type(event) is JobPlaced]
    for event in events[: len(events) - len(placed)]:  # they come last
        apply(state, event)
    starts.place_jobs(state, placed)


DECIDERS: dict[type, Decider] = {
    Found: found,
    OpenAccount: ledger.open_account,
    SetAccountState: ledger.set_account_state,
    CreateGrant: ledger.create_grant,
    AdjustGrant: ledger.adjust_grant,
    EndGrant: ledger.end_grant,
    RegisterToken: registry.register_token,
    SetTokenState: registry.set_token_state,
    RevokeBlock: registry.revoke_block,
    RevokeAccountTokens: registry.revoke_account_tokens,
    SetPrices: ledger.set_prices,
    Submit: admission.submit,
    ControlJobs: control.control_job,
    UpdateJob: control.update_job,
    PlaceHold: ledger.place_hold,
    ExtendHold: ledger.extend_hold,
    DrawHold: ledger.draw_hold,
    SettleHold: ledger.settle_hold,
    VoidHold: ledger.void_hold,
    Refund: ledger.refund,
    ControlNode: nodes_room.control_node,
    SetQueue: queues.set_queue,
    RemoveQueue: queues.remove_queue,
    LimitAccount: queues.limit_account,
    Tick: tick,
    RaiseFormat: raise_format,
}


def decide(state: State, command: Command, now: int) -> tuple[list[AnyEvent], Reply]:
    """The events of one simple command, or a refusal with none. Changes nothing.

    `now` (ns) must not be before `state.now`. A compound command must go through `execute`."""
    out: list[AnyEvent] = []
    try:
        reply = DECIDERS[type(command)](state, command, now, out)
    except (Refused, MintyardError) as error:
        return [], Refusal(error.problem())
    return out, reply


def parts(state: State, command: Command) -> Iterator[Command] | None:
    """The parts of a compound command in order, None for a simple one."""
    if isinstance(command, Submit) and not command.atomic and len(command.jobs) > 1:
        return (Submit(command.authority, (job,), True, command.dry_run) for job in command.jobs)
    if isinstance(command, ControlJobs):
        numbers = [task for job in command.jobs for task in (control.tasks_of(state, job) or [job])]
        if len(numbers) != 1 or numbers != list(command.jobs):
            return (ControlJobs(command.authority, command.verb, (job,), command.reason) for job in numbers)
    return None


def execute(
    state: State, command: Command, now: int, *, at_once: bool = False
) -> tuple[list[AnyEvent], Reply]:
    """Decide `command` and apply its events. Errors never escape: a refusal is a reply, and then nothing has changed.

    A request that came before with the same idempotency key gets the same reply and changes nothing. `at_once` takes reports
    and placements that are alike many at once, with the same outcome."""
    key: str = getattr(command, "key", "")
    if key:
        try:
            repeated = _repeated(state, command, key, now)
        except MintyardError as error:
            return [], Refusal(error.problem())
        if repeated is not None:
            return [], repeated
    events, reply = _run(state, command, now, at_once)
    if key and events:
        remembered = _remember(state, command, key, reply, now)
        apply(state, remembered)
        events.append(remembered)
    return events, reply


def execute_all(
    state: State, commands: Sequence[Command], now: int
) -> Iterator[tuple[list[AnyEvent], Reply]]:
    """`execute` at once for one command after the other, each when it is asked for or, of a run of plain submits, a little
    before: what comes out is the same. Whoever stops asking has lost the rest of the run: take all of it."""
    at, count = 0, len(commands)
    while at < count:
        end = at
        while end < count and end - at < submits.MAX_RUN and submits.is_plain(commands[end]):
            end += 1
        if end > at:
            yield from submit_all(state, cast("Sequence[Submit]", commands[at:end]), now)
            at = end
        else:
            yield execute(state, commands[at], now, at_once=True)
            at += 1


def submit_all(state: State, commands: Sequence[Submit], now: int) -> Iterator[tuple[list[AnyEvent], Reply]]:
    """`execute_all` for at most `submits.MAX_RUN` commands all of which are plain submits."""
    at, alone = 0, 1
    while at < len(commands):
        if len(commands) - at > 1:
            done, alone = submits.submit_run(state, commands[at:], now)
            yield from done
            at += len(done)
        for command in commands[at : at + alone]:
            yield execute(state, command, now, at_once=True)
        at += alone


def _run(state: State, command: Command, now: int, at_once: bool = False) -> tuple[list[AnyEvent], Reply]:
    if isinstance(command, TakeReports):
        return _run_reports(state, command, now, at_once)
    split = parts(state, command) if isinstance(command, (Submit, ControlJobs)) else None
    if split is None:
        events, reply = decide(state, command, now)
        if isinstance(command, Submit) and command.dry_run:
            return [], reply
        if at_once and isinstance(command, Tick):
            _apply_round(state, events)
            return events, reply
        appliers = folding.APPLIERS
        for event in events:
            appliers[type(event)](state, event)
        return events, reply
    done: list[AnyEvent] = []
    replies: list[Any] = []
    for part in split:
        events, reply = _run(state, part, now)
        done += events
        if isinstance(reply, Batch):
            replies += reply.parts
        else:
            replies.append(reply.problem if isinstance(reply, Refusal) else reply)
    return done, Batch(tuple(replies))


def apply(state: State, event: AnyEvent) -> None:
    """Fold one event into the state: outcomes only, nothing is scored or predicted."""
    folding.APPLIERS[type(event)](state, event)


def begin(state: State, seq: int, now: int) -> None:
    """Start record `seq` at time `now`: what depends on time alone moves (ceilings, keys and revocations are forgotten)."""
    folding.advance(state, seq, now)


# --- idempotency ----------------------------------------------------------------------------------------------------


def check_key(key: str, now: int) -> int:
    """The instant (ns) inside a UUIDv7 (RFC 9562), when it is one and fresh; `IdempotencyKeyInvalid` says why not."""
    digits = key.replace("-", "").lower()
    if (
        len(key) != 36
        or len(digits) != 32
        or digits[12] != "7"
        or any(c not in "0123456789abcdef" for c in digits)
    ):
        raise IdempotencyKeyInvalid(why="is no UUIDv7")
    made_ms = int(digits[:12], 16)
    now_ms = now // NS_PER_MS
    if made_ms < now_ms - IDEMPOTENCY_WINDOW_MS:
        raise IdempotencyKeyInvalid(
            why="is more than 24 hours old, so whether it came before is not known any more"
        )
    if made_ms > now_ms + MAX_CLOCK_SKEW_MS:
        raise IdempotencyKeyInvalid(why="lies in the future; check this machine's clock")
    return made_ms * NS_PER_MS


def _owner(command: Command) -> str:
    authority = getattr(command, "authority", None)
    return authority.account if authority is not None else ROOT


def _digest(command: Command) -> bytes:
    """Over what was asked, not over the token that asked: a renewed token may repeat a request."""
    content = msgspec.structs.replace(cast(Any, command), authority=None)
    return blake2b(_canonical.encode(content), digest_size=16).digest()


def _repeated(state: State, command: Command, key: str, now: int) -> Reply | None:
    check_key(key, now)
    known = state.keys.get((_owner(command), key.lower()))
    if known is None:
        if len(state.keys) >= MAX_IDEMPOTENCY_KEYS:
            raise LimitReached(what="idempotency keys", limit=MAX_IDEMPOTENCY_KEYS)
        return None
    authority = getattr(command, "authority", None)
    if authority is not None:
        registry.check_authority(state, authority, now)
    if known.digest != _digest(command):
        raise IdempotencyKeyReused()
    return _reply_decoder.decode(known.reply)


def _remember(state: State, command: Command, key: str, reply: Reply, now: int) -> KeyRemembered:
    keep_until = check_key(key, now) + (IDEMPOTENCY_WINDOW_MS + MAX_CLOCK_SKEW_MS) * NS_PER_MS
    return KeyRemembered(_owner(command), key.lower(), _digest(command), _canonical.encode(reply), keep_until)
