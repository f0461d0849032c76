"""Folding: how each event changes the state. Total and deterministic; a life-cycle step that the tables don't have raises."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from mintyard.domain import events as e
from mintyard.domain.errors import InvariantBroken
from mintyard.domain.lifecycle import ACCOUNT, JOB, LIVE_JOB_STATES, NODE, TOKEN, joint_end
from mintyard.domain.limits import MAX_ENDED_JOBS_KEPT
from mintyard.domain.state import ArrayJob, Job, Mandate, Node, Remembered, SpecEntry, State, Token


def advance(state: State, seq: int, now: int) -> None:
    """Begin record `seq` at `now`; forget what time alone ends."""
    if now < state.now:
        raise InvariantBroken(why=f"time goes back from {state.now} to {now}")
    state.seq, state.now = seq, now
    state.ledger.advance(now)
    while state.key_order and state.key_order[0][0] <= now:
        _, account, key = heappop(state.key_order)
        state.keys.pop((account, key), None)
    while state.revoked_order and state.revoked_order[0][0] <= now:
        state.revoked.pop(heappop(state.revoked_order)[1], None)
    while state.token_order and state.token_order[0][0] <= now:
        token = state.tokens.pop(heappop(state.token_order)[1], None)
        if token is not None:
            state.token_counts[token.account] -= 1


# --- hub, accounts, tokens ------------------------------------------------------------------------------------------


def hub_founded(state: State, event: e.HubFounded) -> None:
    state.name, state.currency = event.name, event.currency


def format_raised(state: State, event: e.FormatRaised) -> None:
    state.format = event.format


def account_opened(state: State, event: e.AccountOpened) -> None:
    state.ledger.open_account(event.account)


def account_moved(state: State, event: e.AccountMoved) -> None:
    account = state.ledger.accounts[event.account]
    account.state = ACCOUNT.step(account.state, event.trigger)


def token_registered(state: State, event: e.TokenRegistered) -> None:
    state.add_token(
        Token(event.token, event.account, event.name, TOKEN.initial, event.expires_at, event.parents)
    )


def token_moved(state: State, event: e.TokenMoved) -> None:
    token = state.tokens[event.token]
    token.state = TOKEN.step(token.state, event.trigger)


def block_revoked(state: State, event: e.BlockRevoked) -> None:
    state.revoked[event.block] = event.keep_until
    heappush(state.revoked_order, (event.keep_until, event.block))


def account_tokens_revoked(state: State, event: e.AccountTokensRevoked) -> None:
    """The tokens move by events of their own; this one marks the act in the log and the feed."""


def key_remembered(state: State, event: e.KeyRemembered) -> None:
    state.keys[event.account, event.key] = Remembered(event.digest, event.reply, event.keep_until)
    heappush(state.key_order, (event.keep_until, event.account, event.key))


# --- ledger ---------------------------------------------------------------------------------------------------------


def prices_set(state: State, event: e.PricesSet) -> None:
    state.prices.append(event.book)


def grant_created(state: State, event: e.GrantCreated) -> None:
    state.ledger.apply_grant_created(event)
    state.due.set("grant", event.grant, event.expires_at)


def grant_adjusted(state: State, event: e.GrantAdjusted) -> None:
    state.ledger.apply_grant_adjusted(event)
    state.due.set("grant", event.grant, event.expires_at)


def grant_closed(state: State, event: e.GrantClosed) -> None:
    state.ledger.apply_grant_closed(event)
    state.due.drop("grant", event.grant)


def hold_placed(state: State, event: e.HoldPlaced) -> None:
    state.ledger.apply_hold_placed(event)
    if event.expires_at:
        state.due.set("hold", event.hold, event.expires_at)
    if event.job:
        job = state.jobs.get(event.job)
        if job is not None:
            job.hold = event.hold


def hold_extended(state: State, event: e.HoldExtended) -> None:
    state.ledger.apply_hold_extended(event)
    if event.expires_at:
        state.due.set("hold", event.hold, event.expires_at)


def hold_drawn(state: State, event: e.HoldDrawn) -> None:
    state.ledger.apply_hold_drawn(event)


def hold_closed(state: State, event: e.HoldClosed) -> None:
    state.ledger.apply_hold_closed(event)
    state.due.drop("hold", event.hold)


def refunded(state: State, event: e.Refunded) -> None:
    state.ledger.apply_refunded(event)


# --- jobs -----------------------------------------------------------------------------------------------------------


def spec_interned(state: State, event: e.SpecInterned) -> None:
    state.add_spec(event.spec, event.content)
    state.next_spec = event.spec + 1


def mandate_interned(state: State, event: e.MandateInterned) -> None:
    account = state.ledger.accounts[event.account]
    state.mandates[event.mandate] = Mandate(event.mandate, account, event.blocks, event.digest)
    state.mandate_ids[event.digest] = event.mandate
    state.next_mandate = event.mandate + 1


def job_admitted(state: State, event: e.JobAdmitted) -> None:
    entry = state.specs[event.spec]
    mandate = state.mandates[event.mandate]
    job = Job(
        event.job,
        entry,
        mandate,
        event.state,
        state.ledger.next_hold - 1,
        array_job=event.array_job,
        array_index=event.array_index,
        waiting=len(event.waits_for) // 2,
        submitted_at=state.now,
    )
    state.jobs[event.job] = job
    state.next_job = event.job + 1
    if event.array_job and event.array_job not in state.arrays:
        state.add_array(
            ArrayJob(event.array_job, mandate.account.id, event.array_throttle, 0, size=event.array_size)
        )
    if event.array_job:
        state.arrays[event.array_job].live += 1
    if event.waits_for:
        _wait_for(state, event.job, event.waits_for)
    state.use(entry, mandate)
    state.shapes.note_demand(entry.shape_class)
    if event.state == "pending":
        state.enqueue(job, state.now)


def _wait_for(state: State, job: int, flat: tuple[int | str, ...]) -> None:
    for at in range(0, len(flat), 2):
        source, when = flat[at], flat[at + 1]
        state.dependents.setdefault(int(source), []).append((job, str(when)))


def dependency_met(state: State, event: e.DependencyMet) -> None:
    state.jobs[event.job].waiting -= 1


def job_moved(state: State, event: e.JobMoved) -> None:
    job = state.jobs[event.job]
    before = job.state
    job.state = JOB.step(before, event.trigger)
    job.reason = event.reason
    if before == "pending" and job.state != "pending":
        state.queue.discard(job.id)
    elif job.state == "pending" and before != "pending":
        state.enqueue(job, state.now)


def job_updated(state: State, event: e.JobUpdated) -> None:
    job = state.jobs[event.job]
    _use_spec(state, job, state.specs[event.spec])
    if job.state == "pending":
        queued_at = job.queued_at
        state.queue.discard(job.id)
        state.enqueue(job, queued_at)


def _use_spec(state: State, job: Job, entry: SpecEntry) -> None:
    old = job.spec
    state.use_spec(entry)
    job.spec = entry
    state.drop_spec(old)


def job_placed(state: State, event: e.JobPlaced) -> None:
    job = state.jobs[event.job]
    job.state = JOB.step(job.state, "place")
    job.attempt = event.attempt
    job.placement = event.placement
    job.placed_at = state.now
    job.boots = None
    job.reason = ""
    state.queue.discard(job.id)
    state.cluster.take(event.placement, job.spec.content.shape)
    state.bind(job, 1)


def attempt_began(state: State, event: e.AttemptBegan) -> None:
    job = state.jobs[event.job]
    job.state = JOB.step(job.state, "start")
    job.began_at = state.now if job.began_at == 0 else job.began_at
    job.boots = {event.boot: 0}


def usage_counted(state: State, event: e.UsageCounted) -> None:
    job = state.jobs[event.job]
    boots = job.boots if job.boots is not None else {}
    boots[event.boot] = max(boots.get(event.boot, 0), event.run_ms)
    job.boots = boots


def _unbind(state: State, job: Job) -> None:
    if job.state in LIVE_JOB_STATES:
        state.cluster.give_back(job.placement, job.spec.content.shape)
        state.bind(job, -1)
        job.placement = ()
        job.boots = None


def job_requeued(state: State, event: e.JobRequeued) -> None:
    job = state.jobs[event.job]
    _unbind(state, job)
    job.state = JOB.step(job.state, event.trigger)
    job.reason = event.message if event.trigger == "park" else ""
    if event.retry:
        job.retried += 1
    else:
        job.requeued += 1
    job.spent += event.cost
    if event.trigger == "park":
        job.hold = 0
    else:
        state.enqueue(job, state.now)


def job_ended(state: State, event: e.JobEnded) -> None:
    job = state.jobs.pop(event.job)
    if job.state == "pending":
        state.queue.discard(job.id)
    _unbind(state, job)
    state.dependents.pop(job.id, None)
    state.note_run(job, event.trigger, event.run_ms)
    forget_job(state, job, JOB.step(job.state, event.trigger))


def forget_job(state: State, job: Job, final: str) -> None:
    """What is left of a job that ended as `final`: its array's count, how it ended, its spec and mandate freed."""
    if job.array_job:
        array = state.arrays[job.array_job]
        array.live -= 1
        array.bad = joint_end(array.bad, final)
        if array.live == 0:
            state.drop_array(array)
            state.dependents.pop(array.id, None)
            _remember_end(state, array.id, array.bad or "succeeded", array.account)
    _remember_end(state, job.id, final, job.mandate.account.id)
    state.drop_spec(job.spec)
    state.drop_mandate(job.mandate)


def _remember_end(state: State, number: int, final: str, account: str) -> None:
    state.ended[number] = (final, account)
    if len(state.ended) > MAX_ENDED_JOBS_KEPT:
        state.ended.popitem(last=False)


# --- nodes ----------------------------------------------------------------------------------------------------------


def node_joined(state: State, event: e.NodeJoined) -> None:
    index = state.cluster.add_node(
        event.node, event.cpus_milli, event.memory_mib, event.gpus, event.gpu_model, event.labels
    )
    node = Node(
        event.node,
        index,
        event.engine,
        NODE.initial,
        event.cpus_milli,
        event.memory_mib,
        event.gpus,
        event.gpu_model,
        event.labels,
        event.virtual,
    )
    state.nodes[event.node] = node
    state.nodes_by_index[index] = node


def node_changed(state: State, event: e.NodeChanged) -> None:
    node = state.nodes[event.node]
    state.cluster.update_node(
        event.node, event.cpus_milli, event.memory_mib, event.gpus, event.gpu_model, event.labels
    )
    node.cpus_milli, node.memory_mib, node.gpus = event.cpus_milli, event.memory_mib, event.gpus
    node.gpu_model, node.labels, node.virtual = event.gpu_model, event.labels, event.virtual


def node_moved(state: State, event: e.NodeMoved) -> None:
    node = state.nodes[event.node]
    node.state = NODE.step(node.state, event.trigger)
    node.reason = event.reason
    if node.state == "removed":
        state.cluster.remove_node(node.name)
        del state.nodes[node.name]
        del state.nodes_by_index[node.index]
    else:
        state.cluster.set_schedulable(node.name, node.state == "ready")


# --- queues ---------------------------------------------------------------------------------------------------------


def queue_set(state: State, event: e.QueueSet) -> None:
    state.quotas.set_queue(event.queue)


def queue_removed(state: State, event: e.QueueRemoved) -> None:
    state.quotas.remove_queue(event.queue)


def account_limited(state: State, event: e.AccountLimited) -> None:
    state.quotas.limit_account(event.account, event.limits)


def _lasting(applier: Callable[[State, Any], None]) -> Callable[[State, Any], None]:
    """What changes more than balances: terms that were worked out before don't hold any more."""

    def apply(state: State, event: Any) -> None:
        state.epoch += 1
        applier(state, event)

    return apply


APPLIERS: dict[type, Callable[[State, Any], None]] = {
    e.HubFounded: hub_founded,
    e.FormatRaised: format_raised,
    e.AccountOpened: account_opened,
    e.AccountMoved: account_moved,
    e.GrantCreated: _lasting(grant_created),
    e.GrantAdjusted: _lasting(grant_adjusted),
    e.GrantClosed: _lasting(grant_closed),
    e.TokenRegistered: token_registered,
    e.TokenMoved: token_moved,
    e.BlockRevoked: block_revoked,
    e.AccountTokensRevoked: account_tokens_revoked,
    e.PricesSet: _lasting(prices_set),
    e.SpecInterned: spec_interned,
    e.MandateInterned: mandate_interned,
    e.JobAdmitted: job_admitted,
    e.HoldPlaced: hold_placed,
    e.HoldExtended: hold_extended,
    e.HoldDrawn: hold_drawn,
    e.HoldClosed: hold_closed,
    e.Refunded: refunded,
    e.JobMoved: job_moved,
    e.JobPlaced: job_placed,
    e.AttemptBegan: attempt_began,
    e.UsageCounted: usage_counted,
    e.JobRequeued: job_requeued,
    e.JobEnded: job_ended,
    e.JobUpdated: job_updated,
    e.NodeJoined: _lasting(node_joined),
    e.NodeChanged: _lasting(node_changed),
    e.NodeMoved: _lasting(node_moved),
    e.KeyRemembered: key_remembered,
    e.DependencyMet: dependency_met,
    e.QueueSet: _lasting(queue_set),
    e.QueueRemoved: _lasting(queue_removed),
    e.AccountLimited: _lasting(account_limited),
}
