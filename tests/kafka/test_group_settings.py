"""What operators set of one group's members, by bare sockets: told, kept to, kept by the next coordinator, gone with it."""

import asyncio
from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin, groups
from tests.kafka import test_consumer_groups as consumers
from tests.kafka import test_share_groups as shares
from tests.kafka.raw import RawClient, alter_configs, ask
from tests.node.in_process import in_virtual_time

GROUP = 32
OF_GROUP, OF_NODE = 8, 4  # sources
SET, RESET = 0, 1


async def put(client: RawClient, kind: str, beats_ms: str | None, session_ms: str | None) -> tuple[int, Any]:
    values = {"heartbeat.interval.ms": beats_ms, "session.timeout.ms": session_ms}
    changes = [(f"{kind}.{name}", RESET if value is None else SET, value) for name, value in values.items()]
    answer = await alter_configs(client, GROUP, "g", changes)
    return answer.error_code, answer.error_message


async def shown(client: RawClient, *names: str) -> dict[str, tuple[str, int, bool]]:
    resource = admin.DescribeConfigsResource(
        resource_type=GROUP, resource_name="g", configuration_keys=list(names)
    )
    answer = await ask(client, admin.DescribeConfigsRequest(resources=[resource]))
    return {one.name: (one.value, one.config_source, one.read_only) for one in answer.results[0].configs}


@in_virtual_time
async def test_members_of_a_share_group_come_as_it_is_set() -> None:
    async with shares.a_group() as scene:
        client = await scene.connect()
        assert await put(client, "share", "700", "1500") == (code.NONE, None)
        one = shares.Member(client, scene.topic_id)
        assert (await one.heartbeat()).heartbeat_interval_ms == 700, "told as it joins"
        assert (await one.heartbeat()).heartbeat_interval_ms == 700
        other = await scene.member(group="other")
        assert (await other.heartbeat()).heartbeat_interval_ms == shares.FAST.heartbeat_interval_ms
        assert await put(client, "share", "8000", "20000") == (code.NONE, None)
        assert (await one.heartbeat()).heartbeat_interval_ms == 8_000, "told with the next heartbeat"
        await asyncio.sleep(8)
        assert (await one.heartbeat()).error_code == code.NONE, "it came when it was told to"
        assert await put(client, "share", None, None) == (code.NONE, None)
        assert (await one.heartbeat()).heartbeat_interval_ms == shares.FAST.heartbeat_interval_ms
        await one.heartbeat()
        await asyncio.sleep(shares.FAST.session_timeout_ms / 1000 + 0.1)
        assert (await one.heartbeat()).error_code == code.UNKNOWN_MEMBER_ID


@in_virtual_time
async def test_the_next_coordinator_of_a_consumer_group_knows_what_is_set() -> None:
    async with consumers.a_group(3) as (served, connect):
        client = await connect(0)
        assert await put(client, "consumer", "4000", "10000") == (code.NONE, None)
        one = consumers.Member(client, "1")
        assert (await one.heartbeat()).heartbeat_interval_ms == 4_000
        await served.lead("__groups", 1)
        one.client = await connect(1)
        await asyncio.sleep(4)
        two = consumers.Member(one.client, "2")
        assert (await two.heartbeat()).heartbeat_interval_ms == 4_000, "as it joins, and all is written anew"
        assert (await one.heartbeat()).heartbeat_interval_ms == 4_000, "the nodes' session would be over"
        name = "consumer.heartbeat.interval.ms"
        assert await shown(one.client, name) == {name: ("4000", OF_GROUP, False)}
        for member in (one, two):
            await member.heartbeat(member_epoch=-1)
        deleted = await ask(one.client, groups.DeleteGroupsRequest(groups_names=["g"]))
        assert [each.error_code for each in deleted.results] == [code.NONE]
        assert (await shown(one.client, name))[name][0] == str(consumers.FAST.heartbeat_interval_ms)


@pytest.mark.parametrize("kind", ["consumer", "share"])
@in_virtual_time
async def test_a_session_is_longer_than_the_time_between_heartbeats(kind: str) -> None:
    async with shares.a_group() as scene:
        client = await scene.connect()
        beats, session = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
        error, reason = await put(client, kind, "900", "900")
        assert error == code.INVALID_CONFIG
        assert f"{session} would be 900, and has to be more than {beats}, which would be 900" in reason
        assert (await put(client, kind, "600000", None))[0] == code.INVALID_CONFIG, "it is the nodes' session"
        assert await put(client, kind, "901", "902") == (code.NONE, None)
        found = await alter_configs(client, GROUP, "g", [(session, SET, "901")])
        assert found.error_code == code.INVALID_CONFIG, "with what was set before"
        assert await put(client, kind, "60000", "70000") == (code.NONE, None)
        found = await alter_configs(client, GROUP, "g", [(session, RESET, None)])
        assert found.error_code == code.INVALID_CONFIG, "with what the nodes have"
        assert await put(client, kind, "901", "902") == (code.NONE, None)
        assert await shown(client, beats, session) == {
            beats: ("901", OF_GROUP, False),
            session: ("902", OF_GROUP, False),
        }
