"""Share groups: who may do what, what a quota allows, transactions, deleted topics, a cluster without any group."""

import asyncio
from typing import Any

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin
from antiphon.kafka.messages import share_groups as m
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import Kind
from antiphon.model.quotas import DEFAULT, Quota
from tests.kafka.raw import ask, batch, listening
from tests.kafka.test_access import as_user, eves, give, secured
from tests.kafka.test_quotas import limit
from tests.kafka.test_share_groups import FAST, Member, a_group, configure
from tests.kafka.transactional import Transactional, begun
from tests.node.in_process import in_virtual_time


@in_virtual_time
async def test_members_need_the_group_and_the_topic() -> None:
    async with secured(share_groups=FAST) as (served, connect):
        topic = await served.create("t")
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        await served.append("t", batch(b"x"))
        root, eve = await as_user(connect, "root"), await as_user(connect, "eve")
        assert await configure(root, auto_offset_reset="earliest") == code.NONE
        assert await configure(eve, auto_offset_reset="latest") == code.GROUP_AUTHORIZATION_FAILED
        one = Member(eve, topic.topic_id)
        assert (await one.heartbeat()).error_code == code.GROUP_AUTHORIZATION_FAILED
        assert (await one.fetch()).error_code == code.GROUP_AUTHORIZATION_FAILED
        assert (
            await one.acknowledge({}, share_session_epoch=1)
        ).error_code == code.GROUP_AUTHORIZATION_FAILED
        await give(served, eves(Resource.GROUP, "g", Operation.READ))
        assert (await one.heartbeat()).error_code == code.TOPIC_AUTHORIZATION_FAILED
        await give(served, eves(Resource.TOPIC, "t", Operation.DESCRIBE))
        assert (await one.heartbeat()).error_code == code.NONE
        answer = await one.fetch()
        assert answer.responses[0].partitions[0].error_code == code.TOPIC_AUTHORIZATION_FAILED
        await give(served, eves(Resource.TOPIC, "t", Operation.READ))
        assert await one.take() == [(0, 0, 1)]
        assert await one.accept(0, 0) == code.NONE
        asked = m.ShareOffsetsGroupAsked(group_id="g", topics=None)
        request = m.DescribeShareGroupOffsetsRequest(groups=[asked])
        assert (await ask(eve, request)).groups[0].error_code == code.NONE, "READ implies DESCRIBE"
        delete = m.DeleteShareGroupOffsetsRequest(group_id="g", topics=[])
        assert (await ask(eve, delete)).error_code == code.GROUP_AUTHORIZATION_FAILED


@in_virtual_time
async def test_a_member_over_its_quota_gets_nothing_at_once() -> None:
    async with a_group() as scene:
        for _ in range(4):
            await scene.served.append("t", batch(b"x" * 10_000))
        await limit(scene.served, Quota(None, DEFAULT, consumer_byte_rate=1_000.0))
        one, two = await scene.member("1"), await scene.member("2")
        assert await one.take() == [(0, 0, 1)], "the first batch comes, however large it is"
        empty = await two.fetch(max_wait_ms=60_000)
        assert empty.throttle_time_ms > 0
        assert empty.responses == [], "nothing is acquired"
        await asyncio.sleep(1.0)
        assert await two.take() == [(0, 0, 2)], "the first one's lock has ended meanwhile"


@in_virtual_time
async def test_what_was_aborted_is_given_to_nobody_who_wants_what_is_committed() -> None:
    async with a_group() as scene:
        client = await scene.connect()
        assert await configure(client, isolation_level="read_committed") == code.NONE
        one = await scene.member("1")
        assert await configure(client, "any", auto_offset_reset="earliest") == code.NONE
        other = await scene.member("1", group="any")
        producer = await begun(Transactional(client))
        assert await producer.add(("t", 0)) == [code.NONE]
        assert await producer.write("t", b"a", b"b") == code.NONE
        assert await one.take() == [], "it is not known yet what becomes of it"
        assert await other.take() == [(0, 1, 1)]
        assert await producer.end(commit=False) == code.NONE
        await scene.append(1)
        assert await one.take() == [(3, 3, 1)], "two records and a marker are nothing"
        assert await other.take() == [(3, 3, 1)]


@in_virtual_time
async def test_a_topic_that_is_deleted_ends_its_share_partitions() -> None:
    async with a_group() as scene:
        await scene.append(2)
        one = await scene.member()
        assert await one.take() == [(0, 1, 1)]
        waiting = asyncio.create_task(one.fetch(max_wait_ms=20_000))
        await asyncio.sleep(0.1)
        await ask(await scene.connect(), admin.DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 5)
        told = [p.error_code for topic in (await waiting).responses for p in topic.partitions]
        assert told in ([code.UNKNOWN_TOPIC_ID], [code.NOT_LEADER_OR_FOLLOWER])
        assert await one.accept(0, 1) == code.UNKNOWN_TOPIC_ID
        assert list(scene.served.listener._shares) == []


@in_virtual_time
async def test_the_first_setting_of_any_group_makes_the_table() -> None:
    async with listening(share_groups=FAST) as (_, connect):
        client = await connect()
        resource = admin.DescribeConfigsResource(
            resource_type=32, resource_name="g", configuration_keys=["share.auto.offset.reset"]
        )

        async def shown() -> Any:
            found = await ask(client, admin.DescribeConfigsRequest(resources=[resource]))
            return found.results[0].configs[0].value

        assert await shown() == "latest"
        assert await configure(client, auto_offset_reset="earliest") == code.NONE
        assert await shown() == "earliest"
