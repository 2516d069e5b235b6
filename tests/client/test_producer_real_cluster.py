"""Native transactions on three node processes, whose coordinator and leaders are killed (kill -9) between the steps."""

from types import SimpleNamespace
from typing import Any

import pytest

import antiphon
from antiphon.errors import InvalidTxnStateError
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.transactions.internal_table import shard_of_name
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster

ID = "killed"
TOPICS = ("left", "right")
ROUNDS = 24
BEFORE, WRITTEN, OFFSETS = "before", "written", "offsets"


def leader_of(processes: Processes, victim: str) -> int:
    """The node that leads a topic, or coordinates the transactional id."""
    asked = processes.alive()[0]
    if victim in TOPICS:
        return processes.shard(asked, victim).leader
    topics = {topic.name: topic for topic in processes.metadata(asked).topics}
    gateway: Any = SimpleNamespace(topic=topics.__getitem__)
    return shard_of_name(gateway, TRANSACTIONS_TABLE, ID).leader


def test_every_transaction_is_whole_when_nodes_are_killed_between_its_steps(processes: Processes) -> None:
    kills = {
        3: (BEFORE, "id"),
        7: (WRITTEN, "id"),
        11: (WRITTEN, "left"),
        15: (OFFSETS, "id"),
        19: (OFFSETS, "right"),
    }
    expected: list[bytes] = []
    dead: list[int] = []

    def kill(number: int, step: str) -> None:
        if kills.get(number, ("", ""))[0] == step:
            victim = leader_of(processes, kills[number][1])
            processes.kill(victim)
            dead.append(victim)

    with antiphon.connect(processes.servers, timeout_s=60) as db:
        for name in TOPICS:
            db.create_topic(name, replicas=3)
        with db.producer(ID) as producer:
            for number in range(ROUNDS):
                value = b"%d" % number
                t = producer.begin()
                kill(number, BEFORE)
                for name in TOPICS:
                    t.append(name, value)
                t.flush()
                kill(number, WRITTEN)
                t.send_offsets("g", {("left", 0): number})
                kill(number, OFFSETS)
                if number % 4 == 2:
                    t.abort()
                    with pytest.raises(InvalidTxnStateError):
                        t.commit()
                else:
                    t.commit()
                    expected.append(value)
                    assert len(t.positions) == len(TOPICS)
                while dead:
                    processes.start(dead.pop())
        assert db.group_offsets("g", [("left", 0)]) == {("left", 0): ROUNDS - 1}
        for name in TOPICS:

            def read(name: str = name) -> list[bytes | None]:
                return [record.value for record in db.topic(name).read(isolation="committed")]

            eventually(lambda: len(read()) >= len(expected))
            assert read() == expected
