"""Whole nodes on the virtual loop for each test, and a client of them."""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import pytest

from antiphon.client.aio import AsyncClient, connect
from tests.client.failing_nodes import FailingNodes
from tests.node.in_process import run
from tests.spark.conftest import server

__all__ = ["in_a_cluster", "play", "server"]

P = ParamSpec("P")
Scenario = Callable[[FailingNodes, AsyncClient], Awaitable[None]]


def in_a_cluster(
    test: Callable[Concatenate[FailingNodes, AsyncClient, P], Awaitable[None]],
) -> Callable[P, None]:
    """A test that is a coroutine of a fresh cluster and a client that is connected to it, in virtual time."""

    @wraps(test)
    def ran(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with FailingNodes.cluster() as cluster, connect(cluster.servers, timeout_s=10) as db:
                await test(cluster, db, *args, **kwargs)

        run(main())

    # What pytest is to give: everything but the cluster and the client.
    shown: Any = ran
    del shown.__wrapped__
    signature = inspect.signature(test)
    shown.__signature__ = signature.replace(parameters=list(signature.parameters.values())[2:])
    return ran


@pytest.fixture
def play() -> Callable[[Scenario], None]:
    """Run a coroutine function against a fresh cluster and a connected client, in virtual time."""

    def in_virtual_time(scenario: Scenario) -> None:
        in_a_cluster(scenario)()

    return in_virtual_time
