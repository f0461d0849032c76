"""Queries about tokens, nodes and the hub itself. Tokens are bounded to the caller's subtree, nodes are the platform's."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from mintyard.app.read_model import schema
from mintyard.app.read_model.database import ReadModel
from mintyard.app.read_model.paging import Paging
from mintyard.app.read_model.reach import check_text, reachable, subtree
from mintyard.app.read_model.rows import CursorRow, NodeRow, TokenRow
from mintyard.app.read_model.views import NodeView, Page, TokenView
from mintyard.domain.errors import InvalidRequest, NotFound
from mintyard.domain.ids import is_within
from mintyard.domain.lifecycle import NODE, TOKEN

_names_decoder = msgspec.json.Decoder(tuple[str, ...])


def list_tokens(
    model: ReadModel,
    within: str,
    *,
    account: str = "",
    state: str = "",
    after: str = "",
    rows: int | None = None,
    min_seq: int = 0,
) -> Page[TokenView]:
    """Tokens registered for an account and those below it, the newest first. A token past its end shows as expired."""
    root = reachable(account, within)
    tokens = schema.tokens.c
    if state and state not in TOKEN.states:
        raise InvalidRequest(why=f"{check_text(state)!r} is no state of a token")
    paging = Paging(("tokens", within, account, state), after, rows)
    now = model.clock()
    query = select(schema.tokens)
    for condition in (
        subtree(tokens.account, root),
        paging.after(tokens.registered_at, tokens.id, descending=True),
    ):
        if condition is not None:
            query = query.where(condition)
    if state == "expired":
        query = query.where(tokens.expires_at <= now, tokens.state.in_(("active", "suspended")))
    elif state:
        query = query.where(tokens.state == state)
        if state != "revoked":
            query = query.where(tokens.expires_at > now)
    query = query.order_by(tokens.registered_at.desc(), tokens.id.desc()).limit(paging.rows + 1)
    with model.read(min_seq) as (connection, cursor):
        found = [TokenRow(*row) for row in connection.execute(query)]
        page = paging.page(found, lambda row: (row.registered_at, row.id), cursor.seq)
        return Page(_token_views(connection, page.rows, now), page.next, page.seq)


def show_token(model: ReadModel, within: str, token: str, *, min_seq: int = 0) -> TokenView:
    """One token by its id (32 hex digits)."""
    query = select(schema.tokens).where(schema.tokens.c.id == check_text(token))
    with model.read(min_seq) as (connection, _):
        row = connection.execute(query).one_or_none()
        if row is None or not is_within(row.account, within):
            raise NotFound(what="token", name=token)
        return _token_views(connection, (TokenRow(*row),), model.clock())[0]


def _token_views(connection: Connection, rows: tuple[TokenRow, ...], now: int) -> tuple[TokenView, ...]:
    blocks: defaultdict[str, list[str]] = defaultdict(list)
    revocations = schema.revocations.c
    query = select(revocations.token, revocations.block).where(
        revocations.token.in_([row.id for row in rows])
    )
    for token, block in connection.execute(query.order_by(revocations.block)) if rows else ():
        blocks[token].append(block)
    return tuple(
        TokenView(
            row.id,
            row.account,
            row.name,
            "expired" if row.state in ("active", "suspended") and row.expires_at <= now else row.state,
            row.expires_at,
            row.registered_at,
            _names_decoder.decode(row.parents),
            tuple(block for block in blocks[row.id] if block != row.id),
        )
        for row in rows
    )


def list_nodes(
    model: ReadModel,
    *,
    state: str = "",
    engine: str = "",
    after: str = "",
    rows: int | None = None,
    min_seq: int = 0,
) -> Page[NodeView]:
    """Nodes by name; removed ones only when asked for by that state."""
    nodes = schema.nodes.c
    if state and state not in NODE.states:
        raise InvalidRequest(why=f"{check_text(state)!r} is no state of a node")
    paging = Paging(("nodes", state, engine), after, rows)
    query = select(schema.nodes).where(nodes.state == state if state else nodes.state != "removed")
    if engine:
        query = query.where(nodes.engine == check_text(engine))
    if (condition := paging.after(nodes.name)) is not None:
        query = query.where(condition)
    query = query.order_by(nodes.name).limit(paging.rows + 1)
    with model.read(min_seq) as (connection, cursor):
        found = [_node_view(row) for row in connection.execute(query)]
        return paging.page(found, lambda node: (node.node,), cursor.seq)


def show_node(model: ReadModel, node: str, *, min_seq: int = 0) -> NodeView:
    query = select(schema.nodes).where(schema.nodes.c.name == check_text(node))
    with model.read(min_seq) as (connection, _):
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(what="node", name=node)
        return _node_view(row)


def _node_view(row: Any) -> NodeView:
    node = NodeRow(*row)
    return NodeView(
        node.name,
        node.engine,
        node.state,
        node.cpus_milli,
        node.memory_mib,
        node.gpus,
        node.gpu_model,
        _names_decoder.decode(node.labels),
        node.virtual,
        node.reason,
        node.joined_at,
        node.running,
        node.used_cpus_milli,
        node.used_memory_mib,
        node.used_gpus_milli,
    )


def position(model: ReadModel, *, min_seq: int = 0) -> CursorRow:
    """How far the read model has come, and what the hub is called."""
    with model.read(min_seq) as (_, cursor):
        return cursor
