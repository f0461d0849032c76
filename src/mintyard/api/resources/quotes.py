"""Quotes, explanations, receipts and statements over REST (L8, S15)."""

from __future__ import annotations

from mintyard.api.answers import Answer
from mintyard.api.call import Call
from mintyard.api.job_views import money, receipt_of
from mintyard.api.pages import next_link
from mintyard.api.parameters import CURSOR, LIMIT, MIN_SEQ, choice, instant
from mintyard.api.resources.accounts import balance_of
from mintyard.api.resources.jobs import number_of
from mintyard.api.routes import Table, shown
from mintyard.app import questions
from mintyard.app.read_model import queries, views
from mintyard.domain.errors import (
    DependencyCycle,
    InvalidAmount,
    InvalidName,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    TooLarge,
)
from mintyard.domain.tokens.authority import Scope
from mintyard.domain.units import Unit, format_amount
from mintyard.wire import quotes as wire
from mintyard.wire.bounds import MAX_NUMBER, format_instant, instant_or_none
from mintyard.wire.jobs import to_requests
from mintyard.wire.problems import details_of_problem
from mintyard.wire.statements import Statement, StatementLine
from mintyard.wire.submissions import Receipt

QUOTES = Table("quotes")
STATEMENTS = Table("statements")


@QUOTES.add(
    "POST",
    "/quotes",
    "Estimate cost and start before submitting",
    body=wire.AskQuote,
    answer=wire.Quote,
    scope=Scope.JOB_SUBMIT,
    refusals=(InvalidSpec, InvalidAmount, InvalidName, TooLarge, DependencyCycle, NotFound),
)
async def quote_jobs(call: Call, body: wire.AskQuote) -> Answer:
    """Changes nothing. A refusal that submitting now would get is part of the answer, not an error."""
    latest = max(call.min_seq, call.services.feed.durable_seq)
    question = questions.QuoteJobs(call.bearer, tuple(to_requests(body.jobs)), latest)
    found = await call.services.link.ask(question)
    assert isinstance(found, questions.Quote)
    lines = tuple(
        wire.QuoteLine(
            account=line.account,
            unit=line.unit,
            amount=format_amount(line.amount, line.unit),
            left=format_amount(line.left, line.unit),
        )
        for line in found.lines
    )
    quote = wire.Quote(
        cost=money(found.cost),
        currency=found.currency,
        per_job=tuple(money(cost) for cost in found.per_job),
        lines=lines,
        refusal=details_of_problem(found.refusal, call.request_id) if found.refusal else None,
        starts_at=instant_or_none(found.starts_at),
        reason=found.reason,
        seq=found.seq,
    )
    return shown(quote, found.seq)


@QUOTES.add(
    "GET",
    "/jobs/{job}/explain",
    "Why a job does not run, and when it may",
    answer=wire.Explanation,
    query=(MIN_SEQ,),
    scope=Scope.JOB_READ,
    refusals=(NotFound,),
)
async def explain_job(call: Call) -> Answer:
    number = await number_of(call)
    if call.bearer.jobs is not None and number not in call.bearer.jobs:
        raise NotFound(what="job", name=call.path["job"])
    latest = max(call.min_seq, call.services.feed.durable_seq)
    found = await call.services.link.ask(questions.ExplainJob(number, call.within, latest))
    assert isinstance(found, questions.Explanation)
    explanation = wire.Explanation(
        job=found.job,
        state=found.state,
        reason=found.reason,
        details=found.details,
        changes=found.changes,
        ahead=found.ahead,
        starts_at=instant_or_none(found.starts_at),
        seq=found.seq,
    )
    return shown(explanation, found.seq)


@QUOTES.add(
    "GET",
    "/jobs/{job}/receipt",
    "What a job has cost, to the last nano-unit",
    answer=Receipt,
    query=(MIN_SEQ,),
    scope=Scope.JOB_READ,
    refusals=(NotFound,),
)
async def show_receipt(call: Call) -> Answer:
    """For a job or a task of an array, not for an array as a whole."""
    found = await call.look(queries.receipt, call.within, call.path["job"], only=call.bearer.jobs)
    return shown(receipt_of(found), found.seq)


def _line_of(line: views.StatementLine, unit: Unit) -> StatementLine:
    return StatementLine(
        seq=line.seq,
        ordinal=line.ordinal,
        at=format_instant(line.at),
        cause=line.cause,
        debit=line.debit,
        credit=line.credit,
        amount=format_amount(line.amount, unit),
        left=format_amount(line.left, unit),
        held=format_amount(line.held, unit),
        spent=format_amount(line.spent, unit),
        grant=line.grant or None,
        hold=line.hold or None,
        job=line.job or None,
        attempt=line.attempt or None,
    )


@STATEMENTS.add(
    "GET",
    "/accounts/{account}/statement",
    "What moved at an account in one unit",
    answer=Statement,
    query=(
        choice("unit", "The unit.", tuple(Unit), "money"),
        instant("since", "Movements at this instant or later."),
        instant("until", "Movements before this instant."),
        CURSOR,
        LIMIT,
        MIN_SEQ,
    ),
    scope=Scope.ACCOUNT_READ,
    refusals=(NotFound,),
)
async def show_statement(call: Call) -> Answer:
    """With the balance before the first line and after the last."""
    query, account = call.query, call.path["account"]
    since, until = query["since"] or 0, MAX_NUMBER if query["until"] is None else query["until"]
    if since > until:
        raise InvalidRequest(why="since is after until")
    found = await call.look(
        queries.statement,
        call.within,
        account,
        Unit(query["unit"]),
        since=since,
        until=until,
        after=query["cursor"],
        rows=query["limit"],
    )
    statement = Statement(
        account=found.account,
        unit=found.unit,
        opening=balance_of(found.opening),
        lines=tuple(_line_of(line, found.unit) for line in found.lines),
        closing=balance_of(found.closing),
        since=instant_or_none(found.since),
        until=None if until == MAX_NUMBER else format_instant(found.until),
        next=found.next or None,
        seq=found.seq,
    )
    answer = shown(statement, found.seq)
    if found.next:
        answer.headers.append(
            next_link(call, f"/accounts/{account.replace('/', '%2F')}/statement", found.next)
        )
    return answer
