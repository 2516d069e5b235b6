"""Asks for the committed offsets of all groups, again and again, while nodes are killed.

librdkafka's admin client ends its process by an assertion where a coordinator is killed while it lists offsets (2.16.1,
`rd_kafka_enq_once_del_source_return`), so aiokafka's asks.
"""

import threading
from collections import defaultdict
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tests.kafka.kills.aiokafka_library import Loop
from tests.kafka.kills.ledger import LIBRARIES, PARTITIONS, Topics, next_library
from tests.node.processes import eventually

PERIOD_S: Final = 0.5


def groups() -> dict[str, list[str]]:
    """All groups, with the topics that they read."""
    return {
        f"{kind}-{library}": topics
        for library in LIBRARIES
        for kind, topics in (
            ("transformers", [Topics.of(next_library(library)).sent]),
            ("readers", [Topics.of(library).sent, Topics.of(next_library(library)).transactions]),
        )
    }


class Watch:
    """`asked` has the offsets of each group and partition, in the order of the answers."""

    def __init__(self, servers: str) -> None:
        self.asked: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        self._servers = servers
        self._loop = Loop()
        self._admin: Any = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            self._ask()

    async def _answer(self, group: str, topics: list[str]) -> Any:
        if self._admin is None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._servers, request_timeout_ms=5_000)
            await admin.start()
            self._admin = admin
        places = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        return await self._admin.list_consumer_group_offsets(group, partitions=places)

    def _ask(self) -> bool:
        """Whether all groups have answered. The coordinator of one that has not may be gone."""
        all_answered = True
        for group, topics in groups().items():
            try:
                told = self._loop(self._answer, group, topics)
            except (KafkaError, TimeoutError):
                all_answered, self._admin = False, None
                continue
            for place, found in told.items():
                self.asked[group, place.topic, place.partition].append(max(found.offset, 0))
        return all_answered

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join(60)

    def end(self) -> None:
        """Ask each group once more."""
        eventually(self._ask, 60)
