"""Entries of `__cluster` that cannot be read: passed over by every voter alike, unless a newer version wrote them."""

from typing import Any

import pytest
import structlog
from crc32c import crc32c

from antiphon.coordination.cluster_records import FORMAT
from antiphon.errors import AntiphonError, InvalidRequestError, NewerFormatError
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import (
    AlterTopic,
    AppendBatch,
    CreateTopic,
    DeleteTopic,
    Put,
    SplitShard,
    TableWrite,
    TrimShard,
)
from antiphon.node.node import Node
from antiphon.records.batch import HEADER_BYTES, HEADER_STRUCT, UNCHECKED_BYTES, read_header
from antiphon.records.builder import RecordInput, build_batch
from tests.node.in_process import Nodes, ask, cluster_of, eventually, in_virtual_time


def garbage() -> bytearray:
    """A batch with a right CRC around bytes that are no records."""
    batch = build_batch([(b"shard/1", b"x" * 50, [], 1)] * 2)
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    return sealed(batch)


def sealed(batch: bytearray) -> bytearray:
    header = read_header(batch)._replace(crc=crc32c(memoryview(batch)[UNCHECKED_BYTES:]))
    HEADER_STRUCT.pack_into(batch, 0, *header)
    return batch


def compressed() -> bytearray:
    """What only nodes with pyarrow could unpack; no coordinator compresses."""
    batch = build_batch([(b"counter/shard", b"\x00", [], 1)])
    return sealed(
        bytearray(HEADER_STRUCT.pack(*read_header(batch)._replace(attributes=4)) + batch[HEADER_BYTES:])
    )


def wrong_records() -> bytearray:
    """Well-formed records that mean nothing, around one that does."""
    records: list[RecordInput] = [
        (None, b"no key", [], 1),
        (b"\xff/1", b"", [], 1),
        (b"shard/seven", b"\x90", [], 1),
        (b"shard/7", b"\x90", [], 1),
        (b"counter/test", b"\x07", [], 1),
        (b"node/1_0", None, [], 1),
        (b"topic/t", b"\xc1", [], 1),
        (b"counter/other", None, [], 1),
        (b"colour/1", b"\x01", [], 1),
    ]
    return build_batch(records)


async def append(nodes: Nodes, batch: bytearray) -> int:
    """Put a batch into the cluster's log as if a client of old had; returns where it ends."""
    host = await nodes.leader(CLUSTER_SHARD_ID)
    header = read_header(batch)
    HEADER_STRUCT.pack_into(
        batch, 0, *header._replace(base_offset=host.log.log_end, leader_epoch=host.state.term)
    )
    end = host.log.log_end + header.record_count
    host.driver.stage(batch, header.record_count)
    await eventually(lambda: host.state.high_watermark >= end)
    return end


def folded(node: Node) -> int:
    assert node.coordinator is not None
    return node.coordinator.state.version


async def all_go_on(nodes: Nodes, end: int, name: str) -> None:
    await eventually(lambda: all(folded(node) >= end for node in nodes.nodes.values()))
    assert all(node.hosts[CLUSTER_SHARD_ID].state.failed is None for node in nodes.nodes.values())
    made = await nodes.nodes[0].gateway.create_topic(CreateTopic(name))
    assert made.name == name


@in_virtual_time
async def test_no_client_writes_to_the_clusters_own_log() -> None:
    """Whatever a batch holds."""
    async with cluster_of(1) as nodes:
        host = await nodes.leader(CLUSTER_SHARD_ID)
        end = host.log.log_end
        address = nodes.members[0].native

        put = Put(b"topic/t", b"")
        requests: list[tuple[Any, bytes]] = [
            (AppendBatch(CLUSTER_SHARD_ID), bytes(garbage())),
            (AppendBatch(CLUSTER_SHARD_ID), bytes(build_batch([(b"topic/t", None, [], 1)]))),
            (AppendBatch(CLUSTER_SHARD_ID, expected_offset=end), bytes(garbage())),
            (TableWrite(CLUSTER_SHARD_ID, (put,)), b""),
            (TableWrite(CLUSTER_SHARD_ID, (put,), bulk=True), b""),
            (TrimShard(CLUSTER_SHARD_ID, end), b""),
            (DeleteTopic("__cluster"), b""),
            (AlterTopic("__cluster", {"retention.ms": "0"}), b""),
            (CreateTopic("__cluster", internal=True), b""),
            (SplitShard(CLUSTER_SHARD_ID), b""),
        ]
        errors = [await refused(address, body, payload) for body, payload in requests]
        assert not [error for error in errors if error.retriable]
        assert "cluster's own" in errors[0].message
        metrics = nodes.nodes[0].metrics
        assert (metrics.appends, metrics.metadata_unreadable, host.log.log_start) == (0, 0, 0)
        with pytest.raises(InvalidRequestError):
            await nodes.nodes[0].gateway.append(CLUSTER_SHARD_ID, garbage())


async def refused(address: str, body: Any, payload: bytes) -> AntiphonError:
    """What a client's request is refused with."""
    with pytest.raises(AntiphonError) as caught:
        await ask(address, body, payload)
    return caught.value


@in_virtual_time
async def test_a_cluster_goes_on_over_entries_that_nobody_can_read_and_starts_with_them() -> None:
    async with cluster_of(3) as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("before"))
        with structlog.testing.capture_logs() as lines:
            first = await append(nodes, garbage())
            await append(nodes, compressed())
            end = await append(nodes, wrong_records())
            await all_go_on(nodes, end, "after")
        told = [line["offset"] for line in lines if line["event"] == "metadata_not_readable"]
        each = [first - 2, first, *(first + 1 + place for place in (0, 1, 2, 3, 5, 6, 7, 8))]
        assert sorted(told) == sorted(each * 3), "each voter tells of each, once"
        states = [node.coordinator.state for node in nodes.nodes.values() if node.coordinator]
        await eventually(lambda: len({state.version for state in states}) == 1)
        assert all(state.topics == states[0].topics for state in states)
        assert all(state.counters["test"] == 7 for state in states), "what can be read counts"
        assert all(node.metrics.metadata_unreadable == len(each) for node in nodes.nodes.values())
        assert nodes.nodes[1].status().metadata_unreadable == len(each)
        for node_id in range(3):
            await nodes.stop(node_id)
        for node_id in range(3):
            await nodes.start(node_id)
        assert [await node.joined(20) for node in nodes.nodes.values()] == [True] * 3
        await all_go_on(nodes, end, "again")
        assert {"before", "after"} <= set(nodes.nodes[2].view.topics)


@in_virtual_time
async def test_what_a_newer_version_wrote_is_not_passed_over() -> None:
    """An older voter would have another state than the others: it stops there and says so."""
    async with cluster_of(1) as nodes:
        batch = build_batch([(b"colour/1", b"\x01", [("antiphon.format", b"%d" % (FORMAT + 1))], 1)])
        host = await nodes.leader(CLUSTER_SHARD_ID)
        base = host.log.log_end
        HEADER_STRUCT.pack_into(
            batch, 0, *read_header(batch)._replace(base_offset=base, leader_epoch=host.state.term)
        )
        host.driver.stage(batch, 1)
        await eventually(lambda: host.state.failed is not None)
        assert isinstance(host.state.failed, NewerFormatError)
        assert f"offset {base}" in host.state.failed.message
        assert nodes.nodes[0].coordinator is not None
        assert not nodes.nodes[0].coordinator.is_active
        await nodes.stop(0)
        node = await nodes.start(0)
        await eventually(lambda: isinstance(node.hosts[CLUSTER_SHARD_ID].state.failed, NewerFormatError))
        assert [one.state for one in node.gateway.replica_statuses() if one.shard_id == CLUSTER_SHARD_ID] == [
            "failed"
        ]


@in_virtual_time
async def test_a_node_that_was_put_back_to_an_older_version_says_so_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs, so that its operator can ask it, and takes no part in the coordination."""
    async with cluster_of(1) as nodes:
        with monkeypatch.context() as newer:
            newer.setattr("antiphon.node.metadata_fold.FORMAT", FORMAT + 1)
            batch = build_batch([(b"counter/new", b"\x01", [("antiphon.format", b"%d" % (FORMAT + 1))], 1)])
            end = await append(nodes, batch)
            await all_go_on(nodes, end, "t")
            await nodes.stop(0)
        node = await nodes.start(0)
        await eventually(lambda: isinstance(node.hosts[CLUSTER_SHARD_ID].state.failed, NewerFormatError))
        assert node.coordinator is not None
        assert "new" not in node.coordinator.state.counters
