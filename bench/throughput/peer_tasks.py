"""No-op tasks through one other system: `python peer_tasks.py NAME COUNT [FOLDER]` prints `{"per_s": ..., "version": ...}`.

Runs under whatever Python has that system installed, so it imports nothing of the product. Each peer gets as many workers as
the machine has processors, its own defaults otherwise, and the time from the first submit to the last result counts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CPUS = os.cpu_count() or 1


def noop(_: int = 0) -> None:
    """The task."""


def ray_tasks(count: int, folder: Path) -> dict[str, object]:
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(noop)
    ray.get([task.remote(at) for at in range(100)])
    began = time.perf_counter()
    ray.get([task.remote(at) for at in range(count)])
    took = time.perf_counter() - began
    ray.shutdown()
    return {"per_s": count / took, "version": f"Ray {ray.__version__}"}


def dask_tasks(count: int, folder: Path) -> dict[str, object]:
    import distributed

    with (
        distributed.LocalCluster(n_workers=CPUS, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.gather(client.map(noop, range(100), pure=False))
        began = time.perf_counter()
        client.gather(client.map(noop, range(count), pure=False))
        took = time.perf_counter() - began
    return {"per_s": count / took, "version": f"Dask distributed {distributed.__version__}"}


def celery_tasks(count: int, folder: Path) -> dict[str, object]:
    """Redis as broker and for results, appending to disk once a second."""
    import celery

    port = free_port()
    redis = subprocess.Popen(
        [
            "redis-server",
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(folder),
            "--appendonly",
            "yes",
        ],
        stdout=subprocess.DEVNULL,
    )
    url = f"redis://127.0.0.1:{port}/0"
    (folder / "peer_app.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('peer_app', broker={url!r}, backend={url!r})\n"
        "@app.task(name='noop')\ndef noop(_=0):\n    return None\n"
    )
    wait_for(lambda: reachable(port), "Redis")
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "peer_app", "worker", "-c", str(CPUS), "-l", "error", "--without-gossip"],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        app = celery.Celery("peer_app", broker=url, backend=url)
        task = app.signature("noop")
        celery.group(task.clone((at,)) for at in range(100)).apply_async().get(timeout=60)
        began = time.perf_counter()
        celery.group(task.clone((at,)) for at in range(count)).apply_async().get(timeout=300)
        took = time.perf_counter() - began
    finally:
        for process in (worker, redis):
            process.terminate()
            process.wait()
    return {"per_s": count / took, "version": f"Celery {celery.__version__} with Redis"}


def slurm_tasks(count: int, folder: Path) -> dict[str, object]:
    """An array of `true` on one node of a cluster of its own, without accounting; munge for authentication. As root."""
    processes = start_slurm(folder)
    try:
        environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

        def run(*words: str) -> str:
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            return done.stdout.strip()

        wait_for(lambda: run("sinfo", "-h", "-o", "%T") == "idle", "Slurm")
        began = time.perf_counter()
        run("sbatch", "-Q", "-n1", "--mem=10", "-o", "/dev/null", f"--array=1-{count}", "--wrap", "true")
        wait_for(lambda: run("squeue", "-h") == "", "the end of the array", 600)
        took = time.perf_counter() - began
        return {"per_s": count / took, "version": run("sinfo", "-V").replace("slurm-wlm", "Slurm")}
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def start_slurm(folder: Path) -> list[subprocess.Popen[bytes]]:
    host = socket.gethostname().split(".")[0]
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for name in ("state", "spool", "log"):
        (folder / name).mkdir()
    munge = folder / "munge.sock"
    (folder / "slurm.conf").write_text(
        f"""ClusterName=peer
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
MaxJobCount=100000
MaxArraySize=10001
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,max_rpc_cnt=0,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
DebugFlags=NO_CONF_HASH
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=8 RealMemory=16384 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    processes = [
        subprocess.Popen(
            ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}",
             f"--pid-file={folder}/munged.pid", f"--log-file={folder}/log/munged.log", f"--seed-file={folder}/munged.seed"],
            stderr=subprocess.DEVNULL,
        )
    ]  # fmt: skip
    wait_for(munge.exists, "munged")
    processes += [
        subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for words in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"])
    ]
    return processes


PEERS: dict[str, Callable[[int, Path], dict[str, object]]] = {
    "ray": ray_tasks,
    "dask": dask_tasks,
    "celery": celery_tasks,
    "slurm": slurm_tasks,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(done: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.05)


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        print(json.dumps(PEERS[name](count, Path(folder))))


if __name__ == "__main__":
    main()
