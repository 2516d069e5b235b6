"""A small cluster for trials of damage: all kinds of topics and tables on three machines, and what they must hold."""

import asyncio
import shutil
from random import Random
from typing import Any, Final

import msgspec

from antiphon.errors import AntiphonError, NotReadyError
from antiphon.log.disk import write_whole
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_tree import Copy
from antiphon.model.cluster import EndTransaction
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableRows, TableScan, TableWrite
from antiphon.node.config import Limits, Scrub
from antiphon.node.node import Node
from antiphon.node.peer_wire import SnapshotBegin, SnapshotFile
from antiphon.node.trimming import trim_replica
from antiphon.partition.partition import Partition
from antiphon.records.batch import TRANSACTIONAL_BIT
from antiphon.records.builder import build_batch, end_marker_of, seal
from antiphon.records.decode import decode_records
from antiphon.records.entry_id import EntryId
from antiphon.simulation.rocks_on_disk import RealFiles, RocksOnDiskEngine
from antiphon.table.store import StoreEngine
from tests.node.in_process import DIRECTORY, NATIVE_PORT, Nodes, ask, eventually

COUNT: Final = 3
FOLDERS: Final = ("data", "etc")
ROUNDS: Final = 8
SEGMENTS: Final = {"segment.bytes": "4096"}
SCRUB: Final = Scrub(bytes_per_s=64 * 1024 * 1024, interval_s=1000)
RESERVE_BYTES: Final = 64 * 1024
JOINED_LATER: Final = 1  # a node whose directory was lost when the cluster was young
ABORTS: Final = "sales"  # each write there follows a transaction that is aborted
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "log": {"config": SEGMENTS},
    "other": {"config": SEGMENTS},
    ABORTS: {"config": SEGMENTS},
    "votes": {"profile": "raft", "config": SEGMENTS},
    "fast": {"config": {"commit": "local"}},
    "rows": {"kind": Kind.TABLE},
    "trimmed": {"kind": Kind.TABLE},
    "carts": {"kind": Kind.TABLE, "config": {"writers": "multi"}},
}


class Cluster(Nodes):
    """The nodes, with RocksDB for their tables. `shards`: by topic. `wanted`: what was acknowledged, by topic, in order."""

    def __init__(self, files: RealFiles, disks: dict[int, SimulatedDisk] | None = None) -> None:
        secrets = None if disks else dict.fromkeys(range(COUNT), b"k" * 32)
        super().__init__(
            COUNT, disks, secrets=secrets or {}, scrub=SCRUB, limits=Limits(disk_reserve=RESERVE_BYTES)
        )
        self.files = files
        if disks:  # other draws than those of the processes before, or these would pass for them
            self.random = Random("restarted")
        self.shards: dict[str, int] = {}
        self.wanted: dict[str, list[bytes]] = {}
        self.early: dict[str, int] = {}  # where logs begin

    def engine(self, disk: SimulatedDisk, draw: Random) -> StoreEngine:
        return RocksOnDiskEngine(disk, self.files, draw, (1000, 2000))

    def let_go(self) -> None:
        """Remove the real folders of all stores that were opened."""
        for store in self.files.stores:
            store.abandon()
            shutil.rmtree(store._folder.real, ignore_errors=True)
        self.files.stores.clear()

    async def write(self, name: str, timeout_s: float = 15.0) -> None:
        """One acknowledged write to a topic or table, by whoever takes it."""
        value = b"%s %d " % (name.encode(), len(self.wanted.setdefault(name, []))) * 60
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                await self._write_once(name, value)
            except (AntiphonError, OSError):
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                self.wanted[name].append(value)
                return

    async def _write_once(self, name: str, value: bytes) -> None:
        shard_id = self.shards[name]
        leading = (node for node in self.nodes.values() if shard_id in node.hosts)
        leader = next((node for node in leading if node.hosts[shard_id].state.is_serving), None)
        if leader is None:
            raise NotReadyError(f"nobody serves {name}")
        if TOPICS[name].get("kind") is Kind.TABLE:
            put = TableWrite(shard_id, (Put(b"%04d" % len(self.wanted[name]), value),))
            await ask(f"node-{leader.node_id}:{NATIVE_PORT}", put)
        else:
            if name == ABORTS:
                await self._abort_one(leader, shard_id)
            await leader.gateway.append(shard_id, build_batch([(None, value, [], 1)]), timeout_s=5.0)

    async def _abort_one(self, leader: Node, shard_id: int) -> None:
        """A transaction of a new producer, which is aborted."""
        producer_id = self.random.getrandbits(40)
        batch = build_batch(
            [(None, b"gone", [], 1)], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        batch[22] |= TRANSACTIONAL_BIT
        seal(batch)
        await leader.gateway.append(shard_id, batch, timeout_s=5.0, transaction_number=1)
        await leader.gateway.transactions.end(EndTransaction(shard_id, producer_id, 0, 1, commit=False))

    async def founded(self) -> None:
        """Make what there is, and write to it, until every kind of file is there."""
        await self.start_all()
        await self.stop(JOINED_LATER)
        self.lose_directory(JOINED_LATER)
        assert await (await self.start(JOINED_LATER)).joined(20)
        await eventually(lambda: all(self.is_well(node) for node in self.nodes.values()))
        for name, options in TOPICS.items():
            made = await self.nodes[0].gateway.create_topic(CreateTopic(name, replicas=COUNT, **options))
            self.shards[name] = made.shards[0].shard_id
        for number in range(ROUNDS):
            for name in TOPICS:
                await self.write(name)
            if number == ROUNDS // 2:
                for node in self.nodes.values():
                    for host in node.hosts.values():
                        if host.table is not None:
                            host.table.state.flush()
        await eventually(lambda: all(self.is_well(node) for node in self.nodes.values()))
        for name in ("log", "trimmed"):
            for node in self.nodes.values():
                self.early[name] = await trim_replica(node.replicas, self.shards[name], ROUNDS // 2)
        for node_id, disk in self.disks.items():
            self._begin_snapshot(disk, node_id)
            self.nodes[node_id].care.scrub.ask()
        await eventually(lambda: all(disk.exists(f"{DIRECTORY}/scrub") for disk in self.disks.values()))

    def _begin_snapshot(self, disk: SimulatedDisk, node_id: int) -> None:
        """A snapshot that was on its way in when the node stopped."""
        shard_id = self.shards["rows"]
        path = f"{DIRECTORY}/snapshots/receive-{shard_id}"
        disk.makedirs(path)
        files = (SnapshotFile("000009.sst", 4000, 1),)
        begin = SnapshotBegin(shard_id, 1, EntryId(1, 3), "a snapshot", files)
        write_whole(disk, f"{path}/manifest.antiphon", msgspec.msgpack.encode(begin))
        write_whole(disk, f"{path}/000009.sst", bytes(1000 + node_id))

    # -- what there must be ---------------------------------------------------------------------------------------

    def is_well(self, node: Node) -> bool:
        """Does each replica of the node take part, with everything that was acknowledged?"""
        if not node.agent.registered.is_set() or node.shards.broken:
            return False
        hosts = [node.hosts.get(shard_id) for shard_id in self.shards.values()]
        return all(
            host is not None and host.status().state == "ok" and host.state.high_watermark == self._end(host)
            for host in hosts
        ) and all(host.status().state == "ok" for host in node.hosts.values())

    def _end(self, host: Partition) -> int:
        ends = [
            node.hosts[host.shard_id].log.log_end
            for node in self.nodes.values()
            if host.shard_id in node.hosts and node.hosts[host.shard_id].state.is_serving
        ]
        return max(ends, default=-1)

    def in_log(self, name: str, host: Partition) -> list[bytes]:
        """The records' values in a replica's log, as far as it knows them to be committed."""
        found: list[bytes] = []
        at, end = host.log.log_start, host.state.high_watermark
        host.log.release_memory()
        while at < end:
            for batch in host.log.read(at, 1 << 20, end):
                for record in decode_records(batch, include_control=True):
                    at = record.offset + 1
                    if record.value is not None and record.value.startswith(name.encode()):
                        found.append(record.value)
        return found

    async def what_is_wrong(self, node: Node, *, may_lag: bool) -> str:
        """What this node answers otherwise than it must; empty: nothing. One that `may_lag` need not have all."""
        for name, shard_id in self.shards.items():
            host = node.hosts.get(shard_id)
            if host is None or host.state.failed is not None or host.log.damaged is not None:
                continue
            wanted = self.wanted[name]
            if TOPICS[name].get("kind") is Kind.TABLE:
                scan = TableScan(shard_id, b"", b"", 1000, consistency="local")
                rows = await node.gateway.table_scan(scan)
                assert isinstance(rows, TableRows)
                found = [row.value for row in rows.rows if row is not None]
            else:
                found = list(self.in_log(name, host))
                if name == ABORTS and aborted_in(host) != named_by(host):
                    return f"{name} on node {node.node_id}: other aborted transactions than in its log"
                wanted = wanted[-len(found) :] if name in self.early and found else wanted
            if found != (wanted[: len(found)] if may_lag else wanted):
                return f"{name} on node {node.node_id}: {len(found)} values, {len(wanted)} are right"
        return ""


def aborted_in(host: Partition) -> list[tuple[int, int]]:
    """The aborted transactions that end in a replica's log, by its batches: producers and offsets of the markers."""
    return [
        (header.producer_id, header.base_offset)
        for header, batch in host.log.reader.batches_from(host.log.log_start)
        if (end_marker_of(batch) or (True, 0))[0] is False
    ]


def named_by(host: Partition) -> list[tuple[int, int]]:
    """The same, by what the replica tells those who read committed transactions."""
    found = host.log.aborted(host.log.log_start, host.log.log_end)
    return [(one.producer_id, one.marker_offset) for one in found]


def copies(cluster: Cluster) -> dict[int, Copy]:
    """What is on all disks: the nodes' directories, and the folder with the key."""
    return {
        node_id: {name: disk.copy(f"/{name}") for name in FOLDERS} for node_id, disk in cluster.disks.items()
    }


def files_of(copy: Copy, path: str = "") -> dict[str, bytes]:
    """Files by path."""
    if isinstance(copy, bytes):
        return {path: copy}
    return {
        found: data for name in sorted(copy) for found, data in files_of(copy[name], f"{path}/{name}").items()
    }
