"""The libraries' own clients in one group of real nodes, which goes from the classic protocol to the new one and back.

Each partition has one member at each moment, whatever the protocol of each, and each record is read by one of them.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from antiphon.node.config import ConsumerGroups
from tests.kafka.assignors.group import Group
from tests.kafka.assignors.members import CONSUMER
from tests.kafka.left_sockets import LEAVES_SOCKETS
from tests.node.processes import Processes, eventually

pytestmark = [pytest.mark.cluster, LEAVES_SOCKETS]

BEAT_MS: Final = 100
CLASSIC_KIND, CONSUMER_KIND = ("CLASSIC", "STABLE"), ("CONSUMER", "STABLE")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    settings = ConsumerGroups(heartbeat_interval_ms=BEAT_MS, session_timeout_ms=10_000)
    with Processes(tmp_path_factory.mktemp("mixed"), 3, consumer_groups=settings) as processes:
        yield processes


def settled(group: Group, kind: tuple[str, str], *members: str) -> None:
    """These have everything, evenly, each partition one of them, in a group of this kind; and read it once."""
    group.settled(*members, least=len(group.all) // len(members))
    eventually(lambda: group.kind() == kind)
    group.is_read_once()


def test_members_roll_to_the_consumer_protocol_and_back(cluster: Processes) -> None:
    with Group(cluster, 6) as group:
        old = group.join("confluent-kafka", "range", "old")
        group.join("kafka-python", "range", "python")
        settled(group, CLASSIC_KIND, "old", "python")
        new = group.join(CONSUMER, "uniform", "new")
        settled(group, CONSUMER_KIND, "old", "python", "new")
        old.close()
        settled(group, CONSUMER_KIND, "python", "new")
        group.join("aiokafka", "range", "aio")
        settled(group, CONSUMER_KIND, "python", "new", "aio")
        new.close()
        settled(group, CLASSIC_KIND, "python", "aio")
        group.join(CONSUMER, "range", "newer")
        settled(group, CONSUMER_KIND, "python", "aio", "newer")


@pytest.mark.slow
def test_cooperative_members_roll_to_the_consumer_protocol_and_back(cluster: Processes) -> None:
    with Group(cluster, 6) as group:
        group.join("confluent-kafka", "cooperative-sticky", "old")
        group.join("kafka-python", "cooperative-sticky", "python")
        settled(group, CLASSIC_KIND, "old", "python")
        new = group.join(CONSUMER, "uniform", "new")
        settled(group, CONSUMER_KIND, "old", "python", "new")
        new.close()
        settled(group, CLASSIC_KIND, "old", "python")
