"""Classic groups whose coordinator changes, by bare sockets: members go on, and what is kept in `__groups`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from antiphon.coordination.cluster_records import FORMAT
from antiphon.errors import DiskFullError
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups import classic_rows
from antiphon.kafka.groups.classic_row import ClassicRow, decoded
from antiphon.kafka.groups.classic_rows import row_key
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.messages import consumer_groups, groups
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableGet, TableWrite
from tests.kafka.kafka_nodes import KafkaNodes, listener_of
from tests.kafka.raw import Connect, RawClient, ask, listening
from tests.node.in_process import in_virtual_time


@dataclass
class Member:
    """A member as a client has one."""

    client: RawClient
    session_ms: int = 6_000
    name: str = ""
    generation: int = -1
    assignment: bytes = b""

    async def join(self) -> Any:
        request = groups.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=5_000,
            member_id=self.name,
            protocol_type="consumer",
            protocols=[groups.JoinProtocol(name="range", metadata=b"m")],
        )
        answer = await ask(self.client, request, 3)
        if answer.error_code == code.NONE:
            self.name, self.generation = answer.member_id, answer.generation_id
        return answer

    async def sync(self, *names: str) -> int:
        request = groups.SyncGroupRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.name,
            assignments=[
                groups.SyncAssignment(member_id=name, assignment=f"for {name}".encode()) for name in names
            ],
        )
        answer = await ask(self.client, request, 3)
        self.assignment = answer.assignment
        found: int = answer.error_code
        return found

    async def heartbeat(self) -> int:
        request = groups.HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.name)
        found: int = (await ask(self.client, request, 3)).error_code
        return found

    async def commit(self, offset: int) -> int:
        one = groups.CommitPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        request = groups.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=self.generation,
            member_id=self.name,
            topics=[groups.CommitTopic(name="t", partitions=[one])],
        )
        found: int = (await ask(self.client, request, 7)).topics[0].partitions[0].error_code
        return found

    async def leave(self) -> int:
        request = groups.LeaveGroupRequest(group_id="g", members=[groups.LeavingMember(member_id=self.name)])
        found: int = (await ask(self.client, request, 4)).error_code
        return found


@asynccontextmanager
async def a_table(nodes: int = 3) -> AsyncIterator[tuple[KafkaNodes, Connect]]:
    async with listening(nodes) as (served, connect):
        await served.create("t", shards=4)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        yield served, connect


async def join_both(first: RawClient, second: RawClient) -> tuple[Member, Member]:
    """Two members of a group that is stable."""
    one, two = Member(first), Member(second)
    await asyncio.gather(one.join(), two.join())
    answers = await asyncio.gather(*(each.sync(one.name, two.name) for each in (one, two)))
    assert answers == [code.NONE, code.NONE]
    assert [each.assignment for each in (one, two)] == [f"for {each.name}".encode() for each in (one, two)]
    return one, two


def coordinator_of(served: KafkaNodes, node: int) -> GroupCoordinator:
    return listener_of(served.nodes.servers[node])._coordinator


async def row_of(served: KafkaNodes) -> ClassicRow | None:
    host = served.host("__groups")
    gateway = served.nodes.nodes[host.services.node_id].gateway
    (row,) = (await gateway.table_get(TableGet(host.shard_id, (row_key("g"),)))).rows
    return None if row is None else decoded(row.value or b"")


async def described(client: RawClient) -> Any:
    return (await ask(client, groups.DescribeGroupsRequest(groups=["g"]), 5)).groups[0]


async def listed(client: RawClient) -> list[tuple[str, str]]:
    answer = await ask(client, groups.ListGroupsRequest())
    return [(group.group_id, group.group_state) for group in answer.groups]


@in_virtual_time
async def test_members_go_on_with_the_next_coordinator() -> None:
    async with a_table() as (served, connect):
        one, two = await join_both(await connect(0), await connect(0))
        assert await one.commit(1) == code.NONE
        before = one.generation, one.assignment, two.generation
        await served.lead("__groups", 1)
        assert await one.heartbeat() == code.NOT_COORDINATOR
        one.client = two.client = await connect(1)
        assert [await one.heartbeat(), await two.heartbeat()] == [code.NONE] * 2
        assert await one.commit(2) == code.NONE
        found = await described(one.client)
        assert (found.group_state, len(found.members)) == ("Stable", 2)
        assert await listed(one.client) == [("g", "Stable")]
        told = await listener_of(served.nodes.servers[1]).hosted.one("g")
        assert told is not None
        assert (told.state, told.member_count, told.epoch) == ("Stable", 2, one.generation)
        assert await one.sync() == code.NONE
        assert (one.generation, one.assignment, two.generation) == before


@in_virtual_time
async def test_who_is_silent_is_noticed_by_the_next_coordinator() -> None:
    async with a_table() as (served, connect):
        one, two = await join_both(await connect(0), await connect(0))
        await served.lead("__groups", 2)
        one.client = two.client = await connect(2)
        for _ in range(100):
            if await one.heartbeat() == code.REBALANCE_IN_PROGRESS:
                break
            await asyncio.sleep(0.1)
        assert (await one.join()).error_code == code.NONE
        assert await one.sync(one.name) == code.NONE
        assert await two.commit(5) == code.UNKNOWN_MEMBER_ID
        row = await row_of(served)
        assert row is not None
        assert [member.member_id for member in row.members] == [one.name]


@in_virtual_time
async def test_an_empty_group_is_kept_while_it_has_offsets_and_goes_with_its_deletion() -> None:
    async with a_table() as (served, connect):
        one = Member(await connect(0))
        await one.join()
        assert await one.sync(one.name) == code.NONE
        assert await one.commit(1) == code.NONE
        assert await one.leave() == code.NONE
        await asyncio.sleep(0.5)
        since = await coordinator_of(served, 0).classic.empty_since_ms("g")
        row = await row_of(served)
        assert row is not None
        assert row.generation == one.generation + 1
        assert since == row.empty_since_ms == row.changed_ms > 0
        await served.lead("__groups", 1)
        one.client = await connect(1)
        assert (await described(one.client)).group_state == "Empty"
        assert await one.commit(9) == code.ILLEGAL_GENERATION
        assert await coordinator_of(served, 1).classic.empty_since_ms("g") == since
        one.name = ""
        known = one.generation
        await one.join()
        assert one.generation == known + 2, "generations go on"
        delete = groups.DeleteGroupsRequest(groups_names=["g"])
        assert (await ask(one.client, delete)).results[0].error_code == code.NON_EMPTY_GROUP
        assert await coordinator_of(served, 1).classic.empty_since_ms("g") is None
        assert await one.leave() == code.NONE
        assert (await ask(one.client, delete)).results[0].error_code == code.NONE
        assert await row_of(served) is None
        assert (await ask(one.client, delete)).results[0].error_code == code.GROUP_ID_NOT_FOUND


@in_virtual_time
async def test_a_group_that_never_committed_leaves_nothing() -> None:
    async with a_table(1) as (served, connect):
        one = Member(await connect(0))
        await one.join()
        assert await one.sync(one.name) == code.NONE
        assert await row_of(served) is not None
        assert await one.leave() == code.NONE
        await asyncio.sleep(1)
        assert await row_of(served) is None
        assert await listed(one.client) == []


@in_virtual_time
async def test_a_group_of_the_consumer_protocol_takes_the_place_of_what_was_kept() -> None:
    async with a_table(1) as (served, connect):
        one = Member(await connect(0))
        await one.join()
        await one.sync(one.name)
        assert await one.commit(1) == code.NONE
        beat = consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=5_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert (await ask(one.client, beat)).error_code == code.GROUP_ID_NOT_FOUND, "it has members"
        assert await one.leave() == code.NONE
        assert (await ask(one.client, beat)).error_code == code.NONE
        assert await row_of(served) is None


@in_virtual_time
async def test_while_a_node_is_of_an_earlier_version_nothing_is_kept_nor_believed() -> None:
    """That one would coordinate the group in its memory, and what is kept would be out of date."""
    async with a_table() as (served, connect):
        one, _ = await join_both(await connect(0), await connect(0))
        assert await row_of(served) is not None
        with patch.object(classic_rows, "CLASSIC_FORMAT", FORMAT + 1):  # which no node says that it reads
            await served.lead("__groups", 1)
            one.client = await connect(1)
            assert await one.heartbeat() == code.UNKNOWN_MEMBER_ID
            assert await row_of(served) is None
            one.name = ""
            await one.join()
            assert await one.sync(one.name) == code.NONE
            assert await row_of(served) is None
        await one.join()
        assert await one.sync(one.name) == code.NONE
        assert await row_of(served) is not None, "the next generation is kept"
        with patch.object(classic_rows, "CLASSIC_FORMAT", FORMAT + 1):
            await one.join()
            assert await one.sync(one.name) == code.NONE
            assert await row_of(served) is None, "it would be out of date"


@in_virtual_time
async def test_a_row_that_cannot_be_read_is_passed_over_and_replaced() -> None:
    async with a_table(1) as (served, connect):
        host = served.host("__groups")
        bad = tuple(Put(key, b"\xc1") for key in (row_key("g"), b"classic/\xff", b"classic/a%41"))
        await served.first.gateway.table_write(TableWrite(host.shard_id, bad))
        await served.first.gateway.elect_leader(host.shard_id, 0)
        one = Member(await connect(0))
        await one.join()
        assert await one.sync(one.name) == code.NONE
        row = await row_of(served)
        assert row is not None
        assert row.generation == one.generation == 1


@in_virtual_time
async def test_members_that_are_too_large_are_not_kept_and_join_again() -> None:
    async with a_table() as (served, connect):
        with patch.object(classic_rows, "ROW_BYTES_MAX", 50):
            one = Member(await connect(0))
            await one.join()
            assert await one.sync(one.name) == code.NONE
        row = await row_of(served)
        assert row is not None
        assert (row.generation, row.members, row.is_whole, row.empty_since_ms) == (1, (), False, None)
        assert await one.commit(1) == code.NONE
        await served.lead("__groups", 1)
        one.client = await connect(1)
        assert await one.heartbeat() == code.UNKNOWN_MEMBER_ID
        one.name = ""
        await one.join()
        assert one.generation == 2, "generations go on"


@in_virtual_time
async def test_a_row_that_cannot_be_written_is_told_and_nothing_is_half_done() -> None:
    async with a_table(1) as (served, connect):
        one = Member(await connect(0))
        await one.join()
        gateway = served.first.gateway

        async def full(_request: TableWrite) -> Any:
            raise DiskFullError("no room")

        with patch.object(gateway, "table_write", full):
            assert await one.sync(one.name) == code.COORDINATOR_NOT_AVAILABLE
            assert await one.heartbeat() == code.REBALANCE_IN_PROGRESS
        assert await row_of(served) is None
        assert (await one.join()).error_code == code.NONE
        assert await one.sync(one.name) == code.NONE
        assert one.generation == 2
        assert await one.commit(1) == code.NONE


@in_virtual_time
async def test_a_heartbeat_writes_nothing_and_a_rebalance_writes_once() -> None:
    async with a_table(1) as (served, connect):
        one, two = await join_both(await connect(0), await connect(0))
        end = served.end("__groups")
        for _ in range(5):
            assert [await one.heartbeat(), await two.heartbeat()] == [code.NONE] * 2
        assert served.end("__groups") == end
        await asyncio.gather(two.join(), one.join())
        await asyncio.gather(one.sync(one.name, two.name), two.sync(one.name, two.name))
        assert served.end("__groups") <= end + 1


def test_the_key_of_a_row() -> None:
    assert row_key("a/b%c") == b"classic/a%2Fb%25c"
