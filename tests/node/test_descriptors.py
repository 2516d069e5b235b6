"""A node whose file descriptors run out: clients are turned away, and no replica stops."""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from antiphon.errors import InternalError, OverloadedError, ResourceExhaustedError, StorageFailedError
from antiphon.log.config import LogConfig
from antiphon.log.disk import RealDisk
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk, SimulatedFile
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import AppendBatch, CreateTopic
from antiphon.node.config import Member, NodeConfig, Ports
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.trimming import trim_replica
from antiphon.partition.failures import as_failure
from antiphon.records.builder import build_batch
from antiphon.security.settings import Security
from antiphon.server.file_limits import connection_shares, places
from antiphon.server.server import Server
from tests.coroutines import on_a_loop
from tests.log.helpers import Runner, batch_at
from tests.node.in_process import cluster_of, eventually, in_virtual_time
from tests.node.processes import NativeClient, Processes
from tests.security.certificates import server_files


class Starved(SimulatedDisk):
    """A disk that opens nothing while `starved`, and has nothing open."""

    starved = False

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        if self.starved:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path, create=create)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_operations_wait_for_descriptors_as_for_room(number: int) -> None:
    for after in range(12):
        disk = SimulatedDisk(Random(after))
        log, runner = ShardLog.open(disk, "/shard", LogConfig(segment_bytes=500)), Runner(disk)
        runner.run(log.stage_append([batch_at(0)]))
        disk.fail_kind, disk.fail_errno = "create", number
        disk.fail_after, disk.fail_calls = disk.calls + after, 1 << 40
        runner.submit(log.stage_append([batch_at(1, size=500)]), log.hard_state.stage(2, None))
        assert not any(runner.commit())
        assert log.queue.failed is None
        disk.fail_after = None
        assert not any(runner.commit())
        assert (log.durable_end, log.queue.failed) == (2, None)
        again = ShardLog.open(disk.crash(), "/shard")
        assert (again.log_end, again.hard_state.term, again.damaged) == (2, 2, None)


def test_a_disk_gives_up_what_it_only_keeps_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(100)
    for number in range(20):
        disk.open(str(tmp_path / str(number)), create=True)
    real, limit = os.open, 20

    def limited(path: str, flags: int, mode: int = 0o777) -> int:
        if disk.open_files() >= limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", limited)
    disk.open(str(tmp_path / "new"), create=True)
    assert disk.open_files() == 11
    disk.fsync_dir(str(tmp_path))


def test_shares_leave_room_for_logs_and_peers() -> None:
    for descriptors in (256, 1024):
        shares = connection_shares(descriptors)
        assert sum(shares) + shares.peers <= descriptors // 2, (
            "of nodes there are as many in the other direction"
        )
    assert connection_shares(1 << 20).native > 10_000


@pytest.mark.parametrize("share", [4, 16, 100, 500, 100_000])
def test_handshakes_are_a_part_of_the_share_of_a_listener(share: int) -> None:
    assert places(share, tls=False) == (share, 0)
    connections, handshakes = places(share, tls=True)
    assert connections + handshakes == share
    assert 2 <= handshakes <= 512
    assert connections >= handshakes


@on_a_loop
async def test_the_listeners_of_a_node_with_tls_take_what_is_theirs(tmp_path: Path) -> None:
    server = Server(secure_config(tmp_path))
    await server.start()
    try:
        shares = connection_shares()
        assert server.peers is not None
        assert server.kafka is not None
        assert server.http is not None
        peers, native, kafka = server.peers.limits, server.native.limits, server.kafka._config
        assert peers.connections + peers.handshakes == shares.peers
        assert native.handshakes == places(shares.native, tls=True).handshakes
        assert native.address_connections == native.connections // 2
        assert kafka.connections_max + kafka.handshakes_max <= shares.kafka
        assert kafka.address_connections_max == kafka.connections_max // 2
        assert server.http.connections_max + server.http.handshakes_max <= shares.http
        assert server.http.addresses.most == server.http.connections_max // 2
    finally:
        await server.stop()


def secure_config(directory: Path) -> NodeConfig:
    """Of one node with TLS on every listener."""
    tls = server_files(directory)
    security = Security(tls=tls, peer_tls=tls)
    member = Member(0, "127.0.0.1:1", "127.0.0.1:2")
    return NodeConfig(
        cluster_id="t", node_id=0, nodes=[member], dir=directory, bootstrap=True, listen_host="127.0.0.1",
        ports=Ports(0, 0, -1, 0, 0), security=security,
    )  # fmt: skip


@in_virtual_time
async def test_a_replica_that_cannot_open_its_files_goes_on_when_it_can() -> None:
    disk = Starved(Random(0))
    async with cluster_of(1, {0: disk}) as nodes:
        shard_id = await nodes.new_shard(replicas=1)
        for value in (b"one", b"two", b"three"):
            await nodes.append(shard_id, value)
        host = nodes.nodes[0].hosts[shard_id]
        disk.starved = True
        host.log.release_memory()
        with pytest.raises(OverloadedError):
            host.reads.read(host.log.log_start, 1000, host.log.log_end)
        with pytest.raises(OverloadedError):
            host.reads.list_offset(1)
        with pytest.raises(OverloadedError):
            await trim_replica(nodes.nodes[0].replicas, shard_id, host.log.log_end - 1)
        work = asyncio.ensure_future(
            nodes.nodes[0].gateway.append(shard_id, build_batch([(None, b"x", [], 1)]))
        )
        await asyncio.sleep(0.5)
        assert not work.done()
        disk.starved = False
        assert (await work).base_offset >= 1
        assert all(one.state.failed is None for one in nodes.nodes[0].hosts.values())


@in_virtual_time
async def test_the_coordinator_goes_on_where_it_could_not_read_what_was_committed() -> None:
    disk = Starved(Random(0))
    async with cluster_of(1, {0: disk}) as nodes:
        node = nodes.nodes[0]
        host, shell = node.hosts[CLUSTER_SHARD_ID], node.coordinator
        assert shell is not None
        shell.metadata = MetadataFold(host.log.log_start, node.metrics)
        disk.starved = True
        host.log.release_memory()
        shell.committed(host.state.high_watermark)
        assert (shell.metadata.offset, host.state.failed) == (host.log.log_start, None)
        disk.starved = False
        await eventually(lambda: shell.metadata.offset == host.state.high_watermark)
        await node.gateway.create_topic(CreateTopic("t", replicas=1))


def test_what_a_disk_refuses_is_no_fault_of_the_node() -> None:
    assert isinstance(as_failure(OSError(errno.EIO, "gone"), "x"), StorageFailedError)
    assert isinstance(as_failure(OSError(errno.EMFILE, "none"), "x"), ResourceExhaustedError)
    assert isinstance(as_failure(FileNotFoundError(errno.ENOENT, "a bug"), "x"), InternalError)


@contextlib.contextmanager
def idle(address: str, count: int) -> Iterator[None]:
    """Connections that say nothing."""
    host, _, port = address.rpartition(":")
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection((host, int(port)), timeout=2))
        yield
    finally:
        for one in opened:
            one.close()


@pytest.mark.cluster
def test_idle_connections_do_not_stop_a_node_with_few_descriptors(tmp_path: Path) -> None:
    with Processes(tmp_path, 1, descriptors=256) as cluster:
        cluster.ask(0, CreateTopic("t", replicas=1, shards=20))
        shards = [
            one.shard_id for topic in cluster.metadata(0).topics if topic.name == "t" for one in topic.shards
        ]
        kafka = cluster.metadata(0).nodes[0].kafka
        with (
            NativeClient(cluster.native[0]) as client,
            idle(cluster.native[0], 500),
            idle(kafka, 200),
            idle(cluster.http[0], 100),
        ):
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                for shard_id in shards:
                    client.ask(AppendBatch(shard_id), [build_batch([(None, b"x", [], 1)])])
        assert {status.state for status in cluster.statuses(0).values()} == {"ok"}
