"""What a transaction that spans shards reads and changes of tables: the part of `AsyncTransaction` that is about them.

Changes are collected, and sent at the commit only. Each shard prepares its own, which locks their keys; one shard after the
other in the order of their ids, so that no two transactions wait for each other in a circle. When all is prepared, what was
only read is looked at once more: it must be as it was, and nobody else may be about to change it. Then the coordinator
decides. A transaction that meets the lock of another one in a prepare waits a moment; in the last look it gives up, for what
it has read is about to change.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon import system
from antiphon.client.cluster import Cluster
from antiphon.client.given import Expected, expected_id, known_id
from antiphon.client.hashing import as_bytes
from antiphon.client.named import AnyTable, name_of
from antiphon.client.one_write import OneWrite
from antiphon.client.routing.tries import BackOff, Tries
from antiphon.client.table_writer import refusal
from antiphon.client.topic_writer import SEQUENCE_MASK
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    KeyLockedError,
    KeyNotFoundError,
    NotReadyError,
    ProtocolViolationError,
    VersionMismatchError,
    WrongShardError,
)
from antiphon.model.body import reply_as
from antiphon.model.requests import Check, Delete, OpStatus, Put, TableWritten
from antiphon.model.rows import Row, Version
from antiphon.model.table_transactions import (
    PREPARE_OPS_MAX,
    READS_MAX,
    CheckReads,
    KeysRead,
    PrepareWrite,
    ReadKey,
    ReadKeys,
    ReadsChecked,
)

if TYPE_CHECKING:
    from antiphon.client.producer_identity import Identity
    from antiphon.client.table import AsyncTable
    from antiphon.client.table_core import TableCore
    from antiphon.client.values import Values

ABSENT: Final = -1
OPS_MAX: Final = 10_000  # operations and reads of one transaction
LOCK_WAIT_S: Final = 2.0  # for keys that another transaction has locked
LOCK_PAUSE_S: Final = 0.002  # first; it grows
LOCK_PAUSE_S_MAX: Final = 0.05
LOST: Final = (KeyLockedError, VersionMismatchError, KeyNotFoundError)
"""What says that nothing was prepared in a shard."""

Key = str | bytes
Operation = Put | Delete | Check


class _Place(NamedTuple):
    table: str
    key: bytes


class _Read(NamedTuple):
    """What was read, from which shard, and when that was so in its log."""

    row: Row | None
    shard_id: int
    position: int

    @property
    def version(self) -> int:
        return ABSENT if self.row is None else self.row.version.id


class _Asked(NamedTuple):
    """An operation, and its place among those of the transaction; -1: it checks what was read."""

    at: int
    table: str
    op: Operation


class TableSteps(ABC):
    """See the module's text."""

    def __init__(
        self,
        cluster: Cluster,
        table: "Callable[[str], AsyncTable]",
        timeout_s: float,
        name: str,
        sequences: dict[int, int],
    ) -> None:
        """`name` is the transactional id, `sequences` are those of its next batches by shard."""
        self._cluster = cluster
        self._table = table
        self._limit_s = timeout_s
        self._name = name
        self._sequences = sequences
        self._operations: list[_Asked] = []
        self._reads: dict[_Place, _Read] = {}
        self._changed: set[_Place] = set()
        self._versions: dict[int, Version | None] = {}

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    async def _join(self, shards: Iterable[int], groups: Iterable[str]) -> "Identity": ...

    # -- what belongs to it ---------------------------------------------------------------------------------------

    async def get(self, table: AnyTable, key: Key) -> Row[Any]:
        """The row of a key; KeyNotFoundError if it is not there. See `find`."""
        row = await self.find(table, key)
        if row is None:
            raise KeyNotFoundError(f"key {key!r} is not in table {name_of(table, self._cluster)!r}")
        return row

    async def find(self, table: AnyTable, key: Key) -> Row[Any] | None:
        """The row of a key, or None. The commit goes through only if it is still so then.

        A key that was read is not asked for again. Waits while another transaction is about to change it. The value is as
        the handle's codec has it, if the table is given as one. Raises UnknownTopicError, WrongKindError, TimedOutError;
        InvalidRequestError for a key that this transaction changes.
        """
        self._check_open()
        place = _Place(name_of(table, self._cluster), as_bytes(key, "key"))
        if place in self._changed:
            raise InvalidRequestError(
                f"this transaction changes key {key!r} of {place.table!r}: read it before that"
            )
        known = self._reads.get(place)
        if known is None:
            self._check_count()
            known = await self._read(place)
            self._reads[place] = known
        values = _values_of(table)
        return known.row if known.row is None or values is None else values.row(known.row)

    async def put(self, table: AnyTable, key: Key, value: Any, *, expected_version: Expected = None) -> None:
        """Set a key with the commit; with `expected_version` only if it has that version id then, or is absent (`ABSENT`).

        The value is bytes or text, or what the handle's codec takes, if the table is given as one. What does not hold is
        said by `commit`: VersionMismatchError, with the operation's place in `details["operation"]`.
        """
        raw_key, values = as_bytes(key, "key"), _values_of(table)
        data = as_bytes(value, "value") if values is None else values.encode(raw_key, value)
        self._add(table, Put(raw_key, data, expected_id(expected_version)))

    async def delete(self, table: AnyTable, key: Key, *, expected_version: Expected = None) -> None:
        """Remove a key with the commit, which raises KeyNotFoundError if it is not there then, or VersionMismatchError."""
        self._add(table, Delete(as_bytes(key, "key"), expected_id(expected_version)))

    async def check(self, table: AnyTable, key: Key, expected_version: int | Version) -> None:
        """Change nothing; the commit goes through only if the key has that version id, or is absent (`ABSENT`)."""
        self._add(table, Check(as_bytes(key, "key"), known_id(expected_version)))

    def _add(self, table: AnyTable, op: Operation) -> None:
        self._check_open()
        self._check_count()
        name = name_of(table, self._cluster)
        if not isinstance(op, Check):
            self._changed.add(_Place(name, op.key))
        self._operations.append(_Asked(len(self._operations), name, op))

    def _check_count(self) -> None:
        if len(self._operations) + len(self._reads) >= OPS_MAX:
            raise InvalidRequestError(f"a transaction has at most {OPS_MAX} reads and operations of tables")

    def _as_one_write(self) -> OneWrite | None:
        """All of it as one request, if it changes rows of one table and nothing in it is of another."""
        tables = {asked.table for asked in self._operations} | {place.table for place in self._reads}
        if len(tables) != 1 or not self._changed:
            return None
        checks = [Check(place.key, read.version) for place, read in self._reads.items()]
        return OneWrite(self._table(tables.pop()).core, checks, [asked.op for asked in self._operations])

    async def _core(self, table: str) -> "TableCore":
        core = self._table(table).core
        await core.ready()
        return core

    async def _read(self, place: _Place) -> _Read:
        core, loop = await self._core(place.table), asyncio.get_running_loop()
        tries = self._cluster.tries(self._limit_s)

        async def attempt() -> _Read:
            shard_id, _ = core.places.place_of(place.key)
            left_s = max(0.001, tries.left_s(loop.time()))
            body = ReadKeys(shard_id, (place.key,))
            reply, _ = await self._cluster.call_shard(shard_id, body, timeout_s=left_s)
            if not isinstance(reply, KeysRead) or len(reply.rows) != 1:
                raise ProtocolViolationError("the answer to a read does not fit what was asked")
            return _Read(reply.rows[0], shard_id, reply.position)

        return await self._cluster.across_splits(attempt, tries)

    # -- the commit -----------------------------------------------------------------------------------------------

    async def _prepare_tables(self) -> None:
        """Have every shard prepare what is to change, then look whether what was read is still so."""
        if not self._operations and not self._reads:
            return
        await self._read_absent()
        groups: dict[int, list[_Asked]] = {}
        for place, read in self._reads.items():
            if place in self._changed:  # its lock is held from there on, so this is certain
                self._sort_in(groups, _Asked(-1, place.table, Check(place.key, read.version)))
        for asked in self._operations:
            if _Place(asked.table, asked.op.key) in self._changed:
                await self._core(asked.table)
                self._sort_in(groups, asked)
        if groups:
            await self._join(groups, ())
        await self._prepare_all(groups)
        await self._look_again()

    def _sort_in(self, groups: dict[int, list[_Asked]], asked: _Asked) -> None:
        shard_id, _ = self._table(asked.table).core.places.place_of(asked.op.key)
        groups.setdefault(shard_id, []).append(asked)

    async def _read_absent(self) -> None:
        """Say when keys were absent that are checked to be: they must not come and go from here on."""
        for asked in self._operations:
            op, place = asked.op, _Place(asked.table, asked.op.key)
            if isinstance(op, Check) and place not in self._changed and place not in self._reads:
                await self._core(asked.table)
                if op.expected_version == ABSENT:
                    self._reads[place] = await self._read(place)

    async def _prepare_all(self, groups: dict[int, list[_Asked]]) -> None:
        tries = self._cluster.tries(self._limit_s)
        while groups:
            shard_id = min(groups)
            asked = groups.pop(shard_id)
            identity = await self._join((shard_id,), ())
            try:
                await self._prepare(shard_id, identity, asked, tries)
            except WrongShardError as error:  # it was split; of this shard nothing is prepared
                await self._cluster.learn(error, tries)
                for one in asked:
                    self._sort_in(groups, one)

    async def _prepare(self, shard_id: int, identity: "Identity", asked: list[_Asked], tries: Tries) -> None:
        if len(asked) > PREPARE_OPS_MAX:
            raise InvalidRequestError(
                f"a transaction has at most {PREPARE_OPS_MAX} operations on one shard of a table, this one has {len(asked)}"
            )
        table = self._table(asked[0].table).core
        records = sum(1 for one in asked if not isinstance(one.op, Check))
        sequence = self._sequences.get(shard_id, 0)
        loop = asyncio.get_running_loop()
        name, left_s = self._name, max(0.001, tries.left_s(loop.time()))
        ops, hashes = tuple(one.op for one in asked), table.bounds_of(shard_id)
        body = PrepareWrite(shard_id, name, *identity, sequence, ops, int(left_s * 1000) or 1, hashes)
        reply = await self._when_unlocked(shard_id, body, left_s)
        if not isinstance(reply, TableWritten) or len(reply.results) != len(asked):
            raise ProtocolViolationError("the answer to a prepare does not fit what was asked")
        for one, result in zip(asked, reply.results, strict=True):
            if result.status not in {OpStatus.OK, OpStatus.NOT_CARRIED_OUT}:
                error = refusal(one.op, result)
                error.details["table"] = one.table
                if one.at >= 0:
                    error.details["operation"] = one.at
                else:
                    error.add_note("it was read in this transaction, and has changed since: begin again")
                raise error
            if one.at >= 0:
                self._versions[one.at] = result.version
        self._sequences[shard_id] = (sequence + records) & SEQUENCE_MASK

    async def _when_unlocked(self, shard_id: int, body: Any, timeout_s: float) -> Any:
        """The answer to a prepare; while another transaction has one of its keys, it is asked for again for a moment."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + min(LOCK_WAIT_S, timeout_s)
        backoff = BackOff(LOCK_PAUSE_S, LOCK_PAUSE_S_MAX)
        while True:
            try:
                reply, _ = await self._cluster.call_shard(
                    shard_id, body, timeout_s=timeout_s, ends=(WrongShardError, KeyLockedError)
                )
            except KeyLockedError as error:
                if loop.time() >= give_up_s:
                    raise KeyLockedError(
                        f"{error.message}: the transaction was given up after {LOCK_WAIT_S:g} s; begin it again"
                    ) from error
                await asyncio.sleep(backoff.next_s(system.rng().uniform))
            else:
                return reply

    async def _look_again(self) -> None:
        """Is what was read, and not changed by this transaction, still so?"""
        by_shard: dict[int, list[tuple[_Place, ReadKey, int]]] = {}
        for place, read in self._reads.items():
            if place not in self._changed:
                seen = ReadKey(place.key, read.version, read.position)
                by_shard.setdefault(read.shard_id, []).append((place, seen, -1))
        for asked in self._operations:
            place = _Place(asked.table, asked.op.key)
            if isinstance(asked.op, Check) and place not in self._changed:
                known = self._reads.get(place)
                shard_id, _ = self._table(asked.table).core.places.place_of(place.key)
                position = ABSENT if known is None else known.position
                shard_id = shard_id if known is None else known.shard_id
                seen = ReadKey(place.key, asked.op.expected_version, position)
                by_shard.setdefault(shard_id, []).append((place, seen, asked.at))
        parts = (
            (shard_id, seen[at : at + READS_MAX])
            for shard_id, seen in by_shard.items()
            for at in range(0, len(seen), READS_MAX)
        )
        await asyncio.gather(*(self._look_again_at(*part) for part in parts))

    async def _look_again_at(self, shard_id: int, seen: "list[tuple[_Place, ReadKey, int]]") -> None:
        body = CheckReads(shard_id, tuple(read for _, read, _ in seen))
        try:
            reply, _ = await self._cluster.call_shard(
                shard_id, body, timeout_s=self._limit_s, ends=(WrongShardError, KeyLockedError)
            )
        except WrongShardError as error:
            raise NotReadyError(
                f"shard {shard_id} was split since this transaction read of it: begin the transaction again"
            ) from error
        except KeyLockedError as error:
            raise KeyLockedError(f"{error.message}: begin the transaction again") from error
        reply = reply_as(ReadsChecked, reply, "whether reads are still so")
        if reply.changed:
            raise _changed(seen, *reply.changed[0])


def _values_of(table: AnyTable) -> "Values[Any] | None":
    """How the values of a table are encoded that was given as a handle; None: they are bytes."""
    return getattr(table, "values", None)


def _changed(seen: "list[tuple[_Place, ReadKey, int]]", place: int, found: int) -> AntiphonError:
    if not 0 <= place < len(seen):
        return ProtocolViolationError("the answer to a check of reads does not fit what was asked")
    (table, key), read, at = seen[place]
    details = {"expected": read.version, "actual": found, "table": table}
    wanted = "not there" if read.version == ABSENT else f"of version {read.version}"
    now = "it is not there" if found == ABSENT else f"it has version {found}"
    if found == read.version:
        now = "it may have come and gone since"
    if at >= 0:
        return VersionMismatchError(
            f"key {key!r} of table {table!r} was expected to be {wanted}; {now}", operation=at, **details
        )
    return VersionMismatchError(
        f"key {key!r} of table {table!r} was {wanted} when this transaction read it; {now}: begin again",
        **details,
    )
