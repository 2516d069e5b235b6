"""Settings of the whole test run."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# Time-outs are pytest's; how long one example takes on a busy machine says nothing about right or wrong.
settings.register_profile("antiphon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("antiphon")

SPARK = "spark"  # the group of all tests that run Spark, most of them in the one session


def _group(item: pytest.Item) -> str:
    """Tests of a file stay in one process; so do all that run Spark."""
    return SPARK if item.get_closest_marker("spark") else item.nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Where tests are spread over processes, groups begin in the order in which their tests are given."""
    if config.pluginmanager.hasplugin("xdist"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread tests over processes by groups: what takes long first, so that no process waits for another at the end."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    groups = {item: _group(item) for item in items}
    slow = {groups[item] for item in items if item.get_closest_marker("cluster")}
    sizes = Counter(groups.values())
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(groups[item], slow, sizes))


def _turn(group: str, slow: set[str], sizes: Counter[str]) -> tuple[bool, bool, int, str]:
    return group != SPARK, group not in slow, -sizes[group], group
