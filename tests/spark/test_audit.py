"""`antiphon audit` with a real Spark on three real nodes: honest data agrees, what was changed in files is found."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import antiphon
from antiphon.log.index import ENTRY_BYTES, pack_entry, unpack_entry
from antiphon.records.batch import read_header
from antiphon.records.builder import seal
from antiphon.records.changes import VERSION
from antiphon.spark.jobs import audit
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import open_state
from antiphon.tools.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]

VICTIM = 2


@contextmanager
def writers(cluster: LocalCluster) -> Iterator[None]:
    """Somebody goes on writing everywhere."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with antiphon.connect(cluster.native) as db:
                number = 0
                while not stop.wait(
                    0.02
                ):  # without a pause they keep both cores busy, and the audit has ever more to read
                    number += 1
                    db.topic("events").append_batch([b"w" * 200] * 50)
                    db.table("state").put(f"k{number % 300}", str(number).encode())
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


def shard_of(db: antiphon.Client, name: str) -> int:
    (found,) = [topic for topic in db.metadata().topics if topic.name == name]
    return found.shards[0].shard_id


def stop_cleanly(cluster: LocalCluster, node: int) -> None:
    os.kill(cluster.nodes[node].pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while cluster.is_running(node):
        assert time.monotonic() < deadline, "the node does not stop"
        time.sleep(0.02)


def scrub_on_request_only(node: Path) -> None:
    """Nobody but the audit reads what lies on this node's disk, so that nothing is mended before it looks."""
    settings = node / "node.toml"
    settings.write_text(f"{settings.read_text()}[scrub]\nbytes_per_s = 0\n")


def flip_bit(shard: Path, number: int) -> int:
    """Flip one bit in the `number`th batch of a stopped replica; returns its offset."""
    (log,), (index,) = shard.glob("*.log"), shard.glob("*.index")
    entry = unpack_entry(index.read_bytes(), ENTRY_BYTES * (1 + number))
    assert entry is not None
    data = bytearray(log.read_bytes())
    data[entry.position + entry.size - 2] ^= 1
    log.write_bytes(data)
    return entry.base_offset


def rewrite(shard: Path, number: int) -> int:
    """Change a value in a batch and every checksum that covers it, so that the node cannot know; returns its offset."""
    (log,), (index,) = shard.glob("*.log"), shard.glob("*.index")
    entries = bytearray(index.read_bytes())
    at = ENTRY_BYTES * (1 + number)
    entry = unpack_entry(entries, at)
    assert entry is not None
    data = bytearray(log.read_bytes())
    batch = data[entry.position : entry.position + entry.size]
    batch[-2] ^= 1  # of the last record's value
    seal(batch)
    data[entry.position : entry.position + entry.size] = batch
    entries[at : at + ENTRY_BYTES] = pack_entry(read_header(batch), batch, entry.position)
    log.write_bytes(data)
    index.write_bytes(entries)
    return entry.base_offset


def diverge(store: Path, key: bytes) -> None:
    """Change a row of a stopped replica's store."""
    with open_state(str(store), RocksEngine()) as state:
        row = state.get(key)
        assert row is not None
        version = row.version
        packed = VERSION.pack(version.id, version.modifications, version.created_ms, version.modified_ms)
        state.apply_effects([(key, b"diverged", packed)], state.applied_offset, state.next_version_id)


def test_honest_data_agrees_and_injected_faults_are_found_at_their_place(
    spark: "SparkSession", cluster: LocalCluster, db: antiphon.Client
) -> None:
    events, kept = db.create_topic("events", shards=2, replicas=3), db.create_topic("kept", replicas=3)
    state = db.create_table("state", shards=1, replicas=3)
    for number in range(60):
        events.append_batch([b"%d" % n * 10 for n in range(200)])
        kept.append_batch([b"%d/%d" % (number, n) for n in range(100)])
    for number in range(200):
        state.put(f"row{number}", str(number).encode())
    phases: list[str] = []
    with writers(cluster):
        report = audit(spark, cluster.native, block_offsets=512, tell=phases.append)
    assert report.problems == []
    assert report.verdict == "agree"
    figures = {topic.name: topic for topic in report.topics}
    assert figures["events"].offsets >= 12_000
    assert figures["kept"].offsets == 6_000
    assert figures["state"].rows >= 600
    assert figures["__cluster"].batches > 0
    assert report.gb_per_s > 0
    assert len(phases) == 4

    place = cluster.nodes[VICTIM].dir
    shards = {name: shard_of(db, name) for name in ("events", "kept", "state")}
    stop_cleanly(cluster, VICTIM)
    away = audit(spark, cluster.native, topics=["kept"], replica_timeout_s=0.5)
    assert away.verdict == "incomplete"
    assert {(p.kind, p.node) for p in away.problems} == {("unreachable", VICTIM)}

    rewritten = rewrite(place / "shards" / str(shards["kept"]), 20)
    flipped = flip_bit(place / "shards" / str(shards["events"]), 5)
    diverge(place / "tables" / str(shards["state"]), b"row7")
    scrub_on_request_only(place)
    cluster.start_node(VICTIM)
    command = ["audit", "--servers", cluster.native, "--json", "--no-internal"]
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli.main", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"] == "differs"
    assert {
        (p["kind"], p["topic"], p["shard"], p["node"], p["offset"], p["key"])
        for p in said["problems"]
        if p["kind"] != "row_differs"
    } == {
        ("differs", "kept", 0, VICTIM, rewritten, None),
        ("damaged", "events", 0, VICTIM, flipped, None),
    }
    (row,) = [p for p in said["problems"] if p["kind"] == "row_differs"]
    assert (row["topic"], row["node"], row["key"]) == ("state", VICTIM, "row7")
    assert {t["topic"]: t["verdict"] for t in said["topics"]} == {
        "default": "agree",
        "events": "differs",
        "kept": "differs",
        "state": "differs",
    }
