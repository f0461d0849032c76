"""The mutants: in which module, what is replaced by what. Each is a fault that a hand could make."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` must occur in the module's source; its first occurrence is replaced by `new`."""

    module: str
    old: str
    new: str


QUOTA = "mintyard.domain.scheduling.quota"
QUOTA_STATE = "mintyard.domain.scheduling.quota_state"
QUOTA_TABLES = "mintyard.domain.scheduling.quota_tables"
QUEUES = "mintyard.domain.queues"
PLANNING = "mintyard.domain.scheduling.round"
ROUND = "mintyard.domain.scheduling_round"
BOOK = "mintyard.domain.ledger.book"
CHARGING = "mintyard.domain.ledger.charging"
OPERATIONS = "mintyard.domain.ledger.operations"
PRICES = "mintyard.domain.ledger.prices"
ADMISSION = "mintyard.domain.jobs.admission"
ATTEMPTS = "mintyard.domain.jobs.attempts"
CONTROL = "mintyard.domain.jobs.control"
FOLDING = "mintyard.domain.folding"
HUB = "mintyard.domain.hub"
REGISTRY = "mintyard.domain.tokens.registry"
STATE = "mintyard.domain.state"
SNAPSHOT = "mintyard.domain.snapshot"
BULK = "mintyard.domain.jobs.bulk.submits"
ENDS = "mintyard.domain.jobs.bulk.ends"
STARTS = "mintyard.domain.jobs.bulk.starts"
QUEUE = "mintyard.domain.scheduling.queue"
COLUMNS = "mintyard.domain.snapshot_columns"
DAG = "mintyard.domain.jobs.dag"
NODES = "mintyard.domain.nodes"

MUTANTS = (
    # ledger: movements
    Mutant(BOOK, "way * sign * amount", "sign * amount"),
    Mutant(BOOK, "grant.held += amount\n", "grant.held += amount + 1\n"),
    Mutant(
        BOOK,
        "grant.held -= amount\n            grant.spent += amount",
        "grant.held -= 0\n            grant.spent += amount",
    ),
    Mutant(
        BOOK,
        'if grant.state == "active":\n                grant.left += amount',
        "if True:\n                grant.left += amount",
    ),
    Mutant(BOOK, 'return LEFT if grant.state == "active" else EXPIRED', "return LEFT"),
    Mutant(BOOK, "self._move(grant, LEFT, EXPIRED, event.amount)", "pass"),
    Mutant(BOOK, "counter.held += amount", "counter.held += 0"),
    Mutant(BOOK, "counter.held -= used + freed", "counter.held -= used"),
    Mutant(BOOK, "counter.spent += used", "counter.spent += used + freed"),
    Mutant(
        BOOK,
        "self._move(grant, REFUNDS, self.home(grant), amount)",
        "self._move(grant, SPENT, self.home(grant), amount)",
    ),
    Mutant(BOOK, "for level in account.path:", "for level in account.path[:1]:"),
    Mutant(BOOK, "self.plan_epoch += 1", "pass"),
    # ledger: deciding
    Mutant(CHARGING, "if free >= missing:", "if free > -1:"),
    Mutant(CHARGING, "missing -= free", "missing -= free + 1"),
    Mutant(CHARGING, "free = grant.left - before", "free = grant.left"),
    Mutant(CHARGING, "if used + amount > bound:", "if used + amount > bound + amount:"),
    Mutant(
        CHARGING,
        "used = (counter.held + counter.spent if counter else 0)",
        "used = (counter.spent if counter else 0)",
    ),
    Mutant(CHARGING, "due = charge if charge < amount else amount", "due = charge"),
    Mutant(CHARGING, "due -= part", "due -= 0"),
    Mutant(CHARGING, "released += (grant, rest)", "released += (grant, amount)"),
    Mutant(CHARGING, "if not grant.usable(now):", 'if grant.state != "active":'),
    Mutant(OPERATIONS, "draft.give(share.released)", "pass"),
    Mutant(OPERATIONS, "if grant.left + command.delta < 0:", "if grant.left + command.delta < -(10**18):"),
    Mutant(
        OPERATIONS, "if command.amount > grant.spent - grant.refunded:", "if command.amount > grant.spent:"
    ),
    Mutant(OPERATIONS, "if amount > limit:", "if amount > limit * 1_000:"),
    Mutant(
        OPERATIONS,
        "return {unit: max(amounts.get(unit, 0), drawn.get(unit.value, 0)) for unit in Unit}",
        "return {unit: amounts.get(unit, 0) for unit in Unit}",
    ),
    Mutant(PRICES, "gpu * gpu_rate // _GPU_SCALE", "gpu // _GPU_SCALE * gpu_rate"),
    Mutant(PRICES, "n * shape.gpus * shape.gpu_milli", "shape.gpus * shape.gpu_milli"),
    Mutant(PRICES, "return max([self.gpu_nano, *self.gpu_models.values()])", "return self.gpu_nano"),
    # jobs
    Mutant(
        ADMISSION,
        "if spec.budget is not None and cost > spec.budget:",
        "if spec.budget is not None and cost > spec.budget * 1_000:",
    ),
    Mutant(ADMISSION, "self.hold += 1", "pass"),
    Mutant(ADMISSION, 'return final == "succeeded"', 'return final != "cancelled"'),
    Mutant(ADMISSION, 'else "blocked" if waits else "pending"', 'else "pending"'),
    Mutant(
        ATTEMPTS,
        "boots[report.boot] = max(boots.get(report.boot, 0), report.run_ms)",
        "boots[report.boot] = boots.get(report.boot, 0) + report.run_ms",
    ),
    Mutant(ATTEMPTS, "boots[boot] = max(boots.get(boot, 0), run_ms)", "pass"),
    Mutant(ATTEMPTS, "if run_ms > limit:", "if False:"),
    Mutant(ATTEMPTS, "run_ms = counted if counted < seen else seen", "run_ms = counted"),
    Mutant(
        ATTEMPTS, "if job is None or number in gone or job.waiting == 0", "if job is None or job.waiting == 0"
    ),
    Mutant(BULK, "terms.epoch == state.epoch and now < terms.until:", "now < terms.until:"),
    Mutant(BULK, "terms.epoch == state.epoch and now < terms.until:", "terms.epoch == state.epoch:"),
    Mutant(BULK, "taken.get(number, 0) + count * amount", "taken.get(number, 0) + amount"),
    Mutant(BULK, "charged.get(key, 0) + count * amount", "charged.get(key, 0) + amount"),
    Mutant(BULK, "if grants[number].left < amount:", "if False:"),
    Mutant(
        BULK,
        "counter.held + counter.spent + amount > min(bounds[key], counter.limit)",
        "counter.held + amount > bounds[key]",
    ),
    Mutant(BULK, "if first == [line.legs[0] for line in lines]:", "if True:"),
    Mutant(BULK, "state.use(each.entry, each.mandate, each.count)", "state.use(each.entry, each.mandate)"),
    Mutant(BULK, "check_budget(entry.content, cost)", "pass"),
    Mutant(BULK, "check_caps(authority.caps, entry.content.shape)", "pass"),
    Mutant(BULK, "and not request.held", ""),
    # reports and placements in runs
    Mutant(ENDS, 'trigger != "requeue"\n            and ', ""),
    Mutant(ENDS, "and cause not in BLAMELESS\n", "\n"),
    Mutant(ENDS, "and job.id not in dependents", ""),
    Mutant(ENDS, "and (not job.array_job or job.array_job not in dependents)", ""),
    Mutant(
        ENDS,
        "key = (job.spec, job.mandate, run_ms, hold.book, rate)",
        "key = (job.spec, job.mandate, 0, hold.book, rate)",
    ),
    Mutant(ENDS, "hold.book, rate)\n        share", "hold.book, 0)\n        share"),
    Mutant(ENDS, "share.lines is hold.lines and", ""),
    Mutant(ENDS, "share.count += 1", "share.count = 1"),
    Mutant(ENDS, "state.arrays[job.array_job].active -= 1", "pass"),
    Mutant(ENDS, "                continue\n            run.close()\n", "                continue\n"),
    Mutant(STARTS, "state.occupy(placed)", "pass"),
    Mutant(STATE, "counts[key] = counts.get(key, 0) + sign", "counts[key] = sign"),
    Mutant(QUEUE, "counts[class_id] -= less", "counts[class_id] -= 1"),
    Mutant(STATE, "del self.spec_ids[self.specs.pop(number).content]", "self.specs.pop(number)"),
    Mutant(STATE, "self.idle_specs.pop(entry.id, None)", "pass"),
    Mutant(STATE, "self.idle_mandates.pop(mandate.id, None)", "pass"),
    Mutant(
        ATTEMPTS,
        "if job is None or job.attempt != report.attempt or job.state not in LIVE_JOB_STATES:",
        "if job is None or job.state not in LIVE_JOB_STATES:",
    ),
    Mutant(ATTEMPTS, 'if trigger == "requeue":', 'if trigger == "requeue" and retry:'),
    Mutant(ATTEMPTS, "draft.give(share.released)", "pass"),
    Mutant(ATTEMPTS, "void_hold(state, dependent, out)", "pass"),
    Mutant(ATTEMPTS, "met[number] = met.get(number, 0) + 1", "met[number] = 1"),
    Mutant(ATTEMPTS, "if finished[array] == state.arrays[array].live:", "if finished[array] > 0:"),
    Mutant(CONTROL, "void_hold(state, job, out)", "pass"),
    Mutant(CONTROL, 'end_dependents(state, job, "cancelled", now, out)', "pass"),
    Mutant(CONTROL, "if job.hold not in state.ledger.holds:", "if False:"),
    Mutant(DAG, "if waiting[follower] == 0:", "if waiting[follower] <= 1:"),
    # folding and state
    Mutant(FOLDING, "state.cluster.give_back(job.placement, job.spec.content.shape)", "pass"),
    Mutant(FOLDING, "state.queue.discard(job.id)\n    state.cluster.take", "state.cluster.take"),
    Mutant(FOLDING, "array.live -= 1", "array.live -= 0"),
    Mutant(FOLDING, "state.jobs[event.job].waiting -= 1", "pass"),
    Mutant(FOLDING, "job.spent += event.cost", "job.spent -= event.cost"),
    Mutant(FOLDING, "job.hold = event.hold", "pass"),
    Mutant(FOLDING, "state.dependents.pop(job.id, None)", "pass"),
    Mutant(STATE, "self.arrays[job.array_job].active += sign", "self.arrays[job.array_job].active += 1"),
    Mutant(STATE, "node.running += sign", "node.running += 0"),
    Mutant(
        SNAPSHOT,
        "holds=pack_holds([ledger.holds[number] for number in sorted(ledger.holds)]),",
        "holds=pack_holds([]),",
    ),
    Mutant(COLUMNS, "queued_at=_long(job.queued_at for", "queued_at=_long(job.submitted_at for"),
    Mutant(COLUMNS, "hold.drawn, hold.spent_legs,", "hold.drawn, hold.holder,"),
    Mutant(
        COLUMNS,
        "job.retried, job.requeued, job.spent = retried, requeued, spent",
        "job.retried, job.requeued = retried, requeued",
    ),
    Mutant(ROUND, "max(array.throttle - array.active, 0)", "array.throttle"),
    # tokens, keys, nodes
    Mutant(REGISTRY, "if authority.expires_at <= now:", "if authority.expires_at <= 0:"),
    Mutant(REGISTRY, "if block.block in state.revoked:", "if False:"),
    Mutant(REGISTRY, 'elif token.state == "suspended":', "elif False:"),
    Mutant(REGISTRY, "if scope not in authority.scopes:", "if False:"),
    Mutant(
        REGISTRY, "if limit is not None and asked > limit:", "if limit is not None and asked > limit * 4:"
    ),
    Mutant(REGISTRY, 'if level.state != "active":', "if False:"),
    Mutant(HUB, "if known.digest != _digest(command):", "if False:"),
    Mutant(HUB, "return _reply_decoder.decode(known.reply)", "return None"),
    Mutant(NODES, '(command.verb == "remove" and node.running)', "False"),
    # quota
    Mutant(QUOTA_STATE, "cells[lane, 3] += jobs", "cells[lane, 3] += 0"),
    Mutant(QUOTA_TABLES, "own[row] = np.maximum(0, total[row] - lending[row])", "own[row] = total[row]"),
    Mutant(QUOTA_TABLES, "total[above] += total[row] - own[row]", "total[above] += total[row]"),
    Mutant(QUOTA_TABLES, "usage[parent] += np.maximum(usage[row] - self.own[row], 0)", "pass"),
    Mutant(QUOTA_TABLES, "np.subtract.at(left, caps, used[lane_of_cap])", "pass"),
    Mutant(QUOTA_STATE, "if limit < most[index]:", "if limit > most[index]:"),
    Mutant(QUOTA, "return not self.accounts or any(", "return bool(self.accounts) or any("),
    Mutant(QUEUES, "if asked > most[index]:", "if asked > most[index] + 1_000:"),
    Mutant(QUEUES, "if not level.accepts:", "if not spec.accepts and not level.accepts:"),
    Mutant(QUEUES, "if account.id == within and within != ROOT:", "if False:"),
    Mutant(PLANNING, "self.quota.unmark(self.queue)", "pass"),
    Mutant(FOLDING, "e.QueueSet: _lasting(queue_set)", "e.QueueSet: queue_set"),
)
