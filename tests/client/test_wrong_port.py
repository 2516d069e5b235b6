"""A client that is given another port of a node is told which it is."""

from collections.abc import Iterator

import pytest

import antiphon
from antiphon.errors import InvalidRequestError
from antiphon.testing import Cluster, cluster


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster(1) as made:
        yield made


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("bootstrap_server", "is the Kafka port, for clients of Kafka's protocol"),
        ("http", "is the HTTP port, for browsers and the HTTP API"),
    ],
)
def test_another_port_is_named(one: Cluster, port: str, said: str) -> None:
    address = getattr(one.nodes[0], port).removeprefix("http://")
    with pytest.raises(InvalidRequestError, match=f"{address} {said}: this client takes native addresses"):
        antiphon.connect(address)
