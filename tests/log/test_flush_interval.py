"""`flush=interval`: each shard's files are synced as often as its own topic says (`flush.ms`)."""

from random import Random

import pytest

from antiphon.log.config import LogConfig
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.wal_thread import WalThread
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.node.config import Member, NodeConfig
from antiphon.node.topic_settings import read_settings
from tests.log.helpers import batch_at


def durable_bytes(disk: SimulatedDisk, log: ShardLog) -> int:
    (name,) = (name for name in disk.durable_names(log.path) if name.endswith(".log"))
    return len(disk.durable(f"{log.path}/{name}") or b"")


def interval_log(disk: SimulatedDisk, path: str, flush_interval_ms: int) -> ShardLog:
    return ShardLog.open(disk, path, LogConfig(flush="interval", flush_interval_ms=flush_interval_ms))


def test_a_shard_is_synced_as_often_as_it_asks_for_and_others_when_they_do() -> None:
    disk = SimulatedDisk(Random(1))
    often, seldom = interval_log(disk, "/often", 50), interval_log(disk, "/seldom", 1_000)
    wal = WalThread(disk)  # never started: the rounds of its worker are made here
    wal.round([log.stage_append([batch_at(0)]) for log in (often, seldom)], 10.0)
    assert [durable_bytes(disk, log) for log in (often, seldom)] == [0, 0]
    assert wal.waits_s == pytest.approx(0.05)
    wal.round([], 10.04)
    assert durable_bytes(disk, often) == 0
    wal.round([seldom.stage_append([batch_at(1)])], 10.06)
    assert durable_bytes(disk, often) > 0
    assert durable_bytes(disk, seldom) == 0
    assert wal.waits_s == pytest.approx(0.94)  # from its first write on, however many follow
    wal.round([], 11.01)
    assert durable_bytes(disk, seldom) > 0
    assert wal.waits_s is None


def test_a_changed_interval_counts_from_the_next_write_on() -> None:
    disk = SimulatedDisk(Random(1))
    log = interval_log(disk, "/s", 1_000)
    wal = WalThread(disk)
    wal.round([log.stage_append([batch_at(0)])], 10.0)
    log.configure(log.config._replace(flush_interval_ms=50))
    wal.round([log.stage_append([batch_at(1)])], 10.1)
    wal.round([], 10.16)
    assert durable_bytes(disk, log) > 0
    assert wal.waits_s is None


def test_a_topic_says_how_often_or_else_the_node_does() -> None:
    node = NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "h:1")], flush_interval_ms=70)

    def interval(config: dict[str, str]) -> int:
        topic = TopicMeta("t", bytes(16), Kind.TOPIC, 3, "oxia", (), config)
        return read_settings(topic, node).log.flush_interval_ms

    assert interval({"flush": "interval"}) == 70
    assert interval({"flush": "interval", "flush.ms": "50"}) == 50
