"""Many plain submits at once, exactly as one after the other: the same events, replies and state, at a fraction of the work.

Within one run of submits nothing but balances changes, so what a token and a spec come to is worked out once, and whether all of
them fit is asked of the sum. What is out of the ordinary (a refusal, a first use, an array, an edge) ends the run and goes the
way of `admission.submit`; so does a whole run that would not fit as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from mintyard.domain.commands import Submit
from mintyard.domain.errors import CapExceeded, MintyardError, Refused
from mintyard.domain.events import AnyEvent, HoldPlaced, JobAdmitted, Line
from mintyard.domain.ids import ROOT
from mintyard.domain.jobs.admission import check_budget, known_mandate
from mintyard.domain.ledger.book import Account, Counter, Hold, PlanEntry
from mintyard.domain.ledger.charging import shared_lines
from mintyard.domain.limits import MAX_LIVE_JOBS
from mintyard.domain.queues import check_entry
from mintyard.domain.replies import Batch, Reply, Ticket
from mintyard.domain.scheduling.explain import check_feasible
from mintyard.domain.state import CeilingCharge, Job, Mandate, SpecEntry, State
from mintyard.domain.tokens.authority import Authority, Scope
from mintyard.domain.tokens.registry import check_caps, reach, require
from mintyard.domain.units import Unit

MAX_RUN = 128
"""Submits in one run: one or two milliseconds."""
MAX_PLAIN_PAYLOAD = 16_384
MAX_TERMS = 65_536
Outcome = tuple[list[AnyEvent], Reply]


class _Terms:
    """What a spec under a mandate comes to, as long as `State.epoch` stays and until `until` (ns). `count` jobs of this run go by
    it."""

    __slots__ = (
        "account",
        "book",
        "ceilings",
        "cost",
        "count",
        "entry",
        "epoch",
        "flat",
        "lines",
        "mandate",
        "until",
    )

    def __init__(
        self,
        entry: SpecEntry,
        mandate: Mandate,
        lines: tuple[Line, ...],
        ceilings: CeilingCharge | None,
        book: int,
        cost: int,
    ) -> None:
        self.entry, self.mandate, self.account = entry, mandate, mandate.account.id
        self.lines, self.ceilings, self.book, self.cost = lines, ceilings, book, cost
        self.flat = ceilings.flat if ceilings else ()
        self.count = 0
        self.epoch = -1
        self.until = 0


def is_plain(command: object) -> bool:
    """One small job that waits for nothing, without a key: what `submit_run` takes."""
    if type(command) is not Submit or command.key or command.dry_run or len(command.jobs) != 1:
        return False
    request = command.jobs[0]
    spec = request.spec
    return (
        command.authority is not None
        and request.array is None
        and not request.dependencies
        and not request.held
        and len(spec.payload) <= MAX_PLAIN_PAYLOAD
        and not spec.inputs
        and not spec.outputs
    )


def submit_run(state: State, commands: Sequence[Submit], now: int) -> tuple[list[Outcome], int]:
    """Decide and apply the first of `commands`, all of them plain, as far as they go by known terms and all fit: events and
    reply of each; and how many after those must go one by one before another run is worth while."""
    terms = _terms_of(state, commands, now)
    if len(terms) < 2 or len(state.jobs) + len(terms) > MAX_LIVE_JOBS:
        return [], max(len(terms), 1)
    distinct: list[_Terms] = []
    for each in terms:
        if each.count == 0:
            distinct.append(each)
        each.count += 1
    try:
        if not _reserve(state, distinct):
            return [], len(terms)
        return _admit(state, terms, distinct), int(len(terms) < len(commands))
    finally:
        for each in distinct:
            each.count = 0


def _terms_of(state: State, commands: Sequence[Submit], now: int) -> list[_Terms]:
    """The terms of each command up to the first that has none."""
    found: list[_Terms] = []
    known: dict[str, tuple[Authority, Mandate | None]] = {}
    spec_ids = state.spec_ids
    for command in commands:
        authority = command.authority
        number = spec_ids.get(command.jobs[0].spec)
        if number is None or authority is None or not authority.blocks:
            break
        last = authority.blocks[-1].block
        who = known.get(last)
        if who is None or who[0] is not authority:
            who = known[last] = (authority, _mandate(state, authority, now))
        mandate = who[1]
        terms = _terms(state, authority, mandate, state.specs[number], now) if mandate else None
        if terms is None:
            break
        found.append(terms)
    return found


def _mandate(state: State, authority: Authority, now: int) -> Mandate | None:
    try:
        require(state, authority, Scope.JOB_SUBMIT, now)
        account: Account = reach(state, ROOT, authority.account)
    except (MintyardError, Refused):
        return None
    return known_mandate(state, account, authority.blocks)


def _terms(state: State, authority: Authority, mandate: Mandate, entry: SpecEntry, now: int) -> _Terms | None:
    """Those of before while they hold. None where the long way must say how or why not."""
    try:
        check_caps(authority.caps, entry.content.shape)
    except CapExceeded:
        return None
    key = (mandate.id, entry.id)
    terms: _Terms | None = state.terms.get(key)
    if terms is not None and terms.epoch == state.epoch and now < terms.until:
        return terms
    terms = _work_out(state, mandate, entry, now)
    if terms is not None and terms.epoch == state.epoch:
        if len(state.terms) >= MAX_TERMS:
            state.terms.clear()
        state.terms[key] = terms
    return terms


def _work_out(state: State, mandate: Mandate, entry: SpecEntry, now: int) -> _Terms | None:
    shape = entry.content.shape
    number, book = state.price_book(now)
    try:
        check_entry(state, entry.content, mandate.account.id)
        if len(state.cluster):
            check_feasible(state.cluster, shape)
        cost = sum(entry.ceiling(number, book).money)
        check_budget(entry.content, cost)
        charges = entry.charges_on(state.ledger, mandate.account, number, book)
    except (MintyardError, Refused):
        return None
    lines = shared_lines(charges.entries, now, charges.shared)
    if lines is None:
        return None
    ceilings = mandate.ceiling_charge(entry, number, book) if mandate.charged else None
    terms = _Terms(entry, mandate, lines, ceilings, number, cost)
    first = [_first_usable(plan, now) for plan, _ in charges.entries]
    if first == [line.legs[0] for line in lines]:
        # Otherwise a grant was passed over because nothing is left of it, and a release may put something back.
        terms.epoch = state.epoch
        terms.until = _next_change(state, charges.entries, now)
    return terms


def _first_usable(plan: PlanEntry, now: int) -> int:
    return next((grant.id for grant in plan.grants if grant.usable(now)), 0)


def _next_change(state: State, entries: Sequence[tuple[PlanEntry, int]], now: int) -> int:
    """When time alone brings another price book, or starts or ends a grant."""
    instants = [book.effective_from for book in state.prices]
    for plan, _ in entries:
        for grant in plan.grants:
            instants += (grant.starts_at, grant.expires_at)
    return min((at for at in instants if at > now), default=2**63)


def _reserve(state: State, distinct: list[_Terms]) -> bool:
    """Post the sum of all holds of the run at grants and ceilings, or nothing and False. When the sum fits, each of them fits
    in its turn at the grant that it found first."""
    grants, counters = state.ledger.grants, state.ledger.counters
    taken: dict[int, int] = {}
    charged: dict[tuple[str, Unit], int] = {}
    bounds: dict[tuple[str, Unit], int] = {}
    for terms in distinct:
        count = terms.count
        for line in terms.lines:
            number, amount = line.legs
            taken[number] = taken.get(number, 0) + count * amount
        if terms.ceilings:
            for key, amount, limit in terms.ceilings.rows:
                charged[key] = charged.get(key, 0) + count * amount
                bounds[key] = min(limit, bounds.get(key, limit))
    for number, amount in taken.items():
        if grants[number].left < amount:
            return False
    found: list[tuple[Counter, int]] = []
    for key, amount in charged.items():
        counter = counters.get(key)
        if counter is None or counter.held + counter.spent + amount > min(bounds[key], counter.limit):
            return False
        found.append((counter, amount))
    for number, amount in taken.items():
        grant = grants[number]
        grant.left -= amount
        grant.held += amount
    for counter, amount in found:
        counter.held += amount
    return True


def _admit(state: State, terms: list[_Terms], distinct: list[_Terms]) -> list[Outcome]:
    """Jobs and holds of the run, as `folding.hold_placed` and `folding.job_admitted` would leave them."""
    ledger = state.ledger
    job, hold, now = state.next_job, ledger.next_hold, state.now
    jobs, holds = state.jobs, ledger.holds
    outcomes: list[Outcome] = []
    waiting: list[Job] = []
    for each in terms:
        entry, mandate = each.entry, each.mandate
        lines, flat, book = each.lines, each.flat, each.book
        holds[hold] = Hold(hold, each.account, lines, flat, job, 1, book, 0, "", "")
        admitted = jobs[job] = Job(job, entry, mandate, "pending", hold, submitted_at=now, queued_at=now)
        waiting.append(admitted)
        outcomes.append(
            (
                [
                    HoldPlaced(hold, each.account, lines, flat, job, 1, book),
                    JobAdmitted(job, entry.id, mandate.id, "pending"),
                ],
                Batch((Ticket(job, 0, "pending", each.cost),)),
            )
        )
        job += 1
        hold += 1
    state.next_job, ledger.next_hold = job, hold
    state.enqueue_all(waiting)
    for each in distinct:
        state.use(each.entry, each.mandate, each.count)
        state.shapes.note_demand(each.entry.shape_class, each.count)
    return outcomes
