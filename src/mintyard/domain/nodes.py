"""Nodes: joining, changing, losing and operating them. A lost node's attempts are unknown, not ended: they end by report."""

from __future__ import annotations

from mintyard.domain.commands import ControlNode
from mintyard.domain.errors import InvalidRequest, NotFound, Refused, WrongState
from mintyard.domain.events import AnyEvent, NodeChanged, NodeJoined, NodeMoved
from mintyard.domain.ids import ROOT, check_name
from mintyard.domain.jobs.reports import NodeGone, NodeSeen
from mintyard.domain.lifecycle import NODE
from mintyard.domain.limits import MAX_CPUS_MILLI, MAX_GPUS_PER_MEMBER, MAX_MEMORY_MIB, MAX_NODES
from mintyard.domain.replies import Done
from mintyard.domain.state import Node, State
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.tokens.registry import require

VERBS = ("cordon", "uncordon", "drain", "remove")


def node_seen(state: State, engine: str, report: NodeSeen, out: list[AnyEvent]) -> None:
    """A node joins, changes or is back. Reports that no node can have are dropped: an engine may lie."""
    if not _credible(report):
        return
    node = state.nodes.get(report.node)
    if node is None:
        if len(state.nodes) < MAX_NODES:
            out.append(
                NodeJoined(
                    report.node,
                    engine,
                    report.cpus_milli,
                    report.memory_mib,
                    report.gpus,
                    report.gpu_model,
                    report.labels,
                    report.virtual,
                )
            )
        return
    if node.engine != engine:
        return
    if NODE.allows(node.state, "see"):
        out.append(NodeMoved(node.name, "see"))
    if _differs(node, report):
        out.append(
            NodeChanged(
                report.node,
                report.cpus_milli,
                report.memory_mib,
                report.gpus,
                report.gpu_model,
                report.labels,
                report.virtual,
            )
        )


def _credible(report: NodeSeen) -> bool:
    try:
        check_name("node", report.node)
        for label in (*report.labels, *([report.gpu_model] if report.gpu_model else [])):
            check_name("label", label)
    except Refused:
        return False
    return (
        0 < report.cpus_milli <= MAX_CPUS_MILLI
        and 0 < report.memory_mib <= MAX_MEMORY_MIB
        and 0 <= report.gpus <= MAX_GPUS_PER_MEMBER
    )


def _differs(node: Node, report: NodeSeen) -> bool:
    return (node.cpus_milli, node.memory_mib, node.gpus, node.gpu_model, node.labels, node.virtual) != (
        report.cpus_milli,
        report.memory_mib,
        report.gpus,
        report.gpu_model,
        report.labels,
        report.virtual,
    )


def node_gone(state: State, engine: str, report: NodeGone, out: list[AnyEvent]) -> None:
    node = state.nodes.get(report.node)
    if node is not None and node.engine == engine and NODE.allows(node.state, "lose"):
        out.append(NodeMoved(node.name, "lose"))


def control_node(state: State, command: ControlNode, now: int, out: list[AnyEvent]) -> Done:
    within = require(state, command.authority, Scope.NODE_WRITE, now)
    node = state.nodes.get(command.node)
    if node is None or within != ROOT:
        raise NotFound(what="node", name=command.node[:128])
    if command.verb not in VERBS:
        raise InvalidRequest(why=f"{command.verb!r} is none of {', '.join(VERBS)}")
    if not NODE.allows(node.state, command.verb) or (command.verb == "remove" and node.running):
        raise WrongState(
            what="Node",
            name=node.name,
            state=f"{node.state} with {node.running} running",
            action=command.verb,
            allowed=", ".join(NODE.sources(command.verb)),
        )
    out.append(NodeMoved(node.name, command.verb, command.reason[:128]))
    return Done(node.name, NODE.step(node.state, command.verb))
