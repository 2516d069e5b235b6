"""WriteTxnMarkers: an administrator has a transaction aborted that is open in a partition.

Kafka's brokers send it to each other, and its administration client to the leader of a partition where a transaction hangs.
Here a marker comes from the transactional id's coordinator only, and no transaction hangs. So an abort is done by that
coordinator, and ends the transaction in everything that takes part. A commit is refused: nobody but the producer knows
whether all of it was written.
"""

import asyncio
import contextlib
from typing import Final

from antiphon.coordination.transactions import State
from antiphon.errors import AntiphonError, InvalidTxnStateError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.rights import check
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionCode, TopicCodes
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation, Resource
from antiphon.model.transactions import (
    AbortTransaction,
    ListTransactions,
    TransactionsReply,
    TransactionState,
)
from antiphon.records.known_producer import KnownProducer

ASK_S: Final = 5.0
PARTS_MAX: Final = 1_000  # partitions in one request
PIECE: Final = 1_000  # producers that are looked at in one turn of the event loop


class MarkersHandler:
    """Answers for partitions that this node leads."""

    def __init__(self, gateway: Gateway, cache: MetadataCache) -> None:
        self._gateway = gateway
        self._cache = cache

    async def write(
        self, request: m.WriteTxnMarkersRequest, context: RequestContext
    ) -> m.WriteTxnMarkersResponse:
        """Answered when the abort is decided; a partition where the producer has nothing open is done already."""
        if not context.rights.sees(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            check(context.rights, Operation.ALTER, Resource.CLUSTER)
        parts = sum(len(topic.partitions) for one in request.markers for topic in one.topics)
        if parts > PARTS_MAX:
            raise RefusedError(code.POLICY_VIOLATION)
        markers = [await self._marker(one) async for one in context.turn_budget.each(request.markers)]
        return m.WriteTxnMarkersResponse(markers=markers)

    async def _marker(self, marker: m.TxnMarker) -> m.WrittenTxnMarker:
        ended: set[int] = set()  # shards of the transaction that was aborted for the partitions before
        return m.WrittenTxnMarker(
            producer_id=marker.producer_id,
            topics=[
                TopicCodes(
                    name=topic.name,
                    partitions=[
                        PartitionCode(
                            partition_index=index,
                            error_code=await self._end(marker, topic.name, index, ended),
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in marker.topics
            ],
        )

    async def _end(self, marker: m.TxnMarker, topic: str, index: int, ended: set[int]) -> int:
        """The outcome in one partition; `ended` gets the shards of a transaction that is aborted."""
        try:
            shard = self._cache.shard_at(self._gateway.topic(topic), index)
            if shard is None:
                return code.UNKNOWN_TOPIC_OR_PARTITION
            if shard.shard_id in ended:
                return code.NONE
            found = await self._open_in(shard.shard_id, marker.producer_id)
            if found is None:
                return code.NONE
            if marker.committed:
                return code.INVALID_TXN_STATE
            if found.epoch != marker.producer_epoch:
                return code.INVALID_PRODUCER_EPOCH
            return await self._abort(marker.producer_id, shard.shard_id, ended)
        except UnknownTopicError:
            return code.UNKNOWN_TOPIC_OR_PARTITION
        except AntiphonError as error:
            return code.code_of(error)

    async def _open_in(self, shard_id: int, producer_id: int) -> KnownProducer | None:
        """The producer, if it has an open transaction in the partition. Raises NotLeaderError and the like."""
        for seen, one in enumerate(self._gateway.transactions.producers(shard_id)):
            if one.producer_id == producer_id:
                return one if one.open_since >= 0 else None
            if not (seen + 1) % PIECE:
                await asyncio.sleep(0)
        return None

    async def _abort(self, producer_id: int, shard_id: int, ended: set[int]) -> int:
        """Have the coordinator abort the producer's transaction, whichever node it is."""
        for node in self._gateway.metadata.nodes:
            if not node.alive:
                continue
            row = await self._row_at(node.node_id, producer_id, shard_id)
            if row is None:
                continue
            if row.state == State.PREPARE_COMMIT:
                return code.INVALID_TXN_STATE
            if row.state == State.ONGOING:
                with contextlib.suppress(InvalidTxnStateError):  # it was ended meanwhile
                    body = AbortTransaction(row.transactional_id)
                    await self._gateway.questions.ask(node.node_id, body, ASK_S)
            ended.update(row.shards)
            return code.NONE
        return code.COORDINATOR_NOT_AVAILABLE

    async def _row_at(self, node_id: int, producer_id: int, shard_id: int) -> TransactionState | None:
        """The transaction of the producer that the shard takes part in, if that node coordinates it."""
        asked = ListTransactions()
        while True:
            told = await self._gateway.questions.ask(node_id, asked, ASK_S)
            if not isinstance(told, TransactionsReply):
                return None
            for row in told.rows:
                if row.producer_id == producer_id and shard_id in row.shards:
                    return row
            if not told.more or not told.rows:
                return None
            asked = ListTransactions(after=told.rows[-1].transactional_id)
