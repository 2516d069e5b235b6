"""The tests of the agents, against a real cluster.

pytest -p antiphon.testing.plugin examples/test_agents.py
"""

import asyncio
import json
from typing import Any

import pytest
from agents import views_app
from aiokafka import AIOKafkaProducer
from aiokafka.errors import GroupAuthorizationFailedError

import antiphon
import antiphon.aio
from antiphon.testing import Cluster


async def view(cluster: Cluster, topic: str, *pages: str) -> None:
    """Write that these pages were viewed."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for page in pages:
            await producer.send_and_wait(topic, b"", page.encode())


async def counted(cluster: Cluster, table: str, pages: dict[str, int]) -> None:
    """Wait until the table says that these pages were viewed so often."""
    async with asyncio.timeout(30), antiphon.aio.connect(cluster.servers) as db:
        found: dict[str, Any] = {}
        while found != pages:
            await asyncio.sleep(0.05)
            try:
                counts = await db.table(table)
                rows = await counts.get_many(list(pages))
            except antiphon.UnknownTopicError:
                continue
            found = {
                page: json.loads(row.value)["views"]
                for page, row in zip(pages, rows, strict=True)
                if row is not None
            }


def test_each_view_counts_once(antiphon_cluster: Cluster, antiphon_topic: str) -> None:
    async def work() -> None:
        table = f"{antiphon_topic}-counts"
        app = views_app(antiphon_cluster.bootstrap_servers, antiphon_cluster.servers, antiphon_topic, table)
        await view(antiphon_cluster, antiphon_topic, "home", "news", "home")
        running = asyncio.create_task(app.run())
        await counted(antiphon_cluster, table, {"home": 2, "news": 1})
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(work())


def test_a_view_that_comes_again_counts_no_more(antiphon_cluster: Cluster, antiphon_topic: str) -> None:
    async def work() -> None:
        table = f"{antiphon_topic}-counts"
        app = views_app(antiphon_cluster.bootstrap_servers, antiphon_cluster.servers, antiphon_topic, table)
        await view(antiphon_cluster, antiphon_topic, "home", "home")
        antiphon_cluster.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
        with pytest.raises(ExceptionGroup) as failed:  # it has counted, and cannot say so
            await asyncio.wait_for(app.run(), 30)
        assert failed.group_contains(GroupAuthorizationFailedError)
        await view(antiphon_cluster, antiphon_topic, "home", "news")
        running = asyncio.create_task(app.run())
        await counted(antiphon_cluster, table, {"home": 3, "news": 1})
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(work())
