"""The PostgreSQL schema of a journal: reached, made and checked; what the server's errors mean.

A journal owns one schema of a database; `meta` in it says whose it is and which version. Only this adapter's own
tables are here. Bodies are stored uncompressed (EXTERNAL): sealing compresses them later, off the append path.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Composed, Identifier, Literal

from mintyard.domain.errors import (
    CommitUnknown,
    InvalidRequest,
    MintyardError,
    StoreCorrupt,
    StoreForeign,
    StoreTooNew,
    StoreUnavailable,
)

APPLICATION: Final = "mintyard journal"
SCHEMA_VERSION: Final = 1
_DDL_LOCK: Final = 0x4D59_4A31

_DDL: Final = (
    "CREATE TABLE {}.meta (application text NOT NULL, version integer NOT NULL)",
    """CREATE TABLE {}.leader (
        id smallint PRIMARY KEY CHECK (id = 1), holder text NOT NULL, term bigint NOT NULL,
        expires_at timestamptz NOT NULL, head_seq bigint NOT NULL, head_chain bytea NOT NULL) WITH (fillfactor = 10)""",
    "INSERT INTO {}.leader VALUES (1, '', 0, '-infinity', 0, '')",
    """CREATE TABLE {}.record (
        seq bigint PRIMARY KEY, term bigint NOT NULL, now bigint NOT NULL, format bigint NOT NULL,
        chain bytea NOT NULL, body bytea NOT NULL)""",
    "ALTER TABLE {}.record ALTER COLUMN body SET STORAGE EXTERNAL",
    """CREATE TABLE {}.segment (
        last_seq bigint PRIMARY KEY, first_seq bigint NOT NULL UNIQUE, name text NOT NULL UNIQUE,
        first_prev bytea NOT NULL, last_chain bytea NOT NULL, content bytea NOT NULL)""",
    "ALTER TABLE {}.segment ALTER COLUMN content SET STORAGE EXTERNAL",
    """CREATE TABLE {}.snapshot (
        seq bigint PRIMARY KEY, chain bytea NOT NULL, schema integer NOT NULL, state_hash bytea NOT NULL,
        digest bytea NOT NULL, body bytea NOT NULL)""",
    "ALTER TABLE {}.snapshot ALTER COLUMN body SET STORAGE EXTERNAL",
)


def conninfo(url: str, timeout_ms: int, *, read_only: bool) -> str:
    """libpq's form of `url` with our defaults below it. A dead peer is noticed without traffic (keepalives) and with
    it (`tcp_user_timeout`); of several hosts the one that takes writes is chosen."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # libpq's message may quote the password.
        raise InvalidRequest(why="the PostgreSQL URL can't be read") from None
    defaults = {
        "application_name": "mintyard",
        "connect_timeout": str(max(2, timeout_ms // 1_000)),
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": str(timeout_ms),
        "target_session_attrs": "any" if read_only else "read-write",
        "client_encoding": "utf8",
    }
    return make_conninfo("", **(defaults | given))


def prepare(db: psycopg.Connection[Any], schema: str, *, read_only: bool) -> None:
    """Make the journal's tables when `schema` is missing or empty; refuse what is not ours or too new."""
    with db.transaction():
        if not read_only:
            # Two first starts at once would make the same objects: one waits for the other.
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_DDL_LOCK,))
        if _ours(db, schema):
            return
        if read_only:
            raise StoreForeign(store=f"schema {schema}", why="it is missing or empty")
        name = Identifier(schema)
        db.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        for statement in _DDL:
            db.execute(SQL(statement).format(name))
        meta = SQL("INSERT INTO {}.meta VALUES ({}, {})")
        db.execute(meta.format(name, Literal(APPLICATION), Literal(SCHEMA_VERSION)))


def _ours(db: psycopg.Connection[Any], schema: str) -> bool:
    tables = {
        row[0]
        for row in db.execute(
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE nspname = %s AND relkind IN ('r', 'p', 'v', 'm')",
            (schema,),
        )
    }
    if not tables:
        return False
    store = f"schema {schema}"
    if "meta" not in tables:
        raise StoreForeign(store=store, why="the schema holds tables of another application")
    try:
        row = db.execute(
            SQL("SELECT application, version FROM {}.meta").format(Identifier(schema))
        ).fetchone()
    except (pg.UndefinedColumn, pg.InsufficientPrivilege) as error:
        raise StoreForeign(store=store, why="its table meta is not ours") from error
    if row is None or row[0] != APPLICATION:
        raise StoreForeign(store=store, why="its table meta is not ours")
    if row[1] > SCHEMA_VERSION:
        raise StoreTooNew(store=store, found=row[1], known=SCHEMA_VERSION)
    missing = {"leader", "record", "segment", "snapshot"} - tables
    if missing:
        raise StoreCorrupt(store=store, why=f"its tables {', '.join(sorted(missing))} are missing")
    return True


def translate(error: psycopg.Error, schema: str, *, committing: bool, lost: bool) -> MintyardError:
    """What an error means. `lost`: the connection is gone. Lost while committing, nobody knows what happened; an
    error that the server reported on a living connection always means that the transaction was rolled back."""
    if committing and lost:
        return CommitUnknown()
    if isinstance(error, (pg.DataCorrupted, pg.IndexCorrupted, pg.UndefinedTable, pg.UndefinedColumn)):
        return StoreCorrupt(store=f"schema {schema}", why=_first_line(error))
    return StoreUnavailable(why=_first_line(error))


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def statements(schema: str) -> dict[str, Composed]:
    """The statements of the store for one schema, each of them one round trip."""
    name = Identifier(schema)
    fence = SQL(_FENCE).format(s=name)
    return {key: SQL(text).format(s=name, fence=fence) for key, text in _STATEMENTS.items()}


_FENCE: Final = """WITH fence AS (
    UPDATE {s}.leader SET head_seq = %(last)s, head_chain = %(chain)s
    WHERE term = %(leader)s AND holder <> '' AND head_seq = %(before)s RETURNING 1)
    INSERT INTO {s}.record (seq, term, now, format, chain, body) """

_STATEMENTS: Final[dict[str, LiteralString]] = {
    "acquire": """UPDATE {s}.leader
        SET holder = %(holder)s, term = term + 1,
            expires_at = clock_timestamp() + %(life)s * interval '1 millisecond'
        WHERE holder IN ('', %(holder)s) OR expires_at <= clock_timestamp() RETURNING term""",
    "renew": """UPDATE {s}.leader SET expires_at = clock_timestamp() + %(life)s * interval '1 millisecond'
        WHERE holder = %(holder)s AND term = %(term)s RETURNING term""",
    "release": "UPDATE {s}.leader SET holder = '' WHERE holder = %s AND term = %s",
    "append_one": "{fence} SELECT %(seq)s, %(term)s, %(now)s, %(format)s, %(chain)s, %(body)s FROM fence",
    "append_many": """{fence} SELECT r.* FROM fence, unnest(%(seqs)s::bigint[], %(terms)s::bigint[], %(nows)s::bigint[],
        %(formats)s::bigint[], %(chains)s::bytea[], %(bodies)s::bytea[]) AS r""",
    "leader": "SELECT holder, term, head_seq, head_chain FROM {s}.leader",
    "rows": """SELECT l.head_seq, s.sealed, r.seq, r.term, r.now, r.format, r.chain, r.body
        FROM {s}.leader l
        CROSS JOIN (SELECT coalesce(max(last_seq), 0) AS sealed FROM {s}.segment) s
        LEFT JOIN LATERAL (
            SELECT * FROM (
                SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS size_before
                FROM (
                    SELECT * FROM {s}.record
                    WHERE seq > %(after)s AND seq <= %(upto)s AND s.sealed <= %(after)s
                    ORDER BY seq LIMIT %(limit)s) AS run) AS sized
            WHERE size_before < %(size)s) AS r ON true
        ORDER BY r.seq""",
    "head": """SELECT l.holder, l.term, l.head_seq, l.head_chain, r.seq, r.term, r.now, r.format, r.chain, r.body
        FROM {s}.leader l LEFT JOIN {s}.record r ON r.seq = (SELECT max(seq) FROM {s}.record)""",
    "segment_after": """SELECT name, first_seq, last_seq, first_prev, last_chain, content FROM {s}.segment
        WHERE last_seq > %s ORDER BY last_seq LIMIT 1""",
    "sealed": "SELECT last_seq, last_chain FROM {s}.segment ORDER BY last_seq DESC LIMIT 1",
    "lock_segments": "LOCK TABLE {s}.segment IN SHARE ROW EXCLUSIVE MODE",
    "add_segment": """INSERT INTO {s}.segment (name, first_seq, last_seq, first_prev, last_chain, content)
        VALUES (%s, %s, %s, %s, %s, %s)""",
    "drop_rows": "DELETE FROM {s}.record WHERE seq <= %s",
    "add_snapshot": """INSERT INTO {s}.snapshot (seq, chain, schema, state_hash, digest, body)
        VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (seq) DO UPDATE SET chain = excluded.chain,
        schema = excluded.schema, state_hash = excluded.state_hash, digest = excluded.digest, body = excluded.body""",
    "drop_snapshots": """DELETE FROM {s}.snapshot
        WHERE seq NOT IN (SELECT seq FROM {s}.snapshot ORDER BY seq DESC LIMIT %s)""",
    "snapshot_before": """SELECT seq, chain, schema, state_hash, body, digest FROM {s}.snapshot
        WHERE seq < %s AND schema <= %s ORDER BY seq DESC LIMIT 1""",
}
