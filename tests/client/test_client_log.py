"""What the client tells the standard library's logging: connections, leaders and tries, and nothing that is secret."""

import logging

import pytest

import antiphon.aio
from antiphon.client.aio import AsyncClient
from antiphon.errors import NotLeaderError
from antiphon.model.requests import AppendBatch, Fetch
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, FailingNodes

NAME = "antiphon.client"


def test_nothing_is_printed_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    """Not even a warning where the program has set nothing up: there is a handler, which does nothing."""
    logger = logging.getLogger(NAME)
    assert [type(one) for one in logger.handlers] == [logging.NullHandler]
    assert logger.level == logging.NOTSET


def test_connections_leaders_and_tries_are_told(caplog: pytest.LogCaptureFixture) -> None:
    @in_a_cluster
    async def scenario(cluster: FailingNodes, db: AsyncClient) -> None:
        topic = await db.create_topic("t")
        await topic.append(b"secret value", key=b"secret key")
        caplog.clear()
        async with antiphon.aio.connect(cluster.servers) as other:
            await other.list_topics()
        assert caplog.messages[0].startswith("connected to ")
        caplog.clear()
        cluster.fail(AppendBatch, DROP_AFTER)
        await topic.append(b"secret value", key=b"secret key")
        assert any(message.startswith("disconnected from ") for message in caplog.messages)
        shard_id = cluster.topic("t").shards[0].shard_id
        cluster.fail(Fetch, NotLeaderError("I do not lead", leader=None))
        assert len([record async for record in topic.read()]) == 2
        assert f"shard {shard_id}, try 1 failed: I do not lead" in caplog.messages
        caplog.clear()
        leader = (cluster.leader("t") + 1) % 3
        await cluster.move_leader("t", 0, leader)
        await topic.append(b"secret value")
        assert any(f"shard {shard_id} is led by node {leader}" in message for message in caplog.messages)
        levels = {record.levelno for record in caplog.records if "is led by" in record.message}
        assert levels == {logging.INFO}
        assert "secret" not in caplog.text

    with caplog.at_level(logging.DEBUG, NAME):
        scenario()
    assert {record.name for record in caplog.records} == {NAME}
