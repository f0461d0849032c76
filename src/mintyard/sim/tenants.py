"""The tenants of a simulation: they ask for things that fit, things that don't, things that others ask for at the same time,
and they ask again, with the same key, when no answer came."""

from __future__ import annotations

from random import Random

import msgspec

from mintyard.domain import commands as c
from mintyard.domain.jobs.spec import Array, Dependency, JobRequest, JobSpec, Shape, When
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.scheduling.quota import Limits, QueueSpec
from mintyard.domain.tokens.authority import ROLES, Authority, Block, Caps
from mintyard.domain.units import NS_PER_MS, SCALE, Unit

ACCOUNTS = (
    "acme",
    "acme/vision",
    "acme/vision/ann",
    "acme/vision/bob",
    "acme/a/b/c/d/e/f",
    "zeta",
    "zeta/lab",
    "zeta/lab/eve",
)
QUEUES = ("all", "default", "night", "vision")
HOUR_NS = 3_600_000 * NS_PER_MS


def hex_id(random: Random) -> str:
    return f"{random.getrandbits(128):032x}"


def key_at(random: Random, now: int) -> str:
    """A UUIDv7 (RFC 9562) made at `now`."""
    digits = f"{now // NS_PER_MS:012x}7{random.getrandbits(12):03x}{8 + random.getrandbits(2):x}{random.getrandbits(60):015x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Tenants:
    """Makes commands. `jobs`, `holds` and `grants` are numbers that answers named; some are wrong on purpose."""

    def __init__(self, random: Random, now: int) -> None:
        self.random = random
        self.tokens: list[Authority] = []
        self.jobs: list[int] = []
        self.holds: list[int] = []
        self.grants: list[int] = []
        self.registered: set[str] = set()
        self.shared = False
        """Whether there are queues; without, any name will do."""

    def opening(self, now: int) -> list[c.Command]:
        """Found the hub, open accounts, grant, register tokens."""
        random = self.random
        out: list[c.Command] = [c.Found("sim")]
        opened: set[str] = set()
        for account in ACCOUNTS:
            parts = account.split("/")
            for depth in range(1, len(parts) + 1):
                name = "/".join(parts[:depth])
                if name not in opened:
                    opened.add(name)
                    out.append(c.OpenAccount(None, name))
        out.append(c.CreateGrant(None, "acme", Unit.MONEY, random.randint(50, 2_000) * SCALE[Unit.MONEY]))
        out.append(c.CreateGrant(None, "zeta", Unit.MONEY, random.randint(50, 2_000) * SCALE[Unit.MONEY]))
        out += [self.grant(now) for _ in range(random.randint(2, 8))]
        out += [self.token(account, now) for account in ACCOUNTS]
        self.shared = random.random() < 0.5
        if self.shared:
            out += [c.SetQueue(None, self.queue(name, shut=0.0)) for name in QUEUES]
        return out

    def limits(self, often: float) -> Limits:
        random = self.random

        def one(*amounts: int) -> int | None:
            return random.choice(amounts) if random.random() < often else None

        return Limits(one(0, 2_000, 4_000, 8_000), one(4_000, 20_000), one(2_048, 16_384), one(2, 5, 10))

    def queue(self, name: str, shut: float = 0.1) -> QueueSpec:
        """One of a cohort below `all`, with or without every kind of limit."""
        random = self.random
        parent = "all" if name != "all" else ""
        said = (self.limits(0.2), self.limits(0.2)) if parent else ()
        accounts = random.choice(((), (), ("acme",), ("acme", "zeta")))
        return QueueSpec(
            name,
            parent,
            self.limits(0.4),
            *(said or (Limits(), Limits())),
            accounts if name != "default" else (),
            random.random() >= shut / 2,
            random.random() >= shut,
        )

    def share(self, now: int) -> c.Command:
        """Queues and limits are set, changed and taken away under way."""
        random = self.random
        if not self.shared or random.random() < 0.3:
            return c.LimitAccount(None, random.choice(ACCOUNTS), self.limits(random.choice((0.0, 0.4))))
        if random.random() < 0.1:
            return c.RemoveQueue(None, random.choice(("night", "vision")))
        return c.SetQueue(None, self.queue(random.choice(QUEUES)))

    def token(self, account: str, now: int) -> c.Command:
        random = self.random
        role = random.choice(("owner", "member", "member", "service"))
        life = random.choice((3 * HOUR_NS, 240 * HOUR_NS, 2_400 * HOUR_NS))
        authority = Authority(
            account,
            (Block(hex_id(random), now + life, self._ceilings()),),
            frozenset(ROLES[role]),
            now + life,
        )
        self.tokens.append(authority)
        if random.random() < 0.5:
            # The same token narrowed offline, twice: both share the ceilings of the first block.
            for _ in range(2):
                blocks = (*authority.blocks, Block(hex_id(random), now + life // 2, self._ceilings()))
                caps = Caps(gpus_milli=random.choice((None, 1_000, 4_000)))
                self.tokens.append(Authority(account, blocks, authority.scopes, now + life // 2, caps=caps))
        return c.RegisterToken(None, authority, key=key_at(random, now))

    def _ceilings(self) -> dict[Unit, int]:
        random = self.random
        if random.random() < 0.5:
            return {}
        unit = random.choice((Unit.GPU, Unit.CPU, Unit.MONEY))
        return {unit: random.randint(1, 60) * SCALE[unit]}

    def grant(self, now: int) -> c.CreateGrant:
        random = self.random
        unit = random.choice((Unit.MONEY, Unit.MONEY, Unit.GPU, Unit.CPU, Unit.MEMORY, Unit.INPUT_TOKENS))
        life = random.choice((0, 0, HOUR_NS, 30 * HOUR_NS))
        return c.CreateGrant(
            None,
            random.choice(ACCOUNTS),
            unit,
            random.randint(1, 400) * SCALE[unit],
            random.choice((10, 100, 100)),
            random.choice((0, now, now + HOUR_NS)) if life == 0 else now,
            now + life if life else 0,
        )

    # --- what they ask ------------------------------------------------------------------------------------------------

    def ask(self, now: int) -> c.Command:
        """One random command."""
        random = self.random
        kind = random.choices(
            (
                self.submit,
                self.submit_graph,
                self.control,
                self.update,
                self.hold,
                self.use_hold,
                self.operate,
                self.tend,
                self.share,
            ),
            (40, 12, 12, 5, 8, 14, 5, 8, 4),
        )[0]
        return kind(now)

    def authority(self) -> Authority | None:
        """Mostly one that the hub has confirmed; sometimes one that it never saw, or forgot in a crash."""
        known = [token for token in self.tokens if token.root in self.registered]
        return self.random.choice(known if known and self.random.random() < 0.95 else self.tokens)

    def spec(self, now: int) -> JobSpec:
        random = self.random
        shape = random.choice(
            (
                Shape(1_000, 512),
                Shape(500, 256),
                Shape(2_000, 1_024, gpus=1),
                Shape(1_000, 1_024, gpus=2, gpu_models=random.choice(((), ("a100",)))),
                Shape(1_000, 512, gpus=1, gpu_milli=random.choice((250, 333, 500))),
                Shape(1_000, 512, members=random.randint(2, 4)),
                Shape(2_000, 1_024, gpus=1, members=2, storage_mb=1_000),
                Shape(64_000, 512),
            )
        )
        return JobSpec(
            random.choice(("train", "fit", "eval")),
            shape,
            random.choice((60_000, 600_000, 3_600_000, 86_400_000)),
            priority=random.choice((1, 100, 1_000)),
            queue=random.choice((*("default",) * 8, *QUEUES)),
            retries=random.choice((0, 0, 1, 3)),
            budget=random.choice((None, None, None, 10**9)),
            begin_at=random.choice((0, 0, 0, now + 600_000 * NS_PER_MS)),
        )

    def submit(self, now: int) -> c.Submit:
        random = self.random
        jobs: list[JobRequest] = []
        for _ in range(random.choice((1, 1, 1, 3, 8))):
            dependencies: tuple[Dependency, ...] = ()
            if self.jobs and random.random() < 0.2:
                dependencies = (Dependency(random.choice(tuple(When)), job=self._job()),)
            array = None
            if random.random() < 0.15:
                array = Array(tuple(range(random.randint(1, 5))), random.choice((0, 0, 2)))
            jobs.append(JobRequest(self.spec(now), "", array, dependencies, random.random() < 0.08))
        key = key_at(random, now) if random.random() < 0.8 else ""
        return c.Submit(self.authority(), tuple(jobs), random.random() < 0.5, False, key)

    def submit_graph(self, now: int) -> c.Submit:
        """A layered DAG through files and refs; now and then one with a cycle."""
        random = self.random
        jobs: list[JobRequest] = []
        for index in range(random.randint(2, 6)):
            inputs = tuple(f"f{k}" for k in range(index) if random.random() < 0.5)
            if random.random() < 0.04:
                inputs = (*inputs, f"f{index + 1}")
            needs = (
                (Dependency(random.choice(tuple(When)), ref="r0"),) if index and random.random() < 0.3 else ()
            )
            spec = self.spec(now)
            spec = JobSpec(spec.name, spec.shape, spec.time_limit_ms, inputs=inputs, outputs=(f"f{index}",))
            array = Array((0, 1, 2)) if random.random() < 0.1 else None
            jobs.append(JobRequest(spec, f"r{index}", array, needs))
        return c.Submit(self.authority(), tuple(jobs), True, False, key_at(random, now))

    def _job(self) -> int:
        random = self.random
        return (
            random.choice(self.jobs[-30:])
            if self.jobs and random.random() < 0.95
            else random.randint(0, 10_000)
        )

    def control(self, now: int) -> c.Command:
        verb = self.random.choice(("cancel", "cancel", "hold", "release", "release", "requeue"))
        authority = self.authority() if self.random.random() < 0.4 else None
        count = self.random.choice((1, 1, 3))
        return c.ControlJobs(authority, verb, tuple(self._job() for _ in range(count)))

    def update(self, now: int) -> c.Command:
        random = self.random
        limit = random.choice((None, 60_000, 7_200_000, -1))
        return c.UpdateJob(None, self._job(), limit, random.choice((None, 5, 2_000)))

    def hold(self, now: int) -> c.Command:
        random = self.random
        unit = random.choice((Unit.MONEY, Unit.MONEY, Unit.INPUT_TOKENS, Unit.GPU))
        amount = random.randint(0, 40) * SCALE[unit]
        life = random.choice((60_000, 3_600_000, 10**12)) * NS_PER_MS
        authority = random.choice((None, self.authority()))
        account = authority.account if authority else random.choice(ACCOUNTS)
        holder = random.choice(("", "gateway-1", "edge-7"))
        return c.PlaceHold(authority, account, {unit: amount}, now + life, holder, key=key_at(random, now))

    def use_hold(self, now: int) -> c.Command:
        random = self.random
        hold = random.choice(self.holds[-10:]) if self.holds else random.randint(1, 50)
        unit = random.choice((Unit.MONEY, Unit.MONEY, Unit.INPUT_TOKENS, Unit.GPU))
        used = {unit: random.randint(0, 42) * SCALE[unit] + random.choice((0, 1))}
        return random.choice(
            (
                c.DrawHold(None, hold, used),
                c.DrawHold(None, hold, used),
                c.SettleHold(None, hold, used),
                c.VoidHold(None, hold),
                c.ExtendHold(None, hold, used, random.choice((None, now + HOUR_NS)), key_at(random, now)),
            )
        )

    def operate(self, now: int) -> c.Command:
        random = self.random
        verb = random.choice(("cordon", "uncordon", "uncordon", "drain", "remove"))
        return c.ControlNode(None, f"node-{random.randint(0, 5)}", verb)

    def tend(self, now: int) -> c.Command:
        """Grants, tokens, accounts and prices."""
        random = self.random
        grant = random.choice(self.grants) if self.grants else 1
        money = random.randint(-20, 50) * SCALE[Unit.MONEY]
        token = random.choice(self.tokens)
        return random.choice(
            (
                self.grant(now),
                c.AdjustGrant(
                    None, grant, money, random.choice((None, 1, 500)), random.choice((None, now + HOUR_NS))
                ),
                c.EndGrant(None, grant),
                c.Refund(None, grant, random.randint(1, 5) * SCALE[Unit.MONEY] // 4),
                self.token(random.choice(ACCOUNTS), now),
                c.RegisterToken(None, msgspec.structs.replace(token, blocks=token.blocks[:1])),
                c.SetTokenState(
                    None, random.choice(self.tokens).root, random.choice(("suspend", "resume", "revoke"))
                ),
                c.RevokeBlock(
                    None, random.choice(self.tokens).root, random.choice(self.tokens).blocks[-1].block
                ),
                c.SetAccountState(
                    None, random.choice(ACCOUNTS), random.choice(("suspend", "resume", "resume"))
                ),
                c.SetPrices(
                    None, PriceBook(now, random.randint(1, 9) * 10**9, gpu_models={"h100": 9 * 10**9})
                ),
            )
        )

    def rush(self, now: int) -> list[c.Command]:
        """Many submits at once of which each fits alone: the sum of what is admitted must fit as well."""
        random = self.random
        tokens = [self.authority() for _ in range(random.randint(1, 2))]
        specs = [self.spec(now) for _ in range(random.randint(1, 3))]
        keyed = random.random() < 0.4
        return [
            c.Submit(
                random.choice(tokens),
                (JobRequest(random.choice(specs)),),
                True,
                False,
                key_at(random, now) if keyed else "",
            )
            for _ in range(random.randint(5, 40))
        ]
