"""Several operations on one shard of a table that are carried out together or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, overload

from antiphon.client.given import Expected, expected_id, known_id
from antiphon.client.hashing import as_bytes
from antiphon.client.session import AnySession, AsyncSession, TablePlaces
from antiphon.client.values import Values
from antiphon.errors import InvalidRequestError
from antiphon.model.requests import Check, Delete, Put
from antiphon.model.rows import Version
from antiphon.model.sessions import PutEphemeral
from antiphon.records.value_type import ValueT

Operation = Put | Delete | Check | PutEphemeral
Results = list[Version | None]
OPEN_TIMEOUT_S: Final = 30.0  # for sessions, where nothing else is said
Commit = Callable[[Sequence[Operation]], Awaitable[Results]]


class Transaction(Generic[ValueT]):
    """Collects operations; `async with table.transaction() as t` carries them out when the block ends without an error.

    Afterwards `versions` has the new version of each put (None for deletes and checks), in order. Operations see those
    before them in the same transaction.
    """

    def __init__(
        self,
        commit: Commit,
        table: TablePlaces,
        timeout_s: float | None = None,
        values: Values[ValueT] | None = None,
    ) -> None:
        self._commit = commit
        self._values = values
        self._table = table
        self._timeout_s = timeout_s
        self._sessions: list[tuple[AsyncSession, bytes]] = []
        self.operations: list[Operation] = []
        self.versions: Results = []

    @overload
    def put(
        self: "Transaction[bytes]",
        key: str | bytes,
        value: str | bytes,
        *,
        expected_version: Expected = None,
        session: AnySession | None = None,
    ) -> None: ...

    @overload
    def put(
        self,
        key: str | bytes,
        value: ValueT,
        *,
        expected_version: Expected = None,
        session: AnySession | None = None,
    ) -> None: ...

    def put(
        self,
        key: str | bytes,
        value: str | bytes | ValueT,
        *,
        expected_version: Expected = None,
        session: AnySession | None = None,
    ) -> None:
        """Set a key; with `expected_version` only if it has that version id, or is not there (`ABSENT`).

        Under a `session` the row is removed when the session ends; SessionNotFoundError if it has ended.
        """
        key = as_bytes(key, "key")
        expected = None if expected_version is None else expected_id(expected_version)
        given: Any = value
        data = as_bytes(given, "value") if self._values is None else self._values.encode(key, given)
        if session is None:
            self.operations.append(Put(key, data, expected))
            return
        self._sessions.append((session.aio, key))
        self.operations.append(PutEphemeral(key, data, session.id, expected))

    def delete(self, key: str | bytes, *, expected_version: Expected = None) -> None:
        """Remove a key; a key that does not exist refuses the transaction."""
        self.operations.append(Delete(as_bytes(key, "key"), expected_id(expected_version)))

    def check(self, key: str | bytes, expected_version: int | Version) -> None:
        """Change nothing, and refuse the transaction unless the key has that version id, or is not there (`ABSENT`)."""
        self.operations.append(Check(as_bytes(key, "key"), known_id(expected_version)))

    async def commit(self) -> Results:
        """Carry it out. Raises what `AsyncTable.write` raises; nothing was written then, unless that is TimedOutError."""
        operations, self.operations = self.operations, []
        if not operations:
            raise InvalidRequestError(
                "a transaction has at least one operation: put, delete or check something first"
            )
        if self._sessions:
            await self._table.resolved()
            deadline = asyncio.get_running_loop().time() + (self._timeout_s or OPEN_TIMEOUT_S)
            for session, key in self._sessions:
                await session.open_for(self._table, key, deadline)
        self.versions = await self._commit(operations)
        return self.versions

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.operations:
            await self.commit()
