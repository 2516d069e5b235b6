"""Attacks on real nodes that take what a node has little of, one at a time, while another client is measured and leaders are
watched: readers that hardly read, connections that use up the descriptors, a full disk.

As in `test_attacks.py`, whose bounds they share, `ATTACK_S` says for how long (`make attacks`).
"""

import contextlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import antiphon
from antiphon.errors import AntiphonError, DiskFullError
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableScan, TableWrite
from antiphon.node.config import Limits
from antiphon.tools.local_cluster import LocalCluster
from tests.node.processes import NativeClient, Processes, eventually
from tests.node.test_really_full_disk import MIB, RESERVE, created, fill, health, kinds, refused, small_disk
from tests.security.slow_readers import LISTENERS, Served, hold_connections, read_slowly
from tests.security.test_attacks import (
    ATTACK_S,
    HAS_THE_MACHINE,
    P99_MAX_S,
    RESIDENT_MAX,
    ROOT,
    Puts,
    attack,
    leaders,
    resident_bytes,
)

__all__ = ["small_disk"]

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(300)]


@contextmanager
def attacked(what: Callable[..., None], *args: Any, meanwhile: Callable[[], None]) -> Iterator[None]:
    """While a process of its own attacks: the body, once it has begun, and `meanwhile` again and again until it ends."""
    process = multiprocessing.get_context("spawn").Process(target=what, args=args)
    process.start()
    try:
        yield
        while process.is_alive():
            meanwhile()
            time.sleep(0.1)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def put_well(puts: Puts, what: str) -> None:
    """Other clients' puts went on: none failed, and most were quick."""
    p99_s = puts.share_s(99)
    print(
        f"{what}: {len(puts.took_s)} puts, p99 {p99_s * 1000:.1f} ms, longest {puts.share_s(100) * 1000:.1f} ms"
    )
    assert not puts.failures
    assert len(puts.took_s) > 20
    assert p99_s < P99_MAX_S


def check_leaders(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> None:
    """All shards have leaders; the same ones, where nothing else kept them from being heard."""
    changed = [shard for shard in before if after[shard] != before[shard]]
    print(f"leaders that changed: {changed}")
    assert all(leader >= 0 for leader, _ in after.values())
    assert not (HAS_THE_MACHINE and changed)


@pytest.fixture(autouse=True)
def _by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # the attackers' process imports its module by name


def test_slow_readers_at_every_listener_at_once(tmp_path: Path) -> None:
    report = tmp_path / "read"
    with LocalCluster.start(3) as running, antiphon.connect(running.native) as db:
        db.create_topic("log", shards=1, replicas=3)
        db.create_table("book", shards=1, replicas=3)
        for _ in range(20):
            db.topic("log").append(bytes(900_000))
        for name in (b"large", b"large1", b"large2"):
            db.table("book").put(name, bytes(900_000))
        shards = {topic.name: topic.shards[0].shard_id for topic in db.metadata().topics}
        nodes = [
            Served(one.native, one.kafka, one.http, one.oxia, shards["log"], shards["book"])
            for one in running.nodes.values()
        ]
        highest = dict.fromkeys(running.nodes, 0)

        def look() -> None:
            for node_id, node in running.nodes.items():
                highest[node_id] = max(highest[node_id], resident_bytes(node.pid))

        puts, before = Puts(running.native), leaders(db)
        puts.start()
        with attacked(read_slowly, nodes, ATTACK_S, report, meanwhile=look):
            puts.took_s.clear()
        puts.ended.set()
        puts.join(10)
        put_well(puts, "slow readers")
        print("resident MiB: " + ", ".join(f"node {n}: {size // MIB}" for n, size in highest.items()))
        read = json.loads(report.read_text())
        assert set(read) == set(LISTENERS), "each of them was read from"
        assert max(highest.values()) < RESIDENT_MAX
        check_leaders(before, leaders(db))


def test_descriptors_that_are_used_up_at_all_nodes(tmp_path: Path) -> None:
    report = tmp_path / "held"
    with Processes(tmp_path, 3, descriptors=256) as cluster, antiphon.connect(cluster.servers) as db:
        db.create_topic("log", shards=8, replicas=3)
        db.create_table("book", shards=1, replicas=3)
        kafka = [node.kafka for node in cluster.metadata(0).nodes]
        addresses = [*cluster.native.values(), *kafka, *cluster.http.values()]
        puts, before, open_most = Puts(cluster.servers), leaders(db), 0
        puts.start()
        eventually(lambda: len(puts.took_s) > 5)
        pids = [process._process.pid for process in cluster._processes.values()]

        def look() -> None:
            nonlocal open_most
            open_most = max(open_most, *(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))
            db.topic("log").append(b"new files may be wanted")

        with attacked(hold_connections, addresses, 300, ATTACK_S, report, meanwhile=look):
            puts.took_s.clear()
        puts.ended.set()
        puts.join(10)
        put_well(puts, "descriptors")
        held = json.loads(report.read_text())
        print(f"at most {open_most} of 256 descriptors open; connections made: {sum(held.values())}")
        assert set(held) == set(addresses)
        assert 100 < open_most < 256
        assert all(one.state == "ok" for node in cluster.ids for one in cluster.statuses(node).values())
        check_leaders(before, leaders(db))
        with antiphon.connect(cluster.servers) as other:
            assert other.table("book").get(b"k").value == b"v" * 64


class Reads(threading.Thread):
    """A client that reads rows one after the other, by one connection."""

    def __init__(self, address: str, table: int) -> None:
        super().__init__(daemon=True)
        self.address, self.table = address, table
        self.took_s: list[float] = []
        self.failures: list[BaseException] = []
        self.ended = threading.Event()

    def run(self) -> None:
        with NativeClient(self.address) as client:
            while not self.ended.is_set():
                began_s = time.monotonic()
                try:
                    rows = client.ask(TableScan(self.table, b"", b"", 100)).rows
                    assert len(rows) == 10
                except (AntiphonError, OSError, AssertionError) as error:
                    self.failures.append(error)
                    return
                self.took_s.append(time.monotonic() - began_s)
                time.sleep(0.002)


def test_a_full_disk_while_attacked(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds_of_attack = (
        "announced begun kafka_fetches native_fetches gets writes pages members silent tiny metadata"
    )
    monkeypatch.setenv("ATTACK", kinds_of_attack)
    with Processes(tmp_path, 1, limits=Limits(disk_reserve=RESERVE)) as cluster:
        topic, table = created(cluster, "log", Kind.TOPIC), created(cluster, "rows", Kind.TABLE)
        other = created(cluster, "other", Kind.TABLE)
        for number in range(10):
            cluster.append(topic, bytes(10_000))
            cluster.on_leader(table, TableWrite(table, (Put(b"%03d" % number, bytes(1_000)),)))
        filler = fill(small_disk)
        eventually(lambda: refused(cluster, topic))
        eventually(lambda: kinds(cluster) == ["disk_full"])
        kafka = cluster.metadata(0).nodes[0].kafka
        node: Any = SimpleNamespace(native=cluster.native[0], kafka=kafka, http=cluster.http[0])
        reads, highest, taken = Reads(cluster.native[0], table), 0, 0
        reads.start()

        def look() -> None:
            nonlocal highest, taken
            highest = max(highest, resident_bytes(cluster._processes[0]._process.pid or 0))
            with contextlib.suppress(DiskFullError), NativeClient(cluster.native[0]) as client:
                client.ask(TableWrite(table, (Put(b"000", bytes(1_000)),)))
                taken += 1

        with attacked(attack, [node], topic, table, other, ATTACK_S, meanwhile=look):
            reads.took_s.clear()
        reads.ended.set()
        reads.join(10)
        assert not reads.failures
        assert len(reads.took_s) > 20
        took_s = sorted(reads.took_s)
        p99_s = took_s[len(took_s) * 99 // 100]
        print(f"full disk: {len(took_s)} reads, p99 {p99_s * 1000:.1f} ms; {highest // MIB} MiB resident")
        assert p99_s < P99_MAX_S
        assert highest < RESIDENT_MAX
        assert not taken, "nothing was taken that there is no room for"
        filler.unlink()
        eventually(lambda: not refused(cluster, topic))
        eventually(lambda: health(cluster)["state"] == "ok")
        cluster.on_leader(table, TableWrite(table, (Put(b"010", b"there is room again"),)))
        assert len(cluster.on_leader(table, TableScan(table, b"", b"", 100)).rows) == 11
        assert cluster.stop(0) == 0
