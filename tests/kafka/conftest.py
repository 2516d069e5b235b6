"""Nodes for Kafka's own clients."""

from collections.abc import Iterator

import pytest

from tests.kafka.served import Served, serve


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One node for the tests of a module; who wants another one has a fixture of this name."""
    with serve(tmp_path_factory.mktemp("node")) as running:
        yield running
