"""A real node on a real file system that is really full: a small tmpfs, which only root may mount."""

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import AntiphonError, DiskFullError, TimedOutError
from antiphon.model.metadata import Kind
from antiphon.model.requests import AppendBatch, CreateTopic, Put, TableScan, TableWrite
from antiphon.node.config import Limits
from antiphon.node.reserve import RESERVE_NAME
from antiphon.records.builder import build_batch
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster

MIB = 1 << 20
RESERVE = 4 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The directory of node 0, on a file system of its own; skipped by name where it may not be mounted."""
    place = tmp_path / "node-0"
    place.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=48m", "antiphon-test", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("a small file system is needed, and there is no `mount` here")
    if done.returncode:
        pytest.skip(f"a small file system is needed, and may not be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all room that is left."""
    filler = place / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(MIB // 16))
    return filler


def health(cluster: Processes) -> dict[str, Any]:
    """What it says, also with a status that says it is not well."""
    try:
        with urllib.request.urlopen(f"http://{cluster.http[0]}/healthz", timeout=10) as answer:
            said: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        said = json.load(error)
    return said


def kinds(cluster: Processes) -> list[str]:
    return [one["kind"] for one in health(cluster)["findings"]]


def created(cluster: Processes, name: str, kind: Kind) -> int:
    cluster.ask(0, CreateTopic(name, kind=kind, replicas=1))
    return cluster.shard(0, name).shard_id


def put(cluster: Processes, table: int, number: int) -> None:
    cluster.on_leader(table, TableWrite(table, (Put(b"%03d" % number, bytes(1_000)),)))


def refused(cluster: Processes, topic: int) -> bool:
    """Does the node say that it has no room? What it had taken before it met the end of the disk waits for room."""
    batch = build_batch([(None, bytes(100_000), [], 1)])
    try:
        cluster.ask(0, AppendBatch(topic, timeout_ms=500), [batch])
    except DiskFullError as error:
        return "node 0 has no room on the disk" in error.message
    except TimedOutError:
        return False
    return False


@pytest.mark.parametrize(
    ("reserve", "restarts"),
    [
        pytest.param(RESERVE, False, marks=pytest.mark.slow, id="runs"),
        pytest.param(RESERVE, True, id="restarts"),
        pytest.param(0, False, marks=pytest.mark.slow, id="no reserve"),
    ],
)
def test_a_node_serves_reads_says_so_and_takes_writes_again_when_there_is_room(
    small_disk: Path, tmp_path: Path, reserve: int, restarts: bool
) -> None:
    with Processes(tmp_path, 1, limits=Limits(disk_reserve=reserve)) as cluster:
        topic, table = created(cluster, "t", Kind.TOPIC), created(cluster, "rows", Kind.TABLE)
        for number in range(10):
            cluster.append(topic, b"%d" % number)
            put(cluster, table, number)
        before = cluster.read(0, topic)
        assert health(cluster)["state"] == "ok"
        filler = fill(small_disk)
        eventually(lambda: refused(cluster, topic))
        if restarts:
            eventually(lambda: (small_disk / RESERVE_NAME).stat().st_size == reserve // 2)
            cluster.kill(0)
            fill(small_disk)
            cluster.start(0)
            eventually(lambda: served(cluster, topic))
        eventually(lambda: kinds(cluster) == ["disk_full"])
        assert health(cluster)["state"] == "degraded"
        with pytest.raises(DiskFullError):
            put(cluster, table, 10)
        assert cluster.read(0, topic)[: len(before)] == before
        rows = cluster.on_leader(table, TableScan(table, b"", b"", 100))
        assert [row.key for row in rows.rows] == [b"%03d" % number for number in range(10)]
        filler.unlink()
        eventually(lambda: not refused(cluster, topic))
        put(cluster, table, 10)
        eventually(lambda: health(cluster)["state"] == "ok")
        cluster.append(topic, b"there is room again")
        assert b"there is room again" in cluster.read(0, topic)
        assert cluster.stop(0) == 0


def served(cluster: Processes, topic: int) -> bool:
    try:
        return bool(cluster.read(0, topic))
    except AntiphonError:
        return False
