"""Whole nodes on the virtual loop for each test, and a client of them."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from antiphon.client.aio import AsyncClient, connect
from tests.client.failing_nodes import FailingNodes
from tests.coroutines import run_by
from tests.node.in_process import run
from tests.node.processes import Processes
from tests.spark.conftest import server

__all__ = ["in_a_cluster", "server"]

Scenario = Callable[[FailingNodes, AsyncClient], Coroutine[Any, Any, None]]


def _play(scenario: Scenario) -> None:
    async def main() -> None:
        async with FailingNodes.cluster() as cluster, connect(cluster.servers, timeout_s=10) as db:
            await scenario(cluster, db)

    run(main())


in_a_cluster = run_by(_play, given=2)
"""A test that is a coroutine of a fresh cluster and a client that is connected to it, in virtual time."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Three node processes for the tests of a module."""
    with Processes(tmp_path_factory.mktemp("cluster")) as started:
        yield started
