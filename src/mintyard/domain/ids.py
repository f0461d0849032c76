"""Identifiers: what an id may look like, and what it means.

Account ids are paths (`acme/vision/ann`), so an id names its ancestors; the platform's own account is `/`.
Jobs, grants and holds are numbered by the core in order of admission: deterministic, short to type, never reused.
"""

from __future__ import annotations

import re
from typing import Final

from mintyard.domain.errors import InvalidName
from mintyard.domain.limits import MAX_ACCOUNT_DEPTH, MAX_ACCOUNT_ID_CHARS, MAX_NAME_CHARS

ROOT: Final = "/"
_SEGMENT: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")


def check_account_id(account: str) -> str:
    """`account` when it is a well-formed path of at most `MAX_ACCOUNT_DEPTH` segments, else `InvalidName`."""
    if account == ROOT:
        return account
    segments = account.split("/")
    if len(account) > MAX_ACCOUNT_ID_CHARS or len(segments) > MAX_ACCOUNT_DEPTH:
        raise InvalidName(
            what="account",
            name=account[:MAX_ACCOUNT_ID_CHARS],
            why=f"deeper than {MAX_ACCOUNT_DEPTH} or too long",
        )
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise InvalidName(
            what="account",
            name=account[:MAX_ACCOUNT_ID_CHARS],
            why="use segments of a-z 0-9 . _ - joined by /",
        )
    return account


def check_name(what: str, name: str) -> str:
    """`name` when it fits `[A-Za-z0-9][A-Za-z0-9._:/@+-]*` within `MAX_NAME_CHARS`, else `InvalidName`."""
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidName(what=what, name=name[:MAX_NAME_CHARS], why="use letters, digits and . _ : / @ + -")
    return name


def parent_of(account: str) -> str | None:
    """The parent's id, `/` for a top-level account, None for `/` itself."""
    if account == ROOT:
        return None
    head, slash, _ = account.rpartition("/")
    return head if slash else ROOT


def is_within(account: str, ancestor: str) -> bool:
    """Whether `account` is `ancestor` or lies below it."""
    return ancestor == ROOT or account == ancestor or account.startswith(ancestor + "/")
