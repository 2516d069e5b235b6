"""Settings of the whole test run."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

# Time-outs are pytest's; how long one example takes on a busy machine says nothing about right or wrong.
settings.register_profile("antiphon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("antiphon")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Where tests are spread over processes, a file's tests stay together, and all that need Spark share one session."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        group = "spark" if item.get_closest_marker("spark") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
