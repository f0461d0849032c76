"""Dependencies within one request: edges from matching inputs to outputs and from explicit ones, and their order (S8).

An array's output pattern with `%a` stands for one file per task. A job that reads one of these files waits for that task; one
that reads the pattern itself, or a glob such as `fit-*.json`, waits for the whole array; an array that reads the pattern of
another with the same indices waits task by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from mintyard.domain.errors import DependencyCycle, InvalidSpec
from mintyard.domain.jobs.spec import JobRequest, When

INDEX = "%a"


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """Job request `source` must do `when` first. `task` is the position within the source's array: -1 all of it, -2 each
    task of the target waits for the task with its own position."""

    source: int
    when: When
    task: int = -1


EACH = -2


def resolve(jobs: Sequence[JobRequest]) -> list[list[Edge]]:
    """For each request the edges to others of `jobs`. Errors: `InvalidSpec` for an unknown or doubled `ref`, two writers of
    one file; `DependencyCycle` with the cycle shown."""
    edges: list[list[Edge]] = [[] for _ in jobs]
    _explicit(jobs, edges)
    _by_files(jobs, edges)
    unique = [list(dict.fromkeys(of)) for of in edges]
    cycle = find_cycle([[edge.source for edge in of] for of in unique])
    if cycle:
        raise DependencyCycle(
            cycle=" -> ".join(jobs[at].ref or jobs[at].spec.name or f"#{at}" for at in cycle)
        )
    return unique


def _explicit(jobs: Sequence[JobRequest], edges: list[list[Edge]]) -> None:
    refs: dict[str, int] = {}
    for at, job in enumerate(jobs):
        if job.ref and refs.setdefault(job.ref, at) != at:
            raise InvalidSpec(field="ref", why=f"{job.ref!r} names two jobs of this request")
    for at, job in enumerate(jobs):
        for dependency in job.dependencies:
            if dependency.ref:
                source = refs.get(dependency.ref)
                if source is None:
                    raise InvalidSpec(
                        field="dependencies", why=f"{dependency.ref!r} names no job of this request"
                    )
                edges[at].append(Edge(source, dependency.when))


def _by_files(jobs: Sequence[JobRequest], edges: list[list[Edge]]) -> None:
    """Edges from whoever writes a file to whoever reads it; a file that nobody here writes is expected to exist."""
    writers: dict[str, tuple[int, int]] = {}
    patterns: dict[str, int] = {}
    for at, job in enumerate(jobs):
        for name in job.spec.outputs:
            if job.array is not None and INDEX in name:
                if patterns.setdefault(name, at) != at:
                    raise InvalidSpec(field="outputs", why=f"{name!r} is written by two jobs")
                for task, index in enumerate(job.array.indices):
                    _claim(writers, name.replace(INDEX, str(index)), at, task)
            else:
                _claim(writers, name, at, -1)
    for at, job in enumerate(jobs):
        for name in job.spec.inputs:
            for edge in _readers_edges(jobs, at, name, writers, patterns):
                # What a job keeps up to date it reads as it finds it; a task can't wait for others of its own array.
                if edge.source != at or (job.array is not None and edge.task != EACH):
                    edges[at].append(edge)


def _claim(writers: dict[str, tuple[int, int]], name: str, at: int, task: int) -> None:
    if name in writers:
        raise InvalidSpec(field="outputs", why=f"{name!r} is written by two jobs")
    writers[name] = (at, task)


def _readers_edges(
    jobs: Sequence[JobRequest],
    at: int,
    name: str,
    writers: dict[str, tuple[int, int]],
    patterns: dict[str, int],
) -> list[Edge]:
    if name in patterns:
        source = patterns[name]
        mine, theirs = jobs[at].array, jobs[source].array
        each = mine is not None and theirs is not None and mine.indices == theirs.indices
        return [Edge(source, When.OK, EACH if each else -1)]
    if name in writers:
        source, task = writers[name]
        return [Edge(source, When.OK, task)]
    if any(sign in name for sign in "*?["):
        found = dict.fromkeys(
            source for written, (source, _) in writers.items() if fnmatchcase(written, name)
        )
        return [Edge(source, When.OK) for source in found]
    return []


def find_cycle(before: Sequence[Sequence[int]]) -> list[int]:
    """A cycle in the graph where `before[v]` are the vertices that v waits for, first vertex repeated at the end, or [].

    Kahn's order removes all that can run; what is left holds a cycle, found by walking backwards. O(vertices + edges)."""
    waiting = [len(set(of)) for of in before]
    after: list[list[int]] = [[] for _ in before]
    for vertex, of in enumerate(before):
        for source in set(of):
            after[source].append(vertex)
    ready = [vertex for vertex, count in enumerate(waiting) if count == 0]
    left = len(before)
    while ready:
        vertex = ready.pop()
        left -= 1
        for follower in after[vertex]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if left == 0:
        return []
    vertex = next(at for at, count in enumerate(waiting) if count)
    seen: dict[int, int] = {}
    path: list[int] = []
    while vertex not in seen:
        seen[vertex] = len(path)
        path.append(vertex)
        vertex = next(source for source in before[vertex] if waiting[source])
    cycle = path[seen[vertex] :]
    return [*reversed(cycle), cycle[-1]]
