"""Seeded random runs of the core into a store in memory: what the read model's tests project, tail and explain."""

from __future__ import annotations

from random import Random

from mintyard.adapters.stores.memory import MemoryStore
from mintyard.app.journal import make_record
from mintyard.app.record import encode_body
from mintyard.domain import commands as c
from mintyard.domain import hub
from mintyard.domain.jobs.reports import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsage,
    NodeGone,
    NodeSeen,
    Outcome,
    Report,
)
from mintyard.domain.jobs.spec import Array, Dependency, JobRequest, JobSpec, Shape, When
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.lifecycle import LIVE_JOB_STATES
from mintyard.domain.replies import Reply
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import ROLES, Authority, Block
from mintyard.domain.units import NS_PER_MS, SCALE, Unit
from mintyard.ports.store import Record
from mintyard.wire.launch import Launch, encode_launch

START = 1_800_000_000_000 * NS_PER_MS
ACCOUNTS = ("acme", "acme/vision", "acme/vision/ann", "acme/text", "zeta", "zeta/lab")
SECRET = "hunter2-in-the-environment"


def uuid7(now: int, number: int) -> str:
    """A key for a request made at `now` (ns)."""
    digits = f"{now // NS_PER_MS:012x}7{0:03x}8{0:03x}{number:012x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Run:
    """A hub without a shell: executes commands, journals each tick as one record, and keeps the state to compare with."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.state = State()
        self.store = MemoryStore()
        self.now = START
        self.head: Record | None = None
        lease = self.store.acquire("test", 3_600_000)
        assert lease is not None
        self.term = lease.term
        self.tokens: list[Authority] = []

    def tick(self, *commands: c.Command, step_ms: int = 1) -> list[Reply]:
        """One record of `commands`, `step_ms` later than the one before; no record when nothing happened."""
        self.now += step_ms * NS_PER_MS
        hub.begin(self.state, (self.head.seq if self.head else 0) + 1, self.now)
        inputs, events, replies = [], [], []
        for command in commands:
            made, reply = hub.execute(self.state, command, self.now)
            replies.append(reply)
            events += made
            if made:
                inputs.append(command)
        if events:
            record = make_record(self.head, self.term, self.now, 1, encode_body(inputs, events))
            self.store.append(self.term, [record])
            self.head = record
        return replies

    def found(self) -> None:
        """A hub with accounts, grants in several units at several levels, tokens and nodes."""
        money, gpu = SCALE[Unit.MONEY], SCALE[Unit.GPU]
        self.tick(c.Found("centre"), *(c.OpenAccount(None, account) for account in ACCOUNTS))
        self.tick(
            c.CreateGrant(None, "acme", Unit.MONEY, 5_000 * money, note="year"),
            c.CreateGrant(None, "acme/vision", Unit.MONEY, 900 * money, priority=5),
            c.CreateGrant(None, "acme/vision", Unit.MONEY, 700 * money),
            c.CreateGrant(None, "acme/vision/ann", Unit.GPU, 300 * gpu),
            c.CreateGrant(None, "acme/text", Unit.OUTPUT_TOKENS, 10**9),
            c.CreateGrant(
                None, "zeta", Unit.MONEY, 800 * money, expires_at=self.now + 50 * 3_600_000 * NS_PER_MS
            ),
        )
        for account in ACCOUNTS:
            self.tick(self.token(account))
        self.tick(c.SetQueue(None, QueueSpec("default")))
        for number in range(4):
            self.tick(c.TakeReports("local", (self.node(number),)))

    def token(self, account: str, ceilings: dict[Unit, int] | None = None) -> c.RegisterToken:
        end = self.now + 200 * 24 * 3_600_000 * NS_PER_MS
        block = Block(f"{self.random.getrandbits(128):032x}", end, ceilings or {})
        authority = Authority(account, (block,), frozenset(ROLES["owner"]), end)
        self.tokens.append(authority)
        return c.RegisterToken(None, authority, name=f"of {account}")

    def node(self, number: int) -> NodeSeen:
        model = ("a100", "h100", "")[number % 3]
        if self.random.random() < 0.1:
            model = "h100"
        return NodeSeen(f"n{number}", 32_000, 128_000, 4, model, ("fast",) if number % 2 else ())

    # --- at random -------------------------------------------------------------------------------------------------

    def play(self, ticks: int) -> None:
        """`ticks` records of whatever may happen."""
        for _ in range(ticks):
            commands = [self._any() for _ in range(self.random.randint(1, 4))]
            if self.random.random() < 0.6:
                commands.append(c.Tick())
            self.tick(*commands, step_ms=self.random.choice((0, 1, 900, 60_000, 3_600_000)))
        # A tick without events is not journaled, and its time is no follower's: end with one that is.
        self.tick(c.OpenAccount(None, f"end{self.head.seq if self.head else 0}"))

    def _any(self) -> c.Command:
        kinds = (
            *[self._submit] * 5,
            *[self._report] * 10,
            *[self._control] * 2,
            self._update,
            self._hold,
            *[self._hold_on] * 3,
            self._grant,
            self._grant_on,
            self._registry,
            self._nodes,
            self._share,
        )
        return self.random.choice(kinds)()

    def _share(self) -> c.Command:
        """Queues and limits, of which the read model shows nothing."""
        random = self.random
        spare = f"spare{random.randint(0, 1)}"
        return random.choice(
            (
                c.SetQueue(None, QueueSpec("default", nominal=Limits(jobs=random.randint(4, 40)))),
                c.SetQueue(None, QueueSpec(spare)),
                c.RemoveQueue(None, spare),
                c.LimitAccount(
                    None, random.choice(ACCOUNTS), Limits(gpus_milli=random.choice((None, 6_000)))
                ),
            )
        )

    def _authority(self) -> Authority | None:
        return self.random.choice((None, *self.tokens))

    def _submit(self) -> c.Command:
        requests = tuple(self._request(index) for index in range(self.random.randint(1, 3)))
        authority = self._authority() or self.random.choice(self.tokens)
        atomic = self.random.random() < 0.5
        key = uuid7(self.now, self.random.getrandbits(40)) if self.random.random() < 0.2 else ""
        return c.Submit(authority, requests, atomic, key=key)

    def _request(self, index: int) -> JobRequest:
        random = self.random
        shape = Shape(
            cpus_milli=random.choice((500, 1_000, 8_000)),
            memory_mib=random.choice((1, 512, 4_096)),
            gpus=(gpus := random.choice((0, 0, 1, 1, 2))),
            gpu_milli=random.choice((250, 1_000)) if gpus == 1 else 1_000,
            gpu_models=random.choice(((), (), ("h100",), ("a100", "h100"))) if gpus else (),
            members=random.choice((1, 1, 1, 3)),
            storage_mb=random.choice((0, 10_000)),
        )
        launch = Launch(argv=("python", "train.py"), env={"PASSWORD": SECRET}, workdir="/data")
        spec = JobSpec(
            f"train-{random.randint(0, 3)}",
            shape,
            time_limit_ms=random.choice((1_000, 600_000, 7_200_000)),
            retries=random.choice((0, 1)),
            begin_at=random.choice((0, 0, 0, self.now + 10**10)),
            payload=encode_launch(launch),
        )
        array = (
            Array(tuple(range(0, 6, 2)), throttle=random.choice((0, 1))) if random.random() < 0.2 else None
        )
        dependencies: tuple[Dependency, ...] = ()
        if self.state.jobs and random.random() < 0.3:
            when = random.choice(tuple(When))
            dependencies = (Dependency(when, job=random.choice(list(self.state.jobs))),)
        return JobRequest(spec, f"r{index}", array, dependencies, random.random() < 0.1)

    def _report(self) -> c.Command:
        random = self.random
        live = [job for job in self.state.jobs.values() if job.state in LIVE_JOB_STATES]
        if not live:
            return c.Tick()
        job = random.choice(live)
        attempt = job.attempt if random.random() < 0.95 else job.attempt + random.choice((-1, 1))
        boot = random.choice(("b1", "b1", "b2"))
        seen_ms = (self.now - job.placed_at) // NS_PER_MS
        run_ms = random.choice((0, seen_ms, seen_ms // 2, 10**12))
        if job.state == "starting" and random.random() < 0.8:
            return c.TakeReports("local", (AttemptStarted(job.id, attempt, boot),))
        if random.random() < 0.3:
            return c.TakeReports("local", (AttemptUsage(job.id, attempt, boot, seen_ms),))
        outcome = random.choice(tuple(Outcome))
        code = random.choice((0, 0, 1)) if outcome is Outcome.EXITED else 0
        end: Report = AttemptEnded(
            job.id, attempt, boot, outcome, code, 0, run_ms, run_ms, 77, "over\x00\u2603"
        )
        return c.TakeReports("local", (end, end) if random.random() < 0.2 else (end,))

    def _control(self) -> c.Command:
        jobs = list(self.state.jobs) + list(self.state.arrays)
        verb = self.random.choice(("cancel", "hold", "release", "release", "requeue"))
        return c.ControlJobs(self._authority(), verb, (self.random.choice(jobs) if jobs else 1,), "why not")

    def _update(self) -> c.Command:
        job = self.random.choice(list(self.state.jobs)) if self.state.jobs else 1
        limit = self.random.choice((None, 500, 1_200_000))
        return c.UpdateJob(None, job, time_limit_ms=limit, priority=self.random.choice((None, 7)))

    def _hold(self) -> c.Command:
        account, unit = self.random.choice(
            (("acme/text", Unit.OUTPUT_TOKENS), ("acme/vision", Unit.MONEY), ("zeta/lab", Unit.MONEY))
        )
        life = self.random.choice((1_000, 10**7)) * NS_PER_MS
        holder = self.random.choice(("", "gateway"))
        amount = self.random.randint(1, 10**7)
        return c.PlaceHold(None, account, {unit: amount}, self.now + life, holder, "slice")

    def _hold_on(self) -> c.Command:
        holds = [hold for hold in self.state.ledger.holds.values() if not hold.job]
        if not holds:
            return self._hold()
        hold = self.random.choice(holds)
        line = hold.lines[0]
        part = {line.unit: self.random.randint(0, line.amount)}
        match self.random.randrange(4):
            case 0:
                return c.DrawHold(None, hold.id, part)
            case 1:
                return c.SettleHold(None, hold.id, part)
            case 2:
                return c.VoidHold(None, hold.id)
            case _:
                return c.ExtendHold(None, hold.id, part, self.now + 10**12)

    def _grant(self) -> c.Command:
        unit = self.random.choice(tuple(Unit))
        end = self.random.choice((0, self.now + 10**13))
        account = self.random.choice(ACCOUNTS)
        return c.CreateGrant(None, account, unit, self.random.randint(1, 10**15), 3, 0, end, "more")

    def _grant_on(self) -> c.Command:
        grant = self.random.choice(list(self.state.ledger.grants.values()))
        match self.random.randrange(4):
            case 0:
                return c.AdjustGrant(None, grant.id, self.random.randint(-(10**9), 10**9), 4)
            case 1 if grant.id > 6:
                return c.EndGrant(None, grant.id)
            case _:
                return c.Refund(None, grant.id, self.random.randint(1, max(grant.spent, 1)), "sorry")

    def _registry(self) -> c.Command:
        random = self.random
        token = random.choice(self.tokens)
        match random.randrange(5):
            case 0:
                return self.token(random.choice(ACCOUNTS), {Unit.MONEY: 50 * SCALE[Unit.MONEY]})
            case 1:
                return c.SetTokenState(None, token.root, random.choice(("suspend", "resume", "resume")))
            case 2:
                return c.RevokeBlock(None, token.root, f"{random.getrandbits(128):032x}")
            case 3:
                return c.SetAccountState(None, "zeta/lab", random.choice(("suspend", "resume", "resume")))
            case _:
                models = {"h100": random.randint(1, 9) * 10**9}
                return c.SetPrices(None, PriceBook(self.now, random.randint(1, 9) * 10**9, gpu_models=models))

    def _nodes(self) -> c.Command:
        number = self.random.randrange(6)
        match self.random.randrange(4):
            case 0:
                return c.TakeReports("local", (NodeGone(f"n{number}"),))
            case 1:
                verb = self.random.choice(("cordon", "uncordon", "drain", "remove"))
                return c.ControlNode(None, f"n{number}", verb, "by hand")
            case _:
                return c.TakeReports("local", (self.node(number),))
