"""Rows of the table `__transactions`: `id/<transactional id>`, one for each id, written on the version that was read.

A row that cannot be read is passed over, with a line in the node's log. Its id stays refused: nothing is known of what its
transaction was to come to.
"""

from typing import Final, NamedTuple

import msgspec

from antiphon.coordination.transactions import EPOCH_MAX, NUMBER_MAX, Row
from antiphon.errors import UNDECODABLE, UnavailableError
from antiphon.gateway.interface import Gateway
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.model.requests import Delete, OpStatus, Put, TableGet, TableOp, TableWrite
from antiphon.model.rows import Row as TableRow
from antiphon.transactions.internal_rows import UnreadableRows, rows_between

ABSENT: Final = -1  # version of a row that is not there
WRITE_MS: Final = 10_000
_PREFIX: Final = b"id/"
_AFTER_PREFIX: Final = b"id0"  # "0" is the byte after "/"
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Row)


class Kept(NamedTuple):
    """A row as it stands in the table; None: there is none, or it is not readable."""

    row: Row | None
    version: int


class RowChangedError(Exception):
    """Somebody else wrote the row since it was read: another node coordinates, or did."""


class TransactionRows:
    """Reads and writes rows in shards that this node leads. Methods raise what the gateway's table calls raise."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._unreadable = UnreadableRows("transaction_row_not_readable")

    async def load(self, shard_id: int) -> dict[str, Kept]:
        """Every row of a shard, by transactional id."""
        found: dict[str, Kept] = {}
        async for row in rows_between(self._gateway, shard_id, _PREFIX, _AFTER_PREFIX):
            kept = self._read(row)
            if kept.row is not None:
                found[row.key[len(_PREFIX) :].decode()] = kept
        return found

    async def read(self, shard_id: int, name: str) -> Kept:
        """The row of one id. Raises UnavailableError for one that is not readable."""
        reply = await self._gateway.table_get(TableGet(shard_id, (_key(name),)))
        row = reply.rows[0]
        if row is None:
            return Kept(None, ABSENT)
        kept = self._read(row)
        if kept.row is None:
            raise UnavailableError(
                f"the row of transactional id {name!r} in {TRANSACTIONS_TABLE} is not readable"
            )
        return kept

    async def write(self, shard_id: int, name: str, row: Row, version: int) -> int:
        """Put a row in place of that version; returns its own version, when it is committed. Raises RowChangedError."""
        put = Put(_key(name), _ENCODER.encode(row), expected_version=version)
        return await self._write(shard_id, put)

    async def forget(self, shard_id: int, name: str, version: int) -> None:
        """Remove a row of that version. Raises RowChangedError."""
        await self._write(shard_id, Delete(_key(name), expected_version=version))

    async def _write(self, shard_id: int, op: TableOp) -> int:
        written = await self._gateway.table_write(TableWrite(shard_id, (op,), timeout_ms=WRITE_MS))
        (result,) = written.results
        if result.status != OpStatus.OK:
            raise RowChangedError
        return result.version.id if result.version is not None else ABSENT

    def _read(self, row: TableRow) -> Kept:
        try:
            row.key.decode()
            found = _DECODER.decode(row.value or b"")
            numbers_fit = 0 <= found.number <= NUMBER_MAX and -1 <= found.epoch <= EPOCH_MAX
        except UNDECODABLE as error:
            self._unreadable.log(row.key, str(error))
            return Kept(None, row.version.id)
        if not numbers_fit:
            self._unreadable.log(row.key, "a number that is too large")
            return Kept(None, row.version.id)
        return Kept(found, row.version.id)


def _key(name: str) -> bytes:
    return _PREFIX + name.encode()
