"""A small hub for tests of the core: accounts, grants, a token and a node, and one line per command."""

from __future__ import annotations

from mintyard.domain import hub
from mintyard.domain.commands import (
    Command,
    CreateGrant,
    Found,
    OpenAccount,
    RegisterToken,
    Submit,
    TakeReports,
    Tick,
)
from mintyard.domain.errors import MintyardError, from_problem
from mintyard.domain.events import AnyEvent, JobPlaced
from mintyard.domain.jobs.reports import AttemptEnded, AttemptStarted, NodeSeen, Outcome
from mintyard.domain.jobs.spec import JobRequest, JobSpec, Shape
from mintyard.domain.ledger.book import Grant
from mintyard.domain.replies import Refusal, Reply
from mintyard.domain.state import State
from mintyard.domain.tokens.authority import ROLES, Authority, Block, Caps
from mintyard.domain.units import NS_PER_MS, Unit, parse_amount

START = 1_790_000_000_000_000_000
HOUR_NS = 3_600_000 * NS_PER_MS


def usd(text: str) -> int:
    return parse_amount(text, Unit.MONEY)


class World:
    """`ann` may spend 20 USD, as may the accounts above her; one node has 8 cores, 16 GB and 4 GPUs."""

    def __init__(self, *, grants: bool = True, nodes: bool = True) -> None:
        self.state = State()
        self.now = START
        self.events: list[AnyEvent] = []
        self.do(Found("main"))
        for account in ("acme", "acme/vision", "acme/vision/ann", "zeta", "zeta/eve"):
            self.do(OpenAccount(None, account))
        if grants:
            for account in ("acme", "acme/vision", "acme/vision/ann", "zeta"):
                self.do(CreateGrant(None, account, Unit.MONEY, usd("20")))
        if nodes:
            self.do(TakeReports("local", (NodeSeen("n1", 8_000, 16_384, 4, "a100"),)))
        self.ann = self.token("acme/vision/ann")

    def run(self, command: Command) -> Reply:
        hub.begin(self.state, self.state.seq + 1, self.now)
        self.events, reply = hub.execute(self.state, command, self.now)
        self.state.ledger.check()
        return reply

    def do(self, command: Command) -> Reply:
        """The reply; a refusal is raised as its error."""
        reply = self.run(command)
        if isinstance(reply, Refusal):
            raise from_problem(reply.problem)
        return reply

    def refused(self, command: Command) -> MintyardError:
        """The error of a command that must be refused, and leave no trace."""
        before = (
            self.state.next_job,
            self.state.ledger.next_hold,
            len(self.state.tokens),
            len(self.state.keys),
        )
        reply = self.run(command)
        assert isinstance(reply, Refusal), reply
        assert not self.events
        assert before == (
            self.state.next_job,
            self.state.ledger.next_hold,
            len(self.state.tokens),
            len(self.state.keys),
        )
        return from_problem(reply.problem)

    def token(
        self,
        account: str,
        role: str = "member",
        ceilings: dict[Unit, int] | None = None,
        hours: int = 24,
        caps: Caps = Caps(),  # noqa: B008 - immutable
        block: str = "",
    ) -> Authority:
        end = self.now + hours * HOUR_NS
        name = block or f"{len(self.state.tokens) + 1:032x}"
        authority = Authority(
            account, (Block(name, end, ceilings or {}),), frozenset(ROLES[role]), end, caps=caps
        )
        self.do(RegisterToken(None, authority))
        return authority

    def submit(self, *specs: JobSpec, authority: Authority | None = None, **options: object) -> list[int]:
        jobs = tuple(JobRequest(spec, **options) for spec in specs or (JobSpec("job"),))
        reply = self.do(Submit(authority or self.ann, jobs))
        return [part.job for part in reply.parts]

    def round(self) -> list[int]:
        """One tick; the jobs that it placed."""
        self.do(Tick())
        return [event.job for event in self.events if isinstance(event, JobPlaced)]

    def start(self, job: int) -> None:
        attempt = self.state.jobs[job].attempt
        self.do(TakeReports("local", (AttemptStarted(job, attempt, "boot"),)))

    def end(
        self, job: int, run_ms: int = 1_000, outcome: Outcome = Outcome.EXITED, exit_code: int = 0
    ) -> None:
        attempt = self.state.jobs[job].attempt
        self.now += run_ms * NS_PER_MS
        report = AttemptEnded(job, attempt, "boot", outcome, exit_code, run_ms=run_ms)
        self.do(TakeReports("local", (report,)))

    def grant(self, account: str, unit: Unit = Unit.MONEY) -> Grant:
        return self.state.account(account).grants[unit][0]


GPU_JOB = JobSpec("train", Shape(cpus_milli=2_000, memory_mib=2_048, gpus=1))
