"""Nodes and prices over REST (U12, L5)."""

from __future__ import annotations

from typing import Any

import msgspec

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.pages import paged
from mintyard.api.parameters import MIN_SEQ, PAGED, choice, text
from mintyard.api.resources.accounts import change
from mintyard.api.routes import Table, changed, shown
from mintyard.app.read_model import queries, views
from mintyard.domain import commands
from mintyard.domain.errors import (
    InvalidAmount,
    InvalidName,
    InvalidSpec,
    LimitReached,
    NotAcceptableTime,
    NotFound,
    WrongState,
)
from mintyard.domain.ids import check_name
from mintyard.domain.ledger.prices import PriceBook
from mintyard.domain.lifecycle import NODE
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit, format_amount, parse_amount
from mintyard.wire import nodes as wire
from mintyard.wire.bounds import instant_or_none, parse_instant
from mintyard.wire.pages import Change, Page

NODES = Table("nodes")
PRICES = Table("prices")
_CONTROL: dict[str, Any] = {
    "body": wire.ControlNode,
    "optional_body": True,
    "answer": Change,
    "scope": Scope.NODE_WRITE,
    "refusals": (NotFound, WrongState),
}


def node_of(view: views.NodeView) -> wire.Node:
    return wire.Node(
        node=view.node,
        engine=view.engine,
        state=view.state,  # pyright: ignore[reportArgumentType] (a state of the life cycle)
        cpus_milli=view.cpus_milli,
        memory_mib=view.memory_mib,
        gpus=view.gpus,
        gpu_model=view.gpu_model,
        labels=view.labels,
        virtual=view.virtual,
        running=view.running,
        used_cpus_milli=view.used_cpus_milli,
        used_memory_mib=view.used_memory_mib,
        used_gpus_milli=view.used_gpus_milli,
        reason=view.reason,
        joined_at=instant_or_none(view.joined_at),
    )


@NODES.add(
    "GET",
    "/nodes",
    "List nodes",
    answer=Page[wire.Node],
    query=(
        choice("state", "Only nodes in this state; removed ones show only so.", tuple(NODE.states)),
        text("engine", "Only nodes of this engine."),
        *PAGED,
    ),
    scope=Scope.NODE_READ,
)
async def list_nodes(call: Call) -> Answer:
    """Nodes are shared: whoever may read nodes sees all, and how much of each is in use, not by whom."""
    query = call.query
    found = await call.look(
        queries.list_nodes,
        state=query["state"],
        engine=query["engine"],
        after=query["cursor"],
        rows=query["limit"],
    )
    return paged(call, "/nodes", found, node_of)


@NODES.add(
    "GET",
    "/nodes/{node}",
    "Show a node",
    answer=wire.Node,
    query=(MIN_SEQ,),
    scope=Scope.NODE_READ,
    refusals=(NotFound,),
)
async def show_node(call: Call) -> Answer:
    return shown(node_of(await call.look(queries.show_node, call.path["node"])))


async def _control(call: Call, verb: str, body: wire.ControlNode) -> Answer:
    answer = await call.send(
        commands.ControlNode(call.bearer, call.path["node"], verb, body.reason, call.key)
    )
    return changed(call, answer, change(answer))


@NODES.add("POST", "/nodes/{node}/cordon", "Take no new work on a node", **_CONTROL)
async def cordon_node(call: Call, body: wire.ControlNode) -> Answer:
    return await _control(call, "cordon", body)


@NODES.add("POST", "/nodes/{node}/uncordon", "Take work on a node again", **_CONTROL)
async def uncordon_node(call: Call, body: wire.ControlNode) -> Answer:
    return await _control(call, "uncordon", body)


@NODES.add("POST", "/nodes/{node}/drain", "Let a node run empty", **_CONTROL)
async def drain_node(call: Call, body: wire.ControlNode) -> Answer:
    return await _control(call, "drain", body)


@NODES.add("POST", "/nodes/{node}/remove", "Forget a node that runs nothing", **_CONTROL)
async def remove_node(call: Call, body: wire.ControlNode) -> Answer:
    return await _control(call, "remove", body)


# --- prices ---------------------------------------------------------------------------------------------------------


def _rate(nano: int) -> str:
    return format_amount(nano, Unit.MONEY)


def price_book_of(view: views.PriceView) -> wire.PriceBook:
    return wire.PriceBook(
        number=view.number,
        gpu=_rate(view.gpu_nano),
        cpu=_rate(view.cpu_nano),
        memory=_rate(view.memory_nano),
        storage=_rate(view.storage_nano),
        gpu_models={model: _rate(nano) for model, nano in view.gpu_models.items()},
        effective_from=instant_or_none(view.effective_from),
        set_at=instant_or_none(view.set_at),
        in_force=view.in_force,
    )


@PRICES.add("GET", "/prices", "List price books", answer=Page[wire.PriceBook], query=(MIN_SEQ,))
async def list_prices(call: Call) -> Answer:
    """All books, oldest first; at most a thousand are kept. Prices are open to every token."""
    books = await call.look(queries.list_prices)
    if not books or books[0].number:
        free = not any(book.in_force for book in books)
        books = (views.PriceView(0, 0, 0, *msgspec.structs.astuple(PriceBook())[1:], in_force=free), *books)
    return shown(Page[wire.PriceBook](items=tuple(price_book_of(book) for book in books)))


@PRICES.add(
    "POST",
    "/prices",
    "Set prices from an instant on",
    body=wire.SetPrices,
    answer=Change,
    status=201,
    scope=Scope.PRICE_WRITE,
    refusals=(InvalidAmount, InvalidName, InvalidSpec, NotAcceptableTime, LimitReached),
)
async def set_prices(call: Call, body: wire.SetPrices) -> Answer:
    """Jobs admitted before keep the prices that they were admitted with."""
    book = PriceBook(
        effective_from=parse_instant(body.effective_from, "effective_from") if body.effective_from else 0,
        gpu_nano=parse_amount(body.gpu, Unit.MONEY),
        cpu_nano=parse_amount(body.cpu, Unit.MONEY),
        memory_nano=parse_amount(body.memory, Unit.MONEY),
        storage_nano=parse_amount(body.storage, Unit.MONEY),
        gpu_models={
            check_name("GPU model", model): parse_amount(rate, Unit.MONEY)
            for model, rate in body.gpu_models.items()
        },
    )
    answer = await call.send(commands.SetPrices(call.bearer, book, call.key))
    return changed(call, answer, change(answer), 201)
