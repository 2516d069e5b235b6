"""Share groups as tools see them: lists, descriptions, offsets, deletion, and names that are taken."""

from typing import Any

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import groups
from antiphon.kafka.messages import share_groups as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.schema import Message
from tests.kafka.raw import ask, batch
from tests.kafka.test_share_groups import Member, a_group
from tests.node.in_process import in_virtual_time


@in_virtual_time
async def test_offsets_are_described_altered_and_deleted() -> None:
    async with a_group(shards=2) as scene:
        await scene.served.append("t", batch(*[b"x"] * 5))
        one = await scene.member()
        assert await one.take() == [(0, 4, 1)]
        assert await one.accept(0, 0) == code.NONE
        assert await one.accept(2, 2) == code.NONE
        client = one.client

        async def described(partitions: list[int] | None) -> list[tuple[int, int, int, int]]:
            topics = None if partitions is None else [PartitionsOfTopic(name="t", partitions=partitions)]
            asked = m.ShareOffsetsGroupAsked(group_id="g", topics=topics)
            (group,) = (await ask(client, m.DescribeShareGroupOffsetsRequest(groups=[asked]))).groups
            assert group.error_code == code.NONE
            return [
                (p.partition_index, p.start_offset, p.lag, p.error_code)
                for topic in group.topics
                for p in topic.partitions
            ]

        assert await described(None) == [(0, 1, 3, 0)]
        assert await described([0, 1, 2]) == [
            (0, 1, 3, 0),
            (1, -1, -1, 0),
            (2, -1, -1, code.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        partition = m.ShareOffsetAltered(partition_index=0, start_offset=3)
        topic = m.ShareOffsetsTopicAltered(topic_name="t", partitions=[partition])
        alter = m.AlterShareGroupOffsetsRequest(group_id="g", topics=[topic])
        delete = m.DeleteShareGroupOffsetsRequest(
            group_id="g", topics=[m.ShareOffsetsTopicDeleted(topic_name="t")]
        )
        for request in (alter, delete):
            assert (await ask(client, request)).error_code == code.NON_EMPTY_GROUP
        await one.heartbeat(member_epoch=-1)
        altered = await ask(client, alter)
        assert altered.responses[0].partitions[0].error_code == code.NONE
        assert await described(None) == [(0, 3, 2, 0)]
        other = await scene.member("2")
        assert await other.take() == [(3, 4, 1)], "who comes anew hears of it at once"
        await other.acknowledge({}, share_session_epoch=-1)
        await other.heartbeat(member_epoch=-1)
        one.epoch = one.session = 0
        await one.heartbeat()
        assert await one.take() == [(3, 4, 1)]
        await one.heartbeat(member_epoch=-1)
        assert (await ask(client, delete)).responses[0].error_code == code.NONE
        assert await described(None) == []


@in_virtual_time
async def test_tools_see_share_groups_and_delete_them() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one = await scene.member()
        assert await one.take() == [(0, 1, 1)]
        client = one.client
        (listed,) = (await ask(client, groups.ListGroupsRequest(types_filter=["Share"]))).groups
        assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
            "g", "share", "Stable", "share",
        )  # fmt: skip
        described = (await ask(client, m.ShareGroupDescribeRequest(group_ids=["g"]))).groups[0]
        assert (described.group_state, described.assignor_name) == ("Stable", "simple")
        (member,) = described.members
        assert (member.member_id, member.subscribed_topic_names) == ("1", ["t"])
        assert member.assignment.topic_partitions[0].partitions == [0]
        missing = (await ask(client, m.ShareGroupDescribeRequest(group_ids=["no"]))).groups[0]
        assert missing.error_code == code.GROUP_ID_NOT_FOUND
        delete = groups.DeleteGroupsRequest(groups_names=["g"])
        assert (await ask(client, delete)).results[0].error_code == code.NON_EMPTY_GROUP
        await one.heartbeat(member_epoch=-1)
        assert (await ask(client, delete)).results[0].error_code == code.NONE
        assert (await ask(client, groups.ListGroupsRequest())).groups == []
        gone = await one.fetch()
        assert [p.error_code for topic in gone.responses for p in topic.partitions] == [
            code.UNKNOWN_TOPIC_OR_PARTITION
        ] or not gone.responses
        one.epoch = one.session = 0
        await one.heartbeat()
        assert await one.take() == [], "its settings are gone with it, and a new group begins at the end"


@in_virtual_time
async def test_one_name_is_of_one_kind_of_group() -> None:
    async with a_group() as scene:
        one = await scene.member()
        join = groups.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=6000,
            member_id="",
            protocol_type="consumer",
            protocols=[groups.JoinProtocol(name="range", metadata=b"\x00\x00\x00\x00\x00\x00")],
        )
        assert (await ask(one.client, join, 3)).error_code == code.INCONSISTENT_GROUP_PROTOCOL
        await ask(one.client, groups.JoinGroupRequest(**{**_fields(join), "group_id": "classic"}), 3)
        other = Member(one.client, scene.topic_id, group="classic")
        assert (await other.heartbeat()).error_code == code.GROUP_ID_NOT_FOUND
        commit = groups.OffsetCommitRequest(
            group_id="g",
            topics=[
                groups.CommitTopic(
                    name="t",
                    partitions=[
                        groups.CommitPartition(partition_index=0, committed_offset=1, committed_metadata=None)
                    ],
                )
            ],
        )
        answer = await ask(one.client, commit)
        assert answer.topics[0].partitions[0].error_code == code.GROUP_ID_NOT_FOUND


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}
