"""Trace readers: small files with every oddity of their format, junk, and the sample that the package ships."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mintyard.adapters.traces import read_nodes, read_openb, read_philly, read_swf
from mintyard.adapters.traces.rows import MAX_LINE_CHARS
from mintyard.adapters.traces.swf import machine_nodes
from mintyard.app.traces import open_trace, sample_trace, trace_formats
from mintyard.domain.errors import NotFound, Refused, TraceMalformed
from mintyard.domain.jobs.spec import Shape
from mintyard.ports.traces import UNKNOWN, TraceJob, TraceNode, shape_of

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
POD = "p{n},6000,12288,1,460,,LS,Running,{at},{end},{start}\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,32000,131072,0,\n"
SWF_HEADER = "; Version: 2.2\n; MaxNodes: 4\n; MaxProcs: 10\n; UnixStartTime: 843480031\n;\n"
SWF_JOB = "{n} {submit} 0 {run} {procs} -1 -1 {asked} {limit} {memory} {status} 7 3 1 2 -1 -1 -1\n"


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def swf_job(
    n: int = 1,
    submit: object = 0,
    run: object = 60,
    procs: object = 4,
    asked: object = 4,
    limit: object = 90,
    memory: object = -1,
    status: object = 1,
) -> str:
    return SWF_JOB.format(
        n=n, submit=submit, run=run, procs=procs, asked=asked, limit=limit, memory=memory, status=status
    )


# --- openb -----------------------------------------------------------------------------------------------------------


def test_openb(tmp_path: Path) -> None:
    rows = [
        "p0,12000,16384,1,1000,V100M32|V100M16|V100M32,LS,Running,10,110,30\n",
        "p1,6000,12288,1,460,,BE,Running,5,25,5\n",
        "p2,20000,65536,0,0,,LS,Succeeded,7,8.5,7\n",
        "p3,1000,1024,8,1000,,LS,Pending,1,101,\n",
        "p4,1000,1024,1,1000,,LS,Failed,9,3,4\n",
        "p5,1000,1024,1,1000,,LS,Running,11,,11\n",
    ]
    trace = read_openb(write(tmp_path, "pods.csv", PODS + "".join(rows)), write(tmp_path, "nodes.csv", NODES))
    assert trace.nodes == [TraceNode("n0", 64_000, 262_144, 2, "P100"), TraceNode("n1", 32_000, 131_072)]
    assert trace.jobs == [
        TraceJob("p3", 1_000, 100_000, 8, cpus_milli=1_000, memory_mib=1_024, queue="LS"),
        TraceJob("p1", 5_000, 20_000, 1, 460, cpus_milli=6_000, memory_mib=12_288, queue="BE"),
        TraceJob("p2", 7_000, 1_500, 0, cpus_milli=20_000, memory_mib=65_536, queue="LS"),
        TraceJob("p0", 10_000, 80_000, 1, 1_000, ("V100M32", "V100M16"), 12_000, 16_384, queue="LS"),
        TraceJob("p5", 11_000, UNKNOWN, 1, cpus_milli=1_000, memory_mib=1_024, queue="LS"),
    ]
    assert trace.skipped == {"ends before it starts": 1}
    assert trace.assumed == {"never scheduled, lived from creation to deletion": 1}


def test_openb_without_times(tmp_path: Path) -> None:
    trace = read_openb(
        write(tmp_path, "p.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,2,2,1000\np1,1,2,1,10\n")
    )
    assert [(job.submit_ms, job.run_ms, job.gpus) for job in trace.jobs] == [(0, UNKNOWN, 2), (0, UNKNOWN, 1)]
    assert trace.assumed == {"submitted at 0, run time unknown": 2}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("p,-1,1,0,0,,,,0,1,0", "cpu_milli"),
        ("p,nan,1,0,0,,,,0,1,0", "cpu_milli"),
        ("p,99999999999999999999,1,0,0,,,,0,1,0", "cpu_milli"),
        ("p,1,1,17,1000,,,,0,1,0", "num_gpu"),
        ("p,1,1,1,0,,,,0,1,0", "gpu_milli"),
        ("p,1,1,1,1001,,,,0,1,0", "gpu_milli"),
        ("p,1,1,2,500,,,,0,1,0", "single GPU"),
        ("p,1,1,1,500,,,,-5,1,0", "creation_time"),
        ("p,1,1,1,500,,,,NaN,1,0", "creation_time"),
        ("p,1,1,1,500,,,,1e300,1,0", "creation_time"),
        ("p,1,1,1,500,,,,inf,1,0", "creation_time"),
        ("p,1,1,1,500,,,,0,99999999999,0", "deletion_time"),
        ("p,1,1,1,500", "5 fields, the header has 11"),
        ("p,1,1,1,500,,,,0,1,0,7", "12 fields"),
        ('p,1,1,1,500,"x,,,,0,1,0', "not CSV"),
        ("p,١,1,0,0,,,,0,1,0", "cpu_milli"),
    ],
)
def test_openb_refuses(tmp_path: Path, row: str, why: str) -> None:
    path = write(tmp_path, "pods.csv", PODS + POD.format(n=0, at=0, end=9, start=0) + "\n" + row + "\n")
    with pytest.raises(TraceMalformed) as refusal:
        read_openb(path)
    assert refusal.value.params["line"] == 4
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "header lacks"),
        ("name,cpu_milli\n", "header lacks memory_mib"),
        (PODS.replace("qos", "name"), "twice"),
    ],
)
def test_openb_refuses_header(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TraceMalformed, match=why):
        read_openb(write(tmp_path, "pods.csv", text))


@pytest.mark.parametrize(
    "row",
    ["n0,1,1,0,\nn0,1,1,0,", ",1,1,0,", "n,0,1,0,", "n,1,0,0,", "n,1,1,-1,", "n,1,1,2000,", "n,1,inf,0,"],
)
def test_nodes_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(TraceMalformed):
        read_nodes(write(tmp_path, "nodes.csv", f"sn,cpu_milli,memory_mib,gpu,model\n{row}\n"))


# --- SWF -------------------------------------------------------------------------------------------------------------


def test_swf(tmp_path: Path) -> None:
    text = SWF_HEADER + "".join(
        [
            swf_job(1, submit=30, run=60, procs=4, limit=90, memory=1_536),
            swf_job(2, submit=10, run="7.5", procs=-1, asked=2, limit=-1),
            swf_job(3, run=0),
            swf_job(4, run=-1),
            swf_job(5, procs=-1, asked=-1),
            swf_job(6, procs=11),
            swf_job(7, status=2),
            swf_job(8, status=5, submit=40).strip() + " extra fields\n",
        ]
    )
    trace = read_swf(write(tmp_path, "log.swf", text))
    assert trace.jobs == [
        TraceJob("2", 10_000, 7_500, cpus_milli=2_000, procs=2, user="7", queue="2", tenant="3"),
        TraceJob(
            "1",
            30_000,
            60_000,
            cpus_milli=4_000,
            memory_mib=6,
            procs=4,
            requested_ms=90_000,
            user="7",
            queue="2",
            tenant="3",
        ),
        TraceJob(
            "8",
            40_000,
            60_000,
            cpus_milli=4_000,
            procs=4,
            requested_ms=90_000,
            user="7",
            queue="2",
            tenant="3",
        ),
    ]
    assert trace.skipped == {
        "no run time": 2,
        "no processors": 1,
        "larger than the machine": 1,
        "burst of another line's job": 1,
    }
    assert trace.assumed == {"requested instead of allocated processors": 1}
    assert [node.cpus_milli for node in trace.nodes] == [3_000, 3_000, 2_000, 2_000]
    assert trace.start_ns == 843_480_031 * 10**9


def test_swf_machine() -> None:
    assert machine_nodes({}) == []
    assert machine_nodes({"MaxProcs": -1, "MaxNodes": 0}) == []
    assert [node.name for node in machine_nodes({"MaxNodes": 11})] == [f"node-{n:02}" for n in range(11)]
    assert len(machine_nodes({"MaxProcs": 4, "MaxNodes": 9})) == 4
    assert sum(node.cpus_milli for node in machine_nodes({"MaxProcs": 9_216, "MaxNodes": 1})) == 9_216_000
    assert (
        sum(node.cpus_milli for node in machine_nodes({"MaxProcs": 93_312, "MaxNodes": 5_040})) == 93_312_000
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 2 3", "3 fields"),
        (swf_job(submit=-1), "submit"),
        (swf_job(submit="nan"), "submit"),
        (swf_job(run="inf"), "run"),
        (swf_job(run="-2"), "run"),
        (swf_job(run=10**12), "run"),
        (swf_job(procs=10**9), "procs"),
        (swf_job(procs="4.5"), "procs"),
        (swf_job(limit="x"), "requested time"),
        (swf_job(memory=2**63), "requested memory"),
    ],
)
def test_swf_refuses(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(TraceMalformed) as refusal:
        read_swf(write(tmp_path, "log.swf", SWF_HEADER + swf_job() + line.strip() + "\n"))
    assert refusal.value.params["line"] == 7
    assert why in str(refusal.value)


# --- Philly ----------------------------------------------------------------------------------------------------------


def test_philly(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,2951.5,8,1,6214e9\n2017-10-09 06:13:03,,1,,a\n2017-10-09 06:00:00,0,1,0,a\n"
    )
    trace = read_philly(write(tmp_path, "philly.csv", text), write(tmp_path, "nodes.csv", NODES))
    assert trace.jobs == [
        TraceJob("philly-2", 0, 2_951_500, 8, tenant="6214e9"),
        TraceJob("philly-1", 2_932_000, 66_000, 1, tenant="11cb48"),
    ]
    assert trace.skipped == {"no run time": 2}
    assert trace.start_ns == 1_507_529_583 * 10**9
    assert len(trace.nodes) == 2


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("yesterday,1,1,1,a", "timestamp"),
        (",1,1,1,a", "timestamp"),
        ("1950-01-01 00:00:00,1,1,1,a", "timestamp"),
        ("9999-01-01 00:00:00,1,1,1,a", "timestamp"),
        ("2017-10-09 07:01:55,nan,1,1,a", "duration"),
        ("2017-10-09 07:01:55,-1,1,1,a", "duration"),
        ("2017-10-09 07:01:55,1,-1,1,a", "num_gpus"),
        ("2017-10-09 07:01:55,1,1.5,1,a", "num_gpus"),
    ],
)
def test_philly_refuses(tmp_path: Path, row: str, why: str) -> None:
    with pytest.raises(TraceMalformed) as refusal:
        read_philly(write(tmp_path, "p.csv", f"timestamp,duration,num_gpus,gpu_time,cluster\n{row}\n"))
    assert refusal.value.params["line"] == 2
    assert why in str(refusal.value)


# --- any file --------------------------------------------------------------------------------------------------------


def test_formats_are_found_by_content(tmp_path: Path) -> None:
    assert [form.name for form in trace_formats()] == ["openb", "philly", "swf"]
    philly = "timestamp,duration,num_gpus\n2017-10-09 07:01:55,66.0,1\n"
    for text, name in (
        (PODS, "openb"),
        (SWF_HEADER + swf_job(), "swf"),
        (swf_job(), "swf"),
        (philly, "philly"),
    ):
        assert open_trace(write(tmp_path, "trace", text)).format == name
        assert open_trace(write(tmp_path, "zipped", gzip.compress(text.encode()))).format == name
        assert (
            open_trace(
                write(tmp_path, "bom", b"\xef\xbb\xbf\r\n" + text.replace("\n", "\r\n").encode())
            ).format
            == name
        )


def test_zipped_twin_is_found(tmp_path: Path) -> None:
    write(tmp_path, "pods.csv.gz", gzip.compress(PODS.encode(), mtime=0))
    assert open_trace(tmp_path / "pods.csv").jobs == []


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", NODES.encode(), b"\x00" * 100, b"1 2 3\n"])
def test_unknown_format(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(TraceMalformed, match="no known trace format"):
        open_trace(write(tmp_path, "x", content))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe" + "x".encode("utf-16-le"), "not UTF-8"),
        (gzip.compress(PODS.encode(), mtime=0)[:-9], "damaged gzip"),
        (b"\x1f\x8b" + b"junk" * 9, "damaged gzip"),
        (gzip.compress(b"x" * (MAX_LINE_CHARS + 1), mtime=0), "longer than"),
        (PODS.encode() + b"x" * (MAX_LINE_CHARS + 1), "longer than"),
    ],
    ids=["utf-16", "cut", "not gzip", "zipped line", "line"],
)
def test_damaged_file(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(TraceMalformed, match=why):
        list(open_trace(write(tmp_path, "x", content)).jobs)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_trace(tmp_path / "none.csv")
    with pytest.raises(NotFound):
        open_trace(tmp_path)
    with pytest.raises(NotFound):
        open_trace(write(tmp_path, "pods.csv", PODS), tmp_path / "none.csv")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=st.sampled_from([PODS, "timestamp,duration,num_gpus\n", SWF_HEADER, ""]),
    cells=st.lists(
        st.lists(st.text(max_size=6) | st.integers().map(str) | st.floats().map(str), max_size=18), max_size=4
    ),
    glue=st.sampled_from([",", " "]),
)
def test_junk_is_refused(tmp_path: Path, head: str, cells: list[list[str]], glue: str) -> None:
    text = head + "\n".join(glue.join(row) for row in cells)
    try:
        trace = open_trace(write(tmp_path, "junk", text.encode(errors="replace")))
    except Refused:
        return
    assert all(job.submit_ms >= 0 and job.run_ms >= UNKNOWN and job.gpus >= 0 for job in trace.jobs)


# --- shapes and the sample -------------------------------------------------------------------------------------------


def test_shape_adds_up() -> None:
    assert shape_of(TraceJob("a", 0, 1, gpus=16)) == Shape(1_000, 1, gpus=8, members=2)
    assert shape_of(TraceJob("a", 0, 1, gpus=10)) == Shape(1_000, 1, gpus=5, members=2)
    assert shape_of(TraceJob("a", 0, 1, gpus=11)) == Shape(1_000, 1, gpus=1, members=11)
    assert shape_of(TraceJob("a", 0, 1, gpus=1, gpu_milli=460, cpus_milli=6_000, memory_mib=7)) == Shape(
        6_000, 7, 1, 460
    )
    assert shape_of(TraceJob("a", 0, 1, procs=56, cpus_milli=56_000)) == Shape(1_000, 1, members=56)
    assert shape_of(TraceJob("a", 0, 1, procs=56, cpus_milli=56_000), cpus_milli_per_node=16_000) == Shape(
        14_000, 1, members=4
    )
    assert shape_of(TraceJob("a", 0, 1, cpus_milli=0, memory_mib=0)) == Shape(1, 1)
    with pytest.raises(ValueError, match="members"):
        shape_of(TraceJob("a", 0, 1, procs=4_099))


@given(st.integers(1, 512), st.integers(1, 16))
def test_shape_keeps_every_gpu(gpus: int, per_node: int) -> None:
    shape = shape_of(TraceJob("a", 0, 1, gpus=gpus), per_node)
    assert shape.members * shape.gpus == gpus
    assert shape.gpus <= per_node


def test_sample() -> None:
    """Figures as published for openb: 1,213 nodes, 6,212 GPUs, 8,152 pods."""
    trace = open_trace(*sample_trace())
    assert (len(trace.nodes), sum(node.gpus for node in trace.nodes), len(trace.jobs)) == (
        1_213,
        6_212,
        8_152,
    )
    assert trace.skipped == {}
    assert sum(trace.assumed.values()) == 897
    assert trace.jobs == sorted(trace.jobs, key=lambda job: job.submit_ms)
    assert len({job.name for job in trace.jobs}) == 8_152
    assert max(job.gpus for job in trace.jobs) == 8
    models = Counter(node.gpu_model for node in trace.nodes)
    assert {model for job in trace.jobs for model in job.gpu_models} <= set(models)
    assert all(shape_of(job).members == 1 for job in trace.jobs)


DATA = os.environ.get("MINTYARD_DATA", "")


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="MINTYARD_DATA names no folder with traces")
@pytest.mark.parametrize(
    ("path", "jobs", "skipped"),
    [
        ("openb/openb_pod_list_multigpu50.csv", 9_061, 0),
        ("swf/KTH-SP2-1996-2.1-cln_unfiltered.swf", 28_481, 8),
        ("swf/KTH-SP2_filtered.swf", 28_481, 0),
        ("swf/NASA-iPSC-1993-3.1-cln.swf", 18_066, 173),
        ("swf/lublin_256.swf", 10_000, 0),
        ("philly/philly_jobs_part1.csv", 72_198, 0),
    ],
)
def test_real_traces(path: str, jobs: int, skipped: int) -> None:
    trace = open_trace(Path(DATA) / path)
    assert (len(trace.jobs), sum(trace.skipped.values())) == (jobs, skipped)
