"""A group of real members, of any library: who comes, who goes, who has what in the end."""

import gc
import itertools
import time
from contextlib import ExitStack
from typing import Any, Final, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.kafka.assignors.members import KINDS
from tests.kafka.assignors.ownership import Ownership, Place, Places
from tests.node.processes import Processes, eventually

PATIENCE_S: Final = 40
TWICE_S: Final = 1.0  # in which who reads a record too would have
_NUMBERS: Final = itertools.count()


class Group:
    """A topic, and a group of its name whose members come and go."""

    def __init__(self, cluster: Processes, partitions: int) -> None:
        self.servers = ",".join(node.kafka for node in cluster.metadata(cluster.alive()[0]).nodes)
        self.topic = f"read-{next(_NUMBERS)}"
        self.ownership = Ownership()
        self._admin = AdminClient({"bootstrap.servers": self.servers})
        self._admin.create_topics([NewTopic(self.topic, partitions, 3)])[self.topic].result(20)
        self._members = ExitStack()
        self._partitions = partitions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._members.close()
        gc.collect()  # sockets that kafka-python has left; no other test is to hear of them
        assert self.ownership.wrong == []

    def join(self, library: str, assignor: str, name: str, instance: str | None = None) -> Any:
        """A member, which is closed at the end at the latest."""
        member = KINDS[library](name, self.servers, self.topic, self.ownership, assignor, instance=instance)
        self._members.callback(member.close)
        return member

    def grow(self, partitions: int) -> None:
        """Give the topic more partitions."""
        self._admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic].result(20)
        self._partitions = partitions

    @property
    def all(self) -> Places:
        """Every partition."""
        return frozenset((self.topic, index) for index in range(self._partitions))

    def settled(self, *members: str, least: int = 1) -> None:
        """Wait until these have all partitions, each of them `least` or more."""

        def is_so() -> bool:
            shares = [self.ownership.of(member) for member in members]
            return frozenset[Place]().union(*shares) == self.all and min(map(len, shares)) >= least

        eventually(is_so, PATIENCE_S)
        assert self.ownership.owned == self.all

    def is_read(self) -> set[bytes]:
        """A record of each partition is read, by the one who has it; the records."""
        producer = Producer({"bootstrap.servers": self.servers})
        values = {f"{next(_NUMBERS)} of {index}".encode(): index for _, index in self.all}
        for value, index in values.items():
            producer.produce(self.topic, value, partition=index)
        assert producer.flush(20) == 0
        eventually(lambda: values.keys() <= self.ownership.values, PATIENCE_S)
        return set(values)

    def is_read_once(self) -> None:
        """The same, and nobody else reads it, as long as nobody comes or goes."""
        values = self.is_read()
        time.sleep(TWICE_S)
        assert {value: self.ownership.times(value) for value in values} == dict.fromkeys(values, 1)

    def kind(self) -> tuple[str, str]:
        """The group's protocol and state, as tools are told."""
        told = self._admin.describe_consumer_groups([self.topic])[self.topic].result(20)
        return told.type.name, told.state.name
