"""Transactions on three real node processes, whose coordinator and leaders are killed (kill -9) while they are decided."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from antiphon.kafka.topic_config import TRANSACTIONS_TABLE
from antiphon.transactions.internal_table import shard_of_name
from tests.kafka.left_sockets import LEAVES_SOCKETS
from tests.kafka.transactional_clients import CLIENTS
from tests.node.processes import Processes, eventually

pytestmark = [pytest.mark.cluster, LEAVES_SOCKETS]

TOPICS = ("left", "right")
WAIT_S = 40.0
ID = "killed"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("transactions")) as processes:
        yield processes


class Transactor:
    """One transaction after the other in a thread: a record in each topic, every third one aborted."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({
            "bootstrap.servers": servers,
            "transactional.id": ID,
            "transaction.timeout.ms": 20_000,
            "topic.metadata.refresh.interval.ms": 500,
            "retry.backoff.ms": 20,
            "linger.ms": 0,
        })  # fmt: skip
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._again(self._producer.init_transactions)
        count = 0
        while not self._stop.is_set():
            value, count = f"{count}", count + 1
            self._producer.begin_transaction()
            try:
                for topic in TOPICS:
                    self._producer.produce(topic, value.encode())
                if count % 3:
                    self._again(self._producer.commit_transaction)
                    self.committed.append(value)
                    continue
                # A coordinator that died before it heard of the transaction refuses its abort, as Kafka's does: librdkafka
                # speaks of no number or epoch by which it could be told from the one before.
                self._producer.flush(WAIT_S)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    self.failed.append(str(error))
                    return
            self._again(self._producer.abort_transaction)
            self.aborted.append(value)

    def _again(self, call: Callable[[float], None]) -> None:
        """librdkafka says which errors are to be tried again."""
        while True:
            try:
                call(WAIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S * 2)
        assert not self._thread.is_alive()


def leader_of(cluster: Processes, topic: str) -> int:
    return cluster.shard(cluster.alive()[0], topic).leader


def coordinator_of(cluster: Processes) -> int:
    """The leader of the shard of the transactional id."""
    topics = {topic.name: topic for topic in cluster.metadata(cluster.alive()[0]).topics}
    gateway: Any = SimpleNamespace(topic=topics.__getitem__)
    return shard_of_name(gateway, TRANSACTIONS_TABLE, ID).leader


@pytest.mark.slow
def test_every_transaction_is_whole_when_coordinator_and_leaders_are_killed(cluster: Processes) -> None:
    servers = ",".join(node.kafka for node in cluster.metadata(cluster.alive()[0]).nodes)
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(name, 1, 3) for name in TOPICS]).values():
        done.result(20)
    work = Transactor(servers)
    eventually(lambda: len(work.committed) > 20, 40)
    whose: list[Callable[[Processes], int]] = [
        coordinator_of,
        *(partial(leader_of, topic=topic) for topic in TOPICS),
        coordinator_of,
    ]
    for find in whose:
        before, victim = len(work.committed), find(cluster)
        cluster.kill(victim)
        eventually(lambda: len(work.committed) > before + 10 or bool(work.failed), 60)  # noqa: B023
        cluster.start(victim)
        time.sleep(1)
    work.finish()
    assert work.failed == []
    assert len(work.aborted) > 5
    for name, client in CLIENTS.items():
        for topic in TOPICS:
            found = client.read(servers, topic, len(work.committed), "read_committed")
            assert found == work.committed, f"{name} in {topic}"
