"""A cluster in this process for each test, and clients of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antiphon.client.aio import AsyncClient, connect
from tests.client.memory_cluster import MemoryCluster

Scenario = Callable[[MemoryCluster, AsyncClient], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a coroutine function against a fresh cluster and a connected client, on a loop of its own."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with MemoryCluster(tmp_path) as cluster, connect(cluster.servers, timeout_s=10) as db:
                await scenario(cluster, db)

        asyncio.run(main())

    return run
