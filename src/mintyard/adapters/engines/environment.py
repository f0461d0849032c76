"""Environment of a member: what its process sees of the job, in our names, torchrun's, Slurm's and the devices'.

Pure: a StartOrder, its Launch and the hub's few inherited variables in, a dictionary out. Nothing of the hub's
environment beyond `INHERITED` may enter, and the job can't override what is set here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mintyard.ports.engine import StartOrder
from mintyard.wire.launch import Launch

INHERITED: Final = ("PATH", "HOME", "LANG", "TZ", "USER", "SHELL", "TMPDIR")
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NO_ARRAY_INDEX: Final = 4_294_967_294
"""What sbatch puts for %a outside an array."""
_PATTERN: Final = re.compile(r"%(\d{0,2})([jJAaxNu%])")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": DEFAULT_PATH} | {name: environ[name] for name in INHERITED if name in environ}


def expand_pattern(pattern: str, order: StartOrder, node: str, user: str = "") -> str:
    """sbatch's file name patterns, `%4j` padding included; a value can't add a folder of its own."""
    values = {
        "j": str(order.job),
        "J": str(order.job),
        "A": str(order.array_job or order.job),
        "a": str(order.array_index if order.array_job else _NO_ARRAY_INDEX),
        "x": order.name,
        "N": node,
        "u": user,
    }

    def value(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        text = values[match[2]].replace("/", "_").replace("\0", "_")
        padded = text.zfill(min(int(match[1]), 10)) if match[1] and match[2] in "jJAa" else text
        return "_" * len(padded) if padded in (".", "..") else padded

    return _PATTERN.sub(value, pattern)


def environments(order: StartOrder, launch: Launch, base: Mapping[str, str]) -> list[dict[str, str]]:
    """One environment per member. MASTER_PORT is added by the supervisor, which finds a free one."""
    nodes = list(dict.fromkeys(member.node for member in order.members))
    on_node = {node: [m.node for m in order.members].count(node) for node in nodes}
    seen: dict[str, int] = {}
    found: list[dict[str, str]] = []
    for rank, member in enumerate(order.members):
        local_rank = seen.get(member.node, 0)
        seen[member.node] = local_rank + 1
        env = {**base, **launch.env, **_ours(order, member.node, rank), **_devices(member.gpus)}
        if len(order.members) > 1:
            env |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(order.members)),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(on_node[member.node]),
                "NODE_RANK": str(nodes.index(member.node)),
                "GROUP_RANK": str(nodes.index(member.node)),
                "MASTER_ADDR": "127.0.0.1",
            }
        if launch.slurm_environment:
            env |= _slurm(order, launch, nodes, rank, local_rank)
        found.append(env)
    return found


def _ours(order: StartOrder, node: str, rank: int) -> dict[str, str]:
    env = {
        "MINTYARD_JOB": str(order.job),
        "MINTYARD_ATTEMPT": str(order.attempt),
        "MINTYARD_NAME": order.name,
        "MINTYARD_ACCOUNT": order.account,
        "MINTYARD_NODE": node,
        "MINTYARD_RANK": str(rank),
        "MINTYARD_WORLD_SIZE": str(len(order.members)),
        "MINTYARD_CPUS_MILLI": str(order.cpus_milli),
        "MINTYARD_MEMORY_MIB": str(order.memory_mib),
    }
    if order.array_job:
        env |= {"MINTYARD_ARRAY_JOB": str(order.array_job), "MINTYARD_ARRAY_INDEX": str(order.array_index)}
    if order.token:
        env["MINTYARD_TOKEN"] = order.token
    return env


def _devices(gpus: tuple[int, ...]) -> dict[str, str]:
    """A job without GPUs sees none: the empty list hides them, which for NVIDIA's container runtime is `void`."""
    listed = ",".join(map(str, gpus))
    return {
        "CUDA_VISIBLE_DEVICES": listed,
        "HIP_VISIBLE_DEVICES": listed,
        "NVIDIA_VISIBLE_DEVICES": listed or "void",
        "ASCEND_RT_VISIBLE_DEVICES": listed,
    }


def _slurm(order: StartOrder, launch: Launch, nodes: list[str], rank: int, local_rank: int) -> dict[str, str]:
    """https://slurm.schedmd.com/sbatch.html, output environment variables (feature U9)."""
    member = order.members[rank]
    cpus = max(1, order.cpus_milli // 1_000)
    per_node = [[m.node for m in order.members].count(node) for node in nodes]
    env = {
        "SLURM_JOB_ID": order.job,
        "SLURM_JOBID": order.job,
        "SLURM_JOB_NAME": order.name,
        "SLURM_JOB_ACCOUNT": order.account,
        "SLURM_NTASKS": len(order.members),
        "SLURM_NPROCS": len(order.members),
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local_rank,
        "SLURM_NODEID": nodes.index(member.node),
        "SLURM_CPUS_PER_TASK": cpus,
        "SLURM_CPUS_ON_NODE": cpus * per_node[nodes.index(member.node)],
        "SLURM_MEM_PER_NODE": order.memory_mib * per_node[nodes.index(member.node)],
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_NODELIST": ",".join(nodes),
        "SLURM_JOB_NUM_NODES": len(nodes),
        "SLURM_NNODES": len(nodes),
        "SLURM_TASKS_PER_NODE": ",".join(map(str, per_node)),
        "SLURMD_NODENAME": member.node,
        "SLURM_RESTART_COUNT": order.attempt - 1,
        "SLURM_GPUS_ON_NODE": len(member.gpus),
    }
    if launch.workdir:
        env["SLURM_SUBMIT_DIR"] = launch.workdir
    if member.gpus:
        env["SLURM_JOB_GPUS"] = ",".join(map(str, member.gpus))
    if order.array_job:
        indices = order.array_indices or (order.array_index,)
        env |= {
            "SLURM_ARRAY_JOB_ID": order.array_job,
            "SLURM_ARRAY_TASK_ID": order.array_index,
            "SLURM_ARRAY_TASK_MIN": min(indices),
            "SLURM_ARRAY_TASK_MAX": max(indices),
            "SLURM_ARRAY_TASK_COUNT": len(indices),
            "SLURM_ARRAY_TASK_STEP": indices[1] - indices[0] if len(indices) > 1 else 1,
        }
    return {name: str(value) for name, value in env.items()}
