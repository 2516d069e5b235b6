"""What a cluster carries, by the costs of its work: how much of each kind of work alone, and what it is that binds it.

The model is a sum. Leaders are spread evenly, so each of N nodes does an N-th of all work. What a node may use of its event
loop, less what it costs while nobody asks anything, is divided by what the work costs. Disks and networks are divided alike.
What the model leaves out makes real figures smaller, not larger: shards of unequal load, requests that hold several small
batches cost a little less, compressed batches that have to be validated a little more.
"""

from typing import Final, NamedTuple

from antiphon.tools.capacity.costs import Costs, Cpu, PerRow

MIB: Final = 1 << 20
ROW_WIRE_BYTES: Final = 200  # of a put of 64 bytes with its key, in a log and on the network
ELECTIONS_PER_S: Final = 8_000  # by one coordinator (docs/benchmarks.md, `antiphon bench fleet`)
METADATA_SHARD_BYTES: Final = 216  # that every node is sent, for each shard (the same)


class Cluster(NamedTuple):
    """Machines, and what lies on them.

    Attributes:
        nodes: how many; one to a machine.
        replicas: copies of each shard.
        shards: in all topics and tables.
        connections: of clients, in all.
        cores: of a node; its event loop uses one at most, other threads what is left.
        disk_mib_s, network_mib_s: what a node's disk writes, and its network carries each way, MiB/s.
        share: of everything that is to be used at most; the rest is for peaks, and for nodes that are down.
    """

    nodes: int = 3
    replicas: int = 3
    shards: int = 300
    connections: int = 100
    cores: float = 2.0
    disk_mib_s: float = 500.0
    network_mib_s: float = 1_000.0
    share: float = 0.6


class Rate(NamedTuple):
    """How much of one kind of work a cluster carries if it does nothing else: a second, and what binds it."""

    a_second: float
    bound_by: str


class Capacity(NamedTuple):
    """The answer.

    Attributes:
        batches: how many a second.
        mib_s: of the batches.
        put, get: rows a second, where clients have many in flight.
        put_alone, get_alone: where each client waits for one at a time.
        idle_percent: of a core, in each node while nobody asks anything.
        memory_mib: of a node with its replicas and connections, without what clients have under work (docs/limits.md).
        metadata_mib: that a node is sent when it hears of everything.
        elections_s: until all shards have leaders again when all machines had lost power.
    """

    batches: Rate
    mib_s: float
    put: Rate
    get: Rate
    put_alone: Rate
    get_alone: Rate
    idle_percent: float
    memory_mib: float
    metadata_mib: float
    elections_s: float


class Work(NamedTuple):
    """What one piece of work costs all nodes together: CPU, bytes to disks, bytes that networks carry in one direction."""

    cpu: Cpu
    disk_bytes: float
    network_bytes: float


def capacity(cluster: Cluster, costs: Costs, batch_bytes: int = 131_072, readers: int = 1) -> Capacity:
    """What `cluster` carries. Batches are produced, and each is read by `readers` consumers. Raises ValueError."""
    _check(cluster, batch_bytes, readers)
    batches = _rate(cluster, costs, of_batch(cluster, costs, batch_bytes, readers))
    of_node = cluster.shards * cluster.replicas / cluster.nodes
    memory = (
        costs.node_bytes
        + of_node * costs.shard_bytes
        + cluster.connections / cluster.nodes * costs.connection_bytes
    )
    return Capacity(
        batches=batches,
        mib_s=batches.a_second * batch_bytes / MIB,
        put=_rate(cluster, costs, of_put(cluster, costs.rows)),
        get=_rate(cluster, costs, Work(costs.rows.get, 0, ROW_WIRE_BYTES)),
        put_alone=_rate(cluster, costs, of_put(cluster, costs.row)),
        get_alone=_rate(cluster, costs, Work(costs.row.get, 0, ROW_WIRE_BYTES)),
        idle_percent=sum(idle(cluster, costs)) / 1e4,
        memory_mib=memory / MIB,
        metadata_mib=cluster.shards * METADATA_SHARD_BYTES / MIB,
        elections_s=cluster.shards / ELECTIONS_PER_S,
    )


def of_batch(cluster: Cluster, costs: Costs, batch_bytes: int, readers: int) -> Work:
    """A batch that is appended on all its replicas, and read by `readers`."""
    cpu = costs.append.on(cluster.replicas, batch_bytes, costs.to_follower, costs.follow)
    cpu = cpu.plus(costs.fetch.of(batch_bytes).times(readers))
    # Bytes go into the leader once, and out of it to followers and readers: the busier direction counts.
    return Work(
        cpu,
        batch_bytes * cluster.replicas,
        batch_bytes * max(cluster.replicas, cluster.replicas - 1 + readers),
    )


def of_put(cluster: Cluster, row: PerRow) -> Work:
    """A row of a table, in the log and in the store of every replica."""
    return Work(
        row.put_on(cluster.replicas), 2 * ROW_WIRE_BYTES * cluster.replicas, ROW_WIRE_BYTES * cluster.replicas
    )


def idle(cluster: Cluster, costs: Costs) -> Cpu:
    """What a second costs a node while nobody asks anything."""
    of_node = cluster.shards * cluster.replicas / cluster.nodes
    return costs.node.plus(costs.peer.times(cluster.nodes - 1)).plus(costs.shard.times(of_node))


def _rate(cluster: Cluster, costs: Costs, work: Work) -> Rate:
    """How often a second the nodes can do that together."""
    resting, million = idle(cluster, costs), 1e6 * cluster.share
    room = {
        "the event loops": (million - resting.loop, work.cpu.loop),
        "the cores": (million * cluster.cores - sum(resting), sum(work.cpu)),
        "the disks": (cluster.disk_mib_s * MIB * cluster.share, work.disk_bytes),
        "the networks": (cluster.network_mib_s * MIB * cluster.share, work.network_bytes),
    }
    rates = [
        Rate(max(0.0, has) * cluster.nodes / takes, name) for name, (has, takes) in room.items() if takes > 0
    ]
    return min(rates)


def _check(cluster: Cluster, batch_bytes: int, readers: int) -> None:
    if not 1 <= cluster.replicas <= cluster.nodes:
        raise ValueError(
            f"{cluster.nodes} nodes cannot hold {cluster.replicas} replicas of a shard: one each"
        )
    if batch_bytes < 1 or readers < 0 or min(cluster.shards, cluster.connections) < 0:
        raise ValueError(
            "a batch has a byte at least, and there are no fewer than 0 shards, connections and readers"
        )
    if not 0 < cluster.share <= 1 or min(cluster.cores, cluster.disk_mib_s, cluster.network_mib_s) <= 0:
        raise ValueError("the share is above 0 and at most 1; cores, disk and network are above 0")


def table_of_clusters(costs: Costs) -> str:
    """Clusters of 3, 30 and 300 nodes, for docs/capacity.md."""
    sizes = (3, 30, 300)
    clusters = [Cluster(nodes=size, shards=100 * size, connections=33 * size) for size in sizes]
    lines = ["| | " + " | ".join(f"{size} nodes" for size in sizes) + " |", "|---|" + "---|" * len(sizes)]
    for batch_bytes in (16_384, 131_072, 1_000_000):
        found = [capacity(cluster, costs, batch_bytes) for cluster in clusters]
        told = [f"{one.mib_s:,.0f} ({one.batches.bound_by})" for one in found]
        lines.append(f"| MiB/s in batches of {batch_bytes:,} bytes | " + " | ".join(told) + " |")
    found = [capacity(cluster, costs) for cluster in clusters]
    rows = {
        "puts a second, many in flight": [f"{one.put.a_second:,.0f}" for one in found],
        "puts a second, one in flight for each client": [f"{one.put_alone.a_second:,.0f}" for one in found],
        "gets a second, many in flight": [f"{one.get.a_second:,.0f}" for one in found],
        "CPU of a node that rests, % of a core": [f"{one.idle_percent:.1f}" for one in found],
        "memory of a node that rests, MiB": [f"{one.memory_mib:,.0f}" for one in found],
        "all shards have leaders again, when all machines lost power, s": [
            f"{one.elections_s:,.2f}" for one in found
        ],
    }
    return "\n".join([*lines, *(f"| {name} | {' | '.join(told)} |" for name, told in rows.items())])


def table_of_checks(costs: Costs) -> str:
    """What the model says beside what was measured, for docs/capacity.md."""
    lines = ["| | model | measured | ratio |", "|---|---|---|---|"]
    lines += [
        f"| {one.what} | {one.said:,.0f} | {one.measured:,.0f} | {one.ratio:.2f} |" for one in costs.checks
    ]
    return "\n".join(lines)
