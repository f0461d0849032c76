"""Listing: a list that is fetched page by page while it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from mintyard.domain.errors import InvalidSpec
from mintyard.domain.limits import MAX_PAGE_ROWS
from mintyard.sdk.aio.connection import AsyncConnection
from mintyard.sdk.request import get
from mintyard.wire.pages import Page

T = TypeVar("T")


class AsyncListing(Generic[T]):
    """Iterate it for every row, `pages()` for the pages as they are, `all()` for a list. Nothing is fetched before that."""

    def __init__(
        self, connection: AsyncConnection, path: str, page: Any, query: dict[str, Any], paged: bool = True
    ) -> None:
        self._connection = connection
        self._path = path
        self._page: type[Page[T]] = page
        self._query = query
        self._paged = paged

    async def pages(self, rows: int = MAX_PAGE_ROWS, after: str | None = None) -> AsyncIterator[Page[T]]:
        """Pages of at most `rows` rows, from the cursor `after` on."""
        if not 1 <= rows <= MAX_PAGE_ROWS:
            raise InvalidSpec(field="rows", why=f"is {rows}, allowed are 1 to {MAX_PAGE_ROWS}")
        cursor = after
        while True:
            page = await self._fetch(rows, cursor)
            yield page
            cursor = page.next
            if not cursor:
                return

    async def _fetch(self, rows: int, cursor: str | None) -> Page[T]:
        query = self._query | ({"limit": rows, "cursor": cursor} if self._paged else {})
        return await self._connection.send(get(self._path, self._page, **query))

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item

    async def all(self) -> list[T]:
        return [item async for item in self]

    async def first(self, most: int) -> Page[T]:
        """The first `most` rows in one page; its `next` is set when there are more."""
        items: list[T] = []
        seq = 0
        cursor: str | None = None
        while len(items) < most:
            rows = min(most - len(items), MAX_PAGE_ROWS)
            page = await self._fetch(rows, cursor)
            items += page.items
            seq, cursor = page.seq, page.next
            if not cursor:
                break
        return Page(items=tuple(items[:most]), next=cursor, seq=seq)
