"""Opening a store to look at it: nothing is created, no lease is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.options import Call
from holdfast.stores.choose import open_store
from holdfast.stores.port import SessionStore

if TYPE_CHECKING:
    from holdfast.views.reads import Reads

_T = TypeVar("_T")


@asynccontextmanager
async def opened(call: Call) -> AsyncIterator[SessionStore]:
    """Open the store of a call, which must exist, and close it afterwards."""
    store = await open_store(call.store, create=False)
    try:
        yield store
    finally:
        await store.close()


def with_store(call: Call, work: Callable[[SessionStore], Awaitable[_T]]) -> _T:
    """Do something with the store of a call."""

    async def main() -> _T:
        async with opened(call) as store:
            return await work(store)

    return asyncio.run(main())


def with_reads(call: Call, work: Callable[[SessionStore, Reads], Awaitable[_T]]) -> _T:
    """Do something with the store of a call and the history in it."""
    from holdfast.views.reads import Reads

    return with_store(call, lambda store: work(store, Reads(store)))
