"""All of Kafka's clients for Python at work on three real node processes, of which ten are killed (kill -9) in turn."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from antiphon.errors import NotReadyError
from antiphon.kafka.topic_config import GROUPS_TABLE, TRANSACTIONS_TABLE
from antiphon.model.metadata import ClusterMeta
from antiphon.transactions.internal_table import shard_of_name
from tests.kafka.kills.faces import READ_COMMITTED
from tests.kafka.kills.judges import JUDGES, judge_offsets, judge_transactions
from tests.kafka.kills.ledger import LIBRARIES, PARTITIONS, UNKNOWN, Ledger, Record, Topics, next_library
from tests.kafka.kills.watch import Watch
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster

ROOT: Final = Path(__file__).parents[3]
KILLS: Final = 10
PROGRESS_S: Final = 60.0
ALL_TOPICS: Final = [topic for library in LIBRARIES for topic in Topics.of(library)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path / "nodes") as processes:
        yield processes


class Child:
    """The process of one library's clients."""

    def __init__(self, library: str, servers: str, where: Path) -> None:
        self.library = library
        self._file = where / f"{library}.json"
        self._said = (where / f"{library}.err").open("w")
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.kafka.kills.work", library, servers, str(self._file)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self.told: dict[str, Any] = {"done": {}, "topics": {}, "stopped": False, "unexpected": []}
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told = msgspec.json.decode(line)

    def say(self, word: str) -> None:
        """`stop` or `end`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    @property
    def done(self) -> dict[str, int]:
        """How much each role has done. Raises AssertionError if one has failed."""
        assert not self.told["unexpected"], f"{self.library}: {self.told['unexpected']}"
        assert self._process.poll() is None, f"{self.library} has ended"
        return {what: self.told["done"].get(what, 0) for what in ROLES}

    def ledger(self) -> Ledger:
        """Once it has ended."""
        assert self._process.wait(60) == 0
        return msgspec.json.decode(self._file.read_bytes(), type=Ledger)

    def close(self) -> None:
        """Whatever it is at."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        self._process.kill()
        self._process.wait(20)
        self._listening.join(20)
        for file in (self._process.stdin, self._process.stdout, self._said):
            assert file is not None
            file.close()


ROLES: Final = ("idempotent", "transactions", "transformed", "seen")


def metadata(cluster: Processes) -> ClusterMeta:
    """As a node sees it that knows it: one that was just started does not."""
    while True:
        for node in cluster.alive():
            with contextlib.suppress(NotReadyError):
                return cluster.metadata(node)
        time.sleep(0.05)


def leader_of(cluster: Processes, topic: str) -> int:
    """Of its first partition."""
    return next(one for one in metadata(cluster).topics if one.name == topic).shards[0].leader


def coordinator_of(cluster: Processes, table: str, name: str) -> int:
    """The leader of the shard that coordinates what is named."""
    topics = {topic.name: topic for topic in metadata(cluster).topics}
    gateway: Any = SimpleNamespace(topic=topics.__getitem__)
    return shard_of_name(gateway, table, name).leader


def victims(cluster: Processes) -> Iterator[tuple[str, int]]:
    """Whom to kill next, and what for."""
    for library in cycle(LIBRARIES):
        sent, group = Topics.of(library).sent, f"readers-{library}"
        name = f"transactor-{next_library(library)}"
        yield f"leader of {sent}-0", leader_of(cluster, sent)
        yield f"coordinator of group {group}", coordinator_of(cluster, GROUPS_TABLE, group)
        yield f"coordinator of {name}", coordinator_of(cluster, TRANSACTIONS_TABLE, name)
        yield "coordinator of __cluster", metadata(cluster).controller


def wait_for_progress(children: Sequence[Child]) -> None:
    """Until each client of each library has got something done from now on."""
    before = {child.library: child.done for child in children}
    end_s = time.monotonic() + PROGRESS_S
    while True:
        behind = [
            f"{what} of {child.library}"
            for child in children
            for what, count in child.done.items()
            if count < before[child.library][what] + 3
        ]
        if not behind:
            return
        assert time.monotonic() < end_s, f"nothing more in {PROGRESS_S} s: {', '.join(behind)}"
        time.sleep(0.05)


def kill_ten(cluster: Processes, children: Sequence[Child]) -> list[str]:
    """What was killed."""
    chance = random.Random(10)
    killed = []
    for number, (what, victim) in zip(range(KILLS), victims(cluster), strict=False):
        cluster.kill(victim)
        began_s = time.monotonic()
        time.sleep(0.3)  # answers that were on their way
        wait_for_progress(children)
        killed.append(
            f"{number}: node {victim}, {what}: {time.monotonic() - began_s:.1f} s until all went on"
        )
        cluster.start(victim)
        time.sleep(0.5 + chance.random())
    return killed


def read(library: str, servers: str, where: Path, isolation: str, topics: Sequence[str]) -> list[Record]:
    """What a reader of the library finds, in a process of its own."""
    file = where / f"read-{library}-{isolation}.json"
    subprocess.run(
        (sys.executable, "-m", "tests.kafka.kills.work", library, servers, str(file), isolation, *topics),
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    return msgspec.json.decode(file.read_bytes(), type=list[Record])


def drain(children: Sequence[Child], servers: str, where: Path) -> None:
    """Nothing is written any more; the transformers and the groups go on until they have seen all."""
    for child in children:
        child.say("stop")
    eventually(lambda: all(child.done and child.told["stopped"] for child in children), 120)
    sources = [topic for library in LIBRARIES for topic in Topics.of(library)[:2]]
    found = read("librdkafka", servers, where, READ_COMMITTED, sources)
    counts = {topic: sum(record.topic == topic for record in found) for topic in sources}

    def have_all() -> bool:
        return all(
            child.done["transformed"] >= counts[Topics.of(next_library(child.library)).sent]
            and all(child.told["topics"].get(topic, 0) >= counts[topic] for topic in topics_of_group(child))
            for child in children
        )

    def topics_of_group(child: Child) -> tuple[str, str]:
        return Topics.of(child.library).sent, Topics.of(next_library(child.library)).transactions

    end_s = time.monotonic() + 60
    while not have_all() and time.monotonic() < end_s:  # the judges say what is missing
        time.sleep(0.1)
    for child in children:
        child.say("end")


def report(ledgers: Sequence[Ledger], killed: Sequence[str], asked: int) -> str:
    """Of each library."""
    lines = list(killed)
    for ledger in ledgers:
        outcomes = [one.outcome for one in ledger.transactions]
        counts = ", ".join(f"{outcomes.count(one)} {one}" for one in sorted(set(outcomes)))
        lines.append(
            f"{ledger.library}: {len(ledger.sent)} idempotent records, transactions: {counts},"
            f" {ledger.transformed} transformed, {len(set(ledger.seen))} seen in {len(ledger.seen)} deliveries,"
            f" {len(ledger.commits)} commits"
        )
        lines.append(f"  longest gaps, in s: {ledger.gaps}; errors gone on after: {ledger.told}")
    return "\n".join([*lines, f"{asked} answers with committed offsets"])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_libraries_live_through_ten_kills(cluster: Processes, tmp_path: Path) -> None:
    servers = ",".join(node.kafka for node in metadata(cluster).nodes)
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ALL_TOPICS]).values():
        made.result(60)
    children = [Child(library, servers, tmp_path) for library in LIBRARIES]
    watch = Watch(servers)
    try:
        wait_for_progress(children)
        killed = kill_ten(cluster, children)
        drain(children, servers, tmp_path)
        ledgers = [child.ledger() for child in children]
    finally:
        for child in children:
            child.close()
        watch.stop()
    watch.end()
    print("\n" + report(ledgers, killed, sum(map(len, watch.asked.values()))))
    complaints = judge_offsets(ledgers, watch.asked)
    with ThreadPoolExecutor() as pool:
        reads = [pool.submit(read, one, servers, tmp_path, READ_COMMITTED, ALL_TOPICS) for one in LIBRARIES]
    for reader, done in zip(LIBRARIES, reads, strict=True):
        found = done.result()
        complaints += [
            f"{ledger.library}, read by {reader}: {complaint}"
            for ledger in ledgers
            for judge in JUDGES
            for complaint in judge(ledger, found)
        ]
    assert complaints == []
    # And so that the judges are seen to judge: what was aborted is there for those who want to see it.
    found = read("librdkafka", servers, tmp_path, "read_uncommitted", ALL_TOPICS)
    for ledger in ledgers:
        assert judge_transactions(ledger, found), f"nothing aborted is visible of {ledger.library}"
        assert all(one.found for one in ledger.transactions if one.outcome == UNKNOWN)
