"""Committed offsets expire on real listeners, in virtual time: who keeps them, who removes them, and what goes with them."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from antiphon.coordination import offset_expiry as rules
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_rows import ClassicRows
from antiphon.kafka.groups.consumer_rows import ConsumerRows
from antiphon.kafka.messages import admin
from antiphon.kafka.messages import groups as m
from antiphon.model.metadata import Kind
from antiphon.model.requests import TableScan
from antiphon.node.config import ConsumerGroups
from antiphon.transactions.group_offsets import Committed, GroupOffsets, StoredOffset
from tests.kafka.kafka_nodes import KafkaNodes, listener_of
from tests.kafka.raw import Connect, RawClient, alter_configs, ask, listening
from tests.kafka.test_consumer_groups import Member, describe
from tests.kafka.transactional import Transactional
from tests.node.in_process import in_virtual_time

KEPT_S = 2.0
LOOK_S = 0.1
LATE_S = 0.5  # a look, and what it takes to remove
SHORT = ConsumerGroups(
    session_timeout_ms=3_000,
    offsets_retention_ms=int(KEPT_S * 1000),
    offsets_retention_check_interval_ms=int(LOOK_S * 1000),
)


@asynccontextmanager
async def a_cluster(
    nodes: int = 1, settings: ConsumerGroups = SHORT
) -> AsyncIterator[tuple[KafkaNodes, Connect]]:
    async with listening(nodes, consumer_groups=settings) as (served, connect):
        for topic in ("t", "u"):
            await served.create(topic, shards=2)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        yield served, connect


async def commit(
    client: RawClient,
    topic: str = "t",
    partition: int = 0,
    version: int = 6,
    group: str = "g",
    **more: Any,
) -> None:
    one = m.CommitPartition(partition_index=partition, committed_offset=7, committed_metadata="")
    request = m.OffsetCommitRequest(
        group_id=group, topics=[m.CommitTopic(name=topic, partitions=[one])], **more
    )
    answer = await ask(client, request, version)
    assert answer.topics[0].partitions[0].error_code == code.NONE


async def kept(client: RawClient, group: str = "g") -> set[tuple[str, int]]:
    request = m.OffsetFetchRequest(groups=[m.FetchOffsetsGroup(group_id=group, topics=None)])
    (found,) = (await ask(client, request, 8)).groups
    assert found.error_code == code.NONE
    return {(topic.name, one.partition_index) for topic in found.topics for one in topic.partitions}


async def described(client: RawClient, kind: int, name: str) -> list[admin.DescribedSetting]:
    resource = admin.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (found,) = (await ask(client, admin.DescribeConfigsRequest(resources=[resource]))).results
    assert found.error_code == code.NONE
    return list(found.configs)


async def rows(served: KafkaNodes, node: int = 0) -> list[str]:
    gateway = served.nodes.nodes[node].gateway
    shard_id = gateway.topic("__groups").shards[0].shard_id
    found = await gateway.table_scan(TableScan(shard_id, b"", b"\xff", limit=1_000))
    return [row.key.decode() for row in found.rows if row is not None]


@dataclass
class Classic:
    """A member of the classic protocol, which is alone in its group."""

    client: RawClient
    generation: int = 0
    member_id: str = ""

    async def join(self, *topics: str, protocol_type: str = "consumer") -> None:
        metadata = struct.pack(">hi", 0, len(topics))
        for topic in topics:
            metadata += struct.pack(">h", len(topic)) + topic.encode()
        request = m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            member_id="",
            protocol_type=protocol_type,
            protocols=[m.JoinProtocol(name="range", metadata=metadata + struct.pack(">i", -1))],
        )
        joined = await ask(self.client, request, 3)
        assert joined.error_code == code.NONE
        self.generation, self.member_id = joined.generation_id, joined.member_id
        sync = m.SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id, assignments=[]
        )
        assert (await ask(self.client, sync, 2)).error_code == code.NONE

    async def commit(self, topic: str) -> None:
        await commit(
            self.client, topic, generation_id_or_member_epoch=self.generation, member_id=self.member_id
        )

    async def leave(self) -> None:
        request = m.LeaveGroupRequest(group_id="g", member_id=self.member_id)
        assert (await ask(self.client, request, 2)).error_code == code.NONE


@in_virtual_time
async def test_offsets_of_a_group_that_never_had_members_expire_by_the_time_of_their_commits() -> None:
    async with a_cluster() as (served, connect):
        client = await connect()
        await commit(client, partition=0)
        await commit(client, "u")
        await asyncio.sleep(KEPT_S)
        await commit(client, partition=1)
        await asyncio.sleep(LATE_S)
        assert await kept(client) == {("t", 1)}
        await asyncio.sleep(KEPT_S - LATE_S - LOOK_S)
        assert await kept(client) == {("t", 1)}
        await asyncio.sleep(LATE_S)
        assert await kept(client) == set()
        assert [key for key in await rows(served) if key.startswith("offset/")] == []
        assert (await ask(client, m.ListGroupsRequest(), 4)).groups == []
        text = served.first.metrics.render().decode()
        assert "antiphon_group_offsets_expired_total 3.0" in text


@in_virtual_time
async def test_a_classic_group_keeps_what_its_members_read_and_all_of_it_for_a_while_when_they_are_gone() -> (
    None
):
    async with a_cluster() as (_, connect):
        client = await connect()
        member = Classic(client)
        await member.join("t")
        await member.commit("t")
        await member.commit("u")
        await asyncio.sleep(KEPT_S - LATE_S)
        assert await kept(client) == {("t", 0), ("u", 0)}
        await asyncio.sleep(3 * LATE_S)
        assert await kept(client) == {("t", 0)}
        await asyncio.sleep(2 * KEPT_S)
        await member.leave()
        await asyncio.sleep(KEPT_S - LOOK_S)
        assert await kept(client) == {("t", 0)}, "it is kept so long from when the group became empty"
        await asyncio.sleep(LATE_S)
        assert await kept(client) == set()


@in_virtual_time
async def test_a_classic_group_of_another_kind_keeps_everything_while_it_has_members() -> None:
    async with a_cluster() as (_, connect):
        client = await connect()
        member = Classic(client)
        await member.join("t", protocol_type="connect")
        await member.commit("u")
        await asyncio.sleep(3 * KEPT_S)
        assert await kept(client) == {("u", 0)}


@in_virtual_time
async def test_a_group_of_the_consumer_protocol_goes_with_its_last_offset_and_keeps_its_settings() -> None:
    async with a_cluster() as (served, connect):
        client = await connect()
        member = Member(client, "1")
        await member.heartbeat()
        assert await member.commit(0, 7) == code.NONE
        await commit(client, "u", version=9, generation_id_or_member_epoch=member.epoch, member_id="1")
        changed = await alter_configs(client, 32, "g", [("consumer.session.timeout.ms", 0, "7000")])
        assert changed.error_code == code.NONE
        for _ in range(8):
            await asyncio.sleep(KEPT_S / 4)
            await member.heartbeat()
        await asyncio.sleep(LATE_S)
        assert await kept(client) == {("t", 0)}
        await member.heartbeat(member_epoch=-1)
        await asyncio.sleep(KEPT_S - LOOK_S)
        assert await kept(client) == {("t", 0)}
        assert (await describe(client)).error_code == code.NONE
        await asyncio.sleep(LATE_S)
        assert await kept(client) == set()
        assert (await describe(client)).error_code == code.GROUP_ID_NOT_FOUND
        assert not [key for key in await rows(served) if key.startswith("consumer/")]
        found = {one.name: one.value for one in await described(client, 32, "g")}
        assert found["consumer.session.timeout.ms"] == "7000"


def test_a_group_whose_end_has_yet_to_be_written_has_been_empty_for_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row still says when the member came; by that time the offset would have expired."""

    def slowed(rows: type) -> None:
        write = rows.write  # type: ignore[attr-defined]

        async def slowly(*arguments: Any) -> Any:
            await asyncio.sleep(5 * LATE_S)
            return await write(*arguments)

        monkeypatch.setattr(rows, "write", slowly)

    @in_virtual_time
    async def of_consumers() -> None:
        async with a_cluster() as (_, connect):
            client, other = await connect(), await connect()
            member = Member(client, "1")
            await member.heartbeat()
            assert await member.commit(0, 7) == code.NONE
            for _ in range(8):
                await asyncio.sleep(KEPT_S / 4)
                await member.heartbeat()
            slowed(ConsumerRows)
            leaving = asyncio.ensure_future(member.ask(member_epoch=-1))
            await asyncio.sleep(4 * LATE_S)
            assert not leaving.done()
            assert await kept(other) == {("t", 0)}
            await leaving

    @in_virtual_time
    async def of_classic_members() -> None:
        async with a_cluster() as (_, connect):
            client, other = await connect(), await connect()
            member = Classic(client)
            await member.join("t")
            await member.commit("t")
            await asyncio.sleep(2 * KEPT_S)
            slowed(ClassicRows)
            await member.leave()
            await asyncio.sleep(4 * LATE_S)
            assert await kept(other) == {("t", 0)}

    of_consumers()
    of_classic_members()


@in_virtual_time
async def test_an_empty_group_of_the_consumer_protocol_without_offsets_goes_too() -> None:
    async with a_cluster() as (_, connect):
        client = await connect()
        member = Member(client, "1")
        await member.heartbeat()
        await asyncio.sleep(KEPT_S + LATE_S)
        await member.heartbeat(member_epoch=-1)
        await asyncio.sleep(KEPT_S - LOOK_S)
        assert (await describe(client)).group_state == "Empty"
        await asyncio.sleep(LATE_S)
        assert (await describe(client)).error_code == code.GROUP_ID_NOT_FOUND


@in_virtual_time
async def test_a_commit_may_ask_for_a_retention_of_its_own() -> None:
    async with a_cluster() as (_, connect):
        client = await connect()
        await commit(client, partition=0, version=2, retention_time_ms=30_000)
        await commit(client, partition=1, version=2, retention_time_ms=-1)
        await asyncio.sleep(KEPT_S + LATE_S)
        assert await kept(client) == {("t", 0)}
        await commit(client, partition=1, version=4, retention_time_ms=600)
        await asyncio.sleep(0.5)
        assert await kept(client) == {("t", 0), ("t", 1)}
        await asyncio.sleep(LATE_S)
        assert await kept(client) == {("t", 0)}


@in_virtual_time
async def test_an_offset_is_kept_while_a_transaction_has_one_for_its_partition_and_counts_from_its_end() -> (
    None
):
    async with a_cluster() as (_, connect):
        client = await connect()
        producer = Transactional(client)
        while (await producer.find()).error_code or await producer.init():  # noqa: ASYNC110 (nobody says when)
            await asyncio.sleep(0.1)
        await commit(client, partition=0)
        await commit(client, partition=1)
        assert await producer.add_group("g") == code.NONE
        assert await producer.commit_offset("g", "t", 9) == code.NONE
        await asyncio.sleep(KEPT_S + LATE_S)
        assert await kept(client) == {("t", 0)}
        assert await producer.end(commit=True) == code.NONE
        await asyncio.sleep(KEPT_S - LATE_S)
        assert await kept(client) == {("t", 0)}
        await asyncio.sleep(2 * LATE_S)
        assert await kept(client) == set()


@in_virtual_time
async def test_the_next_coordinator_counts_from_when_it_took_over_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "TRUST_MS", 100)  # it believes its clock soon
    async with a_cluster(3) as (served, connect):
        client = await connect(0)
        await commit(client)
        await asyncio.sleep(KEPT_S - LATE_S)
        await served.lead("__groups", 1)
        client = await connect(1)
        await asyncio.sleep(KEPT_S - LOOK_S)
        assert await kept(client) == {("t", 0)}
        await asyncio.sleep(LATE_S)
        assert await kept(client) == set()


@in_virtual_time
async def test_the_next_coordinator_knows_since_when_a_group_is_empty_by_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "TRUST_MS", 100)
    async with a_cluster(3) as (served, connect):
        member = Classic(await connect(0))
        await member.join("t")
        await member.commit("t")
        await member.leave()
        await asyncio.sleep(KEPT_S - LATE_S)
        await served.lead("__groups", 1)
        client = await connect(1)
        assert await kept(client) == {("t", 0)}
        await asyncio.sleep(LATE_S + LATE_S)
        assert await kept(client) == set()
        assert [key for key in await rows(served, 1) if key.startswith("classic/")] == []


@in_virtual_time
async def test_what_was_committed_again_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_cluster() as (served, connect):
        client = await connect()
        await commit(client, partition=0)
        await commit(client, partition=1)
        remove = GroupOffsets.remove
        again = False

        async def late(offsets: GroupOffsets, shard_id: int, found: list[StoredOffset]) -> int:
            nonlocal again
            if not again:
                again = True
                await commit(client, partition=1)
            return await remove(offsets, shard_id, found)

        monkeypatch.setattr(GroupOffsets, "remove", late)
        await asyncio.sleep(KEPT_S + LATE_S)
        assert again
        assert await kept(client) == {("t", 1)}
        assert listener_of(served.nodes.servers[0]).expiry.expired == 1


@in_virtual_time
async def test_nothing_expires_where_the_retention_is_minus_one_until_it_is_changed_while_nodes_run() -> None:
    settings = msgspec.structs.replace(SHORT, offsets_retention_ms=-1)
    async with a_cluster(settings=settings) as (_, connect):
        client = await connect()
        await commit(client)
        await asyncio.sleep(3 * KEPT_S)
        assert await kept(client) == {("t", 0)}
        found = {one.name: one for one in await described(client, 4, "0")}
        assert found["offsets.retention.minutes"].value == str(2**31 - 1)
        await alter_configs(client, 4, "", [("consumer_groups.offsets_retention_ms", 0, "180000")])
        found = {one.name: one for one in await described(client, 4, "0")}
        minutes, look = found["offsets.retention.minutes"], found["offsets.retention.check.interval.ms"]
        assert (minutes.value, minutes.config_source) == ("3", 3), "as set for all nodes"
        assert (look.value, look.config_source) == ("100", 4), "as the file says"
        await alter_configs(client, 4, "", [("consumer_groups.offsets_retention_ms", 0, "1000")])
        await asyncio.sleep(LATE_S)
        assert await kept(client) == set()


@in_virtual_time
async def test_a_clock_that_is_set_ahead_takes_nothing_at_once() -> None:
    async with a_cluster() as (served, connect):
        client = await connect()
        await asyncio.sleep(KEPT_S + LATE_S)
        await commit(client)
        served.nodes.processes[0]._wall_skew_ns += 10**9 * 86_400 * 365
        await asyncio.sleep(KEPT_S - LOOK_S)
        assert await kept(client) == {("t", 0)}
        await asyncio.sleep(LATE_S)
        assert await kept(client) == set()


def test_a_row_with_a_retention_is_read_by_versions_before_it_and_theirs_by_this_one() -> None:
    class Before(msgspec.Struct, frozen=True, array_like=True):
        offset: int
        leader_epoch: int
        metadata: str
        commit_ms: int
        topic_id: bytes
        written: int = -1

    now = Committed(7, 1, "m", 5, b"t" * 16, retention_ms=9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(now), type=Before) == Before(7, 1, "m", 5, b"t" * 16)
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(Before(7, 1, "m", 5, b"t" * 16)), type=Committed)
    assert found == Committed(7, 1, "m", 5, b"t" * 16)
