"""The service itself: the journal's head, whether this process lives and may be sent requests (O1)."""

from __future__ import annotations

from typing import Any

from mintyard.api.answers import Answer
from mintyard.api.call import Call, Services
from mintyard.api.parameters import MIN_SEQ
from mintyard.api.routes import Table, shown
from mintyard.app.read_model import queries
from mintyard.domain.errors import Forbidden, MintyardError
from mintyard.domain.ids import ROOT
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import NS_PER_S
from mintyard.wire.bounds import instant_or_none
from mintyard.wire.statements import JournalHead

SERVICE = Table("service")


@SERVICE.add(
    "GET",
    "/journal",
    "The journal's head",
    answer=JournalHead,
    query=(MIN_SEQ,),
    scope=Scope.AUDIT_READ,
    refusals=(Forbidden,),
)
async def show_journal(call: Call) -> Answer:
    """For auditors of the whole hub: kept elsewhere, the hash shows a journal that was cut or swapped."""
    if call.within != ROOT:
        raise Forbidden(what="The journal of the whole hub")
    head = await call.look(queries.position)
    chain = head.chain.hex() or "0" * 64
    return shown(
        JournalHead(seq=head.seq, term=head.term, at=instant_or_none(head.at), chain=chain), head.seq
    )


async def readiness(services: Services, look: Any) -> tuple[bool, dict[str, Any]]:
    """Whether requests may be sent here, and each condition: the leader is heard, the read model answers and is
    not far behind what is durable."""
    feed = services.feed
    found: dict[str, Any] = {"leader": feed.connected, "durable_seq": feed.durable_seq}
    try:
        position = await look(queries.position, services.model)
    except MintyardError as error:
        return False, found | {"read_model": False, "why": error.code}
    behind = feed.durable_seq - position.seq
    lag_s = max(0, services.now() - position.at) / NS_PER_S if behind > 0 else 0.0
    ready = feed.connected and lag_s <= services.max_lag_s
    return ready, found | {"read_model": True, "read_seq": position.seq, "lag_s": round(lag_s, 3)}
