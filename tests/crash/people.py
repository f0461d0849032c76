"""People who use a hub while it is being killed: each is a thread with its own connection, key for each request, and memory.

What the hub acknowledged is written down at once, with the key; a request whose answer was lost is sent again with the same
key until there is an answer. Anything else than an answer that this person must expect is a fault.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.crash.evidence import script
from tests.crash.live_hub import LiveHub, new_key

from mintyard.credentials import KeySet, Restrictions, narrow
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit

AGAIN = frozenset({502, 503, 504})
"""The hub can't answer now: the same request is sent again."""
PATIENCE_S = 120.0
CEILING_NANO = 5_000_000
"""What each person's narrowed token may pay for in all: a few jobs at a time, while they hold more than they will cost."""
MAX_UNENDED = 60
"""So many acknowledged jobs may be waiting or running; then people wait, so that the machine is not what is tested."""


@dataclass
class Acknowledged:
    """A job that the hub said it had taken."""

    job: int
    seq: int
    tasks: int
    key: str
    path: str
    body: dict[str, Any]
    place: int
    """Its line in a batch."""
    token: str


@dataclass
class HandHold:
    """A hold placed by hand, as its owner remembers it; amounts in nano-units of money."""

    hold: int
    account: str
    amount: int
    drawn: int = 0
    used: int | None = None
    """What it was settled on; None: it was left to expire."""


@dataclass
class Memory:
    """What all people know together. Lists only grow."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    jobs: list[Acknowledged] = field(default_factory=list)
    holds: list[HandHold] = field(default_factory=list)
    cancelled: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Jobs whose cancellation was acknowledged, with the key and the token."""
    requeued: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    repeats: int = 0
    refused: int = 0
    ended: set[int] = field(default_factory=set)
    seq: int = 0
    """The latest record that anybody was told of: readers must see at least that."""

    def fault(self, why: str) -> None:
        with self.lock:
            self.faults.append(why)

    @property
    def unended(self) -> int:
        return sum(max(1, one.tasks) for one in self.jobs) - len(self.ended)


def send(
    client: httpx.Client,
    method: str,
    path: str,
    body: Any = None,
    key: str = "",
    patience_s: float = PATIENCE_S,
    heard: Callable[[], None] = lambda: None,
) -> httpx.Response:
    """The hub's answer, however often it must be asked. `heard` is told of every try that got none."""
    headers = {"idempotency-key": key} if key else {}
    deadline = time.monotonic() + patience_s
    pause_s = 0.05
    while True:
        try:
            answer = client.request(method, path, json=body, headers=headers)
            if answer.status_code not in AGAIN:
                return answer
            why = f"{answer.status_code} {answer.text[:300]}"
        except httpx.TransportError as error:
            why = repr(error)
        heard()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{method} {path}: no answer within {patience_s:.0f} s; last {why}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.4)


class Person(threading.Thread):
    """One user of `account`. `pause_s` bounds how busy they are."""

    def __init__(
        self,
        hub: LiveHub,
        memory: Memory,
        number: int,
        account: str,
        token: str,
        keys: KeySet,
        folder: Path,
        seed: int,
        pause_s: tuple[float, float] = (0.05, 0.35),
    ) -> None:
        super().__init__(name=f"person-{number}", daemon=True)
        self.memory, self.account, self.token, self.keys, self.folder = memory, account, token, keys, folder
        self.ledger = folder / "evidence"
        self.rng = random.Random(seed)
        self.stopping = threading.Event()
        self.pause_s = pause_s
        self.client = hub.client(token)
        self.slim = narrow(
            token,
            keys,
            Restrictions(
                scopes=frozenset({Scope.JOB_SUBMIT, Scope.JOB_READ}), ceilings={Unit.MONEY: CEILING_NANO}
            ),
        )
        self.slim_client = hub.client(self.slim)
        self.files = 0

    def run(self) -> None:
        ways: list[tuple[int, Callable[[], None]]] = [
            (10, self.submit_one),
            (2, self.submit_array),
            (2, self.submit_dag),
            (2, self.submit_batch),
            (3, self.submit_narrowed),
            (3, self.cancel_one),
            (1, self.requeue_one),
            (2, self.repeat_one),
            (3, self.hold_by_hand),
        ]
        weights, actions = zip(*ways, strict=True)
        try:
            while not self.stopping.is_set():
                if self.memory.unended < MAX_UNENDED:
                    self.rng.choices(actions, weights)[0]()
                self.stopping.wait(self.rng.uniform(*self.pause_s))
        except Exception as error:
            self.memory.fault(f"{self.name}: {error!r}")
        finally:
            self.client.close()
            self.slim_client.close()

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str = "",
        *,
        refusals: tuple[str, ...] = (),
        client: httpx.Client | None = None,
    ) -> Any:
        """The body of a good answer; None for a refusal that is one of `refusals`. Others are faults."""
        answer = send(client or self.client, method, path, body, key, heard=self._heard)
        if answer.is_success:
            with self.memory.lock:
                self.memory.seq = max(self.memory.seq, answer.json()["seq"])
            return answer.json()
        code = (
            answer.json().get("code", "") if "json" in answer.headers.get("content-type", "") else answer.text
        )
        if code in refusals:
            with self.memory.lock:
                self.memory.refused += 1
        else:
            self.memory.fault(
                f"{method} {path}: {answer.status_code} {answer.text[:600]} to {str(body)[:300]}"
            )
        return None

    def _heard(self) -> None:
        with self.memory.lock:
            self.memory.repeats += 1

    def _job(self, sleep_s: float | None = None, **fields: Any) -> dict[str, Any]:
        sleep_s = self.rng.choice((0.05, 0.2, 0.5, 1.0, 3.0)) if sleep_s is None else sleep_s
        reads, writes = fields.pop("reads", ()), fields.pop("writes", ())
        command = script(self.ledger, sleep_s, reads, writes)
        share = {"gpus": 1, "gpu_milli": 500} if self.rng.random() < 0.25 else {}
        return {
            "launch": {"script": command},
            "cpus_milli": self.rng.choice((250, 500, 1_000)),
            "memory_mib": 64,
            "time_limit_ms": 60_000,
            **share,
            **fields,
        }

    def _submit(self, path: str, body: Any, client: httpx.Client | None = None, **options: Any) -> list[int]:
        """Submit and write down what was acknowledged; the jobs' numbers."""
        key = new_key()
        answer = self.ask("POST", path, body, key, client=client, **options)
        if answer is None:
            return []
        lines = answer["lines"] if path == "/jobs/batch" else [{"ticket": answer}]
        token = self.slim if client is self.slim_client else self.token
        taken = [
            Acknowledged(ticket["job"], ticket["seq"], ticket["tasks"], key, path, body, place, token)
            for place, line in enumerate(lines)
            if (ticket := line.get("ticket"))
        ]
        with self.memory.lock:
            self.memory.jobs += taken
        return [one.job for one in taken]

    # --- what people do ---------------------------------------------------------------------------------------------

    def submit_one(self) -> None:
        self._submit("/jobs", self._job())

    def submit_array(self) -> None:
        body = self._job(
            0.2, array={"indices": list(range(self.rng.randint(2, 5))), "throttle": self.rng.choice((0, 2))}
        )
        self._submit("/jobs", body)

    def submit_dag(self) -> None:
        """A diamond; edges by files on one side, by name on the other."""
        self.files += 1
        base = self.folder / f"{self.name}-{self.files}"
        start, left, right = (base.with_suffix(f".{name}") for name in ("start", "left", "right"))
        jobs = [
            self._job(0.1, ref="start", writes=(start,), outputs=[str(start)]),
            self._job(
                0.3, ref="left", reads=(start,), writes=(left,), inputs=[str(start)], outputs=[str(left)]
            ),
            self._job(0.1, ref="right", reads=(start,), writes=(right,), dependencies=[{"ref": "start"}]),
            self._job(
                0.05,
                reads=(left, right),
                inputs=[str(left)],
                dependencies=[{"ref": "right", "when": "afterok"}],
            ),
        ]
        self._submit("/jobs/batch", {"jobs": jobs})

    def submit_batch(self) -> None:
        jobs = [self._job(0.05) for _ in range(self.rng.randint(2, 6))]
        self._submit("/jobs/batch", {"jobs": jobs, "atomic": False})

    def submit_narrowed(self) -> None:
        """With the token that may pay for a few jobs at a time: now and then it says no."""
        self._submit("/jobs", self._job(), self.slim_client, refusals=("ceiling_reached",))

    def _mine(self) -> Acknowledged | None:
        """One of the latest jobs."""
        with self.memory.lock:
            recent = self.memory.jobs[-30:]
        own = [one for one in recent if one.token in (self.token, self.slim)]
        return self.rng.choice(own) if own else None

    def cancel_one(self) -> None:
        one = self._mine()
        if one is None:
            return
        key = new_key()
        path = f"/jobs/{one.job}/cancel"
        if self.ask("POST", path, {"reason": "no longer needed"}, key, refusals=("not_found", "wrong_state")):
            with self.memory.lock:
                self.memory.cancelled[one.job] = key, self.token

    def requeue_one(self) -> None:
        one = self._mine()
        if one is None:
            return
        with self.memory.lock:
            self.memory.requeued.update(range(one.job, one.job + one.tasks + 1))
        refusals = ("not_found", "wrong_state")
        self.ask("POST", f"/jobs/{one.job}/requeue", {}, new_key(), refusals=refusals)

    def repeat_one(self) -> None:
        """An old request once more, with its key: it must have the same jobs for an answer."""
        one = self._mine()
        if one is not None:
            check_repeat(self.memory, self.client if one.token == self.token else self.slim_client, one)

    def hold_by_hand(self) -> None:
        """Place a hold or an escrow, and use it, or let it expire."""
        amount, fate = self.rng.randint(1, 10**9), self.rng.choice(("settle", "void", "draw", "expire"))
        life_ms = 3_000 if fate == "expire" else 3_600_000
        body = {
            "amounts": {"money": _decimal(amount)},
            "life_ms": life_ms,
            "holder": "" if fate == "settle" else "edge",
        }
        # Its life counts from the key: after a long silence of the hub, three seconds are over before it hears of it.
        late = ("bad_time",) if fate == "expire" else ()
        answer = self.ask("POST", "/holds", body, new_key(), refusals=late)
        if answer is None:
            return
        held = HandHold(answer["ref"], self.account, amount)
        with self.memory.lock:
            self.memory.holds.append(held)
        path = f"/holds/{held.hold}"
        if fate in ("draw", "expire"):
            # A hold that lives three seconds may have ended before a hub that was killed hears of the draw.
            refusals = ("wrong_state", "not_found") if fate == "expire" else ()
            drawn = self.rng.randint(1, amount)
            if self.ask(
                "POST", f"{path}/draw", {"spent": {"money": _decimal(drawn)}}, new_key(), refusals=refusals
            ):
                held.drawn = drawn
        if fate == "expire":
            return
        used = self.rng.randint(held.drawn, amount) if fate != "void" else held.drawn
        verb, what = ("void", None) if fate == "void" else ("settle", {"used": {"money": _decimal(used)}})
        if self.ask("POST", f"{path}/{verb}", what, new_key()):
            held.used = used


def check_repeat(memory: Memory, client: httpx.Client, one: Acknowledged) -> None:
    """Send the request of `one` again: the same key gives the same job, whatever has happened since."""
    answer = send(client, "POST", one.path, one.body, one.key)
    told: Any = None
    with suppress(ValueError, KeyError, IndexError, TypeError):
        told = answer.json()
        told = told["lines"][one.place]["ticket"]["job"] if one.path == "/jobs/batch" else told["job"]
    if told != one.job:
        memory.fault(f"key {one.key}: job {one.job} at first, then {answer.status_code} {answer.text[:300]}")


def _decimal(nano: int) -> str:
    return f"{nano // 10**9}.{nano % 10**9:09d}"
