"""Workload: what a replay makes of a trace - accounts, specs, run times and machines. Pure; no hub, no clock, no file.

Rules, so that nothing is a silent guess: the time limit is the time that the job's user asked for, else its run time times
a margin, up to the next minute; a run longer than its limit is cut there. An unknown run time is drawn from an exponential
distribution. A job pays from ORGANISATION/TENANT/USER; its queue stands in where the trace names neither.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Final

import msgspec

from mintyard.domain import limits
from mintyard.domain.errors import Infeasible, InvalidName, InvalidRequest, TraceMalformed
from mintyard.domain.ids import check_name
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.ledger.prices import ALL_RESOURCES, PriceBook, bill
from mintyard.domain.units import NS_PER_MS, NS_PER_S, Unit
from mintyard.ports.traces import UNKNOWN, Trace, TraceJob, TraceNode, shape_of

NEVER: Final = -1
"""Run time of a job that doesn't end."""
START_NS: Final = 1_735_689_600 * NS_PER_S
"""2025-01-01 00:00 UTC, where the trace doesn't say when it begins."""
FILL_PERCENT: Final = 130
"""GPU milli that arrive in a fill, of all there are (FGD, USENIX ATC'23)."""
FILL_STEP_MS: Final = 1_000
MAX_FILL_JOBS: Final = 1_000_000
MAX_INSTANT_NS: Final = 2**62
MIN_LOAD, MAX_LOAD = 0.001, 1_000_000.0
_MINUTE_MS: Final = 60_000
_SYNTHETIC: Final = re.compile(r"synthetic:([0-9]{1,3})x([0-9]{1,6})(?:,([0-9]{1,4})(?:,([0-9]{1,6}))?)?")
_CPUS_PER_GPU, _CPUS_WITHOUT, _GB_PER_CPU = 12, 64, 8


class Rules(msgspec.Struct, frozen=True):
    """`limit` takes the first jobs only (0: all); `load` divides the times between arrivals."""

    limit: int = 0
    load: float = 1.0
    seed: int = 42
    margin: float = 1.5
    unknown_run_ms: int = 3_600_000
    fill: bool = False


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A job and when it comes, in ms since the workload's start. `run_ms` is what it takes when nobody cuts it."""

    at_ms: int
    account: str
    spec: JobSpec
    run_ms: int
    cost: int
    """The most it may cost, in nano-units at list price."""


class Workload(msgspec.Struct, frozen=True):
    """Arrivals in order of time, machines, the account tree below `organisation` and what was left out or assumed.

    `tenants` are the accounts right below the organisation, `accounts` all those that pay, each after the one above it."""

    organisation: str
    arrivals: list[Arrival]
    nodes: list[TraceNode]
    tenants: list[str]
    accounts: list[str]
    start_ns: int
    skipped: dict[str, int]
    assumed: dict[str, int]


def synthetic_nodes(text: str) -> list[TraceNode]:
    """Equal machines from `synthetic:GPUSxNODES[,CPUS[,MEMORY_GB]]`; 12 cores a GPU (64 without) and 8 GB a core unless given.

    Errors: `InvalidRequest`."""
    found = _SYNTHETIC.fullmatch(text)
    if found is None:
        raise InvalidRequest(why=f"nodes {text[:60]!r} don't read as synthetic:GPUSxNODES[,CPUS[,MEMORY_GB]]")
    gpus, count = int(found[1]), int(found[2])
    cpus = int(found[3]) if found[3] else gpus * _CPUS_PER_GPU or _CPUS_WITHOUT
    memory_gb = int(found[4]) if found[4] else cpus * _GB_PER_CPU
    width = len(str(max(count - 1, 0)))
    nodes = [
        TraceNode(f"node-{n:0{width}}", cpus * 1_000, memory_gb * 1_024, gpus, "synthetic" if gpus else "")
        for n in range(count)
    ]
    return check_nodes(nodes)


def check_nodes(nodes: Sequence[TraceNode]) -> list[TraceNode]:
    """The nodes when a hub can have them. Errors: `InvalidRequest`, `InvalidName`."""
    if not nodes:
        raise InvalidRequest(
            why="there are no machines to run on; name them with --nodes FILE (openb CSV) "
            "or --nodes synthetic:GPUSxNODES, for example synthetic:8x50"
        )
    if len(nodes) > limits.MAX_NODES:
        raise InvalidRequest(why=f"{len(nodes)} nodes; a hub has at most {limits.MAX_NODES}")
    for node in nodes:
        check_name("node", node.name)
        if node.gpu_model:
            check_name("label", node.gpu_model)
        for what, value, least, most in (
            ("GPUs", node.gpus, 0, limits.MAX_GPUS_PER_MEMBER),
            ("milli-cores", node.cpus_milli, 1, limits.MAX_CPUS_MILLI),
            ("MiB of memory", node.memory_mib, 1, limits.MAX_MEMORY_MIB),
        ):
            if not least <= value <= most:
                raise InvalidRequest(
                    why=f"node {node.name} has {value} {what}, possible are {least} to {most}"
                )
    return list(nodes)


def make_workload(trace: Trace, nodes: Sequence[TraceNode], rules: Rules, source: str) -> Workload:
    """The workload of `trace` on `nodes`; `source` names the trace in errors.

    Errors: `TraceMalformed` for a trace without jobs, `Infeasible` when jobs want GPUs and no node has any,
    `InvalidRequest` for rules out of range."""
    _check_rules(rules)
    machines = check_nodes(nodes)
    jobs = trace.jobs[: rules.limit] if rules.limit else trace.jobs
    if not jobs:
        left_out = ", ".join(f"{count} {why}" for why, count in trace.skipped.items())
        raise TraceMalformed(path=source, line=1, why="no job in it" + (f" ({left_out})" if left_out else ""))
    if any(job.gpus for job in jobs) and not any(node.gpus for node in machines):
        raise Infeasible(
            why="jobs of the trace ask for GPUs, and none of the nodes has any",
            fix="Name machines with GPUs: --nodes FILE or --nodes synthetic:8x50.",
        )
    random = Random(rules.seed)
    if rules.fill:
        random.shuffle(machines)
        jobs = _filled(jobs, machines, random)
    making = _Making(trace, machines, rules, random)
    arrivals = [arrival for number, job in enumerate(jobs) if (arrival := making.arrival(number, job))]
    start_ns = trace.start_ns or START_NS
    last = max((arrival.at_ms + max(arrival.run_ms, 0) for arrival in arrivals), default=0)
    if start_ns + last * NS_PER_MS > MAX_INSTANT_NS:
        raise InvalidRequest(
            why="the replay would end after the year 2100; raise --load or lower --unknown-run"
        )
    return Workload(
        making.organisation,
        arrivals,
        machines,
        making.tenants,
        list(making.accounts),
        start_ns,
        {**trace.skipped, **making.skipped},
        {**trace.assumed, **making.assumed},
    )


def _check_rules(rules: Rules) -> None:
    if not MIN_LOAD <= rules.load <= MAX_LOAD:
        raise InvalidRequest(why=f"load {rules.load:g} is not within {MIN_LOAD:g} and {MAX_LOAD:g}")
    if not 1.0 <= rules.margin <= 100.0:
        raise InvalidRequest(why=f"margin {rules.margin:g} is not within 1 and 100")
    if rules.limit < 0:
        raise InvalidRequest(why=f"limit {rules.limit} is negative")
    if not 1 <= rules.unknown_run_ms <= limits.MAX_TIME_LIMIT_MS:
        raise InvalidRequest(why=f"unknown-run {rules.unknown_run_ms} ms is not within 1 ms and 366 days")


def _filled(jobs: Sequence[TraceJob], nodes: Sequence[TraceNode], random: Random) -> list[TraceJob]:
    """The jobs in a random order, drawn further (or cut) until the next would pass `FILL_PERCENT` of all GPU milli."""
    target = sum(node.gpus for node in nodes) * 10 * FILL_PERCENT
    if not any(job.gpus for job in jobs):
        raise InvalidRequest(why="a fill is measured in GPUs; no job of the trace asks for any")
    order = list(jobs)
    random.shuffle(order)
    filled: list[TraceJob] = []
    arrived = 0
    while True:
        job = order[len(filled)] if len(filled) < len(order) else order[random.randrange(len(order))]
        arrived += job.gpus * job.gpu_milli
        if arrived > target:
            return filled
        if len(filled) == MAX_FILL_JOBS:
            raise InvalidRequest(why=f"more than {MAX_FILL_JOBS} jobs would be needed to fill the machines")
        filled.append(job)


class _Making:
    """Names given and choices made so far."""

    def __init__(self, trace: Trace, nodes: Sequence[TraceNode], rules: Rules, random: Random) -> None:
        self.rules, self.random = rules, random
        self.organisation = _segment(trace.format) or "trace"
        self.gpus_per_node = max(node.gpus for node in nodes)
        self.cpus_milli_per_node = max(node.cpus_milli for node in nodes)
        self.tenants: list[str] = []
        self.accounts: dict[str, None] = {}
        self.skipped: Counter[str] = Counter()
        self.assumed: Counter[str] = Counter()
        self._children: dict[tuple[str, str], str] = {}
        self._names: set[str] = set()
        self._book = PriceBook()
        self._cost = cache(self._cost_of)

    def arrival(self, number: int, job: TraceJob) -> Arrival | None:
        try:
            shape = shape_of(job, max(self.gpus_per_node, 1), self.cpus_milli_per_node)
        except ValueError:
            self.skipped["more members than a gang may have"] += 1
            return None
        if job.gpus > 0 and job.cpus_milli == UNKNOWN:
            self.assumed["CPUs unknown, one core a member"] += 1
        if job.memory_mib == UNKNOWN:
            self.assumed["memory unknown, 1 MiB a member"] += 1
        run_ms = self._run_ms(job)
        limit_ms = self._limit_ms(job, run_ms)
        spec = JobSpec(_job_name(job.name, number), shape, limit_ms, queue=_job_name(job.queue, -1))
        at_ms = number * FILL_STEP_MS if self.rules.fill else round(job.submit_ms / self.rules.load)
        if self.rules.fill:
            run_ms = NEVER
        return Arrival(at_ms, self._account(job), spec, run_ms, self._cost(shape, limit_ms))

    def _run_ms(self, job: TraceJob) -> int:
        if job.run_ms != UNKNOWN:
            return job.run_ms
        self.assumed["run time unknown, drawn at random"] += 1
        return max(round(self.random.expovariate(1 / self.rules.unknown_run_ms)), 1)

    def _limit_ms(self, job: TraceJob, run_ms: int) -> int:
        wanted = job.requested_ms
        if wanted <= 0:
            self.assumed["time limit unknown, run time with a margin"] += 1
            wanted = -(-max(round(run_ms * self.rules.margin), 1) // _MINUTE_MS) * _MINUTE_MS
        return min(wanted, limits.MAX_TIME_LIMIT_MS)

    def _cost_of(self, shape: Shape, limit_ms: int) -> int:
        rate = self._book.gpu_rate(shape.gpu_models)
        return bill(shape, limit_ms, self._book, rate).amount(Unit.MONEY, ALL_RESOURCES)

    def _account(self, job: TraceJob) -> str:
        names = [name for name in (job.tenant, job.user) if name] or [job.queue or "all"]
        account = self.organisation
        for depth, name in enumerate(names):
            known = self._children.get((account, name))
            if known is None:
                known = self._open(account, name)
                if depth == 0:
                    self.tenants.append(known)
            account = known
        return account

    def _open(self, parent: str, name: str) -> str:
        """A child account named after `name`; when two names come out alike, the later one gets a number."""
        segment = _segment(name) or "x"
        account, number = f"{parent}/{segment}", 2
        while account in self._names:
            account, number = f"{parent}/{segment[:40]}-{number}", number + 1
        self._names.add(account)
        self._children[parent, name] = account
        self.accounts[account] = None
        return account


def _segment(name: str) -> str:
    """`name` as one step of an account path, at most 40 characters."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:40]


def _job_name(name: str, number: int) -> str:
    """The trace's own name where it can be one; else `job-NUMBER`, or `default` for a queue (`number` < 0)."""
    try:
        return check_name("job", name)
    except InvalidName:
        return f"job-{number}" if number >= 0 else "default"
