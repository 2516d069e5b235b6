"""Kafka requests that name as much as a request may: some of it in each turn of the event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.gateway.turns import Turns
from antiphon.kafka.handlers.metadata import LARGE
from antiphon.kafka.messages import admin, cluster, groups, offsets, security, transactions
from antiphon.kafka.pacing import PIECE, TurnBudget
from tests.kafka.raw import listening
from tests.node.in_process import in_virtual_time

MANY = 3_000
NAMES = [f"n{number}" for number in range(MANY)]


def list_offsets() -> tuple[Any, int, int]:
    parts = [offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return (
        offsets.ListOffsetsRequest(
            replica_id=-1, topics=[offsets.ListOffsetsTopic(name=name, partitions=parts) for name in NAMES]
        ),
        2,
        6,
    )


def one_topic_s_offsets() -> tuple[Any, int, int]:
    parts = [offsets.ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(MANY)]
    topic = offsets.ListOffsetsTopic(name="t", partitions=parts)
    return offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 2, 6


def wanted_metadata() -> tuple[Any, int, int]:
    return (
        cluster.MetadataRequest(
            topics=[cluster.MetadataRequestTopic(name=name) for name in NAMES],
            allow_auto_topic_creation=False,
        ),
        3,
        9,
    )


def coordinators() -> tuple[Any, int, int]:
    return cluster.FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES), 10, 4


def gone_topics() -> tuple[Any, int, int]:
    return admin.DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1_000), 20, 4


def gone_groups() -> tuple[Any, int, int]:
    return groups.DeleteGroupsRequest(groups_names=NAMES), 42, 2


def described_transactions() -> tuple[Any, int, int]:
    return transactions.DescribeTransactionsRequest(transactional_ids=NAMES), 65, 0


def described_users() -> tuple[Any, int, int]:
    users = [security.UserName(name=name) for name in NAMES]
    return security.DescribeUserScramCredentialsRequest(users=users), 50, 0


@pytest.mark.parametrize(
    "made",
    [
        list_offsets, one_topic_s_offsets, wanted_metadata, coordinators, gone_topics, gone_groups,
        described_transactions, described_users,
    ],
)  # fmt: skip
@in_virtual_time
async def test_what_names_much_takes_as_many_turns(
    made: Callable[[], tuple[Any, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = 0
    before = Turns.next

    async def counted(self: Turns, owner: object, group: object = None) -> None:
        nonlocal waited
        waited += 1
        await before(self, owner, group)

    async with listening() as (_, connect):
        client = await connect()
        monkeypatch.setattr(Turns, "next", counted)
        await client.ask(*made())
    assert waited >= MANY // PIECE - 1


def test_elements_count_however_they_are_nested() -> None:
    seen: list[int] = []

    async def turn() -> None:
        seen.append(0)

    async def run() -> None:
        budget = TurnBudget(turn)
        async for _ in budget.each(range(10)):
            async for _ in budget.each(range(PIECE - 1)):
                if not seen:
                    seen.append(0)
                seen[-1] += 1
        async for _ in budget.each([1]):
            budget.costs(PIECE)
        async for _ in budget.each([1]):
            seen[-1] += 1

    asyncio.run(run())
    assert len(seen) >= 11
    assert max(seen) <= PIECE


@in_virtual_time
async def test_users_are_looked_up_and_not_searched() -> None:
    """Twenty thousand of them, which took 4 and 8 s when each was compared with each."""
    async with listening() as (_, connect):
        client = await connect()
        names = [f"u{number}" for number in range(20_000)]
        users = [security.UserName(name=name) for name in names]
        gone = [security.CredentialDeletion(name=name, mechanism=1) for name in names]
        began_s = time.thread_time()
        told = await client.ask(security.DescribeUserScramCredentialsRequest(users=users), 50, 0)
        altered = security.AlterUserScramCredentialsRequest(deletions=gone, upsertions=[])
        done = await client.ask(altered, 51, 0)
        assert time.thread_time() - began_s < 2.5
        assert [one.user for one in told.results] == names
        assert [one.user for one in done.results] == names


@in_virtual_time
async def test_a_large_answer_of_metadata_is_encoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    async with listening() as (served, connect):
        aside = served.listener._handlers.metadata._aside
        before = aside.run

        async def run(work: Any, *arguments: Any, **more: Any) -> Any:
            encoded.append(1)
            return await before(work, *arguments, **more)

        monkeypatch.setattr(aside, "run", run)
        await served.create("few", shards=LARGE // 2)
        client = await connect()
        few = await client.ask(cluster.MetadataRequest(topics=None), 3, 9)
        assert not encoded
        await served.create("more", shards=LARGE)
        many = await client.ask(cluster.MetadataRequest(topics=None), 3, 9)
        assert encoded
        assert [len(topic.partitions) for topic in (*few.topics, *many.topics) if topic.name != "table"][
            -1
        ] == LARGE
