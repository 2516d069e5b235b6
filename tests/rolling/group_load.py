"""Consumer groups of both of Kafka's protocols, and a native client of another version, while nodes go and come."""

import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, Producer

import antiphon
from tests.rolling.steady_load import PATIENCE_S, QUIET, SHARDS

TOPIC: Final = "grouped"
PERIOD_S: Final = 0.02
DRAIN_S: Final = 60.0
PROTOCOLS: Final = ("classic", "consumer")

_OLD_PROGRAM: Final = """
import sys, threading, time
import antiphon
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
db = antiphon.connect(sys.argv[1], timeout_s=30)
topic, table = db.topic("old-log"), db.table("old-table")
number, slowest = 0, 0.0
while not stopping.is_set():
    began = time.monotonic()
    topic.append(b"%d" % number, shard=0)
    table.put("last", b"%d" % number)
    slowest = max(slowest, time.monotonic() - began)
    number += 1
    time.sleep(0.02)
print(number, round(slowest, 3))
"""


class GroupLoad:
    """One producer, and a group of two members for each protocol. Every record must reach each group. A context."""

    def __init__(self, native: str, kafka: str) -> None:
        self._kafka = kafka
        with antiphon.connect(native) as db:
            db.create_topic(TOPIC, shards=SHARDS, replicas=3)
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self.sent = 0
        self.errors: list[str] = []
        self.read: dict[str, set[int]] = {protocol: set() for protocol in PROTOCOLS}
        self._threads = [threading.Thread(target=self._produce, daemon=True)]
        self._threads += [
            threading.Thread(target=self._consume, args=(protocol,), daemon=True)
            for protocol in PROTOCOLS
            for _ in range(2)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._threads[0].join(PATIENCE_S + 10)
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and any(len(found) < self.sent for found in self.read.values()):
            time.sleep(0.05)
        self._drained.set()
        for thread in self._threads:
            thread.join(30)

    def check(self) -> None:
        """Every record reached both groups, and no producer failed. Raises AssertionError."""
        assert self.errors == []
        assert self.sent > 0
        for protocol, found in self.read.items():
            assert found == set(range(self.sent)), f"group {protocol} read {len(found)} of {self.sent}"

    def _produce(self) -> None:
        producer = Producer({**QUIET, "bootstrap.servers": self._kafka, "enable.idempotence": True})
        while not self._stopping.wait(PERIOD_S):
            outcomes: list[Any] = []
            producer.produce(
                TOPIC, b"%d" % self.sent, on_delivery=lambda error, _, o=outcomes: o.append(error)
            )
            producer.flush(PATIENCE_S)
            if outcomes != [None]:
                self.errors.append(str(outcomes))
                return
            self.sent += 1

    def _consume(self, protocol: str) -> None:
        consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": self._kafka,
                "group.id": f"grouped-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not self._drained.is_set():
                for message in consumer.consume(100, 0.2):
                    if message.error() is None:  # others are told of what the client does by itself
                        self.read[protocol].add(int(message.value() or b""))
        finally:
            consumer.close()


class OldClient:
    """The Python client of the old version, in a process of its own: it appends and puts. A context."""

    def __init__(self, python: Path, native: str) -> None:
        self._native = native
        with antiphon.connect(native) as db:
            db.create_topic("old-log", shards=1, replicas=3)
            db.create_table("old-table", shards=1, replicas=3)
        self._process = subprocess.Popen(
            [str(python), "-c", _OLD_PROGRAM, native],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=python.parent,
            env={},
        )
        self._said = ("", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._said = self._process.communicate("", timeout=PATIENCE_S + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._said = self._process.communicate()

    @property
    def figures(self) -> list[str]:
        """What it says of itself."""
        return [f"client of the old version: appends and puts, longest in s: {self._said[0].strip()}"]

    def check(self) -> None:
        """It did not fail; what it wrote is there. Raises AssertionError."""
        assert self._process.returncode == 0, self._said[1]
        count = int(self._said[0].split()[0])
        assert count > 0
        with antiphon.connect(self._native) as db:
            values = [int(record.value or b"") for record in db.topic("old-log").read(0)]
            assert values == list(range(count)), "appends of the old client"
            row = db.table("old-table").get("last")
            assert row is not None
            assert int(row.value) == count - 1
