"""The hub, its tokens and its nodes as rows. A token shows by the id of its root block; no bearer token may enter."""

from __future__ import annotations

from typing import Final

import msgspec

from mintyard.app.projection import REMOVED, Handler, Projection
from mintyard.app.projection_ledger import put_prices
from mintyard.app.read_model.rows import NodeRow, RevocationRow, TokenRow
from mintyard.domain import events as e
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.lifecycle import NODE, TOKEN

_json = msgspec.json.Encoder(order="deterministic")


def hub_founded(p: Projection, event: e.HubFounded) -> None:
    p.cursor.hub, p.cursor.currency = event.name, event.currency
    put_prices(p, PriceBook())


def format_raised(p: Projection, event: e.FormatRaised) -> None:
    p.cursor.format = event.format


def token_registered(p: Projection, event: e.TokenRegistered) -> None:
    parents = _json.encode(event.parents).decode()
    p.shelves.tokens.put(
        TokenRow(
            event.token, event.account, event.name, TOKEN.initial, event.expires_at, parents, p.now, p.now
        )
    )


def token_moved(p: Projection, event: e.TokenMoved) -> None:
    row = p.shelves.tokens.change(event.token)
    row.state, row.moved_at = TOKEN.step(row.state, event.trigger), p.now


def block_revoked(p: Projection, event: e.BlockRevoked) -> None:
    p.shelves.revocations.put(RevocationRow(event.block, event.token, p.now, event.keep_until))


def node_joined(p: Projection, event: e.NodeJoined) -> None:
    p.shelves.nodes.put(
        NodeRow(
            event.node,
            p.places.take(event.node),
            event.engine,
            NODE.initial,
            event.cpus_milli,
            event.memory_mib,
            event.gpus,
            event.gpu_model,
            _json.encode(event.labels).decode(),
            event.virtual,
            "",
            p.now,
            p.now,
        )
    )


def node_changed(p: Projection, event: e.NodeChanged) -> None:
    row = p.shelves.nodes.change(event.node)
    row.cpus_milli, row.memory_mib, row.gpus = event.cpus_milli, event.memory_mib, event.gpus
    row.gpu_model, row.virtual = event.gpu_model, event.virtual
    row.labels = _json.encode(event.labels).decode()


def node_moved(p: Projection, event: e.NodeMoved) -> None:
    row = p.shelves.nodes.change(event.node)
    row.state, row.reason, row.moved_at = NODE.step(row.state, event.trigger), event.reason, p.now
    if row.state == "removed":
        p.places.leave(row.index)
        row.index = REMOVED


HANDLERS: Final[dict[type, Handler]] = {
    e.HubFounded: hub_founded,
    e.FormatRaised: format_raised,
    e.TokenRegistered: token_registered,
    e.TokenMoved: token_moved,
    e.BlockRevoked: block_revoked,
    e.NodeJoined: node_joined,
    e.NodeChanged: node_changed,
    e.NodeMoved: node_moved,
}
