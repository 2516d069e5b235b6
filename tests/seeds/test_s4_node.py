"""What S4 says of threads, the log and the relay, and S0 and S3 of promotion, on whole nodes."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.errors import NotLeaderError
from antiphon.log.disk import File, RealDisk
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableGet, TableWrite
from antiphon.node.node import Node
from antiphon.records.batch import Buffer
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.replication.messages import Ack, AnyMessage, Append
from tests.node import in_process, real_nodes
from tests.node.in_process import SomeNodes, cluster_of, eventually, in_virtual_time

if TYPE_CHECKING:
    from antiphon.transport.connection import Connection

pytestmark = pytest.mark.cluster


class WatchedFile:
    """A file of a `WatchedDisk`."""

    def __init__(self, disk: "WatchedDisk", file: File, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self.pread, self.truncate, self.size = file.pread, file.truncate, file.size

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        self._disk.note("write", self._path, len(buffers))
        self._file.pwritev(buffers, at)

    def fdatasync(self) -> None:
        if f"{os.sep}shards{os.sep}" in self._path:
            if not self._disk.may_sync.is_set():
                self._disk.waits.set()
            self._disk.may_sync.wait(10)
        self._disk.note("sync", self._path, 0)
        self._file.fdatasync()


class WatchedDisk(RealDisk):
    """The real disk; notes who writes, and syncs when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.waits = threading.Event()  # a sync does
        # What, of which file, how many buffers, on which thread.
        self.calls: list[tuple[str, str, int, int]] = []

    def note(self, what: str, path: str, buffers: int) -> None:
        self.calls.append((what, path, buffers, threading.get_ident()))

    def of_log(self, what: str, shard_id: int) -> list[int]:
        """The calls of this kind on a shard's segments: how many buffers each had. Files beside the log, and the
        logs of other shards, have writes of their own."""
        folder = f"{os.sep}shards{os.sep}{shard_id}{os.sep}"
        return [
            buffers
            for called, path, buffers, _ in self.calls
            if called == what and folder in path and path.endswith(".log")
        ]

    def open(self, path: str, *, create: bool = False) -> File:
        return WatchedFile(self, super().open(path, create=create), path)


def batch(value: bytes) -> bytes:
    return bytes(build_batch([(None, value, [], 1)]))


async def new_shard(
    nodes: SomeNodes, kind: Kind = Kind.TOPIC, profile: str = "oxia", segment_bytes: int = 1 << 20
) -> int:
    config = {"segment.bytes": str(segment_bytes)}
    return await in_process.new_shard(nodes, kind=kind, profile=profile, config=config)


@real_nodes.in_real_time
async def test_s4_15_s4_16_s4_17_one_thread_decides_another_writes_and_what_waits_is_synced_together(
    tmp_path: Path,
) -> None:
    """On a real disk: it is about threads."""
    disk = WatchedDisk()
    async with real_nodes.cluster_of(tmp_path, 1, {0: disk}) as nodes:
        node = nodes.nodes[0]
        shard_id = await new_shard(nodes)
        await nodes.append(shard_id, b"first")
        host = await nodes.leader(shard_id)
        disk.may_sync.clear()
        disk.calls.clear()
        disk.waits.clear()
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(node.gateway.append(shard_id, batch(b"x")))
        ]
        try:
            await eventually(disk.waits.is_set)  # the thread is in its sync: all that follows has to wait
            for _turn in range(10):  # of the event loop: what comes in one turn is one operation of the log
                waiting += [
                    asyncio.ensure_future(node.gateway.append(shard_id, batch(b"x"))) for _ in range(10)
                ]
                await asyncio.sleep(0.001)
            await eventually(lambda: host.log.log_end == 102)
            await asyncio.sleep(0.02)
            # S4.16: nothing is visible before it is written and synced, and the loop goes on meanwhile (S4.15).
            assert host.state.high_watermark == 1
            assert not (await node.gateway.fetch(shard_id, 1, 1000)).batches
            assert not any(one.done() for one in waiting)
        finally:
            disk.may_sync.set()
        await asyncio.gather(*waiting)
        assert host.state.high_watermark == 102
        # S4.17: a hundred appends, a handful of writes and syncs.
        assert 1 <= len(disk.of_log("sync", shard_id)) <= 4
        assert len(disk.of_log("write", shard_id)) <= 4
        assert max(disk.of_log("write", shard_id)) >= 50
        assert threading.get_ident() not in {thread for _, _, _, thread in disk.calls}


@in_virtual_time
async def test_s4_16_the_log_is_read_again_after_a_restart() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await new_shard(nodes, Kind.TABLE)
        write = TableWrite(shard_id, (Put(b"k", b"v"),))
        await nodes.leader(shard_id)
        await nodes.nodes[0].gateway.table_write(write)
        await nodes.stop(0)
        await nodes.start(0)
        await nodes.leader(shard_id)
        rows = (await nodes.nodes[0].gateway.table_get(TableGet(shard_id, (b"k",)))).rows
        assert rows[0] is not None
        assert rows[0].value == b"v"


@in_virtual_time
async def test_s4_19_a_relay_reads_from_the_disk_at_any_position_and_then_follows() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, segment_bytes=4096)
        for number in range(20):
            await nodes.append(shard_id, b"%d" % number + bytes(300))
        host = await nodes.leader(shard_id)
        leader = nodes.nodes[host.services.node_id]
        away = next(node_id for node_id in nodes.nodes if node_id != leader.node_id)
        await eventually(lambda: nodes.nodes[away].hosts[shard_id].log.log_end == 20)
        await nodes.stop(away)
        for number in range(20, 60):
            await nodes.append(shard_id, b"%d" % number + bytes(300))
        host.log.release_memory(0)
        assert host.reads.is_cold(20, "committed"), "what the replica asks for is on the disk only"
        for at in (0, 7, 20, 41):  # a client may ask for everything from any point, too
            found = await leader.gateway.fetch(shard_id, at, 300)
            assert decode_records(found.batches[0])[0].offset == at
        back = await nodes.start(away)
        await eventually(lambda: shard_id in back.hosts and back.hosts[shard_id].log.log_end == 60)
        await nodes.append(shard_id, b"and what is written from now on")
        await eventually(lambda: back.hosts[shard_id].state.high_watermark == 61)
        assert back.hosts[shard_id].log.terms.end == host.log.terms.end


@in_virtual_time
async def test_s4_20_the_replica_dials_data_flows_one_way_and_acknowledgements_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(2, dial="follower") as nodes:
        shard_id = await new_shard(nodes)
        host = await nodes.leader(shard_id)
        leader = nodes.nodes[host.services.node_id]
        follower = next(node for node in nodes.nodes.values() if node is not leader)
        sent: dict[int, set[type]] = {leader.node_id: set(), follower.node_id: set()}

        def watched(node: Node) -> Callable[[int, AnyMessage], None]:
            say = node.send_message

            def send(to: int, message: AnyMessage) -> None:
                if message.shard == shard_id:
                    sent[node.node_id].add(type(message))
                say(to, message)

            return send

        for node in nodes.nodes.values():
            monkeypatch.setattr(node, "send_message", watched(node))
        await nodes.append(shard_id, b"x")
        await eventually(lambda: follower.hosts[shard_id].state.high_watermark == 1)
        assert sent == {leader.node_id: {Append}, follower.node_id: {Ack}}
        session = leader.network.accepted.newest[follower.node_id]  # the connection that the replica has made
        cast("Connection", session._connection).close()
        await eventually(lambda: leader.network.accepted.newest.get(follower.node_id) not in {None, session})
        await nodes.append(shard_id, b"y")
        await eventually(lambda: follower.hosts[shard_id].state.high_watermark == 2)


@in_virtual_time
async def test_s4_02_a_replica_carries_out_nothing_for_clients_reads_included() -> None:
    """It names the leader, or, with `on.not.leader=forward`, has it answer: tests/node/test_in_flight.py shows that."""
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, profile="tarantool")
        end = await nodes.append(shard_id, b"x")
        host = await nodes.leader(shard_id)
        leading = nodes.nodes[host.services.node_id]
        settings = leading.shards.settings.of(leading.gateway.shard(shard_id)[0])
        assert settings.replication.on_not_leader == "forward"
        for node in nodes.nodes.values():
            if node.node_id != host.services.node_id:
                for refused in (
                    node.gateway.append(shard_id, batch(b"y")),
                    node.gateway.fetch(shard_id, 0, 1000),
                ):
                    with pytest.raises(NotLeaderError) as caught:
                        await refused
                    assert caught.value.details["leader"] == host.services.node_id
                with pytest.raises(NotLeaderError) as caught:
                    node.gateway.list_offset(shard_id, -1)
                assert caught.value.details["leader"] == host.services.node_id
        assert host.log.log_end >= end


@in_virtual_time
async def test_s0_24_a_follower_is_warm_promotion_reads_nothing_again_and_is_quick() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, Kind.TABLE)
        host = await nodes.leader(shard_id)
        leader = nodes.nodes[host.services.node_id]
        for first in range(0, 1000, 100):
            ops = tuple(Put(b"%d" % number, bytes(100)) for number in range(first, first + 100))
            await leader.gateway.table_write(TableWrite(shard_id, ops))
        end = host.log.log_end
        wanted = next(node for node in nodes.nodes.values() if node is not leader)
        follower = wanted.hosts[shard_id]
        await eventually(lambda: follower.state.high_watermark == end)
        assert follower.table is not None
        assert follower.table.state.applied_offset == end, "everything committed is applied already"
        read_from: list[int] = []
        read = follower.log.read

        def watched(offset: int, *arguments: object, **named: object) -> object:
            read_from.append(offset)
            return read(offset, *arguments, **named)  # type: ignore[arg-type]

        follower.log.read = watched  # type: ignore[method-assign,assignment]
        began = leader.loop.time()
        await nodes.nodes[0].gateway.elect_leader(shard_id, wanted.node_id)
        took_s = leader.loop.time() - began
        assert follower.state.is_serving
        assert took_s < 1.0, "usually some ten milliseconds"
        assert min(read_from, default=end) >= end, "nothing before the end of what was applied is read again"
        keys = tuple(b"%d" % number for number in range(1000))
        rows = (await wanted.gateway.table_get(TableGet(shard_id, keys))).rows
        assert [row and (row.key, row.value) for row in rows] == [(key, bytes(100)) for key in keys]
