"""Load over HTTP from a process of its own: whole requests encoded before, on keep-alive connections over loopback.

One request at a time on a connection. Open loop: Poisson arrivals take a free connection or wait for one, and latency
counts from the arrival that was due. Closed loop: each connection sends again as soon as it has its answer. What is
counted is acknowledged jobs, which the hub answers only when they are durable.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import uvloop

_LOOK_S = 0.001
PATIENCE_S = 20.0
"""How long answers are awaited after the last arrival."""


class Plan(msgspec.Struct, kw_only=True):
    """One run. `rate` 0: closed loop; `jobs` are in each request; what is sent in the first `warm_s` is not counted. `due`: one
    arrival for each request, in s from the start and in order, instead of a rate."""

    host: str
    port: int
    requests: list[bytes]
    jobs: int = 1
    connections: int = 32
    rate: float = 0.0
    seconds: float = 5.0
    warm_s: float = 1.0
    seed: int = 1
    due: list[float] = []


class Result(msgspec.Struct, kw_only=True):
    """Of the window after warming: jobs acknowledged a second, latencies in ms, and requests by status (0: cut off)."""

    jobs_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    answered: int
    unanswered: int
    statuses: dict[int, int]
    late_ms: float
    """The most that the load process itself came late to an arrival."""
    cpu_s: float
    acknowledged: int
    """Jobs in all, warming too."""


def encode_request(path: str, token: str, body: Any, host: str) -> bytes:
    """An HTTP/1.1 POST of `body` as JSON."""
    content = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def parse_answer(data: bytes | bytearray) -> tuple[int, int]:
    """Status and length of the first whole answer in `data`; length 0 while it isn't whole. ValueError for what is none."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0, 0
    if data[:9] != b"HTTP/1.1 ":
        raise ValueError(f"no answer: {bytes(data[:40])!r}")
    head = bytes(data[:end]).lower()
    at = head.index(b"\r\ncontent-length:") + 17
    stop = head.find(b"\r\n", at)
    length = int(head[at : stop if stop >= 0 else end])
    whole = end + 4 + length
    return int(data[9:12]), whole if len(data) >= whole else 0


def summarize(
    due: Sequence[float],
    answered: Sequence[float],
    statuses: Sequence[int],
    jobs: int,
    begin: float,
    end: float,
) -> tuple[float, list[float], int, dict[int, int]]:
    """Jobs acknowledged a second by answers within [begin, end); latency quantiles .5 .99 .999 in ms and count of the
    requests due then, however late their answer; all statuses of these. An answer at 0 never came; times in s."""
    at, came, status = np.asarray(due, float), np.asarray(answered, float), np.asarray(statuses, int)
    accepted = (status >= 200) & (status < 300)
    rate = jobs * int(np.sum(accepted & (came >= begin) & (came < end))) / (end - begin)
    window = (at >= begin) & (at < end)
    good = window & accepted
    times = (came[good] - at[good]) * 1_000
    quantiles = np.quantile(times, (0.5, 0.99, 0.999)).tolist() if len(times) else [float("nan")] * 3
    return rate, quantiles, int(np.sum(window & (came == 0))), dict(Counter(status[window].tolist()))


class Run:
    """All requests of one run by number: when due, when answered, with which status."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.due: list[float] = []
        self.answered: list[float] = []
        self.statuses: list[int] = []
        self.free: deque[Connection] = deque()
        self.waiting: deque[int] = deque()
        self.open = 0
        self.stopped = False
        self.late_s = 0.0
        self.shown: set[int] = set()
        self.idle = asyncio.Event()

    def add(self, due: float) -> int:
        self.due.append(due)
        self.answered.append(0.0)
        self.statuses.append(0)
        self.open += 1
        return len(self.due) - 1

    def request(self, number: int) -> bytes:
        requests = self.plan.requests
        return requests[number % len(requests)]

    def done(self, connection: Connection, number: int, status: int) -> None:
        """An answer, or status 0 for a connection that was cut."""
        now = time.monotonic()
        if status:
            self.answered[number], self.statuses[number] = now, status
        self.open -= 1
        if self.waiting:
            connection.send(self.waiting.popleft())
        elif not self.plan.rate and not self.plan.due and not self.stopped:
            connection.send(self.add(now))
        else:
            self.free.append(connection)
            if self.stopped and not self.open:
                self.idle.set()

    def arrive(self, due: float) -> None:
        number = self.add(due)
        if self.free:
            self.free.popleft().send(number)
        else:
            self.waiting.append(number)


class Connection(asyncio.Protocol):
    def __init__(self, run: Run) -> None:
        self._run = run
        self._number = -1
        self._buffer = bytearray()
        self.closed: asyncio.Future[None] = run.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, number: int) -> None:
        self._number = number
        self._transport.write(self._run.request(number))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        status, length = parse_answer(self._buffer)
        if length:
            if status >= 400 and status not in self._run.shown:
                self._run.shown.add(status)
                print(bytes(self._buffer[:1_000]).decode(errors="replace"), file=sys.stderr, flush=True)
            self._buffer.clear()
            self._run.done(self, self._number, status)

    def close(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        self._run.stopped = True
        self._run.idle.set()


async def run(plan: Plan) -> Result:
    began_cpu = time.process_time()
    one = Run(plan)
    loop = one.loop
    connections: list[Connection] = []
    for _ in range(plan.connections):
        _, connection = await loop.create_connection(lambda: Connection(one), plan.host, plan.port)
        connections.append(connection)
    one.free.extend(connections)
    begin = time.monotonic() + plan.warm_s
    end = begin + plan.seconds
    if plan.rate or plan.due:
        await _open_loop(one, plan, begin - plan.warm_s)
    else:
        for connection in [one.free.popleft() for _ in range(plan.connections)]:
            connection.send(one.add(time.monotonic()))
        await asyncio.sleep(end - time.monotonic())
    one.stopped = True
    if one.open:
        try:
            await asyncio.wait_for(one.idle.wait(), PATIENCE_S)
        except TimeoutError:
            print("not all requests were answered", file=sys.stderr)
    for connection in connections:
        connection.close()
    await asyncio.gather(*(connection.closed for connection in connections))
    rate, quantiles, unanswered, statuses = summarize(
        one.due, one.answered, one.statuses, plan.jobs, begin, end
    )
    accepted = sum(200 <= status < 300 for status in one.statuses)
    return Result(
        jobs_per_s=rate, p50_ms=quantiles[0], p99_ms=quantiles[1], p999_ms=quantiles[2], answered=sum(statuses.values()),
        unanswered=unanswered, statuses=statuses, late_ms=one.late_s * 1_000, cpu_s=time.process_time() - began_cpu,
        acknowledged=accepted * plan.jobs,
    )  # fmt: skip


async def _open_loop(one: Run, plan: Plan, start: float) -> None:
    if plan.due:
        due = start + np.array(plan.due)
    else:
        count = round(plan.rate * (plan.warm_s + plan.seconds))
        due = start + np.cumsum(np.random.default_rng(plan.seed).exponential(1 / plan.rate, count))
    count = len(due)
    at = 0
    while at < count and not one.stopped:
        now = time.monotonic()
        while at < count and due[at] <= now:
            one.late_s = max(one.late_s, now - float(due[at]))
            one.arrive(float(due[at]))
            at += 1
        if at < count:
            await asyncio.sleep(max(float(due[at]) - time.monotonic(), _LOOK_S))


def main() -> None:
    """A plan as MessagePack on stdin (it holds tokens), the result as JSON on stdout."""
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Plan)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(plan))) + b"\n")


if __name__ == "__main__":
    main()
