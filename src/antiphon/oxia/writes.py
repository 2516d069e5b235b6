"""Writes of Oxia's clients: requests of theirs become requests of a table's shard, and are carried out once.

A write whose answer is lost is sent again, perhaps to another leader. So that it is never carried out twice, it goes out
under a producer id and a sequence. A *lane* is a producer with at most one write on its way: whatever the shards remember
of a lane, they remember its last write. Writes take a lane that is free, or a new one, up to `LANES_MAX`.

What a client sends on one stream is carried out in its order. Requests that have come while one was on its way go out
together, as one entry of the log; if the shard refuses that as a whole, each goes out by itself.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    UnavailableError,
)
from antiphon.gateway.protobuf import put_sized, put_varint
from antiphon.model.attributes import PutAttributed
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.requests import (
    Delete,
    DeleteRange,
    OpResult,
    OpStatus,
    Put,
    TableOp,
    TableWrite,
    TableWritten,
)
from antiphon.model.sessions import PutEphemeral
from antiphon.oxia.messages import PutRequest, WriteRequest
from antiphon.oxia.placing import NOWHERE
from antiphon.oxia.shards import ShardRequests, reply_as
from antiphon.oxia.status import NOT_FOUND, UNIMPLEMENTED, CallFailedError
from antiphon.records.attributes import Attributes
from antiphon.records.changes import TABLE_PRODUCER_BIT

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway
    from antiphon.oxia.placing import Place
    from antiphon.security.authorizer import Rights

LANES_MAX: Final = 1_000
TOGETHER_OPS: Final = 5_000  # operations of requests that go out together
AGAIN_MAX: Final = 8  # times that a write gets a new sequence
ABSENT: Final = -1
NEVER: Final = (1 << 63) - 1  # a version that no row gets
PIECE: Final = 1_000  # operations that are made, or answered, in one turn of the loop
_FIXED64: Final = 8

Turn = Callable[[], Awaitable[None]]
"""Returns when others have had their turn."""


class _Lane:
    """A producer. Its sequences rise over all shards."""

    __slots__ = ("producer_id", "sequence")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0

    def next(self) -> int:
        """A sequence that is above all before."""
        self.sequence += 1
        return self.sequence & 0x7FFFFFFF


class Writes:
    """See the module's text; for all calls of a listener."""

    def __init__(self, gateway: "Gateway", shards: ShardRequests) -> None:
        self._gateway = gateway
        self._shards = shards
        self._free: deque[_Lane] = deque()
        self._lanes = asyncio.Semaphore(LANES_MAX)

    async def carry_out(
        self, place: "Place", ops: Sequence[TableOp], rights: "Rights", deadline_s: float | None
    ) -> TableWritten:
        """Have operations carried out once. Raises AntiphonError."""
        async with self._lanes:
            lane = self._free.pop() if self._free else await self._new_lane()
            try:
                return await self._in_lane(lane, place, ops, rights, deadline_s)
            finally:
                self._free.append(lane)

    async def _new_lane(self) -> _Lane:
        return _Lane(await self._gateway.new_producer_id() | TABLE_PRODUCER_BIT)

    async def _in_lane(
        self,
        lane: _Lane,
        place: "Place",
        ops: Sequence[TableOp],
        rights: "Rights",
        deadline_s: float | None,
    ) -> TableWritten:
        for _ in range(AGAIN_MAX):
            request = TableWrite(
                place.shard.shard_id,
                tuple(ops),
                lane.producer_id,
                0,
                lane.next(),
                hashes=place.hashes,
                placed=True,
            )
            try:
                return reply_as(TableWritten, await self._shards.ask(request, rights, deadline_s))
            except OutOfOrderSequenceError:
                continue  # it was not carried out, and never will be
        raise UnavailableError("the shard refused this write's place in the order of writes again and again")


class Planned(NamedTuple):
    """A request as operations."""

    request: WriteRequest
    ops: list[TableOp]


async def plan(request: WriteRequest, place: "Place", turn: Turn) -> Planned:
    """The operations of a request, some in each turn. Raises CallFailedError for what no shard carries out."""
    ops: list[TableOp] = []
    kind = DeleteOrdered if place.is_hierarchical else DeleteRange
    for found, made in (
        (request.puts, lambda one: _put(one, place)),
        (request.deletes, lambda one: Delete(one.key, _expected(one.expected_version_id))),
        (request.delete_ranges, lambda one: kind(one.start_inclusive, one.end_exclusive)),
    ):
        for at in range(0, len(found), PIECE):
            if at:
                await turn()
            ops += map(made, found[at : at + PIECE])
    return Planned(request, ops)


def _expected(version_id: int | None) -> int | None:
    """The version that is expected. Nothing has one below -1: who expects that is refused whatever is there."""
    return NEVER if version_id is not None and version_id < ABSENT else version_id


def _put(one: PutRequest, place: "Place") -> TableOp:
    expected = _expected(one.expected_version_id)
    if one.override_version_id is not None or one.override_modifications_count is not None:
        raise CallFailedError(
            UNIMPLEMENTED, "versions are given by the shard here: leave override_version_id and its kin out"
        )
    session_id = one.session_id
    if session_id is not None and session_id <= 0:
        session_id = 1 << 62  # no session has such an id, and ids of sessions are never 0
    partition_key = one.partition_key
    at = place.place_of_key(one.key) if partition_key is None else place.place_of_partition(partition_key)
    if at == NOWHERE:
        raise CallFailedError(
            NOT_FOUND,
            f"shard {place.shard.shard_id} does not hold {one.key[:100]!r}: it was split",
            "SHARD_NOT_FOUND",
        )
    if at < 0 and one.client_identity is None and not one.secondary_indexes and not one.sequence_key_delta:
        if session_id is None:
            return Put(one.key, one.value, expected)
        return PutEphemeral(one.key, one.value, session_id, expected)
    indexes = tuple((index.index_name, index.secondary_key.encode()) for index in one.secondary_indexes)
    attributes = Attributes(one.client_identity, partition_key, at, tuple(dict.fromkeys(indexes)))
    return PutAttributed(one.key, one.value, attributes, expected, session_id, tuple(one.sequence_key_delta))


async def answered(planned: Planned, results: Sequence[OpResult], turn: Turn) -> bytearray:
    """The response to a request, encoded, some in each turn."""
    out = bytearray()
    request = planned.request
    at = len(request.puts)
    for begin in range(0, at, PIECE):
        if begin:
            await turn()
        until = min(at, begin + PIECE)
        for put, result in zip(request.puts[begin:until], results[begin:until], strict=True):
            put_sized(out, 0x0A, _put_response(put, result))
    removed = len(request.deletes)
    for result in results[at : at + removed]:
        put_sized(out, 0x12, _status(result.status))
    for result in results[at + removed :]:
        put_sized(out, 0x1A, _status(result.status))
    return out


def _status(status: int) -> bytes:
    return bytes((0x08, status)) if status else b""


def _put_response(put: PutRequest, result: OpResult) -> bytes | bytearray:
    if result.status or result.version is None:
        return _status(result.status)
    version = result.version
    told = bytearray()
    if version.id:
        told.append(0x08)
        put_varint(told, version.id)
    if version.modifications:
        told.append(0x10)
        put_varint(told, version.modifications)
    told.append(0x19)
    told += version.created_ms.to_bytes(_FIXED64, "little")
    told.append(0x21)
    told += version.modified_ms.to_bytes(_FIXED64, "little")
    if put.session_id is not None:
        told.append(0x28)
        put_varint(told, put.session_id)
    if put.client_identity is not None:
        put_sized(told, 0x32, put.client_identity.encode())
    out = bytearray()
    put_sized(out, 0x12, told)
    if result.key is not None:
        put_sized(out, 0x1A, result.key)
    return out


def found_nothing(result: OpResult) -> bool:
    """Was the key not there that was to be removed?"""
    is_refused = result.status == OpStatus.UNEXPECTED_VERSION and result.version is None
    return result.status == OpStatus.KEY_NOT_FOUND or is_refused


def takes_alone(error: AntiphonError) -> bool:
    """May a request be fine by itself that was refused together with others?"""
    return isinstance(error, InvalidRequestError | BatchTooLargeError)
