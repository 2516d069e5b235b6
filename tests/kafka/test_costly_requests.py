"""Requests that cost much: what they may name is bounded, and others are served meanwhile."""

import asyncio
import struct
import time
from functools import partial
from typing import Any

import pytest
import structlog

from antiphon.errors import LimitReachedError
from antiphon.gateway.turns import Turns
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.types import GroupConfig
from antiphon.kafka.handlers import metadata
from antiphon.kafka.messages import admin, cluster, groups
from antiphon.kafka.primitives import ELEMENTS_MAX
from antiphon.kafka.schema import decode, encode
from antiphon.kafka.topic_config import TOPICS_ON_DEMAND
from antiphon.node.config import Limits
from tests.coroutines import on_a_loop
from tests.kafka.raw import listening, run
from tests.node.in_process import eventually, in_virtual_time


def million_groups() -> tuple[int, int, bytes]:
    return 15, 0, struct.pack(">i", 1_000_000) + bytes(2_000_000)


def empty_tags() -> tuple[int, int, bytes]:
    return 18, 3, b"\x01\x01" + b"\x80\x92\xf4\x01" + b"\x63\x00" * 4_000_000  # 4 million of tag 99, empty


@pytest.mark.parametrize("made", [million_groups, empty_tags])
@in_virtual_time
async def test_a_request_of_too_many_elements_ends_its_connection(made: Any) -> None:
    async with listening() as (_, connect):
        good, bad = await connect(), await connect()
        began_s = time.process_time()
        bad.send(*made())
        assert await bad.is_closed()
        await good.receive(good.send(18, 0, b""))
        assert time.process_time() - began_s < 2.0


@in_virtual_time
async def test_what_is_named_again_and_again_is_answered_once() -> None:
    async with listening() as (served, connect):
        await served.create("t", 20)
        client = await connect()
        wanted = [cluster.MetadataRequestTopic(name="t") for _ in range(5000)]
        told = await client.ask(cluster.MetadataRequest(topics=wanted), 3, 9)
        assert [topic.name for topic in told.topics] == ["t"]
        asked = groups.DescribeGroupsRequest(groups=["g"] * 5000)
        assert len((await client.ask(asked, 15, 5)).groups) == 1
        resources = [
            admin.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
            for _ in range(5000)
        ]
        described = await client.ask(admin.DescribeConfigsRequest(resources=resources), 32, 4)
        assert len(described.results) == 1


@in_virtual_time
async def test_many_names_are_looked_at_once() -> None:
    """Twenty thousand names that all differ: no comparison of each with each."""
    async with listening() as (_, connect):
        client = await connect()
        topics = [
            admin.CreatableTopic(
                name=f"t-{n}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for n in range(10_000)
        ]
        request = admin.CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True)
        began_s = time.process_time()
        answer = await client.ask(request, 19, 4)  # later ones tell all settings of each
        assert time.process_time() - began_s < 4.0
        assert len(answer.topics) == 10_000


def topics(*partitions: int, names: str = "t") -> admin.CreateTopicsRequest:
    made = [
        admin.CreatableTopic(
            name=f"{names}-{n}", num_partitions=count, replication_factor=-1, assignments=[], configs=[]
        )
        for n, count in enumerate(partitions)
    ]
    return admin.CreateTopicsRequest(topics=made, timeout_ms=1000)


def growth(**counts: int) -> admin.CreatePartitionsRequest:
    wanted = [
        admin.GrowingTopic(name=name.replace("_", "-"), count=count, assignments=None)
        for name, count in counts.items()
    ]
    return admin.CreatePartitionsRequest(topics=wanted, timeout_ms=1000, validate_only=False)


@in_virtual_time
async def test_what_clients_may_make_is_bounded_on_each_listener() -> None:
    """A request, the cluster and a node take so many topics and partitions; the default table has four of them."""
    limits = Limits(disk_reserve=0, topics=5, partitions=12, node_replicas=11, request_partitions=5)
    async with listening(limits=limits) as (served, connect):
        client = await connect()

        async def outcomes(request: Any, key: int, version: int) -> list[tuple[int, str]]:
            answer = await client.ask(request, key, version)
            told = answer.topics if key == 19 else answer.results
            return [(one.error_code, one.error_message or "") for one in told]

        # Together they are too many for one request, so none of them is made.
        refused = await outcomes(topics(2, 2, 2), 19, 5)
        assert [failed for failed, _ in refused] == [code.POLICY_VIOLATION] * 3
        assert "6 partitions in one request, 5 are the most" in refused[0][1]
        assert await outcomes(topics(2, 2), 19, 5) == [(0, "")] * 2
        refused = await outcomes(growth(t_0=5, t_1=5), 37, 2)
        assert [failed for failed, _ in refused] == [code.POLICY_VIOLATION] * 2
        assert await outcomes(growth(t_0=3), 37, 2) == [(0, "")]
        [(failed, reason)] = await outcomes(topics(3, names="u"), 19, 5)
        assert (failed, "node 0 is to hold 9 replicas" in reason) == (code.POLICY_VIOLATION, True)
        [(failed, reason)] = await outcomes(topics(4, names="u"), 19, 5)
        assert (failed, "the cluster has 9 partitions" in reason) == (code.POLICY_VIOLATION, True)
        with pytest.raises(LimitReachedError, match="asked for 4 more"):
            await served.create("native", 4)
        await served.create("a")
        await served.create("b")
        [(failed, reason)] = await outcomes(topics(1, names="u"), 19, 5)
        assert (failed, "5 topics and tables, 5 are the most" in reason) == (code.POLICY_VIOLATION, True)
        known = await client.ask(cluster.MetadataRequest(topics=None), 3, 9)
        assert {topic.name for topic in known.topics} == {"default", "t-0", "t-1", "a", "b"}
        shown = served.first.metrics.render().decode()
        for line in ("topics 5.0", "topics_limit 5.0", "partitions 11.0", "partitions_limit 12.0"):
            assert f"\nantiphon_{line}\n" in shown
        assert "\nantiphon_node_replicas_limit 11.0\n" in shown
        assert "\nantiphon_limit_refusals_total 6.0\n" in shown


@in_virtual_time
async def test_a_topic_of_more_partitions_than_any_may_have_is_refused_as_such() -> None:
    limits = Limits(disk_reserve=0, request_partitions=1_000_000)
    async with listening(limits=limits) as (_, connect):
        client = await connect()
        [told] = (await client.ask(topics(10_001), 19, 5)).topics
        assert told.error_code == code.INVALID_PARTITIONS
        assert "a topic has 10,000 at most" in told.error_message
        [grown] = (await client.ask(growth(default=10_001), 37, 2)).results
        assert grown.error_code == code.INVALID_PARTITIONS


@on_a_loop
async def test_everybody_has_one_piece_in_turn_and_the_loop_goes_on_between() -> None:
    turns, between = Turns(), 0
    done: list[str] = []
    for n in range(5):
        turns.add("greedy", partial(done.append, f"greedy {n}"))
    turns.add("modest", partial(done.append, "modest"))
    while len(done) < 6:
        await asyncio.sleep(0)
        between += 1
    assert done == ["greedy 0", "modest", *(f"greedy {n}" for n in range(1, 5))]
    assert between >= 6
    await turns.next("modest")


def test_topics_are_made_on_demand_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "CREATING_MAX", 5)

    async def scenario() -> None:
        async with listening(limits=Limits(topics_on_demand=12)) as (served, connect):
            client = await connect()
            for _ in range(6):
                wanted = [cluster.MetadataRequestTopic(name=f"made-{n}") for n in range(40)]
                request = cluster.MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
                told = await client.ask(request, 3, 9)
                missing = {t.error_code for t in told.topics} - {code.NONE}
                assert missing <= {code.UNKNOWN_TOPIC_OR_PARTITION, code.LEADER_NOT_AVAILABLE}
            made = [t for t in served.first.gateway.metadata.topics if t.name.startswith("made")]
            assert 0 < len(made) <= 12
            wanted = [cluster.MetadataRequestTopic(name=f"more-{n}") for n in range(3000)]
            await client.ask(cluster.MetadataRequest(topics=wanted), 3, 9)

    with structlog.testing.capture_logs() as lines:
        run(scenario)
    told = [line for line in lines if line["event"] == "topic not created on demand"]
    assert 1 <= len(told) < 10, "not one for each of 3,000 topics"
    assert told[0]["topics_max"] == 12


def join_request(n: int, size_bytes: int, session_ms: int = 1_800_000) -> groups.JoinGroupRequest:
    protocol = groups.JoinProtocol(name="range", metadata=bytes(size_bytes))
    return groups.JoinGroupRequest(
        group_id=f"g-{n}",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=1_800_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )


@in_virtual_time
async def test_members_say_little_about_themselves_and_are_forgotten_with_their_connections() -> None:
    waits = GroupConfig(
        initial_delay_ms=30_000
    )  # they are decoded one after the other, and hang up before they have joined
    async with listening(groups=waits) as (served, connect):
        first = await connect()
        find = cluster.FindCoordinatorRequest(coordinator_keys=["g"])
        for _ in range(20):
            found = await first.ask(find, 10, 6)
            if found.coordinators[0].error_code == code.NONE:
                break
        large = await first.ask(join_request(0, 2_000_000), 11, 3)
        assert large.error_code == code.INVALID_REQUEST
        coordinator = served.listener._coordinator
        clients = [await connect() for _ in range(200)]
        for n, client in enumerate(clients):
            client.send(11, 3, encode(join_request(n, 250_000), 3, flexible=False))
        await eventually(lambda: served.listener.requests >= 220 or len(coordinator.hosted()) > 60)
        kept = sum(sum(group.kept_of.values()) for group in coordinator.hosted())
        assert kept <= 16 * 1024 * 1024, "half of all: one client has no more"
        refused = await first.ask(join_request(999, 250_000), 11, 3)
        assert refused.error_code == code.COORDINATOR_NOT_AVAILABLE
        for client in clients:
            client.writer.transport.abort()
        await eventually(lambda: not coordinator.hosted())
        assert not coordinator.classic.kept_bytes


@in_virtual_time
async def test_what_members_are_called_is_counted_also_of_those_who_have_yet_to_join() -> None:
    """An id that is given out stands for as long as the session that was asked for, with or without a connection."""
    async with listening(groups=GroupConfig(kept_bytes_max=200_000)) as (served, connect):
        client = await connect()
        find = cluster.FindCoordinatorRequest(coordinator_keys=["g"])
        for _ in range(20):
            if (await client.ask(find, 10, 6)).coordinators[0].error_code == code.NONE:
                break
        coordinator, told = served.listener._coordinator, []
        for n in range(300):
            asked = join_request(n, 10)
            asked.group_id, asked.session_timeout_ms = f"g-{n % 30}", 1_800_000
            body = encode(asked, 4, flexible=False)
            name = b"c" * 30_000
            client.correlation += 1
            header = struct.pack(">hhihs", 11, 4, client.correlation, len(name), b"")[:-1] + name
            client.writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
            answer = await client.receive(client.correlation)
            told.append(decode(groups.JoinGroupResponse, memoryview(answer), 4, flexible=False))
        ids = [one.member_id for one in told if one.error_code == code.MEMBER_ID_REQUIRED]
        assert max(map(len, ids)) < 300, "of what a client calls itself a part is kept"
        assert {one.error_code for one in told[250:]} == {code.COORDINATOR_NOT_AVAILABLE}
        assert sum(map(len, ids)) < coordinator.classic.kept_bytes <= 200_000


def test_the_bound_leaves_room_for_large_clusters() -> None:
    assert ELEMENTS_MAX >= 10 * TOPICS_ON_DEMAND
