"""What must be true after kills: nothing acknowledged is missing, nothing ran twice, the books balance, the journal holds."""

from __future__ import annotations

import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.crash.books import ExpectedBooks, balance_faults, receipt_faults, smallest
from tests.crash.evidence import Evidence
from tests.crash.live_hub import processes_of, wait_for
from tests.crash.people import CEILING_NANO, Acknowledged, check_repeat, send
from tests.crash.tenants import meters

from mintyard.app import replay_journal
from mintyard.app.journal import stream, verify_store
from mintyard.app.journal_store import open_store
from mintyard.app.projector import dump, open_projector, rebuild
from mintyard.app.read_model.database import open_read_model
from mintyard.app.replica import Replica
from mintyard.app.tailer import Tailer
from mintyard.domain import snapshot

if TYPE_CHECKING:
    from tests.crash.run import CrashRun

ENDED = frozenset({"succeeded", "failed", "timed_out", "cancelled", "skipped"})
_PAGE = 500
_REPEATS = 40
_SHOWN = 12
_ORPHANS_S = 20.0
DRAIN_S = 240.0


class Report:
    """Checks by name with the faults that each found; a check without faults has passed."""

    def __init__(self) -> None:
        self.faults: dict[str, list[str]] = {}
        self.facts: dict[str, Any] = defaultdict(lambda: "?")

    def add(self, check: str, faults: list[str]) -> None:
        self.faults.setdefault(check, []).extend(faults)

    @property
    def failed(self) -> list[str]:
        return [check for check, faults in self.faults.items() if faults]

    def lines(self) -> Iterator[str]:
        for check, faults in self.faults.items():
            yield f"{'FAIL' if faults else 'ok':4} {check}"
            yield from (f"       {fault}" for fault in faults[:_SHOWN])
            if len(faults) > _SHOWN:
                yield f"       and {len(faults) - _SHOWN} more"


def pages(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """Every item of a list."""
    cursor = ""
    while True:
        sign = "&" if "?" in path else "?"
        answer = send(client, "GET", f"{path}{sign}limit={_PAGE}" + (f"&cursor={cursor}" if cursor else ""))
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        page = answer.json()
        yield from page["items"]
        cursor = page["next"]
        if not cursor:
            return


# --- after each kill ------------------------------------------------------------------------------------------------


def check_meanwhile(run: CrashRun) -> str:
    """Right after a restart: what was acknowledged since the last look is there, and every account balances."""
    memory = run.memory
    with memory.lock:
        news = memory.jobs[run.checked :]
    run.checked += len(news)
    with run.hub.client() as client:
        if news:
            # A reader that names the record sees at least that.
            least = max(one.seq for one in news)
            missing = {one.job for one in news}
            for job in pages(client, f"/jobs?min_seq={least}"):
                missing.discard(job["job"])
                missing.discard(job.get("array_job"))
                if not missing or job["job"] < min(missing):
                    break
            for number in sorted(missing):
                memory.fault(f"after kill {run.killed['writer']}: acknowledged job {number} is missing")
        for account in pages(client, "/accounts"):
            for fault in balance_faults(account):
                memory.fault(f"after kill {run.killed['writer']}: {fault}")
        ended = {job["job"] for job in pages(client, "/jobs?state=" + ",".join(sorted(ENDED)))}
    with memory.lock:
        memory.ended |= ended
    return f"{len(ended)} jobs ended"


# --- at the end -----------------------------------------------------------------------------------------------------


def check_all(run: CrashRun) -> Report:
    """All checks; one that breaks off is a failure and hides none of the others' results."""
    report = Report()
    try:
        _check(run, report)
    except Exception as error:
        traceback.print_exc()
        report.add("all checks could be made", [repr(error)])
    return report


def _check(run: CrashRun, report: Report) -> None:
    """The hub's processes are stopped half way."""
    began = time.monotonic()
    report.add("people got only answers they must expect", run.memory.faults)
    jobs = _drain(run, report)
    report.facts["drain_s"] = round(time.monotonic() - began, 1)
    evidence = Evidence(run.ledger)
    with run.hub.client() as client:
        report.add("the same key gives the same job", _repeats(run))
        receipts = {job: _get(client, f"/jobs/{job}/receipt") for job in jobs}
        report.add("money adds up", _money(run, client, jobs, receipts))
        report.add("every hold is known to its maker", _holds(run, client))
    acknowledged = dict(_numbers(run.memory.jobs))
    report.add("no narrowed token paid for more than its ceiling", _ceilings(run, acknowledged, receipts))
    report.add("nothing acknowledged is missing", _missing(acknowledged, jobs))
    report.add("every command ran once per attempt, none overlapping", run_faults(jobs, evidence))
    report.add("a succeeded job left its evidence", outcome_faults(jobs, evidence, run))
    report.add("what ran during a kill went on", _adopted(run, jobs, evidence))
    began = time.monotonic()
    status = run.hub.stop()
    report.facts["stop_s"] = round(time.monotonic() - began, 2)
    report.add("orderly stop", [f"exit status {status}"] if status else [])
    report.add("no process is left", _orphans(run.hub.folder))
    report.facts |= {
        "jobs": len(jobs),
        "attempts": len(evidence.runs),
        "adopted": len(run.ran_at_kill),
        "repeats": run.memory.repeats,
        "refused": run.memory.refused,
        "holds": len(run.memory.holds),
        "states": dict(Counter(job["state"] for job in jobs.values())),
    }
    _check_journal(run, report)


def _get(client: httpx.Client, path: str) -> dict[str, Any]:
    answer = send(client, "GET", path)
    assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
    return answer.json()


def _drain(run: CrashRun, report: Report) -> dict[int, dict[str, Any]]:
    """Wait until every job and hand-made hold has ended; the jobs, arrays left out."""
    live = ",".join(("submitted", "blocked", "held", "pending", "starting", "running", "stopping"))
    least = f"min_seq={run.memory.seq}"
    with run.hub.client() as client:

        def quiet() -> bool:
            jobs, holds = f"/jobs?state={live}&{least}", f"/holds?{least}"
            return not any(pages(client, jobs)) and not any(pages(client, holds))

        left: list[str] = []
        try:
            wait_for(quiet, DRAIN_S, "all jobs and holds have ended", 0.25)
        except AssertionError:
            left = [
                f"job {job['job']} is {job['state']}: {job['reason']}"
                for job in pages(client, f"/jobs?state={live}")
            ]
            left += [f"hold {hold['hold']} is held: {hold}" for hold in pages(client, "/holds")]
        report.add("every job and hold ends", left)
        return {job["job"]: job for job in pages(client, "/jobs") if job.get("size") is None}


def _numbers(jobs: list[Acknowledged]) -> Iterator[tuple[int, Acknowledged]]:
    """The numbers of all jobs that were acknowledged: an array's tasks follow its own."""
    for one in jobs:
        for number in range(one.job + 1, one.job + 1 + one.tasks) if one.tasks else (one.job,):
            yield number, one


def _missing(acknowledged: dict[int, Acknowledged], jobs: dict[int, dict[str, Any]]) -> list[str]:
    faults = [f"job {number} (key {one.key})" for number, one in acknowledged.items() if number not in jobs]
    faults += [
        f"job {number} is {jobs[number]['state']}"
        for number in acknowledged
        if number in jobs and jobs[number]["state"] not in ENDED
    ]
    # People ask again until they are answered, so there can't be a job that nobody was told of.
    faults += [f"job {number}: nobody was told of it" for number in jobs if number not in acknowledged]
    return faults


def _repeats(run: CrashRun) -> list[str]:
    """Requests of all times once more, with their keys."""
    before = len(run.memory.faults)
    jobs, cancelled = run.memory.jobs, sorted(run.memory.cancelled.items())
    for one in run.rng.sample(jobs, min(len(jobs), _REPEATS)):
        with run.hub.client(one.token) as client:
            check_repeat(run.memory, client, one)
    for job, (key, token) in run.rng.sample(cancelled, min(len(cancelled), _REPEATS)):
        with run.hub.client(token) as client:
            answer = send(client, "POST", f"/jobs/{job}/cancel", {"reason": "no longer needed"}, key)
            if not answer.is_success:
                run.memory.faults.append(f"cancellation of {job} again: {answer.status_code} {answer.text}")
    return run.memory.faults[before:]


def run_faults(jobs: dict[int, dict[str, Any]], evidence: Evidence) -> list[str]:
    faults = list(evidence.faults)
    faults += [
        f"job {job} attempt {attempt} read a file too early" for job, attempt in evidence.missing_inputs
    ]
    for (job, attempt), runs in evidence.runs.items():
        if len(runs) > 1:
            faults.append(f"job {job} attempt {attempt} ran {len(runs)} times: {runs}")
        if job not in jobs:
            faults.append(f"job {job} ran and does not exist")
        elif attempt > jobs[job]["attempt"]:
            faults.append(f"job {job} attempt {attempt} ran, the hub knows {jobs[job]['attempt']}")
    for job, runs in evidence.by_job().items():
        for (attempt, run), (later, following) in pairwise(runs):
            if later <= attempt or (run.ended or following.began) > following.began:
                faults.append(f"job {job}: attempts {attempt} and {later} overlap: {run} {following}")
    return faults


def outcome_faults(jobs: dict[int, dict[str, Any]], evidence: Evidence, run: CrashRun) -> list[str]:
    """State and evidence agree, and a job ended otherwise only when somebody asked for it."""
    faults: list[str] = []
    touched = {number for number, one in _numbers(run.memory.jobs) if one.job in run.memory.cancelled}
    by_job = evidence.by_job()
    for number, job in jobs.items():
        natural = [attempt for attempt, one in by_job.get(number, []) if one.natural]
        if job["state"] == "succeeded":
            # One that was told to start again may have come to its end just before it heard of it.
            last = natural[-1:] if number in run.memory.requeued else natural
            if last != [job["attempt"]]:
                faults.append(f"job {number} succeeded with attempt {job['attempt']}, evidence of {natural}")
        elif job["state"] == "cancelled":
            if number not in touched and number not in run.memory.cancelled:
                faults.append(f"job {number} is cancelled, nobody was told so: {job['reason']}")
        elif job["state"] == "skipped":
            sources = [jobs[edge["job"]]["state"] for edge in job["waits_for"] if edge["job"] in jobs]
            if sources and all(state == "succeeded" for state in sources):
                faults.append(f"job {number} is skipped, what it waits for succeeded")
        else:
            faults.append(f"job {number} is {job['state']}: {job['reason']} {job.get('exit_code')}")
    return faults


def _adopted(run: CrashRun, jobs: dict[int, dict[str, Any]], evidence: Evidence) -> list[str]:
    """Each process that ran at a kill wrote its own end, unless people ended it."""
    faults: list[str] = []
    cancelled = {number for number, one in _numbers(run.memory.jobs) if one.job in run.memory.cancelled}
    for (job, attempt), pid in run.ran_at_kill.items():
        ends = evidence.runs[job, attempt]
        if [one.pid for one in ends] != [pid]:
            faults.append(f"job {job} attempt {attempt} ran as {pid} at a kill, later: {ends}")
        elif not ends[0].natural and job not in cancelled and job not in run.memory.requeued:
            faults.append(
                f"job {job} attempt {attempt} ran at a kill and did not go on: {ends} {jobs.get(job)}"
            )
        elif ends[0].natural and ends[0].ended_pid != pid:
            faults.append(f"job {job} attempt {attempt} was ended by {ends[0].ended_pid}, not by {pid}")
    if run.kills >= 5 and not run.ran_at_kill:
        faults.append("no job ran during any kill: the run shows nothing about adoption")
    return faults


def _money(
    run: CrashRun, client: httpx.Client, jobs: dict[int, dict[str, Any]], receipts: dict[int, dict[str, Any]]
) -> list[str]:
    faults: list[str] = []
    expected = ExpectedBooks(meters())
    for number, receipt in receipts.items():
        expected.add_receipt(receipt)
        faults += receipt_faults(jobs[number], receipt)
        if not receipt["final"]:
            faults.append(f"job {number}: its receipt is not final")
    for hold in run.memory.holds:
        expected.add_hold(hold.account, "money", hold.drawn if hold.used is None else hold.used)
    accounts = list(pages(client, "/accounts"))
    for account in accounts:
        faults += balance_faults(account)
        faults += [
            f"{account['account']} holds {balance['held']} {balance['unit']} for nothing"
            for balance in account["balances"]
            if float(balance["held"])
        ]
    return faults + expected.faults(accounts)


def _holds(run: CrashRun, client: httpx.Client) -> list[str]:
    """Those made by hand: as many as were acknowledged, each with its amount."""
    shown = {hold["hold"]: hold for hold in pages(client, "/holds?state=any&job=0")}
    known = {hold.hold: hold for hold in run.memory.holds}
    faults = [f"hold {number} is missing" for number in known.keys() - shown.keys()]
    faults += [f"hold {number}: nobody was told of it" for number in shown.keys() - known.keys()]
    for number, hold in known.items():
        used = hold.drawn if hold.used is None else hold.used
        found = shown.get(number, {}).get("used", {})
        if smallest(found.get("money", "0"), "money") != used:
            faults.append(f"hold {number} was used for {used}: {shown.get(number)}")
    return faults


def _ceilings(
    run: CrashRun, acknowledged: dict[int, Acknowledged], receipts: dict[int, dict[str, Any]]
) -> list[str]:
    paid: Counter[str] = Counter()
    for number, receipt in receipts.items():
        if number in acknowledged:
            paid[acknowledged[number].token] += smallest(receipt["cost"], "money")
    return [
        f"{person.name} paid {paid[person.slim]} of {CEILING_NANO} with the narrowed token"
        for person in run.people
        if paid[person.slim] > CEILING_NANO
    ]


def _orphans(folder: Path) -> list[str]:
    deadline = time.monotonic() + _ORPHANS_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{process}" for process in left]


def _check_journal(run: CrashRun, report: Report) -> None:
    """From the files alone: the chain, the decisions again, and the read model from scratch."""
    config = run.hub.config
    store = open_store(config.store_url)
    live = open_read_model(config.read_model_url)
    rebuilt = open_read_model(f"sqlite:///{run.folder / 'rebuilt.db'}", migrate=True)
    try:
        found: list[Any] = []
        report.add("the journal verifies", _tried(lambda: found.append(verify_store(store))))
        replayed = replay_journal.replay(stream(store))
        difference = [f"{replayed.difference}"] if replayed.difference else []
        report.add("its inputs decide the same events again", difference)
        replica = Replica.start(store)
        tailer = Tailer(store, replica)
        while tailer.step():
            pass
        same = snapshot.state_hash(replica.state) == replayed.state_hash
        report.add("folding gives the same state", [] if same else ["the state hashes differ"])
        # What it had not come to when it was stopped, it takes up as at any start.
        following = Tailer(store, open_projector(store, live))
        while following.step():
            pass
        rebuild(store, rebuilt)
        report.add("the read model rebuilt is the live one", _differences(dump(live), dump(rebuilt)))
        report.facts["records"] = found[0].records if found else 0
    finally:
        rebuilt.close()
        live.close()
        store.close()


def _tried(what: Callable[[], object]) -> list[str]:
    try:
        what()
    except Exception as error:
        return [repr(error)]
    return []


def _differences(live: dict[str, Any], rebuilt: dict[str, Any]) -> list[str]:
    faults: list[str] = []
    for table in live.keys() | rebuilt.keys():
        ours, theirs = live.get(table, []), rebuilt.get(table, [])
        if ours != theirs:
            first = next(((a, b) for a, b in zip(ours, theirs, strict=False) if a != b), None)
            faults.append(f"{table}: {len(ours)} rows, rebuilt {len(theirs)}; first difference {first}")
    return faults
