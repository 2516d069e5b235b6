"""A table's store that the disk gives back damaged: nobody is answered with less than there is, and the node shows it."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import DamagedStoreError, NotLeaderError
from antiphon.http.listener import HttpListener
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    CreateTopic,
    DeleteRange,
    Put,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
)
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.table.neighbours import CEILING
from antiphon.table.rocks_store import RocksEngine, RocksStore
from tests.node.real_nodes import Nodes, cluster_of, eventually, in_real_time

ROWS = 111


def value(number: int) -> bytes:
    """One that cannot be compressed, the same each time."""
    return random.Random(number).randbytes(400)


async def table(nodes: Nodes, name: str = "t", **config: str) -> int:
    """A table of one shard with its rows, on the disk of every replica; returns the shard."""
    node = nodes.nodes[0]
    made = await node.gateway.create_topic(
        CreateTopic(name, kind=Kind.TABLE, replicas=len(nodes.nodes), config=config)
    )
    shard_id = made.shards[0].shard_id
    leader = await nodes.leader(shard_id)
    writer = nodes.nodes[leader.services.node_id]
    for number in range(ROWS):
        await writer.gateway.table_write(TableWrite(shard_id, (Put(b"key%03d" % number, value(number)),)))
    await eventually(
        lambda: all(applied(one, shard_id) == leader.log.log_end for one in nodes.nodes.values())
    )
    for one in nodes.nodes.values():
        store = one.hosts[shard_id].table
        assert store is not None
        store.state.flush()
    return shard_id


def applied(node: Node, shard_id: int) -> int:
    host = node.hosts.get(shard_id)
    return -1 if host is None or host.table is None else host.table.state.applied_offset


def flip_bit(directory: Path, node_id: int, shard_id: int, share: float) -> None:
    """Rot in the store's only file of rows."""
    (file,) = (directory / f"node-{node_id}" / "tables" / str(shard_id)).glob("*.sst")
    data = bytearray(file.read_bytes())
    data[int(len(data) * share)] ^= 1
    file.write_bytes(data)


def scan(node: Node, shard_id: int, consistency: str = "linearizable") -> Coroutine[Any, Any, TableRows]:
    return node.gateway.table_scan(TableScan(shard_id, b"", b"", 1000, consistency=consistency))


READS: dict[str, Callable[[Node, int], Coroutine[Any, Any, Any]]] = {
    "scan": scan,
    "scan here": lambda node, shard_id: scan(node, shard_id, "local"),
    "get": lambda node, shard_id: node.gateway.table_get(TableGet(shard_id, (b"key055",))),
    "get of several": lambda node, shard_id: node.gateway.table_get(
        TableGet(shard_id, tuple(b"key%03d" % number for number in range(ROWS)), consistency="leader")
    ),
    "find": lambda node, shard_id: node.gateway.table_get(
        TableGet(shard_id, (b"key055",), comparison=CEILING)
    ),
    "delete of a range": lambda node, shard_id: node.gateway.table_write(
        TableWrite(shard_id, (DeleteRange(b"key000", b"key999"),))
    ),
    "condition": lambda node, shard_id: node.gateway.table_write(
        TableWrite(shard_id, (Put(b"key055", b"new", expected_version=999),))
    ),
}


def whole(rows: TableRows) -> bool:
    expected = [(b"key%03d" % number, value(number)) for number in range(ROWS)]
    return [(row.key, row.value) for row in rows.rows if row is not None] == expected and not rows.more


def health(node: Node) -> tuple[int, dict[str, Any]]:
    listener = HttpListener(node.gateway, metrics=lambda: b"", status=dict)
    status, _, body = listener.answer(b"GET /healthz HTTP/1.1")
    return status, json.loads(body)


def state_of(node: Node, shard_id: int) -> str:
    return next(one.state for one in node.gateway.replica_statuses() if one.shard_id == shard_id)


@pytest.mark.parametrize("kind", READS)
@in_real_time
async def test_damage_that_a_read_of_a_table_finds_ends_the_replica_and_another_one_leads(
    tmp_path: Path, kind: str
) -> None:
    async with cluster_of(tmp_path, 3) as nodes:
        shard_id = await table(nodes)
        host = await nodes.leader(shard_id)
        node_id = host.services.node_id
        node = nodes.nodes[node_id]
        await restart_evaluator(host)
        flip_bit(tmp_path, node_id, shard_id, 0.5)

        async def read() -> None:
            with pytest.raises(NotLeaderError):
                await READS[kind](node, shard_id)

        await asyncio.gather(read(), read(), read())
        assert isinstance(host.state.failed, DamagedStoreError)
        assert "tables" in host.state.failed.details["path"]
        other = await nodes.leader(shard_id)
        assert other is not host
        assert whole(await scan(nodes.nodes[other.services.node_id], shard_id))
        # The log reaches back to its beginning: the replica is opened again, and its store is made anew from that.
        await eventually(lambda: applied(node, shard_id) >= ROWS)
        assert whole(await scan(node, shard_id, "local"))
        await eventually(lambda: state_of(node, shard_id) == "ok")
        (found,) = node.status().findings
        assert (found.shard_id, found.mended_ms > 0) == (shard_id, True)


async def restart_evaluator(host: Partition) -> None:
    """Let the leader forget which versions it knows without its store."""
    shard = host.state.require_table()
    shard.stop_leading()
    shard.lead()


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_log_whole", [True, False])
@in_real_time
async def test_a_store_that_cannot_be_used_is_made_from_the_log_or_shown_as_failed(
    tmp_path: Path, is_log_whole: bool, is_lost: bool
) -> None:
    async with cluster_of(tmp_path, 1) as nodes:
        config = {} if is_log_whole else {"segment.bytes": "16384", "retention.bytes": "16384"}
        shard_id = await table(nodes, "damaged", **config)
        sound = await table(nodes, "sound")
        if not is_log_whole:
            nodes.nodes[0].shards.apply_retention()
            assert nodes.nodes[0].hosts[shard_id].log.log_start > 0
        await nodes.stop(0)
        if is_lost:
            shutil.rmtree(tmp_path / "node-0" / "tables" / str(shard_id))
        else:
            flip_bit(tmp_path, 0, shard_id, 0)  # the block that tells how far the store is
        node = await nodes.start(0)
        assert await node.joined(20)
        await eventually(lambda: sound in node.hosts and node.hosts[sound].state.is_serving)
        assert whole(await scan(node, sound))
        if is_log_whole:  # which is read in a thread, while the other table is served
            await eventually(lambda: shard_id in node.hosts and node.hosts[shard_id].state.is_serving)
            assert whole(await scan(node, shard_id))
            assert health(node) == (200, health(node)[1])
            return
        await eventually(lambda: state_of(node, shard_id) == "failed")
        status, told = health(node)
        assert (status, told["failed_shards"]) == (503, [shard_id])
        assert isinstance(node.shards.broken[shard_id], DamagedStoreError)
        assert "another node" in node.shards.broken[shard_id].message


@in_real_time
async def test_a_replica_whose_store_is_lost_and_whose_log_was_trimmed_gets_everything_anew(
    tmp_path: Path,
) -> None:
    async with cluster_of(tmp_path, 3) as nodes:
        shard_id = await table(nodes, **{"segment.bytes": "16384", "retention.bytes": "16384"})
        for node in nodes.nodes.values():
            node.shards.apply_retention()
            assert node.hosts[shard_id].log.log_start > 0
        leader = (await nodes.leader(shard_id)).services.node_id
        node_id = (leader + 1) % 3
        directory = tmp_path / f"node-{node_id}"
        await nodes.stop(node_id)
        shutil.rmtree(directory / "tables" / str(shard_id))
        node = await nodes.start(node_id)
        # The others are well, so it gives up its log too, and its leader sends a snapshot.
        await eventually(lambda: applied(node, shard_id) >= ROWS)
        assert whole(await scan(node, shard_id, "local"))
        await eventually(lambda: state_of(node, shard_id) == "ok")


@in_real_time
async def test_whatever_keeps_one_replica_from_opening_the_others_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(tmp_path, 1) as nodes:
        shards = [await table(nodes, name) for name in ("one", "two", "three")]
        await nodes.stop(0)
        original = RocksEngine.open

        def fails(self: RocksEngine, path: str) -> RocksStore:
            if path.endswith(f"/{shards[0]}"):
                raise RuntimeError("nobody has thought of this")
            return original(self, path)

        monkeypatch.setattr(RocksEngine, "open", fails)
        node = await nodes.start(0)
        for shard_id in shards[1:]:
            await nodes.leader(shard_id)
            assert whole(await scan(node, shard_id))
        assert state_of(node, shards[0]) == "failed"
        assert health(node)[1]["failed_shards"] == [shards[0]]
        assert "thought of this" in node.shards.broken[shards[0]].message
