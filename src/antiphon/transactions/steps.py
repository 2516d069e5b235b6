"""The steps of native clients' transactions, as the node answers them that coordinates the id, or the group."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon import system
from antiphon.coordination.transactions import NOBODY, Producer, Refused
from antiphon.errors import (
    InternalError,
    InvalidRequestError,
    NotReadyError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.model.internal import is_internal
from antiphon.model.requests import Done
from antiphon.model.transactions import (
    CoordinatedBy,
    FindCoordinator,
    FinishTransaction,
    GetOffsets,
    InitializedProducer,
    InitProducer,
    JoinTransaction,
    OffsetOf,
    OffsetsReply,
    SendOffsets,
)
from antiphon.transactions.asking import TransactionAsker
from antiphon.transactions.coordinator import TransactionCoordinator
from antiphon.transactions.group_offsets import Committed, GroupOffsets, OffsetAt
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.pending_offsets import PendingOffsets
from antiphon.transactions.refusals import error_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.gateway.interface import Gateway

NAME_BYTES_MAX: Final = 1024


class Parts(NamedTuple):
    """What they are answered with (`service.TransactionService`)."""

    coordinator: TransactionCoordinator
    asker: TransactionAsker
    groups: InternalTable
    offsets: GroupOffsets
    pending: PendingOffsets


class Steps:
    """Answers requests. Raises what is refused, NotLeaderError where another node coordinates, and the table's errors."""

    def __init__(self, gateway: "Gateway", parts: Parts) -> None:
        self._gateway = gateway
        self._parts = parts
        self._answers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            FindCoordinator: self._find,
            InitProducer: self._init,
            JoinTransaction: self._join,
            FinishTransaction: self._finish,
            SendOffsets: self._send_offsets,
            GetOffsets: self._get_offsets,
        }

    def answers(self, body: Any) -> bool:
        """Is that one of these requests?"""
        return type(body) in self._answers

    async def answer(self, body: Any) -> Any:
        """The answer to one."""
        return await self._answers[type(body)](body)

    async def _find(self, asked: FindCoordinator) -> CoordinatedBy:
        _check_name(asked.name)
        places = self._parts.groups if asked.is_group else self._parts.coordinator
        return CoordinatedBy(await _located(places, asked.name))

    async def _init(self, asked: InitProducer) -> InitializedProducer:
        name = asked.transactional_id
        _check_name(name)
        if (asked.producer_id == NOBODY) != (asked.producer_epoch == NOBODY):
            raise InvalidRequestError("a producer has both an id and an epoch, or neither yet")
        has_one = asked.producer_id != NOBODY
        expected = Producer(asked.producer_id, asked.producer_epoch) if has_one else None
        refused, row = await self._parts.coordinator.init(name, asked.timeout_ms, expected)
        if refused is not None:
            raise error_of(refused, name)
        if row is None:
            raise InternalError(f"transactional id {name!r} got no row")
        return InitializedProducer(row.producer_id, row.epoch)

    async def _join(self, asked: JoinTransaction) -> Done:
        for shard_id in asked.shards:
            topic, _ = self._gateway.shard(shard_id)
            if is_internal(topic):
                raise InvalidRequestError(f"{topic.name!r} belongs to the cluster: it takes part in nothing")
            self._gateway.transactions.check_taken(shard_id, tables=True)
        for group in asked.groups:
            _check_name(group)
            await _located(self._parts.groups, group)  # one without a shard could never be told the end
        producer = Producer(asked.producer_id, asked.producer_epoch)
        name = asked.transactional_id
        shards, groups = list(asked.shards), list(asked.groups)
        _raise_refused(await self._parts.coordinator.join(name, producer, shards, groups), name)
        return Done()

    async def _finish(self, asked: FinishTransaction) -> Done:
        name, producer = asked.transactional_id, Producer(asked.producer_id, asked.producer_epoch)
        _raise_refused(await self._parts.coordinator.end(name, producer, commit=asked.commit), name)
        return Done()

    # -- offsets --------------------------------------------------------------------------------------------------

    async def _send_offsets(self, asked: SendOffsets) -> Done:
        name, producer = asked.transactional_id, Producer(asked.producer_id, asked.producer_epoch)
        self._parts.groups.home(asked.group)
        offsets = [self._offset_at(one) for one in asked.offsets]
        number, refused = await self._parts.asker.number_of(name, producer, group=asked.group)
        _raise_refused(refused, name)
        _raise_refused(await self._parts.pending.add(asked.group, producer, number, offsets), name)
        return Done()

    def _offset_at(self, one: OffsetOf) -> OffsetAt:
        topic = self._gateway.topic(one.topic)
        if not 0 <= one.shard < len(topic.shards):
            raise UnknownShardError(
                f"{one.topic!r} has shards 0..{len(topic.shards) - 1}, not {one.shard}", shard=one.shard
            )
        kept = Committed(one.offset, -1, one.metadata, system.wall_ms(), topic.topic_id)
        return OffsetAt(one.topic, one.shard, kept)

    async def _get_offsets(self, asked: GetOffsets) -> OffsetsReply:
        parts = self._parts
        parts.groups.home(asked.group)
        unstable = await parts.pending.unstable(asked.group)
        if not unstable.isdisjoint(asked.positions):
            raise NotReadyError(
                f"a transaction that is under way may change these offsets of group {asked.group!r}; ask again"
            )
        found = await parts.offsets.fetch(asked.group, asked.positions)
        return OffsetsReply(tuple(-1 if one is None else one.offset for one in found))


def _check_name(name: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"a transactional id, or a group, has {NAME_BYTES_MAX} bytes at most, not {len(name.encode())}"
        )


async def _located(places: InternalTable | TransactionCoordinator, name: str) -> int:
    """The shard of a name; the table is made when it is asked for first, which may take longer than one request."""
    try:
        return (await places.locate(name)).shard_id
    except UnknownTopicError:
        raise NotReadyError(f"the table that holds {name!r} is being made; ask again") from None


def _raise_refused(refused: Refused | None, name: str) -> None:
    if refused is not None:
        raise error_of(refused, name)
