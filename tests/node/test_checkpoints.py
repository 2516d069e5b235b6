"""`__cluster` on real voters: its log begins at checkpoints, and whoever folds it from there knows what the others know."""

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.coordination.state import ClusterState
from antiphon.errors import NewerFormatError, StorageFailedError
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Metadata
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.metrics import NodeMetrics
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster.metadata_watch import objects_of
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

SMALL = Metadata(checkpoint_records=20, checkpoint_per_object=1, checkpoint_batch=8, segment_bytes=4096)


def voter(node: Node) -> Partition:
    return node.hosts[CLUSTER_SHARD_ID]


def state(node: Node) -> ClusterState:
    assert node.coordinator is not None
    return node.coordinator.state


async def come_and_go(nodes: Nodes, count: int, first: int = 0) -> None:
    """Topics are made, every other one is deleted again."""
    node = next(iter(nodes.nodes.values()))
    for number in range(first, first + count):
        await node.gateway.create_topic(CreateTopic(f"t-{number}"))
        if number % 2:
            await node.gateway.delete_topic(f"t-{number}")


async def know_the_same(nodes: Nodes) -> dict[str, bytes]:
    """Wait until all voters know the same; returns it."""
    states = [state(node) for node in nodes.nodes.values()]
    await eventually(lambda: len({state(node).version for node in nodes.nodes.values()}) == 1, timeout_s=30)
    states = [state(node) for node in nodes.nodes.values()]
    found = [objects_of(one) for one in states]
    assert all(one == found[0] for one in found)
    return found[0]


def all_begin_above(nodes: Nodes, offset: int) -> bool:
    return all(voter(node).log.log_start > offset for node in nodes.nodes.values())


def segments(nodes: Nodes, node_id: int) -> list[str]:
    disk, path = nodes.shard_path(node_id, CLUSTER_SHARD_ID)
    return sorted(name for name in disk.listdir(path) if name.endswith(".log"))


@in_virtual_time
async def test_logs_begin_at_checkpoints_and_voters_start_from_there() -> None:
    async with cluster_of(3, metadata=SMALL) as nodes:
        await come_and_go(nodes, 16)
        await eventually(lambda: all_begin_above(nodes, 0))
        before = voter(nodes.nodes[0]).log.log_start
        await come_and_go(nodes, 16, 16)
        await eventually(lambda: all_begin_above(nodes, before))
        known = await know_the_same(nodes)
        assert len(known) > 20
        for node_id in range(3):
            await eventually(lambda which=node_id: segments(nodes, which)[0] > f"{0:020d}.log")  # type: ignore[misc]
            nodes.kill(node_id)
            node = await nodes.start(node_id)
            assert state(node).begins_at == voter(node).log.log_start > 0
            assert state(node).is_whole, "what is trimmed is behind a checkpoint that is on this disk"
            assert await node.joined(20)
        assert (await know_the_same(nodes)).keys() == known.keys()
        await come_and_go(nodes, 2, 40)
        gauges = nodes.nodes[0].metrics.gauges
        log = voter(nodes.nodes[0]).log
        assert gauges["antiphon_metadata_log_entries"][1]() == log.log_end - log.log_start
        assert gauges["antiphon_metadata_log_bytes"][1]() == log.size_bytes > 0
        assert gauges["antiphon_metadata_objects"][1]() == len(objects_of(state(nodes.nodes[0])))
        assert gauges["antiphon_metadata_checkpoint_timestamp_seconds"][1]() > 1e9


@in_virtual_time
async def test_voter_that_was_away_goes_on_from_a_checkpoint_and_forgets_what_is_gone() -> None:
    async with cluster_of(3, metadata=SMALL) as nodes:
        leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
        away, other = (leader + 1) % 3, (leader + 2) % 3
        await nodes.nodes[leader].gateway.create_topic(CreateTopic("old"))
        await know_the_same(nodes)
        await nodes.stop(away)
        await nodes.nodes[other].gateway.delete_topic("old")
        await come_and_go(nodes, 16)
        await eventually(lambda: all_begin_above(nodes, 0))
        node = await nodes.start(away)
        assert "old" in state(node).topics, "it shows what it knew"
        begin = voter(nodes.nodes[leader]).log.log_start
        await eventually(lambda: state(node).begins_at >= begin > 0)
        await know_the_same(nodes)
        assert "old" not in state(node).topics
        await nodes.stop(leader)
        await eventually(lambda: any(one.coordinator.is_active for one in nodes.nodes.values()))  # type: ignore[union-attr]
        await come_and_go(nodes, 2, 20)


@in_virtual_time
async def test_voter_that_was_emptied_gets_the_checkpoint() -> None:
    async with cluster_of(3, metadata=SMALL) as nodes:
        await come_and_go(nodes, 16)
        await eventually(lambda: all_begin_above(nodes, 0))
        victim = ((await nodes.leader(CLUSTER_SHARD_ID)).services.node_id + 1) % 3
        await nodes.stop(victim)
        nodes.lose_directory(victim)
        node = await nodes.start(victim)
        assert state(node).version == 0, "it shows nothing"
        await eventually(lambda: voter(node).log.damaged is None)
        await know_the_same(nodes)
        assert state(node).begins_at > 0


@in_virtual_time
async def test_nothing_is_trimmed_before_the_last_record_is_durable_here() -> None:
    """A leader commits what its followers have on their disks, before its own slow one has it."""
    async with cluster_of(3, metadata=SMALL) as nodes:
        host = await nodes.leader(CLUSTER_SHARD_ID)
        nodes.slow_s[host.services.node_id] = 0.3
        noted: list[int] = []
        trims: list[
            tuple[int, int, int, int]
        ] = []  # begin and end of the checkpoint; what is durable, and noted
        trim, stage = host.log.trim, host.log.hard_state.stage_high_watermark

        def note(offset: int) -> Any:
            noted.append(offset)
            return stage(offset)

        def trimmed(log_start: int) -> Any:
            closed = state(nodes.nodes[host.services.node_id]).checkpoint
            if closed is not None:
                trims.append((log_start, closed.end, host.log.durable_end, noted[-1] if noted else 0))
            return trim(log_start)

        host.log.trim = trimmed  # type: ignore[method-assign]
        host.log.hard_state.stage_high_watermark = note  # type: ignore[method-assign]
        await come_and_go(nodes, 16)
        await eventually(lambda: bool(trims))
        assert host.state.is_leader
        for begin, end, durable, settled in trims:
            assert begin < end <= durable
            assert settled >= end, "a start has to find the checkpoint settled"


@in_virtual_time
async def test_older_version_stops_at_its_start_and_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(1, metadata=SMALL) as nodes:
        await come_and_go(nodes, 16)
        await eventually(lambda: all_begin_above(nodes, 0))
        await nodes.stop(0)
        disk, path = nodes.shard_path(0, CLUSTER_SHARD_ID)
        before = {name: bytes(disk.durable(f"{path}/{name}") or b"") for name in segments(nodes, 0)}
        with monkeypatch.context() as older:
            older.setattr("antiphon.node.metadata_fold.FORMAT", 3)
            node = await nodes.start(0)
            assert isinstance(voter(node).state.failed, NewerFormatError)
            assert "start this node with that version" in str(voter(node).state.failed)
            assert state(node).version == 0
            assert node.coordinator is not None
            assert not node.coordinator.is_active
            await nodes.stop(0)
        after = {name: bytes(disk.durable(f"{path}/{name}") or b"") for name in segments(nodes, 0)}
        assert after == before
        assert await (await nodes.start(0)).joined(20)


@in_virtual_time
async def test_voter_of_an_older_version_holds_checkpoints_up() -> None:
    """It would stop; while a cluster is brought to a newer version, nothing is to keep it from deciding."""
    nodes = Nodes(3, metadata=SMALL)
    nodes.told_reads[2] = 3
    try:
        await nodes.start_all()
        start = voter(nodes.nodes[0]).log.log_start
        await come_and_go(nodes, 24)
        await know_the_same(nodes)
        assert voter(nodes.nodes[0]).log.log_start == start
        await nodes.stop(2)
        del nodes.told_reads[2]
        assert await (await nodes.start(2)).joined(20)
        await eventually(lambda: all_begin_above(nodes, start))
    finally:
        await nodes.close()


def is_whole(fold: MetadataFold) -> bool:
    return fold.is_whole


def batches(records: list[tuple[bytes, bytes]], base: int) -> Iterator[memoryview]:
    for place, (key, value) in enumerate(records):
        yield memoryview(build_batch([(key, value, [], 1)], base_offset=base + place))


def test_fold_of_a_log_that_begins_anew_shows_what_it_had_until_it_is_whole() -> None:
    fold = MetadataFold(0, NodeMetrics())
    fold.fold(batches([(b"counter/a", b"\x01"), (b"counter/b", b"\x01")], 0))
    fold.starts_at(2)
    assert is_whole(fold), "nothing is missing"
    fold.starts_at(5)
    assert (is_whole(fold), fold.offset, fold.state.version) == (False, 5, 2)
    assert isinstance(fold.lacks(), StorageFailedError)
    assert "begins at 5" in fold.lacks().message
    fold.fold(batches([(b"counter/b", b"\x02")], 5))
    assert (fold.state.version, fold.state.counters) == (2, {"a": 1, "b": 1})
    fold.fold(batches([(b"checkpoint", b"\x91\x04")], 6))
    assert not is_whole(fold), "that one begins before the log does"
    fold.fold(batches([(b"checkpoint", b"\x91\x05")], 7))
    assert (is_whole(fold), fold.state.version, fold.state.counters) == (True, 8, {"b": 2})
    change = fold.state.delta(2, cluster_id="c", controller=0, coordinator_term=1)
    assert change.base_version == -1, "what is gone since 2 is not known any more"


@in_virtual_time
async def test_nobody_coordinates_by_a_part_of_the_metadata() -> None:
    """That cannot be; if it is, whoever leads stops and says why."""
    async with cluster_of(1) as nodes:
        host, shell = voter(nodes.nodes[0]), nodes.nodes[0].coordinator
        assert shell is not None
        shell._drop(shell._not_here())
        shell.metadata._begin(host.log.log_end)
        shell.leader_ready(host.state.term)
        error = host.state.failed
        assert isinstance(error, StorageFailedError)
        assert "no checkpoint" in error.message
        assert shell.coordinator is None
