"""The pytest plug-in: `antiphon_cluster`, one cluster a session, and `antiphon_topic`, a name of its own for each test.

Where tests are not to share a cluster, its scope can be chosen, or a test takes one of the other two. The plug-in imports
nothing but pytest before a test asks for a cluster.
"""

import os
import re
import secrets
from typing import TYPE_CHECKING, Final, Literal, get_args

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from antiphon.testing.running import Cluster

Scope = Literal["session", "package", "module", "class", "function"]
SCOPES: Final = get_args(Scope)
NODES_OPTION: Final = "antiphon_nodes"
SCOPE_OPTION: Final = "antiphon_scope"
NAME_MAX: Final = 100  # of the part of a topic's name that is the test's; Kafka takes 249
_RUNNING: "pytest.StashKey[list[Cluster]]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`antiphon_nodes` and `antiphon_scope` in pytest's configuration, and --antiphon-scope."""
    parser.addini(NODES_OPTION, "how many nodes the fixture antiphon_cluster starts", default="3")
    parser.addini(SCOPE_OPTION, f"who shares an antiphon_cluster: {', '.join(SCOPES)}", default="session")
    parser.getgroup("antiphon").addoption(
        "--antiphon-scope",
        choices=SCOPES,
        default=None,
        help=f"who shares an antiphon_cluster; by default what the ini setting {SCOPE_OPTION} says",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Processes of pytest-xdist do not take each other's ports while nodes are down; see `antiphon.tools.free_ports`."""
    chosen = config.getini(SCOPE_OPTION)
    if chosen not in SCOPES:
        raise pytest.UsageError(f"{SCOPE_OPTION} is one of {', '.join(SCOPES)}, not {chosen!r}")
    config.stash[_RUNNING] = []
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        number = worker["workerid"].removeprefix("gw")
        os.environ.setdefault("ANTIPHON_PORT_SHARE", f"{number}/{worker['workercount']}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test gets the cluster whole, whatever the one before did to it."""
    for cluster in item.config.stash[_RUNNING]:
        if cluster.is_hurt:
            cluster.heal()


def _chosen_scope(fixture_name: str, config: pytest.Config) -> Scope:  # noqa: ARG001 - pytest calls it so
    found: Scope = config.getoption("--antiphon-scope") or config.getini(SCOPE_OPTION)
    return found


def _running(config: pytest.Config) -> "Iterator[Cluster]":
    from antiphon.testing import cluster

    nodes = str(config.getini(NODES_OPTION))
    if not nodes.isdecimal():
        raise pytest.UsageError(f"{NODES_OPTION} is a number of nodes, 1 to 64, not {nodes!r}")
    with cluster(int(nodes)) as running:
        config.stash[_RUNNING].append(running)
        try:
            yield running
        finally:
            config.stash[_RUNNING].remove(running)


@pytest.fixture(scope=_chosen_scope)
def antiphon_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    """A running cluster (`antiphon_nodes`, 3 by default) for all tests of `antiphon_scope`, by default the session.

    Tests may hurt it: before the next test faults end, paused nodes resume and killed nodes start.
    """
    yield from _running(pytestconfig)


@pytest.fixture(scope="module")
def antiphon_module_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    """As `antiphon_cluster`, for the tests of one module, whatever `antiphon_scope` is."""
    yield from _running(pytestconfig)


@pytest.fixture
def antiphon_own_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    """As `antiphon_cluster`, for one test alone, whatever `antiphon_scope` is."""
    yield from _running(pytestconfig)


@pytest.fixture
def antiphon_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses. The topic is made when it is first used."""
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:NAME_MAX]
    return f"{words}-{secrets.token_hex(4)}"
