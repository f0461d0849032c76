"""What the clients send: targets, bodies, keys, amounts, instants; and which token goes where."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.credentials import Context, CredentialStore
from mintyard.domain.errors import InvalidAmount, InvalidSpec, NotFound
from mintyard.domain.units import Unit
from mintyard.sdk.address import DEFAULT_URL, address, check_url, is_local
from mintyard.sdk.narrowing import life_seconds, milli, restrictions
from mintyard.sdk.request import amount, amounts, get, instant, new_key, post, segment, target
from mintyard.sdk.submission import jobs_of, milliseconds
from mintyard.wire.jobs import Job, job_from
from mintyard.wire.launch import Launch
from mintyard.wire.pages import Change
from mintyard.wire.submissions import UpdateJob

ROOT = Path(__file__).parents[2]


def test_query_leaves_out_what_is_not_given() -> None:
    request = get(
        "/jobs", dict, state=("held", "pending"), name="", job=None, limit=0, dry_run=True, cursor="a b/ü"
    )
    assert request.target == "/api/v1/jobs?state=held%2Cpending&limit=0&dry_run=true&cursor=a+b%2F%C3%BC"
    assert (request.key, request.body) == ("", None)


def test_body_holds_only_what_is_said() -> None:
    request = post("/x", Change, UpdateJob(priority=0))
    assert request.body == b'{"priority":0}'
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", request.key)
    assert post("/x", Change, key="mine").key == "mine"


@given(st.text(min_size=1, max_size=40))
def test_segment_is_one_segment(text: str) -> None:
    if text in (".", "..") or (not text.isprintable() and any(0xD800 <= ord(c) <= 0xDFFF for c in text)):
        with pytest.raises(InvalidSpec):
            segment(text)
        return
    made = segment(text)
    assert unquote(made) == text
    assert not set(made) & set("/?# ")


def test_segment_refuses_half_a_character_and_nothing() -> None:
    for text in ("", "\ud800"):
        with pytest.raises(InvalidSpec):
            segment(text)


@given(st.integers(0, 2**47), st.integers(-1_000, 1_000))
def test_keys_carry_their_instant(ms: int, offset_ms: int) -> None:
    ms += 10_000
    key = new_key(lambda: ms * 1_000_000 + 999_999, offset_ms)
    assert int(key.replace("-", "")[:12], 16) == ms + offset_ms
    assert new_key() != new_key()


@given(st.decimals(0, 10**12, places=9) | st.integers(0, 2**62))
def test_amounts_are_plain_and_exact(value: Decimal | int) -> None:
    text = amount(value)
    assert Decimal(text) == value
    assert "e" not in text.lower()


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), Decimal("NaN"), True, None, [], object(), "-5", -5, "1e9", "", " 1", "٣"],
)
def test_what_is_no_amount(value: object) -> None:
    with pytest.raises(InvalidAmount):
        amount(value)  # pyright: ignore[reportArgumentType]


def test_amounts_by_unit() -> None:
    assert amounts({"money": 1.5, Unit.GPU: "2"}) == {Unit.MONEY: "1.5", Unit.GPU: "2"}
    assert amount(1e-9) == "0.000000001"
    with pytest.raises(InvalidSpec, match="apples"):
        amounts({"apples": 1})


def test_instants() -> None:
    assert instant(datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))) == "2030-01-31T12:00:00Z"
    assert instant("2030-01-31T12:00:00Z") == "2030-01-31T12:00:00Z"
    assert instant("") is None
    with pytest.raises(InvalidSpec):
        instant(datetime(2030, 1, 1))
    assert target("/x", {"since": datetime(2030, 1, 1, tzinfo=UTC)}).endswith(
        "since=2030-01-01T00%3A00%3A00Z"
    )


@pytest.mark.parametrize(
    ("given_", "ms"),
    [("30m", 1_800_000), ("00:00:02", 2_000), (90, 90_000), (0.5, 500), (timedelta(hours=1), 3_600_000)],
)
def test_time_limits(given_: str | float | timedelta, ms: int) -> None:
    assert milliseconds(given_, "time") == ms


@pytest.mark.parametrize("given_", ["", "never", 0, -1, True, float("nan"), float("inf"), 10**12, [1]])
def test_no_time_limits(given_: object) -> None:
    with pytest.raises(InvalidSpec):
        milliseconds(given_, "time")  # pyright: ignore[reportArgumentType]


# --- work -----------------------------------------------------------------------------------------------------------


def test_fields_mean_what_they_mean_in_a_file() -> None:
    fields = {
        "run": "python train.py", "gpus": 0.5, "memory": "2G", "time": "30m", "env": {"SEED": 7, "ON": True},
        "needs": [12, "afterany:13"], "array": "0-3%2", "labels": ["ssd"], "retries": 2, "hold": True, "budget": Decimal("1.50"),
    }  # fmt: skip
    (job,) = jobs_of(None, fields)
    assert (job.gpus, job.gpu_milli, job.memory_mib, job.time_limit_ms) == (1, 500, 2_048, 1_800_000)
    assert job.launch.env == {"SEED": "7", "ON": "true"}
    assert job.held is True
    assert job.budget == "1.50"
    assert job.array is not None
    assert job.array.throttle == 2
    assert [(edge.when.value, edge.job) for edge in job.dependencies] == [("afterok", 12), ("afterany", 13)]


def test_argv_is_a_list() -> None:
    assert jobs_of({"run": ["echo", "a b"]}, {})[0].launch.argv == ("echo", "a b")


@pytest.mark.parametrize(
    ("work", "fields", "names"),
    [
        (None, {}, "job"),
        (None, {"gpus": 1}, "run"),
        (None, {"run": "x", "gpu": 1}, "gpus"),
        (None, {"run": "x", "gpus": -1}, "gpus"),
        (None, {"run": "x", "gpus": float("nan")}, "nan"),
        (None, {"run": "x", "env": {"A": object()}}, "object"),
        (None, {"run": b"x"}, "bytes"),
        (None, {"run": "x", "env": {"A": {"B": {"C": {"D": {"E": 1}}}}}}, "dict"),
        (Job(launch=Launch(argv=("true",))), {"gpus": 1}, "gpus"),
        ("echo", {}, "str"),
        (7, {}, "int"),
        ([7], {}, "int"),
        ({"run": "x", "time": "-1"}, {}, "time"),
    ],
)  # fmt: skip
def test_bad_work_is_named(work: object, fields: dict[str, object], names: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        jobs_of(work, fields)  # pyright: ignore[reportArgumentType]
    assert names in str(caught.value)


def test_jobs_pass_through() -> None:
    job = job_from({"launch": {"argv": ["true"]}})
    assert jobs_of(job, {}) == [job]
    assert jobs_of([job, job], {}) == [job, job]
    assert len(jobs_of([job, {"run": "true"}], {})) == 2


# --- narrowing ------------------------------------------------------------------------------------------------------


def test_counts_in_thousandths() -> None:
    assert [milli(value, "gpus") for value in (2, "0.5", 0.25, None, Decimal("1.001"))] == [
        2_000,
        500,
        250,
        None,
        1_001,
    ]
    for bad in ("x", "", -1, 0.0001, True, float("nan"), float("inf"), 10**20, "1e400"):
        with pytest.raises(InvalidSpec):
            milli(bad, "gpus")  # pyright: ignore[reportArgumentType]


def test_lives() -> None:
    assert [life_seconds(life) for life in ("12h", 60, timedelta(days=1))] == [43_200, 60, 86_400]
    for bad in ("", "forever", 0, -1, True, float("nan"), 400 * 86_400):
        with pytest.raises(InvalidSpec):
            life_seconds(bad)  # pyright: ignore[reportArgumentType]


def test_restrictions_say_what_is_wrong() -> None:
    made = restrictions(role="job", life="1h", ceilings={"money": "1"}, gpus=2, memory="1G", now_ns=10**18)
    assert made.expires_at == 10**18 + 3_600 * 10**9
    assert made.caps.gpus_milli == 2_000
    assert made.ceilings == {Unit.MONEY: 10**9}
    for bad in (
        {"role": "king"},
        {"scopes": ["fly"]},
        {"role": "job", "scopes": []},
        {"life": "1h", "expires_at": "2030-01-01T00:00:00Z"},
    ):
        with pytest.raises(InvalidSpec):
            restrictions(**bad)


# --- address --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "ftp://h",
        "http://",
        "http://u:p@h",
        "http://h?q=1",
        "http://h#f",
        "http://h:99999",
        "http://[::1",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(InvalidSpec):
        check_url(url)


def test_local_hubs() -> None:
    assert all(is_local(url) for url in ("http://localhost:1", "http://127.0.0.9", "http://[::1]:8"))
    assert not any(is_local(url) for url in ("http://h", "http://10.0.0.1"))


def test_which_token_goes_where(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, {})
    assert address(environment={}, store=store) == address(DEFAULT_URL, environment={}, store=store)
    store.save("far", Context("https://far.example", "far-token"))
    store.save("near", Context("http://127.0.0.1:8080", "near-token"))

    def found(
        url: str | None = None, token: str | None = None, context: str = "", **environment: str
    ) -> tuple[str, str]:
        made = address(url, token, context, environment, CredentialStore(tmp_path, environment))
        assert "-token" not in repr(made)
        return made.url, made.token

    near = ("http://127.0.0.1:8080", "near-token")
    assert found() == near
    assert found("http://localhost:8080/") == ("http://localhost:8080", "near-token")
    assert found("https://far.example") == ("https://far.example", "far-token")
    assert found("https://evil.example") == ("https://evil.example", "")
    assert found(context="far") == ("https://far.example", "far-token")
    assert found(MINTYARD_HUB="https://evil.example") == ("https://evil.example", "")
    assert found(MINTYARD_HUB="https://far.example") == ("https://far.example", "far-token")
    assert found(MINTYARD_TOKEN="own", MINTYARD_HUB="https://h.example") == ("https://h.example", "own")
    assert found("https://evil.example", MINTYARD_TOKEN="own", MINTYARD_HUB="https://h.example") == (
        "https://evil.example",
        "",
    )
    assert found("https://new.example", MINTYARD_TOKEN="own") == ("https://new.example", "own")
    assert found("https://new.example", "given") == ("https://new.example", "given")
    assert found(token="given") == ("http://127.0.0.1:8080", "given")
    with pytest.raises(NotFound):
        found(context="nowhere")


# --- the two clients ------------------------------------------------------------------------------------------------


def test_the_synchronous_client_is_made_from_the_other(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from make_sync_sdk import SDK, make
    finally:
        sys.path.pop(0)
    make(tmp_path)
    for path in (SDK / "sync").glob("*.py"):
        assert (tmp_path / path.name).read_text() == path.read_text(), (
            f"run scripts/make_sync_sdk.py: {path.name}"
        )
    assert {path.name for path in tmp_path.glob("*.py")} == {
        path.name for path in (SDK / "sync").glob("*.py")
    }
