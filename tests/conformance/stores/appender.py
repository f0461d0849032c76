"""A process that appends, for the tests that kill it or let it lose its lease.

`python -m tests.conformance.stores.appender MODE URL HOLDER LIFE_MS`: one line out for each fact, flushed at once.
Modes: `stream` appends without end; `step` appends one record for each line on stdin; `contend` takes the lease, adds
a few records and gives it up, 8 times.
"""

from __future__ import annotations

import sys
import time

from tests.conformance.stores.backends import chain_on, open_by_scheme

from mintyard.domain.errors import Fenced, StoreUnavailable
from mintyard.ports.store import Lease, Record, Store

GIVE_UP_S = 30.0


def say(*words: object) -> None:
    print(*words, flush=True)


def take_lease(store: Store, holder: str, life_ms: int) -> Lease:
    end = time.monotonic() + GIVE_UP_S
    while time.monotonic() < end:
        try:
            lease = store.acquire(holder, life_ms)
        except StoreUnavailable:
            lease = None
        if lease is not None:
            return lease
        time.sleep(0.002)
    raise SystemExit("no lease")


def append_one(store: Store, lease: Lease, head: Record | None) -> Record | None:
    """The head after it, as far as this leader knows."""
    (record,) = chain_on(head, 1, lease.term, 500)
    try:
        say("ack", store.append(lease.term, [record]))
    except Fenced as error:
        say("fenced", error.params["term"], error.params["current"])
        return head
    return record


def contend(store: Store, holder: str, life_ms: int) -> None:
    for _ in range(8):
        lease = take_lease(store, holder, life_ms)
        head = store.head()
        for _ in range(3):
            head = append_one(store, lease, head)
        store.release(lease)


def main(mode: str, url: str, holder: str, life_ms: int) -> None:
    store = open_by_scheme(url)
    say("open")
    if mode == "contend":
        contend(store, holder, life_ms)
        return
    lease = take_lease(store, holder, life_ms)
    head = store.head()
    say("term", lease.term)
    if mode == "step":
        for _ in sys.stdin:
            head = append_one(store, lease, head)
        return
    while True:
        # Some batches and some large bodies, so that a kill finds transactions of several pages.
        records = chain_on(head, 1 + lease.term % 3, lease.term, 20_000)
        say("ack", store.append(lease.term, records))
        head = records[-1]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
