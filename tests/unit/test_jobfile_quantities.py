"""Quantities as people write them: what each text means, what is refused, and that formatting reads back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.domain import limits
from mintyard.domain.errors import InvalidSpec, Refused
from mintyard.domain.jobs.spec import When
from mintyard.wire import quantities as read
from mintyard.wire.instants import parse_begin
from mintyard.wire.jobs import Array, Dependency

MINUTE = 60_000
HOUR = 60 * MINUTE
JUNK = [
    "",
    " ",
    "-1",
    "+1",
    "nan",
    "NaN",
    "inf",
    "1e3",
    "0x10",
    "١",
    "1_000",
    "9" * 30,
    "1;2",
    "\0",
    "1" * 70_000,
]


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("30m", 30 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1.5h", 90 * MINUTE),
        ("90", 90 * MINUTE),
        ("90:30", 90 * MINUTE + 30_000),
        ("00:30:00", 30 * MINUTE),
        ("1:30:00", 90 * MINUTE),
        ("2-12", 60 * HOUR),
        ("2-12:30", 60 * HOUR + 30 * MINUTE),
        ("2-12:00:00", 60 * HOUR),
        ("0-00:00:01", 1_000),
        ("1d2h3m4s5ms", 26 * HOUR + 3 * MINUTE + 4_005),
        ("250ms", 250),
        ("2H", 2 * HOUR),
    ],
)
def test_duration(text: str, duration_ms: int) -> None:
    assert read.parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text", [*JUNK, "0", "0:00", "1:2:3:4", "1-", "-30m", "30 m", "m", "1.5", "0.0001ms", "367d", "UNLIMITED"]
)
def test_duration_refused(text: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        read.parse_duration(text, "time")
    assert refusal.value.params["field"] == "time"
    assert len(str(refusal.value)) < 300


def test_bare_grace_is_seconds() -> None:
    assert read.parse_duration("30", "grace", 0, limits.MAX_GRACE_MS, 1_000) == 30_000


@given(st.integers(1, limits.MAX_TIME_LIMIT_MS))
def test_duration_reads_back(duration_ms: int) -> None:
    assert read.parse_duration(read.format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("text", "memory_mib"),
    [
        ("16G", 16_384),
        ("512M", 512),
        ("1.5Ti", 1_572_864),
        ("4000", 4_000),
        ("1K", 1),
        ("1025K", 2),
        ("2GB", 2_048),
        ("2gib", 2_048),
    ],
)
def test_memory(text: str, memory_mib: int) -> None:
    assert read.parse_memory(text) == memory_mib


@pytest.mark.parametrize("text", [*JUNK, "0", "0G", "16X", "16iB", "16B", "G", "65T", "1 G", "-1G"])
def test_memory_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        read.parse_memory(text)


@pytest.mark.parametrize(
    ("text", "storage_mb"),
    [("500G", 500_000), ("1.5T", 1_500_000), ("1Ti", 1_099_512), ("7", 7), ("0", 0), ("1k", 1)],
)
def test_storage(text: str, storage_mb: int) -> None:
    assert read.parse_storage(text) == storage_mb


@pytest.mark.parametrize(("text", "cpus_milli"), [("2", 2_000), ("500m", 500), ("0.5", 500), ("1.25", 1_250)])
def test_cpus(text: str, cpus_milli: int) -> None:
    assert read.parse_cpus(text) == cpus_milli


@pytest.mark.parametrize("text", [*JUNK, "0", "0m", "0.0001", "4097", "m", "1.5m"])
def test_cpus_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        read.parse_cpus(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2", read.GpuRequest(2)),
        ("0", read.GpuRequest(0)),
        ("0.5", read.GpuRequest(1, 500)),
        ("1.0", read.GpuRequest(1)),
        ("a100", read.GpuRequest(1, 1_000, ("a100",))),
        ("a100:2", read.GpuRequest(2, 1_000, ("a100",))),
        ("a100|h100:0.25", read.GpuRequest(1, 250, ("a100", "h100"))),
        ("a100|a100:2", read.GpuRequest(2, 1_000, ("a100",))),
        ("4090:2", read.GpuRequest(2, 1_000, ("4090",))),
        ("a100:0", read.GpuRequest(0)),
    ],
)
def test_gpus(text: str, wanted: read.GpuRequest) -> None:
    assert read.parse_gpus(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5", "17", "a100:", ":2", "a100:b:2", "0.0001", "|", "a100|", "nan:1:1", "9" * 30, "a b"],
)
def test_gpus_refused(text: str) -> None:
    with pytest.raises(Refused):
        read.parse_gpus(text)


def test_gres() -> None:
    assert read.parse_gres("gpu:a100:2,license:x") == (read.GpuRequest(2, 1_000, ("a100",)), ("license:x",))
    assert read.parse_gres("gpu") == (read.GpuRequest(1), ())
    assert read.parse_gres("shard:3") == (read.GpuRequest(0), ("shard:3",))
    with pytest.raises(InvalidSpec):
        read.parse_gres("gpu:a100:1,gpu:h100:1")


@pytest.mark.parametrize("text", ["12.50", "0", "0.000000001"])
def test_budget(text: str) -> None:
    assert read.parse_budget(text) == text


@pytest.mark.parametrize("text", ["", "-1", "1e9", "nan", "inf", "0.0000000001", "9" * 40, "12,50"])
def test_budget_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        read.parse_budget(text)


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("0-9%2", Array(tuple(range(10)), 2)),
        ("1,3,5-9:2", Array((1, 3, 5, 7, 9))),
        ("7", Array((7,))),
        ("3,1,2,2", Array((1, 2, 3))),
    ],
)
def test_array(text: str, array: Array) -> None:
    assert read.parse_array(text) == array


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "-1",
        "9-0",
        "0-9:0",
        "0-9%0",
        "0-9%x",
        "1,,2",
        "0-99999999999",
        "0-10000",
        "0-9%99999",
        "4294967296",
        "1-2-3",
        "0-2147483647:1",
        "1" * 70_000,
    ],
)
def test_array_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        read.parse_array(text)


@given(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=200), st.integers(0, 100))
def test_array_reads_back(indices: set[int], throttle: int) -> None:
    array = Array(tuple(sorted(indices)), throttle)
    assert read.parse_array(read.format_array(array)) == array


def test_dependencies() -> None:
    assert read.parse_dependencies("afterok:12:13,afterany:14,afternotok:prepare,after:9") == (
        Dependency(When.OK, 12),
        Dependency(When.OK, 13),
        Dependency(When.ANY, 14),
        Dependency(When.NOT_OK, ref="prepare"),
        Dependency(When.STARTED, 9),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "afterok",
        "afterok:",
        "afterok:0",
        "singleton",
        "afterok:1?afterok:2",
        "aftercorr:1",
        "afterok:a b",
        "afterok:1,",
        "after:1+5 5",
    ],
)
def test_dependencies_refused(text: str) -> None:
    with pytest.raises(Refused):
        read.parse_dependencies(text)


@given(st.text(max_size=40))
def test_junk_is_refused_or_bounded(text: str) -> None:
    """No text makes a reader fail in another way than by a refusal, nor gives a number outside its bounds."""
    bounds = {
        read.parse_duration: limits.MAX_TIME_LIMIT_MS,
        read.parse_memory: limits.MAX_MEMORY_MIB,
        read.parse_storage: limits.MAX_STORAGE_MB,
        read.parse_cpus: limits.MAX_CPUS_MILLI,
    }
    for reader, highest in bounds.items():
        try:
            assert 0 <= reader(text) <= highest
        except InvalidSpec:
            pass
    for reader in (
        read.parse_gpus,
        read.parse_gres,
        read.parse_array,
        read.parse_dependencies,
        read.parse_budget,
    ):
        try:
            reader(text)
        except Refused:
            pass
    try:
        parse_begin(text, 0)
    except InvalidSpec:
        pass


def test_begin() -> None:
    now = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    assert parse_begin("now", now) == ""
    assert parse_begin("now+90", now) == "2030-01-01T00:01:30Z"
    assert parse_begin("now+1hour", now) == "2030-01-01T01:00:00Z"
    assert parse_begin("now+2days", now) == "2030-01-03T00:00:00Z"
    assert parse_begin("2030-06-01T12:00:00+02:00", now) == "2030-06-01T10:00:00Z"
    local = datetime(2030, 6, 1, 12).astimezone(UTC).isoformat().replace("+00:00", "Z")
    assert parse_begin("2030-06-01T12:00:00", now) == local


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "now-1",
        "now+1fortnight",
        "now+999999999weeks",
        "0001-01-01",
        "9999-12-31T00:00:00Z",
        "16:00",
    ],
)
def test_begin_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_begin(text, 0)
