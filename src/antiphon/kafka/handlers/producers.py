"""DescribeProducers: what the leader of a partition knows of its producers.

There may be 50,000 of a partition. So they are looked at, and written, in pieces: others are served in between.
"""

import asyncio
import struct
from typing import Final

from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.rights import may
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.primitives import put_compact_count, put_compact_nullable_string
from antiphon.model.access import Operation

PIECE: Final = 1_000  # producers and partitions that are looked at in one turn of the event loop
PRODUCERS_MAX: Final = 100_000  # where an answer has so many, it gets no more partitions
_NO_TAGS: Final = 0
_PARTITION = struct.Struct(">ih")
_PRODUCER = struct.Struct(">qiiqiqB")  # the fields of `m.DescribedProducer`, and no tags


class ProducersHandler:
    """Answers from the replicas of shards that this node leads."""

    def __init__(self, gateway: Gateway, cache: MetadataCache) -> None:
        self._gateway = gateway
        self._cache = cache

    async def describe(self, request: m.DescribeProducersRequest, context: RequestContext) -> bytes:
        """The encoded `m.DescribeProducersResponse`; a partition that is named again is answered once."""
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
        work = _Work(self._gateway)
        out = work.out
        out += bytes(4)  # the time that the client is to wait is set when the answer is sent
        put_compact_count(out, len(wanted))
        for name, indexes in wanted.items():
            allowed = may(self._gateway, context.rights, Operation.READ, name)
            put_compact_nullable_string(out, name)
            put_compact_count(out, len(indexes))
            for index in indexes:
                await work.step()
                if not allowed:
                    work.refuse(index, code.TOPIC_AUTHORIZATION_FAILED)
                elif (shard_id := self._shard_id(name, index)) is None:
                    work.refuse(index, code.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    await work.describe(index, shard_id)
            out.append(_NO_TAGS)
        out.append(_NO_TAGS)
        return bytes(out)

    def _shard_id(self, topic: str, index: int) -> int | None:
        try:
            shard = self._cache.shard_at(self._gateway.topic(topic), index)
        except UnknownTopicError:
            return None
        return None if shard is None else shard.shard_id


class _Work:
    """One answer as it is written."""

    def __init__(self, gateway: Gateway) -> None:
        self.out = bytearray()
        self._gateway = gateway
        self._left = PRODUCERS_MAX
        self._steps = 0

    async def step(self) -> None:
        """Others first, once in a while."""
        self._steps += 1
        if not self._steps % PIECE:
            await asyncio.sleep(0)

    def refuse(self, index: int, error: int, reason: str | None = None) -> None:
        """Write a partition of which nothing is told."""
        self._write(index, error, reason, 0, b"")

    def _write(
        self, index: int, error: int, reason: str | None, count: int, producers: bytes | bytearray
    ) -> None:
        out = self.out
        out += _PARTITION.pack(index, error)
        put_compact_nullable_string(out, reason)
        put_compact_count(out, count)
        out += producers
        out.append(_NO_TAGS)

    async def describe(self, index: int, shard_id: int) -> None:
        """Write a partition's producers."""
        if self._left <= 0:
            reason = f"the answer has {PRODUCERS_MAX - self._left} producers already: ask for fewer partitions at a time"
            self.refuse(index, code.POLICY_VIOLATION, reason)
            return
        try:
            producers = self._gateway.transactions.producers(shard_id)
        except AntiphonError as error:
            self.refuse(index, code.code_of(error), error.message)
            return
        found, count = bytearray(), 0
        for one in producers:
            found += _PRODUCER.pack(*one, _NO_TAGS)
            count += 1
            await self.step()
        self._left -= count
        self._write(index, code.NONE, None, count, found)
