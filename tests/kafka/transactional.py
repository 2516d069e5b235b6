"""A transactional producer that is a bare socket, as far as tests need it."""

import asyncio
from typing import Any

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.messages import groups as gm
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.primitives import put_compact_nullable_bytes, put_compact_nullable_string, put_uvarint
from antiphon.records.batch import TRANSACTIONAL_BIT
from antiphon.records.builder import seal
from tests.kafka.raw import RawClient, batch

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_OFFSETS = 22, 24, 25, 26, 28
FIND, OFFSET_FETCH, DESCRIBE, LIST = 10, 9, 65, 66
END_RAISES = 5


def txn_produce_body(
    name: str | None, topic: str, records: bytes | bytearray, partition: int = 0
) -> bytearray:
    out = bytearray()
    put_compact_nullable_string(out, name)
    out += (-1).to_bytes(2, "big", signed=True) + (5000).to_bytes(4, "big")
    put_uvarint(out, 2)
    put_compact_nullable_string(out, topic)
    put_uvarint(out, 2)
    out += partition.to_bytes(4, "big")
    put_compact_nullable_bytes(out, records)
    return out + b"\x00\x00\x00"


class Transactional:
    """`client` is connected to the coordinator, and to the leader of all that is written."""

    def __init__(self, client: RawClient, name: str = "tx") -> None:
        self.client = client
        self.name = name
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout_ms: int = 60_000, *, keep: bool = False, version: int = 4) -> int:
        """The error code; a producer that gets one is the id's from now on. `keep`: it says what it has."""
        request = cm.InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if keep else -1,
            producer_epoch=self.epoch if keep else -1,
        )
        told = await self.client.ask(request, INIT, version)
        if told.error_code == code.NONE:
            self.producer_id, self.epoch = told.producer_id, told.producer_epoch
            self.sequences.clear()
        return int(told.error_code)

    async def find(self, group: str | None = None) -> Any:
        """The coordinator of the transactional id, or of a group."""
        key_type, key = (1, self.name) if group is None else (0, group)
        request = cm.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        return (await self.client.ask(request, FIND, 4)).coordinators[0]

    async def add(self, *partitions: tuple[str, int], version: int = 3) -> list[int]:
        topics = [PartitionsOfTopic(name=name, partitions=[index]) for name, index in partitions]
        request = m.AddPartitionsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=topics,
        )
        told = await self.client.ask(request, ADD_PARTITIONS, version)
        return [each.error_code for topic in told.results_by_topic for each in topic.partitions]

    async def write(
        self, topic: str, *values: bytes, partition: int = 0, named: bool = True, version: int = 10
    ) -> int:
        from kio.serial import entity_reader

        from tests.kafka.oracles import kio_class

        at = self.sequences.get((topic, partition), 0)
        records = batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=at,
        )
        records[22] |= TRANSACTIONAL_BIT
        seal(records)
        body = txn_produce_body(self.name if named else None, topic, records, partition)
        answer = await self.client.receive(self.client.send(0, version, body))
        told, _ = entity_reader(kio_class("Produce", version, "response"))(answer, 1)
        error = int(told.responses[0].partition_responses[0].error_code)
        if error == code.NONE:
            self.sequences[topic, partition] = at + len(values)
        return error

    async def add_group(self, group: str, version: int = 3) -> int:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return int((await self.client.ask(request, ADD_OFFSETS, version)).error_code)

    async def commit_offset(
        self, group: str, topic: str, offset: int, partition: int = 0, version: int = 3
    ) -> int:
        one = m.TxnOffsetCommitPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[m.TxnOffsetCommitTopic(name=topic, partitions=[one])],
        )
        told = await self.client.ask(request, TXN_OFFSETS, version)
        return int(told.topics[0].partitions[0].error_code)

    async def end(self, *, commit: bool, version: int = 3) -> int:
        request = m.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        told = await self.client.ask(request, END, version)
        if version >= END_RAISES and told.error_code == code.NONE:
            self.producer_id, self.epoch = told.producer_id, told.producer_epoch
            self.sequences.clear()
        return int(told.error_code)

    async def describe(self) -> Any:
        request = m.DescribeTransactionsRequest(transactional_ids=[self.name])
        return (await self.client.ask(request, DESCRIBE, 0)).transaction_states[0]


async def offset_of(client: RawClient, group: str, topic: str, *, stable: bool) -> tuple[int, int]:
    """The error code and the offset of a group's first partition."""
    wanted = gm.FetchOffsetsGroup(group_id=group, topics=[PartitionsOfTopic(name=topic, partitions=[0])])
    request = gm.OffsetFetchRequest(groups=[wanted], require_stable=stable)
    told = await client.ask(request, OFFSET_FETCH, 8)
    found = told.groups[0].topics[0].partitions[0]
    return found.error_code, found.committed_offset


async def begun(producer: Transactional, timeout_ms: int = 60_000) -> Transactional:
    """The producer, with a producer id; asks as long as it is told to ask again."""
    found = await producer.find()
    assert (found.error_code, found.node_id >= 0) == (code.NONE, True)
    for _ in range(50):
        if (error := await producer.init(timeout_ms)) == code.NONE:
            return producer
        assert error in {
            code.CONCURRENT_TRANSACTIONS,
            code.COORDINATOR_LOAD_IN_PROGRESS,
            code.NOT_COORDINATOR,
        }
        await asyncio.sleep(0.1)
    raise AssertionError("no producer id")
