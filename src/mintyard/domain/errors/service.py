"""The service: it can't answer now, or something of ours is broken."""

from __future__ import annotations

from mintyard.domain.errors.families import Broken, Conflict, Exit, Unavailable


class Overloaded(Unavailable):
    code = "overloaded"
    message = "More requests are waiting than the hub takes."
    remedy = "Send it again after {retry_after_s} s."


class NotLeader(Unavailable):
    code = "not_leader"
    message = "This process no longer leads the hub."
    remedy = "Send it again: another process leads or will shortly."


class StoreUnavailable(Unavailable):
    code = "store_unavailable"
    message = "The store can't be reached: {why}."
    remedy = "Send it again; check the store with `mintyard doctor`."


class CommitUnknown(Unavailable):
    code = "commit_unknown"
    message = "The store broke off in mid-commit; whether the request took effect is being found out."
    remedy = "Send it again with the same Idempotency-Key."


class EngineUnavailable(Unavailable):
    code = "engine_unavailable"
    message = "The engine {engine} can't be reached: {why}."
    remedy = "Its jobs go on; they are looked at again when it answers."


class NotCaughtUp(Unavailable):
    code = "not_caught_up"
    message = "The read model is at {seq}, the request asked for {min_seq}."
    remedy = "Send it again after {retry_after_s} s."


class WaitTimeout(Unavailable):
    code = "wait_timeout"
    status = 504
    exit_status = Exit.TIMEOUT
    message = "{what} did not happen within {seconds} s."
    remedy = "Wait longer, or look at it with `mintyard job explain`."


class Fenced(Conflict):
    code = "fenced"
    status = 503
    exit_status = Exit.UNAVAILABLE
    message = "Term {term} was superseded by term {current}."
    remedy = "Another process leads; this one must recover from the store."


class FolderInUse(Conflict):
    code = "folder_in_use"
    message = "Another hub (process {pid}) runs in {folder}."
    remedy = "Stop it first, or choose another folder."


class JournalGap(Conflict):
    code = "journal_gap"
    message = "The journal's next record is {expected}, not {given}."
    remedy = "Read the head again and continue from there."


class StoreCorrupt(Broken):
    code = "store_corrupt"
    message = "The store {store} is damaged: {why}."
    remedy = "Stop the hub, keep a copy of the store, and restore it from a backup."


class StoreForeign(Broken):
    code = "store_foreign"
    message = "{store} is not a mintyard store: {why}."
    remedy = "Name another place for the store; nothing was changed there."


class StoreTooNew(Broken):
    code = "store_too_new"
    message = "The store {store} has schema {found}; this version knows up to {known}."
    remedy = "Update mintyard on this machine."


class VerificationFailed(Broken):
    code = "verification_failed"
    exit_status = Exit.VERIFICATION
    message = "The journal does not verify at record {seq}: {why}."
    remedy = "Restore the journal from a backup taken before record {seq}; don't start the hub on it."


class DecidedOtherwise(Broken):
    code = "decided_otherwise"
    exit_status = Exit.VERIFICATION
    message = "This version decides record {seq} otherwise than was recorded: {why}."
    remedy = (
        "After an update that is no fault: hubs start on what was recorded. Check it with `mintyard journal verify`; replay "
        "with the version that wrote the record."
    )


class KeyRingDamaged(Broken):
    code = "key_ring_damaged"
    message = "The key ring {path} can't be read: {why}."
    remedy = "Restore it from a backup; without it a new ring is made and every token ends."


class KeyRingExposed(Broken):
    code = "key_ring_exposed"
    message = "Others on this machine can reach the signing keys in {path} (mode {mode})."
    remedy = "Close it with `chmod go= {path}`, then withdraw the keys: they may have been read."


class Fault(Broken):
    code = "fault"
    message = "The hub failed at this request; it is in its log under the request's id."
    remedy = "Report this with the request id. A write may or may not have taken effect: look, or repeat it with its key."


class IllegalTransition(Broken):
    code = "illegal_transition"
    message = "A {what} can't go from {source} to {target}."


class InvariantBroken(Broken):
    code = "invariant_broken"
    message = "An invariant does not hold: {why}."
    remedy = "Stop the hub, keep its folder, and report this."


class Unknown(Broken):
    code = "unknown"
    message = "The hub reported {reported}, which this version doesn't know."
    remedy = "Update the client."
