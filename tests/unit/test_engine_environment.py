"""Environments, file name patterns and orders of the local engine: pure, so tested without a process."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.adapters.engines.cores import Cores
from mintyard.adapters.engines.environment import environments, expand_pattern, inherited
from mintyard.adapters.engines.inventory import declared_nodes, machine_name, machine_node
from mintyard.adapters.engines.orders import Unstartable, supervisor_spec
from mintyard.agent.logs import parts_of
from mintyard.domain.errors import InvalidRequest
from mintyard.ports.engine import MemberPlacement, StartOrder
from mintyard.wire.launch import Launch, encode_launch

NODES = {node.node: node for node in declared_nodes([{"name": "n", "gpus": 4, "count": 3}])}


def order_of(launch: Launch, *members: MemberPlacement, **fields: object) -> StartOrder:
    placed = members or (MemberPlacement("n0", (1, 3)),)
    order = StartOrder(
        12, 2, "train", "acme/ann", placed, 3_500, 2_048, 1_000, 60_000, 5_000, encode_launch(launch)
    )
    return msgspec.structs.replace(order, **fields)


def spec_of(order: StartOrder) -> dict[str, object]:
    return supervisor_spec(order, NODES, {"PATH": "/bin"}, [[]] * len(order.members))


def test_only_a_few_variables_are_inherited() -> None:
    environ = {"PATH": "/p", "HOME": "/h", "SECRET": "s", "LD_PRELOAD": "x", "TZ": "UTC"}
    assert inherited(environ) == {"PATH": "/p", "HOME": "/h", "TZ": "UTC"}
    assert inherited({})["PATH"].startswith("/usr/local/sbin")


def test_slurms_names_come_only_on_request() -> None:
    plain = environments(order_of(Launch(argv=("x",))), Launch(argv=("x",)), {})
    assert not [name for name in plain[0] if name.startswith("SLURM")]


def test_slurms_names_of_an_array_task() -> None:
    launch = Launch(argv=("x",), slurm_environment=True, workdir="/data")
    order = order_of(launch, array_job=10, array_index=4, array_indices=(2, 4, 6))
    [env] = environments(order, launch, {})
    expected = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NAME": "train",
        "SLURM_ARRAY_JOB_ID": "10",
        "SLURM_ARRAY_TASK_ID": "4",
        "SLURM_ARRAY_TASK_MIN": "2",
        "SLURM_ARRAY_TASK_MAX": "6",
        "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_STEP": "2",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_CPUS_PER_TASK": "3",
        "SLURM_JOB_NODELIST": "n0",
        "SLURM_SUBMIT_DIR": "/data",
        "SLURM_JOB_GPUS": "1,3",
        "SLURM_RESTART_COUNT": "1",
    }
    assert {name: env[name] for name in expected} == expected
    assert (env["CUDA_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"], env["ASCEND_RT_VISIBLE_DEVICES"]) == (
        "1,3",
    ) * 3


def test_a_job_without_gpus_sees_none_and_cannot_ask_for_them() -> None:
    launch = Launch(argv=("x",), env={"CUDA_VISIBLE_DEVICES": "0,1", "MINTYARD_TOKEN": "forged"})
    [env] = environments(order_of(launch, MemberPlacement("n0"), token="real"), launch, {})
    assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"], env["MINTYARD_TOKEN"]) == (
        "",
        "void",
        "real",
    )
    assert "RANK" not in env


def test_ranks_of_a_gang_that_is_spread_unevenly() -> None:
    launch = Launch(argv=("x",), slurm_environment=True)
    members = [MemberPlacement(node) for node in ("n1", "n0", "n1", "n1", "n2")]
    found = environments(order_of(launch, *members), launch, {})
    names = (
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "WORLD_SIZE",
        "SLURM_PROCID",
        "SLURM_LOCALID",
    )
    assert [" ".join(env[name] for name in names) for env in found] == [
        "0 0 3 0 5 0 0",
        "1 0 1 1 5 1 0",
        "2 1 3 0 5 2 1",
        "3 2 3 0 5 3 2",
        "4 0 1 2 5 4 0",
    ]
    assert found[0]["SLURM_TASKS_PER_NODE"] == "3,1,1"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("slurm-%j.out", "slurm-12.out"),
        ("%A_%a", "10_4"),
        ("%x.%N", "train.n0"),
        ("100%%", "100%"),
        ("%%j", "%j"),
        ("%5j-%3a", "00012-004"),
        ("%5x", "train"),
        ("%q %", "%q %"),
        ("%99j", "0000000012"),
    ],
)
def test_patterns(pattern: str, expected: str) -> None:
    assert expand_pattern(pattern, order_of(Launch(), array_job=10, array_index=4), "n0") == expected


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=20))
def test_a_pattern_is_refused_or_stays_within_the_folder(pattern: str, name: str, node: str) -> None:
    expanded = expand_pattern(pattern, order_of(Launch(), name=name), node)
    assert expanded.count("/") == pattern.count("/"), "a value adds no folder"
    try:
        parts = parts_of(expanded)
    except ValueError:
        return
    assert parts
    assert not {"", ".", ".."} & set(parts)
    assert not any("/" in part or "\0" in part for part in parts)


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.lists(st.text(max_size=5), max_size=3),
)
def test_any_environment_and_arguments_are_executable_or_refused(
    env: dict[str, str], argv: list[str]
) -> None:
    try:
        spec = spec_of(order_of(Launch(argv=tuple(argv), env=env)))
    except Unstartable:
        bad_name = any("=" in name or not name for name in env)
        nul = "\0" in "".join([*argv, *env, *env.values()])
        assert not argv or not argv[0] or nul or bad_name
        return
    assert spec["argv"] == argv
    assert all(name and "=" not in name and "\0" not in name + value for name, value in env.items())


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (order_of(Launch(argv=("x",)), MemberPlacement("n9")), "no node n9"),
        (order_of(Launch(argv=("x",)), MemberPlacement("n0", (4,))), "4 GPUs"),
        (order_of(Launch(argv=("x",)), MemberPlacement("n0", (-1,))), "4 GPUs"),
        (order_of(Launch(argv=("x",)), members=()), "0 members"),
        (order_of(Launch(argv=("x",)), payload=b"\xff"), "payload is no launch"),
        (order_of(Launch(argv=("x",)), payload=b""), "payload is no launch"),
        (order_of(Launch(argv=("x",)), token="a\0b"), "NUL"),
        (order_of(Launch(argv=("x",), stdout="a/../../b")), "does not name a file"),
        (order_of(Launch(argv=("x",), stderr="%x/"), name=".."), "does not name a file"),
    ],
)
def test_orders_that_can_never_start(order: StartOrder, text: str) -> None:
    with pytest.raises(Unstartable, match=re.escape(text)):
        spec_of(order)


def test_hostile_limits_are_brought_into_range() -> None:
    spec = spec_of(order_of(Launch(argv=("x",)), memory_mib=-5, time_limit_ms=-1, grace_ms=2**62))
    assert (spec["memory_mib"], spec["time_limit_ms"], spec["grace_ms"]) == (0, 0, 3_600_000)


# --- cores and inventory ------------------------------------------------------------------------------------------------


def test_cores_go_to_the_least_loaded() -> None:
    cores = Cores(range(4))
    assert cores.take("a", 1_000, 1) == [[0]]
    assert cores.take("b", 1_500, 1) == [[1, 2]]
    assert cores.take("c", 500, 2) == [[3], [3]], "half a core leaves room on the same one"
    assert cores.take("d", 4_000, 1) == [[]], "all cores: no binding"
    cores.release("a")
    assert cores.take("e", 100, 1) == [[0]]
    cores.adopt("f", [[0, 17]])
    cores.adopt("f", [[0]])
    assert cores.load() == {0: 1_100, 1: 750, 2: 750, 3: 1_000}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-10, 9_000), st.integers(1, 4)), max_size=30),
    st.integers(1, 8),
)
def test_released_cores_carry_nothing(steps: list[tuple[int, int, int]], number: int) -> None:
    cores = Cores(range(number))
    for key, cpus_milli, members in steps:
        for chosen in cores.take(str(key), cpus_milli, members):
            assert len(set(chosen)) == len(chosen) < max(number, 1) or not chosen
    for key in range(10):
        cores.release(str(key))
        cores.release(str(key))
    assert set(cores.load().values()) == {0}


def test_this_machine_as_a_node() -> None:
    node = machine_node(["zone=a"])
    assert node.node == machine_name()
    assert node.cpus_milli >= 1_000
    assert node.memory_mib > 64
    assert (node.virtual, node.labels) == (False, ("zone=a",))


@pytest.mark.parametrize(
    "options",
    [
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "gpus": -1}],
        [{"name": "a", "cores": 2}],
        [{"name": "../a"}],
        [{"name": "a", "count": 0}],
        [{"name": "a", "count": 10**9}],
        [{"name": "a", "memory_mib": 2**63}],
        [{"name": "a", "gpus": float("nan")}],
    ],
)
def test_bad_node_declarations_are_refused(options: list[dict[str, object]]) -> None:
    with pytest.raises(InvalidRequest):
        declared_nodes(options)
