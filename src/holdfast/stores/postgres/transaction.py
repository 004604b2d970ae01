"""One transaction: how plans are run through a connection, with as few round trips as they allow.

Statements go out in pipeline mode. Only a step whose result the plan reads waits for the server;
the others travel with it, and the commit with the last of them. A failure of such a statement shows
later, at another plan's step perhaps, so a failure of the server always ends the transaction.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from holdfast.blobs.port import BlobStore
from holdfast.core.errors import HoldfastError
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.relational.plan import (
    Change,
    ChangeMany,
    Clock,
    HasBlob,
    Plan,
    Query,
    ReadBlob,
    RemoveBlob,
    Step,
)

T = TypeVar("T")


class Transaction:
    """A transaction that is under way on a connection; `wrote` says whether it wrote anything."""

    def __init__(
        self, connection: Connection, statements: dict[str, str], blobs: BlobStore | None
    ) -> None:
        self._connection = connection
        self._sql = statements
        self._blobs = blobs
        self.wrote = False

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan; what a blob store raises is raised at the plan's yield."""
        try:
            step = next(plan)
            while True:
                try:
                    result = await self._step(step)
                except HoldfastError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
        finally:
            plan.close()

    async def query(self, name: str, values: Any = ()) -> list[Any]:
        """Return the rows of a statement."""
        cursor = await self._connection.execute(self._sql[name], values, binary=True)
        rows: list[Any] = await cursor.fetchall()
        return rows

    async def send(self, name: str, values: Any = None) -> None:
        """Send a statement without waiting for it."""
        await self._connection.execute(self._sql[name], values)

    async def _step(self, step: Step) -> Any:
        if type(step) is Query:
            return await self.query(step.name, step.values)
        if type(step) is Change:
            self.wrote = True
            if step.counted:
                return len(await self.query(step.name, step.values))
            return await self.send(step.name, step.values)
        if type(step) is ChangeMany:
            self.wrote = True
            return await self.send(
                step.name, [list(column) for column in zip(*step.rows, strict=True)]
            )
        if type(step) is Clock:
            return (await self.query("clock"))[0][0]
        assert type(step) in (HasBlob, ReadBlob, RemoveBlob)
        return await self._blob_step(step)

    async def _blob_step(self, step: Step) -> Any:
        """Ask the blob store, then the table: a store may have got the former later."""
        assert isinstance(step, HasBlob | ReadBlob | RemoveBlob)
        place = (step.tenant, step.id)
        if type(step) is RemoveBlob:
            self.wrote = True
        if self._blobs is not None:
            verb = {HasBlob: "has", ReadBlob: "get", RemoveBlob: "remove"}[type(step)]
            found = await asyncio.to_thread(getattr(self._blobs, verb), *place)
            if found:
                return found
        if type(step) is HasBlob:
            return bool(await self.query("has_blob", place))
        if type(step) is ReadBlob:
            rows = await self.query("read_blob", place)
            return rows[0][0] if rows else None
        return await self.send("remove_blob", place)
