"""What must hold at every step of a simulation, checked from scratch and independently of how the core got there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.events import (
    AnyEvent,
    GrantAdjusted,
    GrantClosed,
    GrantCreated,
    HoldClosed,
    HoldDrawn,
    HoldExtended,
    HoldPlaced,
    JobAdmitted,
    JobEnded,
    JobPlaced,
    JobRequeued,
    JobUpdated,
    MandateInterned,
    Refunded,
    SpecInterned,
)
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.ledger.book import HELD, LEFT, SPENT, rows
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.scheduling.cluster import Amounts
from mintyard.domain.scheduling.profile import run_rows
from mintyard.domain.state import State, run_of
from mintyard.domain.tokens.authority import Block
from mintyard.domain.units import NS_PER_MS, Unit
from mintyard.sim.quota_shadow import RESOURCES, QuotaShadow, amount_of


def check_state(state: State) -> None:
    """The ledger balances, no job is without what pays for it, and nodes carry exactly what runs on them."""
    state.ledger.check()
    _check_jobs(state)
    _check_idle(state)
    _check_cluster(state)
    _check_running(state)
    _check_lanes(state)


def _check_running(state: State) -> None:
    """Reservations in time go by the ends of exactly what runs."""
    live = [job for job in state.jobs.values() if job.state in LIVE_JOB_STATES]
    if state.running.rows().tolist() != run_rows((job.id, run_of(job)) for job in live).tolist():
        raise InvariantBroken(why="the ends of running jobs are not those of the jobs")


def _check_lanes(state: State) -> None:
    """Quotas count exactly what runs, by queue and account."""
    used: Counter[tuple[str, str, str]] = Counter()
    for job in state.jobs.values():
        if job.state in LIVE_JOB_STATES:
            content = job.spec.content
            for resource in RESOURCES:
                used[content.queue, job.mandate.account.id, resource] += amount_of(content.shape, resource)
    for lane, row in zip(state.quotas.lanes, state.quotas.used.tolist(), strict=True):
        for resource, amount in zip(RESOURCES, row, strict=True):
            if used.pop((lane.queue, lane.account, resource), 0) != amount:
                raise InvariantBroken(why=f"{amount} of {resource} are counted for {lane}")
    if any(used.values()):
        raise InvariantBroken(why="jobs run that no quota counts")


def _check_jobs(state: State) -> None:
    held: dict[int, int] = {}
    for hold in state.ledger.holds.values():
        if hold.job:
            if held.setdefault(hold.job, hold.id) != hold.id:
                raise InvariantBroken(why=f"job {hold.job} has two holds")
            if hold.job not in state.jobs:
                raise InvariantBroken(why=f"hold {hold.id} is of a job that is gone")
    waiting: dict[int, int] = {}
    for source, dependents in state.dependents.items():
        if source not in state.jobs and source not in state.arrays:
            raise InvariantBroken(why=f"jobs wait for {source}, which is gone")
        for job, _ in dependents:
            waiting[job] = waiting.get(job, 0) + 1
    for job in state.jobs.values():
        if job.id not in held and not (job.state == "held" and job.reason):
            raise InvariantBroken(why=f"job {job.id} ({job.state}) holds nothing")
        if job.id in held and job.hold != held[job.id]:
            raise InvariantBroken(why=f"job {job.id} knows another hold than the ledger")
        if (job.state == "pending") != (job.id in state.queue):
            raise InvariantBroken(why=f"job {job.id} is {job.state} but the queue says otherwise")
        if bool(job.placement) != (job.state in LIVE_JOB_STATES):
            raise InvariantBroken(why=f"job {job.id} is {job.state} with placement {job.placement}")
        if job.state == "pending" and job.waiting:
            raise InvariantBroken(why=f"job {job.id} is pending and waits for {job.waiting} jobs")
        if job.state == "blocked" and not job.waiting:
            raise InvariantBroken(why=f"job {job.id} is blocked and waits for nothing")
        if job.waiting > waiting.get(job.id, 0):
            raise InvariantBroken(why=f"job {job.id} waits for more than is there")
    on = Counter(job.array_job for job in state.jobs.values() if job.state in LIVE_JOB_STATES)
    for array in state.arrays.values():
        active = on[array.id]
        if active != array.active or (array.throttle and active > array.throttle):
            raise InvariantBroken(
                why=f"array {array.id} has {active} tasks on, counts {array.active}, allows {array.throttle}"
            )


def _check_idle(state: State) -> None:
    """Idle are exactly the specs and mandates that no live job has."""
    for idle, entries in ((state.idle_specs, state.specs), (state.idle_mandates, state.mandates)):
        unused = {number for number, entry in entries.items() if entry.count == 0}
        if unused != set(idle):
            raise InvariantBroken(why=f"idle are {sorted(idle)}, unused {sorted(unused)}")


def _check_cluster(state: State) -> None:
    used: dict[int, list[int]] = {}
    running: Counter[int] = Counter()
    for job in state.jobs.values():
        shape = job.spec.content.shape
        running.update({node for node, _ in job.placement})
        for node, mask in job.placement:
            if mask.bit_count() != shape.gpus:
                raise InvariantBroken(
                    why=f"job {job.id} has {mask.bit_count()} GPUs on a node, asked for {shape.gpus}"
                )
            totals = used.setdefault(node, [0, 0, 0])
            totals[0] += shape.cpus_milli
            totals[1] += shape.memory_mib
            totals[2] += shape.gpus_milli
    for node in state.nodes.values():
        if node.running != running[node.index]:
            raise InvariantBroken(
                why=f"{node.name} counts {node.running} jobs, {running[node.index]} run on it"
            )
        totals = Amounts(*used.pop(node.index, [0, 0, 0]))
        if state.cluster.in_use(node.index) != totals:
            raise InvariantBroken(
                why=f"{node.name} carries {state.cluster.in_use(node.index)}, jobs sum to {totals}"
            )
        if (totals.cpus_milli, totals.memory_mib) > (
            node.cpus_milli,
            node.memory_mib,
        ) or totals.gpus_milli > node.gpus * 1_000:
            raise InvariantBroken(why=f"{node.name} is over-allocated")
    if used:
        raise InvariantBroken(why=f"jobs run on nodes that are gone: {sorted(used)}")


class Shadow:
    """The ledger once more, from events alone and by the plainest arithmetic: the oracle for every balance.

    It knows nothing of the core's code for charging; it also counts that each hold is resolved once, that no attempt
    number is used twice, and that no job that was admitted is ever forgotten.
    """

    def __init__(self) -> None:
        self.grants: dict[int, dict[str, int]] = {}
        self.units: dict[int, Unit] = {}
        self.open: set[int] = set()
        self.holds: dict[int, dict[int, int]] = {}
        self.closed_holds: set[int] = set()
        self.attempts: set[tuple[int, int]] = set()
        self.admitted: set[int] = set()
        self.ended: dict[int, JobEnded] = {}
        self.quota = QuotaShadow()

    def see(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self._see(event)
            self.quota.see(event)

    def _see(self, event: AnyEvent) -> None:
        match event:
            case GrantCreated():
                self.grants[event.grant] = {
                    "left": event.amount,
                    "held": 0,
                    "spent": 0,
                    "expired": 0,
                    "refunded": 0,
                }
                self.units[event.grant] = event.unit
                self.open.add(event.grant)
            case GrantAdjusted():
                self.grants[event.grant]["left"] += event.delta
            case GrantClosed():
                self._post(event.grant, "left", -event.amount)
                self._post(event.grant, "expired", event.amount)
                self.open.discard(event.grant)
                if self.grants[event.grant]["left"]:
                    raise InvariantBroken(why=f"grant {event.grant} closed with something left")
            case HoldPlaced() | HoldExtended():
                if isinstance(event, HoldPlaced):
                    if event.hold in self.holds or event.hold in self.closed_holds:
                        raise InvariantBroken(why=f"hold {event.hold} is placed twice")
                    self.holds[event.hold] = {}
                for line in event.lines:
                    for grant, amount in rows(line.legs, 2):
                        self._post(grant, "left", -amount)
                        self._post(grant, "held", amount)
                        self.holds[event.hold][grant] = self.holds[event.hold].get(grant, 0) + amount
            case HoldDrawn():
                self._spend(event.hold, event.spent)
            case HoldClosed():
                self._close(event)
            case Refunded():
                for grant, amount in rows(event.legs, 2):
                    self._post(grant, "left" if grant in self.open else "expired", amount)
                    self._post(grant, "refunded", amount)
            case JobAdmitted():
                self.admitted.add(event.job)
            case JobPlaced():
                if (event.job, event.attempt) in self.attempts or event.job in self.ended:
                    raise InvariantBroken(why=f"attempt {event.attempt} of job {event.job} is started twice")
                self.attempts.add((event.job, event.attempt))
            case JobEnded():
                if event.job in self.ended:
                    raise InvariantBroken(why=f"job {event.job} ends twice")
                self.ended[event.job] = event
            case _:
                pass

    def _close(self, event: HoldClosed) -> None:
        if event.hold in self.closed_holds:
            raise InvariantBroken(why=f"hold {event.hold} is resolved twice")
        self._spend(event.hold, event.spent)
        for grant, amount in rows(event.released, 2):
            self._post(grant, "held", -amount)
            self._post(grant, "left" if grant in self.open else "expired", amount)
            self.holds[event.hold][grant] -= amount
        if any(self.holds.pop(event.hold).values()):
            raise InvariantBroken(why=f"hold {event.hold} is resolved but not all of it")
        self.closed_holds.add(event.hold)

    def _spend(self, hold: int, spent: Sequence[int]) -> None:
        for grant, amount in rows(tuple(spent), 2):
            self._post(grant, "held", -amount)
            self._post(grant, "spent", amount)
            self.holds[hold][grant] -= amount

    def _post(self, grant: int, account: str, amount: int) -> None:
        balances = self.grants[grant]
        balances[account] += amount
        if balances[account] < 0:
            raise InvariantBroken(why=f"grant {grant}: {account} falls to {balances[account]}")

    def compare(self, state: State) -> None:
        """Every balance, hold and job of the state against what the events say."""
        for number, grant in state.ledger.grants.items():
            mine = self.grants[number]
            theirs = {
                "left": grant.left,
                "held": grant.held,
                "spent": grant.spent,
                "expired": grant.expired,
                "refunded": grant.refunded,
            }
            if mine != theirs:
                raise InvariantBroken(why=f"grant {number} is {theirs}, events say {mine}")
        sums: Counter[tuple[Unit, str]] = Counter()
        for number, mine in self.grants.items():
            for name in ("left", "held", "spent"):
                sums[self.units[number], name] += mine[name]
        totals = state.ledger.totals
        for unit in Unit:
            for index, name in ((LEFT, "left"), (HELD, "held"), (SPENT, "spent")):
                if totals[unit][index] != sums[unit, name]:
                    raise InvariantBroken(why=f"total {name} of {unit} is off")
        if set(state.ledger.holds) != set(self.holds):
            raise InvariantBroken(why="open holds differ from what events say")
        if self.admitted - set(self.ended) != set(state.jobs):
            lost = (self.admitted - set(self.ended)) ^ set(state.jobs)
            raise InvariantBroken(why=f"jobs lost or forgotten: {sorted(lost)[:5]}")


def check_charges(
    events: Iterable[tuple[int, AnyEvent]], truth: dict[tuple[int, int], tuple[int, int]]
) -> None:
    """Each attempt is charged exactly the least of: the time that it truly ran, its time limit, and the interval from its
    placement to its end on the hub's clock. `events` come with their record's instant (ns); `truth` is (run ms, limit ms)."""
    placed: dict[tuple[int, int], int] = {}
    settled: dict[tuple[int, int], HoldClosed] = {}
    shapes = _Shapes()
    for now, event in events:
        shapes.see(event)
        if isinstance(event, JobPlaced):
            placed[event.job, event.attempt] = now
        elif isinstance(event, HoldClosed) and event.job and event.trigger == "settle":
            settled[event.job, event.attempt] = event
        elif isinstance(event, (JobEnded, JobRequeued)) and (event.job, event.attempt) in settled:
            key = (event.job, event.attempt)
            if key not in truth:
                raise InvariantBroken(
                    why=f"job {key[0]} attempt {key[1]} ended in the books, but not in the world"
                )
            ran, limit = truth[key]
            due = min(ran, limit, (now - placed[key]) // NS_PER_MS)
            if event.run_ms != due:
                raise InvariantBroken(
                    why=f"job {key[0]} attempt {key[1]} ran {ran} ms, owes {due}, is charged {event.run_ms}"
                )
            shapes.check(event.job, settled.pop(key), due)


class _Shapes:
    """What each job asks for, and that its stock is held and charged as the plainest product of amount and time."""

    def __init__(self) -> None:
        self.specs: dict[int, JobSpec] = {}
        self.mandates: dict[int, tuple[Block, ...]] = {}
        self.jobs: dict[int, Shape] = {}
        self.hold: HoldPlaced | None = None

    def see(self, event: AnyEvent) -> None:
        if isinstance(event, SpecInterned):
            self.specs[event.spec] = event.content
        elif isinstance(event, MandateInterned):
            self.mandates[event.mandate] = event.blocks
        elif isinstance(event, HoldPlaced):
            self.hold = event
        elif isinstance(event, (JobAdmitted, JobUpdated)):
            self.jobs[event.job] = self.specs[event.spec].shape
            if isinstance(event, JobAdmitted):
                self._check_ceilings(event)

    def _check_ceilings(self, event: JobAdmitted) -> None:
        """The hold that comes with a job charges every ceiling of its mandate for the whole time limit."""
        if self.hold is None or self.hold.job != event.job:
            raise InvariantBroken(why=f"job {event.job} is admitted without its hold")
        content = self.specs[event.spec]
        amounts = {
            unit: amount * content.shape.members * content.time_limit_ms
            for unit, amount in _rates(content.shape)
        }
        wanted = sorted(
            (block.block, unit.value, amounts[unit])
            for block in self.mandates[event.mandate]
            for unit in block.ceilings
            if amounts.get(unit)
        )
        got = sorted(row for row in rows(self.hold.ceilings, 3) if row[1] != Unit.MONEY.value)
        if got != wanted:
            raise InvariantBroken(why=f"job {event.job} charges the ceilings {got}, owes {wanted}")

    def check(self, job: int, settled: HoldClosed, run_ms: int) -> None:
        shape = self.jobs[job]
        used = dict(rows(settled.used, 2))
        for unit, amount in _rates(shape):
            if used.get(unit.value, 0) != amount * shape.members * run_ms:
                raise InvariantBroken(why=f"job {job}: {unit} is charged {used.get(unit.value, 0)}")


def _rates(shape: Shape) -> tuple[tuple[Unit, int], ...]:
    """What one member takes of each stock, in the unit's smallest part a millisecond."""
    return (
        (Unit.GPU, shape.gpus * shape.gpu_milli),
        (Unit.CPU, shape.cpus_milli),
        (Unit.MEMORY, shape.memory_mib),
        (Unit.STORAGE, shape.storage_mb),
    )
