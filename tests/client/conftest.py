"""Whole nodes on the virtual loop for each test, and a client of them."""

from collections.abc import Awaitable, Callable

import pytest

from antiphon.client.aio import AsyncClient, connect
from tests.client.failing_nodes import FailingNodes
from tests.node.in_process import run
from tests.spark.conftest import server

__all__ = ["play", "server"]

Scenario = Callable[[FailingNodes, AsyncClient], Awaitable[None]]


@pytest.fixture
def play() -> Callable[[Scenario], None]:
    """Run a coroutine function against a fresh cluster and a connected client, in virtual time."""

    def in_virtual_time(scenario: Scenario) -> None:
        async def main() -> None:
            async with FailingNodes.cluster() as cluster, connect(cluster.servers, timeout_s=10) as db:
                await scenario(cluster, db)

        run(main())

    return in_virtual_time
