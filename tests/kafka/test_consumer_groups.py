"""Groups of the consumer protocol by bare sockets: errors, another coordinator, both protocols, tools."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin, groups
from antiphon.kafka.messages import consumer_groups as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.model.metadata import Kind
from antiphon.node.config import ConsumerGroups
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import Connect, RawClient, ask, listening
from tests.node.in_process import in_virtual_time

FAST = ConsumerGroups(session_timeout_ms=3_000, max_size=3)
BROKER = 4


@dataclass
class Member:
    """A member as a client has one."""

    client: RawClient
    name: str
    topics: list[str] | None = field(default_factory=lambda: ["t"])
    epoch: int = 0
    owned: list[int] = field(default_factory=list)
    topic_id: bytes = b""
    more: dict[str, Any] = field(default_factory=dict)

    async def ask(self, version: int | None = None, **changed: Any) -> Any:
        owned = m.TopicPartitions(topic_id=self.topic_id, partitions=self.owned)
        said: dict[str, Any] = {
            "group_id": "g",
            "member_id": self.name,
            "member_epoch": self.epoch,
            "rebalance_timeout_ms": 5_000,
            "subscribed_topic_names": self.topics,
            "topic_partitions": [owned] if self.owned and self.epoch else [],
        }
        request = m.ConsumerGroupHeartbeatRequest(**{**said, **self.more, **changed})
        return await ask(self.client, request, version)

    async def heartbeat(self, **changed: Any) -> Any:
        answer = await self.ask(**changed)
        assert answer.error_code == code.NONE, answer
        self.epoch, self.name = answer.member_epoch, answer.member_id
        if answer.assignment is not None:
            self.owned = [p for each in answer.assignment.topic_partitions for p in each.partitions]
            self.topic_id = next((each.topic_id for each in answer.assignment.topic_partitions), b"")
        return answer

    async def commit(self, partition: int, offset: int, epoch: int | None = None, version: int = 9) -> int:
        one = groups.CommitPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        request = groups.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.name,
            topics=[groups.CommitTopic(name="t", partitions=[one])],
        )
        answer = await ask(self.client, request, version)
        found: int = answer.topics[0].partitions[0].error_code
        return found


@asynccontextmanager
async def a_group(
    nodes: int = 1, shards: int = 4, settings: ConsumerGroups = FAST
) -> AsyncIterator[tuple[KafkaNodes, Connect]]:
    async with listening(nodes, consumer_groups=settings) as (served, connect):
        await served.create("t", shards=shards)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        yield served, connect


async def classic_join(client: RawClient) -> Any:
    request = groups.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6000,
        member_id="",
        protocol_type="consumer",
        protocols=[groups.JoinProtocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00")],
    )
    return await ask(client, request, 3)


async def describe(client: RawClient) -> Any:
    return (await ask(client, m.ConsumerGroupDescribeRequest(group_ids=["g"]))).groups[0]


@in_virtual_time
async def test_members_get_partitions_with_a_replica_in_their_rack() -> None:
    """As the metadata says where nodes stand: here each partition has one replica."""
    async with listening(3, consumer_groups=FAST, racks=("a", "b", "c")) as (served, connect):
        made = await served.create("t", shards=6, replicas=1)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.lead("__groups", 0)
        client = await connect(0)
        members = [Member(client, rack, more={"rack_id": rack}) for rack in "cab"]
        for _ in range(4):
            for member in members:
                await member.heartbeat()
        for member in members:
            nodes = {made.shards[index].ensemble for index in member.owned}
            assert (len(member.owned), nodes) == (2, {("abc".index(member.name),)})


@in_virtual_time
async def test_two_members_share_and_the_next_coordinator_knows_them() -> None:
    async with a_group(3) as (served, connect):
        client = await connect(0)
        one, two = Member(client, "1"), Member(client, "2")
        await one.heartbeat()
        assert one.owned == [0, 1, 2, 3]
        await two.heartbeat()
        for member in (one, one, two):
            await member.heartbeat()
        assert (len(one.owned), len(two.owned), set(one.owned + two.owned)) == (2, 2, {0, 1, 2, 3})
        assert await one.commit(one.owned[0], 7) == code.NONE
        epochs = one.epoch, two.epoch
        await served.lead("__groups", 1)
        assert (await one.ask()).error_code == code.NOT_COORDINATOR
        one.client = two.client = await connect(1)
        for member in (one, two):
            await member.heartbeat(
                rebalance_timeout_ms=-1, subscribed_topic_names=None, topic_partitions=None
            )
        assert (one.epoch, two.epoch) == epochs, "nobody joined again"
        assert await one.commit(one.owned[0], 8) == code.NONE
        assert (await describe(one.client)).group_state == "Stable"


@in_virtual_time
async def test_who_is_silent_goes_also_where_the_coordinator_is_another_one() -> None:
    async with a_group(3) as (served, connect):
        one, two = Member(await connect(0), "1"), Member(await connect(0), "2")
        await one.heartbeat()
        await two.heartbeat()
        await served.lead("__groups", 2)
        two.client = await connect(2)

        for _ in range(50):
            await two.heartbeat()
            if len(two.owned) == 4:
                break
            await asyncio.sleep(0.2)
        assert len(two.owned) == 4
        one.client = await connect(2)
        assert (await one.ask()).error_code == code.UNKNOWN_MEMBER_ID
        assert await one.commit(0, 1) == code.UNKNOWN_MEMBER_ID


@in_virtual_time
async def test_epochs_and_ids_that_are_wrong() -> None:
    async with a_group() as (_, connect):
        client = await connect()
        one = Member(client, "1")
        assert (await one.ask(member_epoch=3)).error_code == code.UNKNOWN_MEMBER_ID
        await one.heartbeat()
        assert (await one.ask(member_epoch=5)).error_code == code.FENCED_MEMBER_EPOCH
        assert await one.commit(0, 1, epoch=0) == code.STALE_MEMBER_EPOCH
        assert await one.commit(0, 1, version=8) == code.UNSUPPORTED_VERSION
        assert await Member(client, "x", epoch=1).commit(0, 1) == code.UNKNOWN_MEMBER_ID
        static = Member(client, "s", more={"instance_id": "i"})
        await static.heartbeat()
        again = Member(client, "s2", more={"instance_id": "i"})
        assert (await again.ask()).error_code == code.UNRELEASED_INSTANCE_ID
        await static.ask(member_epoch=-2)
        await again.heartbeat()
        assert (await static.ask()).error_code == code.FENCED_INSTANCE_ID
        await Member(client, "3").heartbeat()
        assert (await Member(client, "4").ask()).error_code == code.GROUP_MAX_SIZE_REACHED
        fetch = groups.FetchOffsetsGroup(group_id="g", member_id="1", member_epoch=9, topics=None)
        found = await ask(client, groups.OffsetFetchRequest(groups=[fetch]))
        assert found.groups[0].error_code == code.STALE_MEMBER_EPOCH
        fetch = groups.FetchOffsetsGroup(group_id="g", topics=None)
        found = await ask(client, groups.OffsetFetchRequest(groups=[fetch]))
        assert found.groups[0].error_code == code.NONE, "who is no member may look"


@in_virtual_time
async def test_requests_that_make_no_sense() -> None:
    async with a_group() as (_, connect):
        one = Member(await connect(), "1")
        for wrong in (
            {"group_id": ""},
            {"member_id": ""},
            {"member_id": "x" * 300},
            {"member_epoch": -3},
            {"member_epoch": -2},
            {"instance_id": ""},
            {"rebalance_timeout_ms": -1},
            {"topic_partitions": [m.TopicPartitions(topic_id=b"t" * 16, partitions=[0])]},
            {"topic_partitions": None, "subscribed_topic_names": None},
            {"subscribed_topic_regex": "x" * 2000},
            {"subscribed_topic_names": ["x" * 200] * 2000},
        ):
            answer = await one.ask(**wrong)
            assert answer.error_code == code.INVALID_REQUEST, wrong
            assert answer.error_message
        answer = await one.ask(server_assignor="sticky")
        assert answer.error_code == code.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in answer.error_message
        answer = await one.ask(subscribed_topic_regex="(")
        assert answer.error_code == code.INVALID_REGULAR_EXPRESSION
        answer = await one.ask(0, member_id="")
        assert answer.error_code == code.NONE
        assert len(answer.member_id) > 20, "a client of version 0 is given its id"


@in_virtual_time
async def test_a_group_is_of_one_protocol_while_it_has_members() -> None:
    """Where an operator wants it so."""
    settings = msgspec.structs.replace(FAST, migration_policy="disabled")
    async with a_group(settings=settings) as (_, connect):
        client = await connect()
        one = Member(client, "1")
        await one.heartbeat()
        assert (await classic_join(client)).error_code == code.INCONSISTENT_GROUP_PROTOCOL
        assert await one.commit(0, 5) == code.NONE
        await one.ask(member_epoch=-1)
        assert (await describe(client)).group_state == "Empty"
        joined = await classic_join(client)
        assert joined.error_code == code.NONE
        assert (await describe(client)).error_code == code.GROUP_ID_NOT_FOUND
        assert (await one.ask(member_epoch=0, topic_partitions=[])).error_code == code.GROUP_ID_NOT_FOUND
        assert (await one.ask(member_epoch=1)).error_code == code.GROUP_ID_NOT_FOUND
        leave = groups.LeaveGroupRequest(
            group_id="g", members=[groups.LeavingMember(member_id=joined.member_id)]
        )
        await ask(client, leave)
        one.epoch, one.owned = 0, []
        await one.heartbeat()
        fetch = groups.FetchOffsetsGroup(group_id="g", topics=None)
        found = await ask(client, groups.OffsetFetchRequest(groups=[fetch]))
        assert found.groups[0].topics[0].partitions[0].committed_offset == 5, "both ways, its offsets stay"


@in_virtual_time
async def test_what_tools_are_told_and_may_do() -> None:
    async with a_group() as (_, connect):
        client = await connect()
        one = Member(client, "1", more={"rack_id": "r", "instance_id": "i"})
        await one.heartbeat()
        found = await describe(client)
        assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 1, 1)
        assert found.assignor_name == "uniform"
        member = found.members[0]
        assert (member.member_id, member.instance_id, member.rack_id, member.member_type) == (
            "1",
            "i",
            "r",
            1,
        )
        assert member.assignment.topic_partitions[0].topic_name == "t"
        assert member.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
        assert member.target_assignment.topic_partitions == member.assignment.topic_partitions
        old = (await ask(client, groups.DescribeGroupsRequest(groups=["g"]))).groups[0]
        assert (old.error_code, old.group_state) == (code.GROUP_ID_NOT_FOUND, "Dead")
        for kinds, names in ((["Consumer"], ["g"]), (["classic"], []), ([], ["g"])):
            listed = (await ask(client, groups.ListGroupsRequest(types_filter=kinds))).groups
            assert [one.group_id for one in listed] == names
        assert (listed[0].group_type, listed[0].group_state) == ("consumer", "Stable")
        deletion = groups.DeleteGroupsRequest(groups_names=["g"])
        assert (await ask(client, deletion)).results[0].error_code == code.NON_EMPTY_GROUP
        await one.commit(0, 5)
        offsets = groups.OffsetDeleteRequest(
            group_id="g",
            topics=[PartitionsOfTopic(name="t", partitions=[0])],
        )
        deleted = await ask(client, offsets)
        assert deleted.topics[0].partitions[0].error_code == code.GROUP_SUBSCRIBED_TO_TOPIC
        leave = groups.LeaveGroupRequest(
            group_id="g", members=[groups.LeavingMember(member_id="", group_instance_id="i")]
        )
        assert (await ask(client, leave)).members[0].error_code == code.NONE
        assert (await ask(client, deletion)).results[0].error_code == code.NONE
        assert (await describe(client)).error_code == code.GROUP_ID_NOT_FOUND
        assert (await ask(client, groups.ListGroupsRequest())).groups == []


@in_virtual_time
async def test_a_regular_expression_reads_what_is_made_later() -> None:
    async with a_group() as (served, connect):
        one = Member(await connect(), "1", topics=None, more={"subscribed_topic_regex": "t(-.*)?"})
        await one.heartbeat()
        assert one.owned == [0, 1, 2, 3]
        await served.create("t-2", shards=1)
        await served.create("other", shards=1)
        await one.heartbeat(subscribed_topic_regex=None, subscribed_topic_names=None)
        assert sorted(one.owned) == [0, 0, 1, 2, 3]


@in_virtual_time
async def test_the_settings_are_shown() -> None:
    async with a_group() as (_, connect):
        resource = admin.DescribeConfigsResource(
            resource_type=BROKER, resource_name="0", configuration_keys=None
        )
        found = await ask(await connect(), admin.DescribeConfigsRequest(resources=[resource]))
        values = {one.name: one.value for one in found.results[0].configs if one.name.startswith("group.")}
        assert {name: value for name, value in values.items() if not name.startswith("group.share.")} == {
            "group.consumer.assignors": "uniform,range",
            "group.consumer.heartbeat.interval.ms": "5000",
            "group.consumer.max.size": "3",
            "group.consumer.migration.policy": "bidirectional",
            "group.consumer.session.timeout.ms": "3000",
            "group.coordinator.rebalance.protocols": "classic,consumer,share",
        }
