"""The pytest plug-in: `antiphon_cluster`, one cluster a session, and `antiphon_topic`, a name of its own for each test.

It imports nothing but pytest before a test asks for the cluster.
"""

import os
import re
import secrets
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from antiphon.testing.running import Cluster

NODES_OPTION = "antiphon_nodes"
NAME_MAX = 100  # of the part of a topic's name that is the test's; Kafka takes 249
_CLUSTER: "pytest.StashKey[Cluster]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`antiphon_nodes` in pytest's configuration."""
    parser.addini(NODES_OPTION, "how many nodes the fixture antiphon_cluster starts", default="3")


def pytest_configure(config: pytest.Config) -> None:
    """Processes of pytest-xdist do not take each other's ports while nodes are down; see `antiphon.tools.free_ports`."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        number = worker["workerid"].removeprefix("gw")
        os.environ.setdefault("ANTIPHON_PORT_SHARE", f"{number}/{worker['workercount']}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test gets the cluster whole, whatever the one before did to it."""
    cluster = item.config.stash.get(_CLUSTER, None)
    if cluster is not None and cluster.is_hurt:
        cluster.heal()


@pytest.fixture(scope="session")
def antiphon_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    """A running cluster for the whole session (`antiphon_nodes`, 3 by default); see antiphon.testing.Cluster.

    Tests may hurt it: before the next test faults end, paused nodes resume and killed nodes start.
    """
    from antiphon.testing import cluster

    nodes = str(pytestconfig.getini(NODES_OPTION))
    if not nodes.isdecimal():
        raise pytest.UsageError(f"{NODES_OPTION} is a number of nodes, 1 to 64, not {nodes!r}")
    with cluster(int(nodes)) as running:
        pytestconfig.stash[_CLUSTER] = running
        try:
            yield running
        finally:
            del pytestconfig.stash[_CLUSTER]


@pytest.fixture
def antiphon_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses. The topic is made when it is first used."""
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:NAME_MAX]
    return f"{words}-{secrets.token_hex(4)}"
