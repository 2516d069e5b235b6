"""The application's tests. They need no container, and replace no part of it: pytest starts a cluster for them.

pytest -p antiphon.testing.plugin examples/test_orders_app.py
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from orders_app import make_app

from antiphon.testing import Cluster


@asynccontextmanager
async def served(cluster: Cluster, topic: str) -> AsyncIterator[httpx.AsyncClient]:
    """The application, started, and a client of it."""
    app = make_app(cluster.bootstrap_servers, topic)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://orders") as client,
    ):
        yield client


async def spent(client: httpx.AsyncClient, name: str, cents: int) -> None:
    """Wait until the application says that a customer has spent this."""
    async with asyncio.timeout(30):
        while (await client.get(f"/customers/{name}")).json() != {"cents": cents}:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.02)


def test_an_order_is_counted(antiphon_cluster: Cluster, antiphon_topic: str) -> None:
    async def work() -> None:
        async with served(antiphon_cluster, antiphon_topic) as client:
            for cents in (250, 120):
                answer = await client.post("/orders", json={"customer": "ada", "cents": cents})
                assert answer.status_code == 202
            await spent(client, "ada", 370)

    asyncio.run(work())


def test_it_waits_for_a_new_leader(antiphon_cluster: Cluster, antiphon_topic: str) -> None:
    async def work() -> None:
        async with served(antiphon_cluster, antiphon_topic) as client:
            moved = antiphon_cluster.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
            answer = await client.post("/orders", json={"customer": "bob", "cents": 5})
            assert (answer.status_code, moved.used) == (202, 2)
            await spent(client, "bob", 5)

    asyncio.run(work())


def test_it_says_so_where_an_order_is_refused(antiphon_cluster: Cluster, antiphon_topic: str) -> None:
    async def work() -> None:
        async with served(antiphon_cluster, antiphon_topic) as client:
            antiphon_cluster.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
            answer = await client.post("/orders", json={"customer": "eve", "cents": 5})
            assert answer.status_code == 503

    asyncio.run(work())
