"""Measures the costs that `model` goes by, on this machine, and whether the model says what other measurements show.

Node processes do one kind of work as fast as clients on the same machine let them. What CPU time the nodes' threads use is
read from /proc before and after. How fast the clients are does not matter, as long as the work comes in at a rate at which
nodes gather it as they do under load. Some measurements make the costs, the others judge them.
"""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from urllib.request import ProxyHandler, build_opener

import msgspec

import antiphon
import antiphon.aio
from antiphon.model.metadata import ShardMeta
from antiphon.tools.bench.cluster import calls, produce
from antiphon.tools.capacity.costs import Check, Costs, Cpu, PerBatch, PerRow
from antiphon.tools.capacity.model import Cluster, idle
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.processes import cpu_s, memory_bytes

VALUE_BYTES: Final = 1_000
SMALL, MIDDLE, LARGE = 16_384, 131_072, 1_000_000
IN_FLIGHT: Final = 64
ROW_BYTES: Final = 64
SHARDS: Final = (300, 900)
CONNECTIONS: Final = 500
CONSUME_S_MAX: Final = 60.0
SETTLES_S: Final = 8.0  # that nodes get until they rest, and longer when they have got many shards
SHARDS_SETTLE_A_SECOND: Final = 100
RESTS_S: Final = 12.0  # that they are watched: they use little
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Used(NamedTuple):
    """CPU that the nodes used for a number of pieces of work, by node."""

    work: float
    cpu: dict[int, Cpu]

    def each(self, node_id: int) -> Cpu:
        """Of a node, for one piece."""
        return self.cpu[node_id].times(1 / self.work)

    def total(self) -> Cpu:
        """Of all nodes, for one piece."""
        found = Cpu()
        for cpu in self.cpu.values():
            found = found.plus(cpu)
        return found.times(1 / self.work)


def measure(seconds: float, machine: str, tell: Callable[[str], None] = lambda _text: None) -> Costs:
    """The costs, with the checks of them. Each measurement takes `seconds`, the whole about 40 times that and a minute."""
    batches = {}
    for replicas in (1, 2, 3):
        tell(f"batches, {replicas} replicas")
        batches[replicas] = _batches(replicas, seconds)
    rows = {}
    for in_flight in (1, IN_FLIGHT):
        for replicas in (1, 2, 3):
            tell(f"rows, {in_flight} in flight, {replicas} replicas")
            rows[in_flight, replicas] = _rows(replicas, in_flight, seconds)
    tell("nodes that rest")
    resting = {nodes: _resting(nodes, 0) for nodes in (3, 7)}
    full = {shards: _resting(3, shards) for shards in SHARDS}
    connection_bytes = _connection_bytes()
    costs = _fitted(batches, rows, resting, full, connection_bytes, machine)
    tell("other clusters, to judge the model by")
    checks = (*_judged(costs, batches, rows), *_other_clusters(costs, seconds))
    return msgspec.structs.replace(costs, checks=checks)


class _Batches(NamedTuple):
    """Of one number of replicas, by the size that was asked for: the size that came, and what it cost.

    `leader` and `follower`: for a batch that is produced. `fetch`: to the leader, for one that is consumed.
    """

    size: dict[int, float]
    leader: dict[int, Cpu]
    follower: dict[int, Cpu]
    fetch: dict[int, Cpu]

    def line(self, costs: dict[int, Cpu]) -> PerBatch:
        """Through the smallest and the largest."""
        return PerBatch.through((self.size[SMALL], costs[SMALL]), (self.size[LARGE], costs[LARGE]))


class _Rows(NamedTuple):
    leader: Cpu
    follower: Cpu
    get: Cpu


class _Resting(NamedTuple):
    cpu: Cpu  # of one node, in one second
    memory_bytes: int


def _fitted(
    batches: dict[int, _Batches],
    rows: dict[tuple[int, int], _Rows],
    resting: dict[int, _Resting],
    full: dict[int, _Resting],
    connection_bytes: int,
    machine: str,
) -> Costs:
    """The costs, from the measurements with one and three replicas, of 16 KB and of 1 MB."""
    alone, three = batches[1], batches[3]
    append = alone.line(alone.leader)
    more = {size: cost.plus(append.of(three.size[size]).times(-1)) for size, cost in three.leader.items()}
    peer = _no_less(resting[7].cpu.plus(resting[3].cpu.times(-1)).times(1 / 4))
    few, many = (full[count] for count in SHARDS)
    between = SHARDS[1] - SHARDS[0]
    return Costs(
        append=append,
        to_follower=three.line({size: cost.times(0.5) for size, cost in more.items()}),
        follow=three.line(three.follower),
        fetch=three.line(three.fetch),
        rows=_per_row(rows, IN_FLIGHT),
        row=_per_row(rows, 1),
        node=resting[3].cpu.plus(peer.times(-2)),
        peer=peer,
        shard=_no_less(many.cpu.plus(resting[3].cpu.times(-1)).times(1 / SHARDS[1])),
        node_bytes=resting[3].memory_bytes,
        shard_bytes=max(0, many.memory_bytes - few.memory_bytes) // between,
        connection_bytes=connection_bytes,
        machine=machine,
    )


def _no_less(cpu: Cpu) -> Cpu:
    """Nothing costs less than nothing, whatever clocks that tick a hundred times a second say."""
    return Cpu(max(0.0, cpu.loop), max(0.0, cpu.threads))


def _per_row(rows: dict[tuple[int, int], _Rows], in_flight: int) -> PerRow:
    alone, three = rows[in_flight, 1], rows[in_flight, 3]
    return PerRow(
        alone.leader, three.leader.plus(alone.leader.times(-1)).times(0.5), three.follower, three.get
    )


def _judged(
    costs: Costs, batches: dict[int, _Batches], rows: dict[tuple[int, int], _Rows]
) -> Iterator[Check]:
    """Measurements that the costs were not made from: two replicas, and batches of 131 KB."""
    for replicas, sizes in ((1, (MIDDLE,)), (2, (SMALL, MIDDLE, LARGE)), (3, (MIDDLE,))):
        for size in sizes:
            found = batches[replicas]
            said = costs.append.on(replicas, found.size[size], costs.to_follower, costs.follow)
            measured = found.leader[size].plus(found.follower.get(size, Cpu()).times(replicas - 1))
            yield Check(f"a batch of {size // 1000} KB, {replicas} replicas", sum(said), sum(measured))
    said = costs.fetch.of(batches[3].size[MIDDLE])
    yield Check("reading a batch of 131 KB", sum(said), sum(batches[3].fetch[MIDDLE]))
    for row, in_flight in ((costs.rows, IN_FLIGHT), (costs.row, 1)):
        found_row = rows[in_flight, 2].leader.plus(rows[in_flight, 2].follower)
        yield Check(f"a put, {in_flight} in flight, 2 replicas", sum(row.put_on(2)), sum(found_row))


def _other_clusters(costs: Costs, seconds: float) -> Iterator[Check]:
    """Five nodes with six shards of three replicas, all of which work; and nodes that rest."""
    with LocalCluster.start(5) as cluster, antiphon.connect(cluster.native) as db:
        db.create_topic("t", shards=6, replicas=3)
        done, size = _produced(cluster, "t", MIDDLE, seconds)
        said = costs.append.on(3, size, costs.to_follower, costs.follow)
        yield Check(
            f"a batch of {size // 1000:.0f} KB, 5 nodes, 6 shards, 3 replicas", sum(said), sum(done.total())
        )
    found = _resting(5, 600)
    of = Cluster(nodes=5, replicas=3, shards=600)
    yield Check("a second of a node that rests, 5 nodes, 600 shards", sum(idle(of, costs)), sum(found.cpu))
    memory = costs.node_bytes + of.shards * of.replicas / of.nodes * costs.shard_bytes
    yield Check("memory of that node, bytes", memory, found.memory_bytes)


def _batches(replicas: int, seconds: float) -> _Batches:
    measured = _Batches({}, {}, {}, {})
    with LocalCluster.start(3) as cluster, antiphon.connect(cluster.native) as db:
        for size in (SMALL, MIDDLE, LARGE):
            topic = f"batches-{size}"
            db.create_topic(topic, shards=1, replicas=replicas)
            shard = _shard_of(db, topic)
            done, measured.size[size] = _produced(cluster, topic, size, seconds)
            measured.leader[size] = done.each(shard.leader)
            if replicas > 1:
                measured.follower[size] = _mean(done, shard)
            with _using(cluster) as used:
                _consume(cluster.kafka, topic)
            measured.fetch[size] = _done(used, done.work).each(shard.leader)
    return measured


def _produced(cluster: LocalCluster, topic: str, size: int, seconds: float) -> tuple[Used, float]:
    """What producing cost, by batches as they came, and how large these were."""
    before = _appended(cluster)
    with _using(cluster) as used:
        produce(cluster.kafka, topic, VALUE_BYTES, size, seconds)
    batches, size_bytes = (late - early for late, early in zip(_appended(cluster), before, strict=True))
    return _done(used, batches), size_bytes / max(1.0, batches)


def _appended(cluster: LocalCluster) -> tuple[float, float]:
    """Batches, and their bytes, that clients have appended by now."""
    opener = build_opener(ProxyHandler({}))
    pages = [opener.open(f"http://{node.http}/metrics").read().decode() for node in cluster.nodes.values()]
    lines = [line.split() for page in pages for line in page.splitlines() if not line.startswith("#")]
    batches = sum(float(line[1]) for line in lines if line[0] == "antiphon_appends_total")
    return batches, sum(float(line[1]) for line in lines if line[0] == "antiphon_append_bytes_total")


def _shard_of(db: antiphon.Client, name: str) -> ShardMeta:
    return next(topic for topic in db.metadata().topics if topic.name == name).shards[0]


def _consume(servers: str, topic: str) -> None:
    """Read a shard from its beginning to its end."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False, "check.crcs": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    has_begun, end = False, time.monotonic() + CONSUME_S_MAX
    while time.monotonic() < end:
        came = len(consumer.consume(10_000, 1.0))
        if has_begun and not came:
            break
        has_begun = has_begun or came > 0
    consumer.close()


def _rows(replicas: int, in_flight: int, seconds: float) -> _Rows:
    with LocalCluster.start(3) as cluster, antiphon.connect(cluster.native) as db:
        db.create_table("rows", shards=1, replicas=replicas)
        shard = _shard_of(db, "rows")
        with _using(cluster) as used:
            count = asyncio.run(_work(cluster.native, in_flight, seconds, is_put=True))
        puts = _done(used, count)
        follower = _mean(puts, shard) if replicas > 1 else Cpu()
        with _using(cluster) as used:
            count = asyncio.run(_work(cluster.native, in_flight, seconds, is_put=False))
        return _Rows(puts.each(shard.leader), follower, _done(used, count).each(shard.leader))


async def _work(servers: str, in_flight: int, seconds: float, *, is_put: bool) -> int:
    """Puts, or gets, of 1,000 keys; how many were answered."""
    value = os.urandom(ROW_BYTES)
    async with antiphon.aio.connect(servers) as db:
        table = db.table("rows")
        await table.put(b"warm", value)

        def work(number: int, count: int) -> Awaitable[object]:
            key = b"key-%d" % ((number * 37 + count) % 1000)
            return table.put(key, value) if is_put else table.get(key)

        return len(await calls(work, in_flight, seconds))


def _resting(nodes: int, shards: int) -> _Resting:
    """A node on the average, while nobody asks anything."""
    with LocalCluster.start(nodes) as cluster:
        if shards:
            with antiphon.connect(cluster.native) as db:
                db.create_topic("idle", shards=shards, replicas=3)
        time.sleep(SETTLES_S + shards / SHARDS_SETTLE_A_SECOND)
        with _using(cluster) as used:
            began = time.monotonic()
            time.sleep(RESTS_S)
            took_s = time.monotonic() - began
        total = _done(used, took_s).total()
        memory = sum(memory_bytes(node.pid) for node in cluster.nodes.values())
        return _Resting(total.times(1 / nodes), memory // nodes)


def _connection_bytes() -> int:
    """Of a node's memory, for a connection of a Kafka client that has said hello."""
    with LocalCluster.start(1) as cluster:
        node = cluster.nodes[0]
        host, _, port = node.kafka.rpartition(":")
        before = memory_bytes(node.pid)
        sockets = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
        for one in sockets:
            one.sendall(_API_VERSIONS)
        for one in sockets:
            one.recv(4)
        after = memory_bytes(node.pid)
        for one in sockets:
            one.close()
    return max(0, after - before) // CONNECTIONS


@contextmanager
def _using(cluster: LocalCluster) -> Iterator[dict[int, Cpu]]:
    """What each node uses within the block; filled when it ends."""
    used: dict[int, Cpu] = {}
    before = {node.id: _cpu(node.pid) for node in cluster.nodes.values()}
    yield used
    for node in cluster.nodes.values():
        used[node.id] = _cpu(node.pid).plus(before[node.id].times(-1))


def _done(used: dict[int, Cpu], work: float) -> Used:
    return Used(max(work, 1e-9), used)


def _mean(used: Used, shard: ShardMeta) -> Cpu:
    """Of the shard's followers."""
    followers = [one for one in shard.ensemble if one != shard.leader]
    found = Cpu()
    for one in followers:
        found = found.plus(used.each(one))
    return found.times(1 / len(followers))


def _cpu(pid: int) -> Cpu:
    """What a process has used until now. The event loop runs in its first thread."""
    loop = cpu_s(pid, pid)
    return Cpu(loop * 1e6, (cpu_s(pid) - loop) * 1e6)
