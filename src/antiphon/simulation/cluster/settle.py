"""After all faults have stopped: has everything come to rest, and is what lies on the disks what was committed?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from antiphon.client.moves import is_on_its_way
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.batch import read_header
from antiphon.records.changes import stored_version
from antiphon.simulation.cluster.index_checks import check_indexes, check_order
from antiphon.simulation.cluster.marked_logs import check_transactions
from antiphon.simulation.cluster.settle_multi import check_multi, what_is_open_in_multi
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine


def is_settled(cluster: "SimulatedCluster") -> bool:
    """Does every shard have a leader that serves, and every replica of it the whole log, known to be committed?"""
    return not what_is_open(cluster)


def who_is_cut_off(cluster: "SimulatedCluster") -> str:
    """A node that dials another in vain, though both run and nothing is in the way; empty where there is none."""
    running = {machine.node_id: machine.node for machine in cluster.machines if machine.node is not None}
    for node_id, node in running.items():
        for other, link in node.network.links.items():
            if other in running and not link.up:
                return f"node {node_id} does not reach node {other}"
    return ""


def what_is_open(cluster: "SimulatedCluster") -> str:
    """The first thing that keeps the cluster from being settled; empty where there is none."""
    replicas: dict[int, list[tuple[Machine, Partition]]] = {}
    if cluster.evidence.hurt:
        return f"the replicas on nodes {sorted(cluster.evidence.hurt)} have not got back all that their disks had lost"
    for machine in cluster.machines:
        node = machine.node
        if node is None or not node.agent.registered.is_set():
            return f"node {machine.node_id} is not part of the cluster"
        if node.shards.broken:
            return f"node {machine.node_id} cannot open shards {tuple(node.shards.broken)}"
        for shard_id, host in node.hosts.items():
            replicas.setdefault(shard_id, []).append((machine, host))
    problems = [_what_is_open_in(shard_id, found) for shard_id, found in sorted(replicas.items())]
    return (
        next((problem for problem in problems if problem), "")
        or _what_is_not_known(cluster)
        or _what_moves(cluster, replicas)
        or _which_voters(cluster, {one.node_id for one, _ in replicas.get(CLUSTER_SHARD_ID, ())})
    )


def _what_is_not_known(cluster: "SimulatedCluster") -> str:
    """Somebody coordinates, and every node knows what the cluster's own log says."""
    nodes = cluster.nodes
    shells = [node.coordinator for node in nodes if node.coordinator is not None]
    active = [shell for shell in shells if shell.is_active]
    if len(active) != 1:
        return f"{len(active)} nodes coordinate"
    version = active[0].state.version
    for node in nodes:
        if node.view.version != version:
            return f"node {node.node_id} knows the metadata up to {node.view.version}, the coordinator up to {version}"
    return ""


def _which_voters(cluster: "SimulatedCluster", held: set[int]) -> str:
    """The cluster's own log is held by its voters alone, and no change of them is under way."""
    for node in cluster.nodes:
        record = node.view.cluster().voters
        if record is not None and (is_on_its_way(record) or held != set(record.ensemble)):
            return f"to node {node.node_id} the voters of `__cluster` are {record}, and nodes {sorted(held)} hold it"
    return ""


def _what_moves(cluster: "SimulatedCluster", replicas: "dict[int, list[tuple[Machine, Partition]]]") -> str:
    """Changes of members and splits that are not over, and replicas that should be elsewhere."""
    for node in cluster.nodes:
        for topic in node.view.cluster().topics:
            for shard in topic.shards:
                where = f"shard {topic.name}/{shard.index} ({shard.shard_id})"
                if is_on_its_way(shard) or shard.split is not None:
                    return f"to node {node.node_id} {where} is on its way: {shard}"
                held = {one.node_id for one, _ in replicas.get(shard.shard_id, ())}
                if held != set(shard.ensemble):
                    return f"{where} belongs on nodes {sorted(shard.ensemble)} and is on {sorted(held)}"
    return ""


def _what_is_open_in(shard_id: int, found: "list[tuple[Machine, Partition]]") -> str:
    multi = [(machine, host) for machine, host in found if isinstance(host, MultiWriterPartition)]
    if multi:
        return what_is_open_in_multi(shard_id, multi)
    single = [(machine, host) for machine, host in found if isinstance(host, SingleWriterPartition)]
    for machine, host in single:
        if host.state.failed is not None:
            return (
                f"the replica of shard {shard_id} on node {machine.node_id} has stopped: {host.state.failed}"
            )
        if host.log.damaged is not None:
            return f"the replica of shard {shard_id} on node {machine.node_id} is damaged: {host.log.damaged}"
    leaders = [host for _, host in single if host.state.is_serving]
    if len(leaders) != 1:
        return f"shard {shard_id} has {len(leaders)} leaders that serve"
    end = leaders[0].log.log_end
    for machine, host in single:
        if end == 0 and host.replica.settled == 0:
            continue  # a leader of an empty log writes nothing by itself, and so cuts nothing that others may hold of before
        if host.log.log_end != end or host.replica.settled != end or host.log.durable_end != end:
            return (
                f"the leader of shard {shard_id} has {end} entries; node {machine.node_id} has {host.log.log_end}, "
                f"{host.log.durable_end} of them durable, and knows {host.replica.settled} to be committed"
            )
        if host.table is not None and host.table.state.applied_offset < end:
            applied = host.table.state.applied_offset
            return f"the table of shard {shard_id} on node {machine.node_id} is at {applied} of {end}"
    return ""


def check_everything(cluster: "SimulatedCluster") -> None:
    """Raise ViolationError unless disks and stores hold what is committed."""
    multi: dict[int, list[tuple[Machine, MultiWriterPartition]]] = {}
    for machine in cluster.machines:
        for shard_id, host in sorted(machine.hosts.items()):
            if isinstance(host, MultiWriterPartition):
                multi.setdefault(shard_id, []).append((machine, host))
            elif isinstance(host, SingleWriterPartition) and host.state.failed is None:
                _check_log(cluster, machine, host)
                _check_producers(cluster, machine, host)
                truth = cluster.evidence.truth(shard_id)
                batches = [(read_header(batch.data), batch.data) for batch in truth.batches]
                check_transactions(
                    host,
                    batches,
                    machine.node_id,
                    host.log.log_start,
                    is_compacted=truth.compaction is not None,
                )
                if host.table is not None and shard_id in cluster.evidence.truths:
                    _check_table(cluster, machine, host)
                    check_indexes(host.shard_id, machine.node_id, host.table.state)
                    check_order(host.shard_id, machine.node_id, host.table.state)
    for shard_id, found in sorted(multi.items()):
        check_multi(cluster, shard_id, found)


def _check_log(cluster: "SimulatedCluster", machine: "Machine", host: "SingleWriterPartition") -> None:
    """What is on the disk is, byte for byte, what was committed."""
    truth = cluster.evidence.truth(host.shard_id)
    if truth.end == 0 and host.replica.settled == 0:
        return  # nothing was: see what is open in a shard
    for batch in cluster.evidence.durable_batches(machine, host):
        header = read_header(batch)
        truth.take(header, batch, f"the disk of node {machine.node_id}")
    require(
        host.log.log_end == truth.end,
        "agreement",
        f"the log on node {machine.node_id} ends at {host.log.log_end}, committed is {truth.end}",
        host.shard_id,
    )


def _check_producers(cluster: "SimulatedCluster", machine: "Machine", host: "Partition") -> None:
    """The replica knows each producer's last batch in its log, so that a repeated one would be recognised."""
    last = {}
    for batch in cluster.evidence.truth(host.shard_id).batches:
        header = read_header(batch.data)
        if (
            header.producer_id >= 0 and not header.is_control
        ):  # the end of a transaction is none of its batches
            last[header.producer_id] = (header.producer_epoch, header.base_sequence, header.base_offset)
    for producer_id, wanted in last.items():
        known = host.log.producers.last_batch(producer_id)
        found = None if known is None else (known.epoch, known.first_sequence, known.base_offset)
        require(
            found == wanted,
            "producers-known",
            f"the last batch of producer {producer_id} is (epoch, sequence, offset) {wanted}; node {machine.node_id} takes "
            f"{found} for it",
            host.shard_id,
        )


def folded(cluster: "SimulatedCluster", shard_id: int) -> dict[bytes, tuple[bytes, Any]]:
    """What a table's log comes to: value and version as it is stored, by key. Splits take keys away by range, not here."""
    rows = cluster.watch.tables.known(shard_id).rows()
    return {key: (row[(at := stored_version(row)[2]) :], row[:at]) for key, row in rows.items()}


def _rows(host: "Partition") -> Iterator[Any]:
    start = b""
    table = host.state.require_table()
    while True:
        rows, more = table.state.scan(start, b"", 1000)
        yield from rows
        if not more:
            return
        start = rows[-1].key + b"\x00"


def _check_table(cluster: "SimulatedCluster", machine: "Machine", host: "Partition") -> None:
    """The store holds what the log comes to."""
    state = host.state.require_table().state
    wanted = {key: row for key, row in folded(cluster, host.shard_id).items() if state.holds(key, row[1])}
    found = {row.key: row.value for row in _rows(host)}
    require(
        found == {key: value for key, (value, _) in wanted.items()},
        "table-is-its-log",
        f"the store on node {machine.node_id} has {len(found)} rows, its log comes to {len(wanted)}; they differ in "
        f"{sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key, (None,))[0])[:5]}",
        host.shard_id,
    )
