"""Grammar: the closed vocabulary of a token's blocks, Datalog text to typed integers and back (T1, T4).

Every statement is true Datalog, so that any Biscuit verifier which states the request's facts decides as we do; we
never run Datalog, since a holder may append blocks and a join in one can hang its reader. Statements, all of them:

    token("<serial>")  issued(<ns>)  parent("<block>")                                 first block only
    check if account("<path>")                                                         pays within this account
    check if operation($operation), {"<scope>", ...}.contains($operation)
    check if cluster($cluster), {"<name>", ...}.contains($cluster)                     likewise model
    check if job($job), {<number>, ...}.contains($job)
    check if gpus_milli($gpus_milli), $gpus_milli <= <n>                               likewise cpus_milli, memory_mib
    check if use("<unit>", $use), $use <= <n>                                          a cumulative ceiling
    check if time($time), $time < <date>          check if time($time), $time >= <date>

The request's facts: `time`, one `operation`, `cluster`, `model`, `job`, the three sizes, `account(a)` for the account
that pays and for each above it, and `use(unit, n)` for what the request may use up. A verifier without counters so
enforces a ceiling per request, which is necessary but not enough; the hub charges a counter per block besides.

A statement may occur once in a block (a ceiling once per unit). An appended block has checks only, and each check can
only take away: whatever a holder writes, the reading is an intersection. Unknown scopes in a set are dropped, which
takes away too; anything else unknown is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from mintyard.domain.errors import InvalidName, InvalidSpec, TokenMalformed
from mintyard.domain.ids import check_account_id, check_name, is_within
from mintyard.domain.limits import MAX_AMOUNT, MAX_TOKEN_BLOCKS
from mintyard.domain.tokens.authority import Authority, Block, Caps, Scope
from mintyard.domain.units import NS_PER_S, Unit

_NO_CAPS: Final = Caps()


class Restrictions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one block says; None and empty say nothing.

    `expires_at` (exclusive) and `not_before` (inclusive) are instants in ns on whole seconds: the writer rounds the
    first down and the second up. `ceilings` are cumulative, in smallest units, over all uses of the block together.
    """

    account: str | None = None
    scopes: frozenset[Scope] | None = None
    expires_at: int | None = None
    not_before: int | None = None
    caps: Caps = Caps()
    ceilings: dict[Unit, int] = {}
    clusters: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    jobs: tuple[int, ...] | None = None


class Origin(msgspec.Struct, frozen=True):
    """What only the first block says: serial (32 hex digits), instant of issue in ns, block ids of other parents."""

    serial: str
    issued_at: int
    parents: tuple[str, ...] = ()


# --- writing --------------------------------------------------------------------------------------------------------


def _number(field: str, value: int, least: int = 0) -> int:
    if type(value) is not int:
        raise InvalidSpec(field=field, why="it is not a whole number")
    if not least <= value <= MAX_AMOUNT:
        raise InvalidSpec(field=field, why=f"it is not within {least} to {MAX_AMOUNT}")
    return value


def _hex(field: str, value: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}", value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpec(field=field, why="it is not 32 hex digits")
    return value


@lru_cache(1_024)
def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _members(field: str, values: Iterable[Any], literal: Callable[[Any], str]) -> str:
    literals = [literal(value) for value in values]
    if not literals:
        raise InvalidSpec(field=field, why="an empty list would allow nothing")
    if len(set(literals)) != len(literals):
        raise InvalidSpec(field=field, why="it names something twice")
    return "{" + ", ".join(sorted(literals)) + "}"


def _within(name: str, field: str, values: Iterable[Any], literal: Callable[[Any], str]) -> str:
    return f"check if {name}(${name}), {_members(field, values, literal)}.contains(${name});"


def write_restrictions(restrictions: Restrictions) -> str:
    """The block's Datalog; `InvalidSpec` or `InvalidName` for a value outside the vocabulary. No text can escape."""
    r, lines = restrictions, list[str]()
    if r.account is not None:
        lines.append(f'check if account("{check_account_id(r.account)}");')
    if r.scopes is not None:
        lines.append(_within("operation", "scopes", r.scopes, lambda scope: f'"{Scope(scope).value}"'))
    if r.expires_at is not None:
        seconds = _number("expires_at", r.expires_at) // NS_PER_S
        lines.append(f"check if time($time), $time < {_date(seconds)};")
    if r.not_before:
        seconds = -(-_number("not_before", r.not_before) // NS_PER_S)
        lines.append(f"check if time($time), $time >= {_date(seconds)};")
    if r.clusters is not None:
        lines.append(
            _within("cluster", "clusters", r.clusters, lambda name: f'"{check_name("cluster", name)}"')
        )
    if r.models is not None:
        lines.append(_within("model", "models", r.models, lambda name: f'"{check_name("model", name)}"'))
    if r.jobs is not None:
        lines.append(_within("job", "jobs", r.jobs, lambda job: str(_number("jobs", job, least=1))))
    for cap in Caps.__struct_fields__:
        value = getattr(r.caps, cap)
        if value is not None:
            lines.append(f"check if {cap}(${cap}), ${cap} <= {_number(cap, value)};")
    for unit in sorted(r.ceilings):
        lines.append(f'check if use("{Unit(unit).value}", $use), $use <= {_number(unit, r.ceilings[unit])};')
    return "\n".join(lines)


def write_origin(origin: Origin) -> str:
    """The facts of the first block."""
    lines = [
        f'token("{_hex("serial", origin.serial)}");',
        f"issued({_number('issued_at', origin.issued_at)});",
    ]
    if len(set(origin.parents)) != len(origin.parents) or len(origin.parents) > MAX_TOKEN_BLOCKS:
        raise InvalidSpec(field="parents", why=f"at most {MAX_TOKEN_BLOCKS} different block ids")
    lines += [f'parent("{_hex("parents", parent)}");' for parent in origin.parents]
    return "\n".join(lines)


# --- reading --------------------------------------------------------------------------------------------------------

_INTEGER = r"(0|[1-9][0-9]{0,18})"
_NAME = r'"[A-Za-z0-9._:/@+-]{1,128}"'
_DATE = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)"


def _read_integer(text: str) -> int:
    value = int(text)
    if value > MAX_AMOUNT:
        raise TokenMalformed(why=f"{text} is above {MAX_AMOUNT}")
    return value


def _read_date(text: str) -> int:
    return _read_integer(str(int(datetime.fromisoformat(text).timestamp()) * NS_PER_S))


def _read_scopes(text: str) -> frozenset[Scope]:
    return frozenset(_SCOPES[name] for name in text[1:-1].split('", "') if name in _SCOPES)


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(sorted(check_name("list member", name) for name in text[1:-1].split('", "')))


def _read_jobs(text: str) -> tuple[int, ...]:
    return tuple(sorted(_read_integer(job) for job in text.split(", ")))


_SCOPES: Final = {scope.value: scope for scope in Scope}
_UNITS: Final = {unit.value: unit for unit in Unit}


def _set_of(name: str, member: str) -> str:
    return rf"\${name}\), \{{({member}(?:, {member})*)\}}\.contains\(\${name}\);"


def _at_most(name: str) -> str:
    return rf"\${name}\), \${name} <= {_INTEGER};"


_CHECKS: Final[dict[str, tuple[re.Pattern[str], str, Callable[[str], Any]]]] = {
    f"check if {predicate}": (re.compile(pattern), field, read)
    for predicate, pattern, field, read in (
        ("account", r'"([a-z0-9._/-]{1,128})"\);', "account", check_account_id),
        ("operation", _set_of("operation", _NAME), "scopes", _read_scopes),
        ("cluster", _set_of("cluster", _NAME), "clusters", _read_names),
        ("model", _set_of("model", _NAME), "models", _read_names),
        ("job", _set_of("job", _INTEGER.replace("(", "(?:", 1)), "jobs", _read_jobs),
        *((cap, _at_most(cap), cap, _read_integer) for cap in Caps.__struct_fields__),
    )
}
_TIME: Final = re.compile(rf"\$time\), \$time (<|>=) {_DATE};")
_USE: Final = re.compile(rf'"([a-z_]{{1,32}})", \$use\), \$use <= {_INTEGER};')
_FACT: Final = re.compile(rf'(?:(token|parent)\("([0-9a-f]{{32}})"\)|issued\({_INTEGER}\));')
_CAPS: Final = Caps.__struct_fields__
_REQUIRED: Final = frozenset(("serial", "issued_at", "account", "scopes", "expires_at"))


def read_block(source: str, *, first: bool) -> tuple[Restrictions, Origin | None]:
    """A block's printed Datalog as typed values; `TokenMalformed` for every statement outside the vocabulary.

    `source` must come from a block whose symbols `envelope` has checked. `first` allows and asks for the facts.
    """
    fields: dict[str, Any] = {}
    ceilings: dict[Unit, int] = {}
    parents: list[str] = []
    try:
        for line in source.splitlines():
            statement = _read_check(line) or (_read_fact(line) if first else None)
            if statement is None:
                raise TokenMalformed(why=f"it has a statement that mintyard doesn't know: {line[:80]}")
            field, value = statement
            if field == "use" and value[0] not in ceilings:
                ceilings[value[0]] = value[1]
            elif field == "parent" and value not in parents and len(parents) < MAX_TOKEN_BLOCKS:
                parents.append(value)
            elif field in fields or field in ("use", "parent"):
                raise TokenMalformed(why=f"a block says {line[:80]} twice or too often")
            else:
                fields[field] = value
    except (ValueError, InvalidName) as error:
        raise TokenMalformed(why=str(error)) from None
    caps = _NO_CAPS
    if not fields.keys().isdisjoint(_CAPS):
        caps = Caps(*(fields.pop(cap, None) for cap in _CAPS))
    origin = None
    if first:
        missing = _REQUIRED - fields.keys()
        if missing:
            raise TokenMalformed(why=f"its first block lacks {', '.join(sorted(missing))}")
        origin = Origin(fields.pop("serial"), fields.pop("issued_at"), tuple(parents))
    return Restrictions(**fields, caps=caps, ceilings=ceilings), origin


@lru_cache(maxsize=8_192)
def _read_check(line: str) -> tuple[str, Any] | None:
    """Field and value of a check; None when it is outside the vocabulary.

    Remembered, since most tokens repeat the statements of others: roles, accounts, caps. None of them is a secret.
    """
    head, _, rest = line.partition("(")
    known = _CHECKS.get(head)
    if known:
        pattern, field, read = known
        match = pattern.fullmatch(rest)
        return (field, read(match[1])) if match else None
    if head == "check if time":
        match = _TIME.fullmatch(rest)
        return ("expires_at" if match[1] == "<" else "not_before", _read_date(match[2])) if match else None
    if head == "check if use":
        match = _USE.fullmatch(rest)
        if match and match[1] in _UNITS:
            return "use", (_UNITS[match[1]], _read_integer(match[2]))
    return None


def _read_fact(line: str) -> tuple[str, Any] | None:
    match = _FACT.fullmatch(line)
    if not match:
        return None
    if match[3]:
        return "issued_at", _read_integer(match[3])
    return ("serial" if match[1] == "token" else "parent"), match[2]


# --- meaning --------------------------------------------------------------------------------------------------------


def _intersect(mine: tuple[Any, ...] | None, theirs: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return tuple(member for member in mine if member in theirs)


def _least(mine: int | None, theirs: int | None) -> int | None:
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return min(mine, theirs)


def intersect(origin: Origin, chain: Sequence[Restrictions], ids: Sequence[str], key: str) -> Authority:
    """The rights that all blocks of `chain` allow together; `ids` are the blocks' ids, `key` the root key's.

    Of two accounts the deeper one pays. Two of which none contains the other leave no one to pay, which is
    `TokenMalformed` here and a failed check in Datalog.
    """
    root = chain[0]
    account, scopes, expires_at = root.account, root.scopes, root.expires_at
    if account is None or scopes is None or expires_at is None:
        raise TokenMalformed(why="its first block lacks account, scopes or end")
    not_before, caps = root.not_before or 0, root.caps
    clusters, models, jobs = root.clusters, root.models, root.jobs
    blocks = [Block(ids[0], expires_at, root.ceilings)]
    for index in range(1, len(chain)):
        block = chain[index]
        if block.account is not None and not is_within(account, block.account):
            if not is_within(block.account, account):
                raise TokenMalformed(why=f"block {index} moves it from account {account} to {block.account}")
            account = block.account
        if block.scopes is not None:
            scopes &= block.scopes
        if block.expires_at is not None:
            expires_at = min(expires_at, block.expires_at)
        if block.not_before is not None:
            not_before = max(not_before, block.not_before)
        if block.caps != _NO_CAPS:
            caps = Caps(*map(_least, msgspec.structs.astuple(caps), msgspec.structs.astuple(block.caps)))
        clusters = _intersect(clusters, block.clusters)
        models = _intersect(models, block.models)
        jobs = _intersect(jobs, block.jobs)
        blocks.append(Block(ids[index], expires_at, block.ceilings))
    return Authority(
        account=account,
        blocks=tuple(blocks),
        scopes=scopes,
        expires_at=expires_at,
        not_before=not_before,
        caps=caps,
        clusters=clusters,
        models=models,
        jobs=jobs,
        parents=origin.parents,
        key=key,
        issued_at=origin.issued_at,
    )


def widening(authority: Authority, asked: Restrictions) -> str | None:
    """What in `asked` goes beyond `authority`, in words; None when it only narrows.

    The intersection makes a wider request harmless; saying so spares its author a surprise.
    """
    if asked.account is not None and not is_within(asked.account, authority.account):
        return f"account {asked.account} is not within {authority.account}"
    extra = (asked.scopes or frozenset()) - authority.scopes
    if extra:
        return f"scopes {', '.join(sorted(extra))}"
    if asked.expires_at is not None and asked.expires_at > authority.expires_at:
        return f"its end is {instant(authority.expires_at)}, not later"
    for name in ("clusters", "models", "jobs"):
        mine, theirs = getattr(authority, name), getattr(asked, name)
        beyond = [] if mine is None or theirs is None else [str(one) for one in theirs if one not in mine]
        if beyond:
            return f"{name} {', '.join(beyond)}"
    for cap in Caps.__struct_fields__:
        mine, theirs = getattr(authority.caps, cap), getattr(asked.caps, cap)
        if mine is not None and theirs is not None and theirs > mine:
            return f"{cap} {theirs}, it has {mine}"
    for unit, amount in asked.ceilings.items():
        least = min((b.ceilings[unit] for b in authority.blocks if unit in b.ceilings), default=amount)
        if amount > least:
            return f"{amount} {unit}, it has {least}"
    return None


def instant(ns: int) -> str:
    """An instant in ns as UTC text of whole seconds, or the number when no calendar has it."""
    try:
        return _date(ns // NS_PER_S)
    except (ValueError, OverflowError, OSError):
        return str(ns)
