"""Jobs and holds as columns: equal content gives equal bytes, what rows share is one object again, nothing is cut off."""

from __future__ import annotations

import msgspec
import pytest

from mintyard.domain.errors import InvariantBroken
from mintyard.domain.events import Line
from mintyard.domain.jobs.spec import JobSpec, Shape
from mintyard.domain.ledger.book import Account, Hold
from mintyard.domain.snapshot_columns import (
    PackedHolds,
    PackedJobs,
    numbers_of,
    pack_holds,
    pack_jobs,
    unpack_holds,
    unpack_jobs,
)
from mintyard.domain.state import Job, Mandate, SpecEntry
from mintyard.domain.units import Unit

SPECS = {2**40: SpecEntry(2**40, JobSpec("a", Shape(1_000, 64)), 0)}
MANDATES = {7: Mandate(7, Account("root", None), (), "digest")}
NOW = 2**62


def jobs() -> list[Job]:
    spec, mandate = SPECS[2**40], MANDATES[7]
    plain = [Job(number, spec, mandate, "pending", number + 50, submitted_at=NOW) for number in (1, 2, 2**61)]
    rich = Job(
        2**62, spec, mandate, "stopping", 2**62 + 1, 2_000_000, 5, 9_999, 3, NOW, NOW + 1, NOW + 2, NOW + 3,
        ((3, 2**63), (4, 1)), {"boot": 2**40}, 1, 2, 2**63 + 5, "why not",
    )  # fmt: skip
    return [*plain, rich]


def lines() -> tuple[Line, ...]:
    return (Line(Unit.MONEY, 3, 2**62, (1, 2**62 - 1, 2, 1)),)


def holds() -> list[Hold]:
    plain = [
        Hold(number, "a/b", lines(), ("block", "money", 5), number, 1, 0, 0, "", "") for number in (51, 52)
    ]
    rich = Hold(
        2**62, "root", lines(), (), 0, 0, 3, NOW, "who", "note", {"money": 2**62}, (1, 2), {"block:money": 4}
    )
    return [*plain, rich]


def content(job: Job) -> tuple[object, ...]:
    return tuple(
        value.id if isinstance(value, (SpecEntry, Mandate)) else value
        for value in msgspec.structs.astuple(job)
    )


def unpacked(packed: PackedJobs, hold_ids: list[int]) -> list[Job]:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=PackedJobs)
    return unpack_jobs(again, numbers_of(again), hold_ids, SPECS, MANDATES)


def test_jobs_come_back_whole() -> None:
    back = unpacked(pack_jobs(jobs()), [51, 52])
    assert [content(job) for job in back] == [content(job) for job in jobs()]


def test_holds_come_back_whole_and_share_their_parts() -> None:
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack_holds(holds())), type=PackedHolds)
    job_ids = [51, 52]
    back = unpack_holds(packed, numbers_of(packed), job_ids)
    assert back == holds()
    assert back[0].job is job_ids[0]
    assert back[0].lines is back[1].lines is back[2].lines
    assert back[0].ceilings is back[1].ceilings


def test_equal_content_in_other_objects_gives_equal_bytes() -> None:
    shared = holds()
    for hold in shared:
        hold.lines = shared[0].lines
    assert pack_holds(shared) == pack_holds(holds())
    assert pack_jobs(jobs()) == pack_jobs(jobs())


def test_rows_of_one_tick_share_their_instant_and_a_job_its_number_with_its_hold() -> None:
    known = [51, 52]
    back = unpacked(pack_jobs(jobs()), known)
    assert back[0].submitted_at is back[1].submitted_at is back[2].submitted_at
    assert back[0].hold is known[0]
    assert back[1].hold is known[1]


def test_nothing_is_nothing() -> None:
    assert unpacked(pack_jobs([]), []) == []
    assert unpack_holds(pack_holds([]), [], []) == []


def test_columns_of_different_length_are_refused() -> None:
    packed = pack_jobs(jobs())
    with pytest.raises(InvariantBroken):
        unpacked(msgspec.structs.replace(packed, hold=packed.hold[:-8]), [])
    some = pack_holds(holds())
    with pytest.raises(InvariantBroken):
        unpack_holds(msgspec.structs.replace(some, line=some.line[:-4]), numbers_of(some), [])
