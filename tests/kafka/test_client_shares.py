"""What one client has of what a node keeps keeps no other client out."""

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, patch

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.fetch_codec import PartitionWanted, TopicWanted
from antiphon.kafka.fetch_sessions import EVICT_S, FetchSessions
from antiphon.kafka.groups import classic_groups, consumer_groups, group_memory
from antiphon.kafka.groups.types import GroupConfig
from antiphon.kafka.handlers import metadata
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.messages import cluster
from antiphon.kafka.messages import consumer_groups as cgm
from antiphon.kafka.messages import groups as gm
from antiphon.kafka.share_sessions import ShareSessions
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Limits
from antiphon.security.session import Session
from antiphon.shares import asking
from antiphon.transactions import coordinator
from tests.coroutines import on_a_loop
from tests.kafka.raw import RawClient, ask, listening
from tests.kafka.transactional import Transactional, begun
from tests.node.in_process import in_virtual_time

MOST = 8


class Asker:
    """Who is the client of all connections now."""

    name = "greedy"


@pytest.fixture
def asker() -> Iterator[Asker]:
    found = Asker()
    with (
        patch.object(Session, "client", lambda *_: found.name),
        patch.object(coordinator, "IDS_MAX", MOST),
        patch.object(classic_groups, "GROUPS_MAX", MOST),
        patch.object(consumer_groups, "GROUPS_MAX", MOST),
    ):
        yield found


def test_transactional_ids(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        async with listening() as (_, connect):
            client = await connect()
            first = await begun(Transactional(client, "id-0"))
            made = [await Transactional(client, f"id-{n}").init() for n in range(1, MOST)]
            assert made == [code.NONE] * 3 + [code.COORDINATOR_NOT_AVAILABLE] * 4, (
                "an error to try again after"
            )
            assert await first.init() == code.NONE, "what is there goes on"
            asker.name = "other"
            client = await connect()
            assert await Transactional(client, "others").init() == code.NONE
            assert await Transactional(client, "id-1").init() == code.NONE, "also at whoever has its right"

    run()


async def asked_to_join(
    client: RawClient, group: str, metadata: bytes = b"r", member_id: str = ""
) -> gm.JoinGroupResponse:
    request = gm.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[gm.JoinProtocol(name="range", metadata=metadata)],
    )
    answer: gm.JoinGroupResponse = await ask(client, request, 5)
    return answer


async def joined(client: RawClient, group: str, metadata: bytes = b"r") -> int:
    return int((await asked_to_join(client, group, metadata)).error_code)


async def ready(client: RawClient) -> None:
    await Transactional(client).find("g-0")  # makes the table
    while await joined(client, "first") in {code.COORDINATOR_LOAD_IN_PROGRESS, code.NOT_COORDINATOR}:
        pass


def test_groups_of_the_classic_protocol(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        async with listening() as (_, connect):
            client = await connect()
            await ready(client)
            made = [await joined(client, f"g-{n}") for n in range(1, MOST)]
            assert made == [code.MEMBER_ID_REQUIRED] * 3 + [code.COORDINATOR_NOT_AVAILABLE] * 4
            assert await joined(client, "g-1") == code.MEMBER_ID_REQUIRED, (
                "to a group that is there others come"
            )
            asker.name = "other"
            client = await connect()
            assert await joined(client, "others") == code.MEMBER_ID_REQUIRED

    run()


@on_a_loop
async def test_share_sessions() -> None:
    sessions, connection = ShareSessions(4), Mock()
    refused: list[Any] = []
    for client, member in (
        ("greedy", "a"),
        ("greedy", "b"),
        ("greedy", "c"),
        ("other", "d"),
        ("greedy", "c"),
    ):
        asking.set(client)
        try:
            sessions.open(("g", member), connection)
        except RefusedError as error:
            refused.append((member, error.error_code))
    assert refused == [("c", code.SHARE_SESSION_LIMIT_REACHED)] * 2
    asking.set("greedy")
    sessions.close(("g", "a"))
    sessions.open(("g", "c"), connection)
    asking.set(None)


ROOM = 200_000


def test_memory_of_members_of_the_classic_protocol(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        with patch.object(classic_groups, "GROUPS_MAX", 1_000):
            config = GroupConfig(kept_bytes_max=ROOM, initial_delay_ms=0)
            async with listening(groups=config) as (_, connect):
                client = await connect()
                await ready(client)
                first = await member_of(client, "g-0", bytes(20_000))
                told = [(await member_of(client, f"g-{n}", bytes(20_000)))[0] for n in range(1, 7)]
                assert told == [code.NONE] * 3 + [code.COORDINATOR_NOT_AVAILABLE] * 3
                again = await asked_to_join(client, "g-0", bytes(20_000), first[1])
                assert again.error_code == code.NONE, "who is there stays, with what he has"
                more = await asked_to_join(client, "g-0", bytes(60_000), first[1])
                assert more.error_code == code.COORDINATOR_NOT_AVAILABLE
                large = gm.SyncAssignment(member_id=first[1], assignment=bytes(50_000))
                sync = gm.SyncGroupRequest(
                    group_id="g-0",
                    generation_id=again.generation_id,
                    member_id=first[1],
                    group_instance_id=None,
                    assignments=[large],
                )
                assert (await ask(client, sync, 3)).error_code == code.COORDINATOR_NOT_AVAILABLE
                large.assignment = bytes(1_000)
                assert (await ask(client, sync, 3)).error_code == code.NONE
                asker.name = "other"
                client = await connect()
                others = [(await member_of(client, f"o-{n}", bytes(20_000)))[0] for n in range(2)]
                assert others == [code.NONE] * 2

    run()


async def member_of(client: RawClient, group: str, metadata: bytes) -> tuple[int, str]:
    """Join a group as its first member."""
    told = await asked_to_join(client, group)
    if told.error_code == code.MEMBER_ID_REQUIRED:
        told = await asked_to_join(client, group, metadata, told.member_id)
    return told.error_code, told.member_id


def test_memory_of_members_of_the_consumer_protocol(asker: Asker) -> None:
    async def beats(client: RawClient, group: str, size: int, member: str = "") -> Any:
        topics = [f"{n:0100d}" for n in range(size // 100)]
        request = cgm.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member or f"m-{group}",
            member_epoch=0 if not member else 1,
            rebalance_timeout_ms=300_000,
            subscribed_topic_names=topics,
            topic_partitions=[],
        )
        while True:
            answer = await ask(client, request, 0)
            if answer.error_code not in {code.COORDINATOR_LOAD_IN_PROGRESS, code.NOT_COORDINATOR}:
                return answer.error_code

    @in_virtual_time
    async def run() -> None:
        with (
            patch.object(group_memory, "KEPT_BYTES_MAX", ROOM),
            patch.object(consumer_groups, "GROUPS_MAX", 1_000),
        ):
            async with listening() as (_, connect):
                client = await connect()
                await ready(client)
                told = [await beats(client, f"g-{n}", 20_000) for n in range(8)]
                assert told == [code.NONE] * 4 + [code.COORDINATOR_NOT_AVAILABLE] * 4
                assert await beats(client, "g-0", 100, "m-g-0") == code.NONE, "to want less takes no room"
                assert await beats(client, "g-1", 100_000, "m-g-1") == code.COORDINATOR_NOT_AVAILABLE
                asker.name = "other"
                client = await connect()
                assert [await beats(client, f"o-{n}", 20_000) for n in range(2)] == [code.NONE] * 2

    run()


def test_topics_that_are_made_on_demand(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        async with listening(limits=Limits(topics_on_demand=14)) as (served, connect):
            client = await connect()

            async def missing(names: list[str]) -> list[str]:
                wanted = [cluster.MetadataRequestTopic(name=name) for name in names]
                request = cluster.MetadataRequest(topics=wanted)
                await ask(client, request, 9)
                found = (await ask(client, request, 9)).topics
                return [one.name for one in found if one.error_code == code.UNKNOWN_TOPIC_OR_PARTITION]

            there = len(served.first.gateway.metadata.topics)
            half = (14 - there + 1) // 2
            mine = [f"t{n}" for n in range(14)]
            assert await missing(mine) == mine[half:]
            asker.name = "other"
            client = await connect()
            assert not await missing(["o0", "o1"])
            asker.name = "greedy"
            client = await connect()
            for name in mine[:3]:
                await served.first.gateway.delete_topic(name)
            assert await missing(mine[half:]) == mine[half + 2 :], "what is gone is a place again"

    run()


def test_topics_that_are_being_made(asker: Asker) -> None:
    @in_virtual_time
    async def run() -> None:
        with patch.object(metadata, "CREATING_MAX", 8):
            async with listening() as (served, connect):
                begun: list[str] = []

                async def never(request: CreateTopic, _timeout_s: float) -> None:
                    begun.append(request.name)
                    await asyncio.sleep(1_000)

                with patch.object(served.first.gateway, "create_topic", never):
                    for asker.name in ("greedy", "other"):
                        client = await connect()
                        names = [f"{asker.name}{n}" for n in range(20)]
                        wanted = [cluster.MetadataRequestTopic(name=name) for name in names]
                        await ask(client, cluster.MetadataRequest(topics=wanted), 9)
                assert [name[:5] for name in begun] == ["greed"] * 4 + ["other"] * 2

    run()


@on_a_loop
async def test_fetch_sessions() -> None:
    sessions = FetchSessions(Mock(), 4)
    wanted = TopicWanted("t", None, [PartitionWanted(0, -1, 0, 1000)])

    async def opened(client: str, connection: Mock | None = None) -> Mock | None:
        connection = connection or Mock()
        connection.client, connection.account.room_bytes = client, 1 << 20
        answer = Mock(connection=connection)
        request = Mock(topics=[wanted], session_epoch=0, forgotten=[])
        return connection if await sessions.opened(request, [], answer, by_id=False) else None

    assert await opened("other")
    mine = [await opened("greedy") for _ in range(3)]
    assert [one is not None for one in mine] == [True, True, False]
    assert not await opened("greedy")
    assert mine[0]
    sessions.ended(mine[0])
    assert await opened("greedy")
    for session in sessions._sessions.values():
        session.used_s -= 2 * EVICT_S
    others = {one.connection for one in sessions._sessions.values() if one.client == "other"}
    assert await opened("greedy"), "one of its own, that nobody uses, makes room"
    assert others <= {one.connection for one in sessions._sessions.values()}
