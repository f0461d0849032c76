"""Orders of the local engine: a StartOrder turned into what its supervisor executes, or the reason why not.

Pure but for the user's name. The supervisor has only the standard library, so everything is decided here and it gets
plain values.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mintyard.adapters.engines.environment import environments, expand_pattern
from mintyard.agent.logs import parts_of
from mintyard.agent.records import key_of
from mintyard.domain.jobs.reports import NodeSeen
from mintyard.domain.limits import MAX_GANG_MEMBERS, MAX_GRACE_MS
from mintyard.ports.engine import StartOrder
from mintyard.wire.launch import Launch, decode_launch


class Unstartable(Exception):
    """The order can never start; its text says why."""


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def supervisor_spec(
    order: StartOrder, nodes: Mapping[str, NodeSeen], base: Mapping[str, str], cores: Sequence[list[int]]
) -> dict[str, Any]:
    """What `agent.supervisor` takes; `cores` has one list per member. Raises `Unstartable`."""
    launch = _launch_of(order)
    _check_placement(order, nodes)
    members: list[dict[str, Any]] = []
    for rank, env in enumerate(environments(order, launch, base)):
        node = order.members[rank].node
        files = {
            stream: _log_name(stream, getattr(launch, stream), order, node) for stream in ("stdout", "stderr")
        }
        members.append({"env": env, "cores": cores[rank], **files})
    return {
        "key": key_of(order.job, order.attempt),
        "job": order.job,
        "attempt": order.attempt,
        "argv": list(launch.argv),
        "script": launch.script,
        "arguments": list(launch.arguments),
        "workdir": launch.workdir,
        "slurm": launch.slurm_environment,
        "memory_mib": max(order.memory_mib, 0),
        "time_limit_ms": max(order.time_limit_ms, 0),
        "grace_ms": min(max(order.grace_ms, 0), MAX_GRACE_MS),
        "members": members,
    }


def _launch_of(order: StartOrder) -> Launch:
    try:
        launch = decode_launch(order.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unstartable(f"the payload is no launch: {error}") from error
    if bool(launch.argv) == bool(launch.script):
        raise Unstartable("exactly one of argv and script must be given")
    if launch.argv and not launch.argv[0]:
        raise Unstartable("argv names no program")
    texts = [
        *launch.argv,
        *launch.arguments,
        launch.workdir,
        *launch.env,
        *launch.env.values(),
        order.token,
        order.name,
    ]
    if any("\0" in text for text in texts):
        raise Unstartable("a NUL character in arguments, environment or folder")
    if any(not name or "=" in name for name in launch.env):
        raise Unstartable("an environment variable's name is empty or contains '='")
    return launch


def _check_placement(order: StartOrder, nodes: Mapping[str, NodeSeen]) -> None:
    if not 1 <= len(order.members) <= MAX_GANG_MEMBERS:
        raise Unstartable(f"{len(order.members)} members; 1 to {MAX_GANG_MEMBERS} are possible")
    for member in order.members:
        node = nodes.get(member.node)
        if node is None:
            raise Unstartable(f"there is no node {member.node} here")
        if any(not 0 <= gpu < node.gpus for gpu in member.gpus):
            raise Unstartable(
                f"node {member.node} has {node.gpus} GPUs, not those of index {list(member.gpus)}"
            )


def _log_name(stream: str, pattern: str, order: StartOrder, node: str) -> str:
    if not pattern:
        return ""
    name = expand_pattern(pattern, order, node, user_name())
    try:
        parts_of(name)
    except ValueError as error:
        raise Unstartable(f"{stream}: {error}") from error
    return name
