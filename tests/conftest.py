"""Settings of the whole test run."""

import gc
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from antiphon import system
from tests.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadScopeScheduling

# Time-outs are pytest's; how long one example takes on a busy machine says nothing about right or wrong. What judges a
# change must not depend on luck: the examples are the same each time, others are tried with HYPOTHESIS_PROFILE=fresh.
QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.register_profile("same", QUIET, derandomize=True)
settings.register_profile("fresh", QUIET, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

ROOT = Path(__file__).parent.parent
# The groups of files with Spark: those that share a session, those that share another one and start nodes as processes, and
# those that start drivers of their own. They take longest.
SESSION, NODES, DRIVERS = "spark session", "spark session with nodes", "spark drivers"
SPARK = (SESSION, NODES, DRIVERS)
# Files that take ten seconds and more for a few tests. At the end of a run they would keep one process busy alone.
LONG = (
    "tests/simulation/", "tests/node/test_damage", "tests/replication/test_ra", "tests/client/test_write_order",
    "tests/archive/test_archive.py", "tests/coordination/test_live_faults", "tests/log/test_crashes",
    "tests/node/test_client_memory", "tests/fuzz/", "tests/pages/test_drills", "tests/rolling/test_restart",
)  # fmt: skip


@cache
def _group(file: str) -> str:
    """Tests of a file stay in one process; so do all of each Spark session, and all that start drivers of their own.

    It goes by the file's text: the process that spreads the tests knows no more of them than their names.
    """
    text = (ROOT / file).read_text()
    if "pytest.mark.driver" in text:
        return DRIVERS
    if "pytest.mark.spark" in text:
        return NODES if "pytest.mark.cluster" in text else SESSION
    return file


def group_of(nodeid: str) -> str:
    """The group of a test: its tests run in one process, one after the other."""
    return _group(nodeid.partition("::")[0])


def pytest_configure(config: pytest.Config) -> None:
    """Where tests are spread over processes, groups begin in the order in which their tests are given."""
    if config.pluginmanager.hasplugin("xdist"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadScopeScheduling":
    """Spread tests over processes by groups."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long goes first, so that no process waits for another at the end."""
    if not hasattr(config, "workerinput"):
        return
    groups = {item: group_of(item.nodeid) for item in items}
    slow = {groups[item] for item in items if item.get_closest_marker("cluster")}
    sizes = Counter(groups.values())
    items.sort(key=lambda item: _turn(groups[item], slow, sizes))


def pytest_collection_finish() -> None:
    """What is loaded by now stays. Each simulated run ends with a collection of all garbage, which need not look at it."""
    gc.collect()
    gc.freeze()


def _turn(group: str, slow: set[str], sizes: Counter[str]) -> tuple[int, bool, bool, int, str]:
    place = SPARK.index(group) if group in SPARK else len(SPARK)
    return place, group not in slow, not group.startswith(LONG), -sizes[group], group


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[dict[str, str]]":
    """The environment in which the Python processes of a Spark are forked from one that has imported what they need."""
    from tests.spark.warm_python import warm_python

    with warm_python(tmp_path_factory.mktemp("python")) as python:
        yield {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, warm_python: dict[str, str]) -> "Iterator[SparkSession]":
    """The Spark session of this process, as `antiphon.spark.session` makes it, with two cores."""
    import antiphon.spark
    from tests.spark.quick_java import QUICK_DRIVER

    os.environ["JDK_JAVA_OPTIONS"] = f"{QUICK_DRIVER} -Xmx1g"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in warm_python.items():
            patch.setenv(name, value)
        session = antiphon.spark.session(
            "tests",
            cores=2,
            config={
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            },
        )
    yield session
    session.stop()


@pytest.fixture
def clock() -> "Iterator[Clock]":
    """Time stands still for `system.monotonic_s()`, until the test moves it."""
    made = Clock()
    token = system.use(made)
    yield made
    token.var.reset(token)
