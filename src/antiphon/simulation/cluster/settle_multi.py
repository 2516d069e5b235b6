"""`settle` for shards that every replica writes: all replicas have all entries of all origins, and equal tables."""

from typing import TYPE_CHECKING

from antiphon.partition.multi_batches import identity
from antiphon.records.batch import check_batch, read_header
from antiphon.records.changes import VERSION, effects_of
from antiphon.replication.vclock import component
from antiphon.simulation.violation import require
from antiphon.table.merge import Cell

if TYPE_CHECKING:
    from antiphon.partition.multi_writer import MultiWriterPartition
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine

Identity = tuple[int, int]
"""Origin and LSN."""


def what_is_open_in_multi(shard_id: int, found: "list[tuple[Machine, MultiWriterPartition]]") -> str:
    """The first thing that keeps the replicas of a shard from being the same; empty where there is none."""
    clocks = {}
    for machine, host in found:
        who = f"the replica of shard {shard_id} on node {machine.node_id}"
        multi = host.replica
        if host.state.failed is not None:
            return f"{who} has stopped: {host.state.failed}"
        if multi.damaged or multi.splits:
            return f"{who} is damaged ({multi.damaged}) or found other histories: {multi.splits}"
        if multi.log.durable_end != multi.log_end:
            return f"{who} has {multi.log_end} entries, {multi.log.durable_end} of them durable"
        if host.table is not None and host.table.state.applied_offset != multi.log_end:
            return f"{who} has {multi.log_end} entries, and its table is at {host.table.state.applied_offset}"
        clocks[machine.node_id] = multi.vclock[1:]
    if len(set(clocks.values())) > 1:
        return f"the replicas of shard {shard_id} have the vector clocks {clocks}"
    return ""


def entries_of(
    cluster: "SimulatedCluster", machine: "Machine", host: "MultiWriterPartition"
) -> dict[Identity, bytes]:
    """What is durable on a replica's disk, by origin and LSN."""
    found: dict[Identity, bytes] = {}
    last: dict[int, int] = {}
    for batch in cluster.watch.multi.batches(machine, host):
        header = read_header(batch)
        check_batch(header, batch)
        origin, lsn = identity(header)
        require(
            lsn == last.get(origin, lsn - 1) + 1,
            "lsn-order",
            f"on node {machine.node_id} entry {lsn} of origin {origin} comes after {last.get(origin)}",
            host.shard_id,
        )
        last[origin] = lsn
        found[origin, lsn] = batch
    return found


def check_multi(
    cluster: "SimulatedCluster", shard_id: int, found: "list[tuple[Machine, MultiWriterPartition]]"
) -> None:
    """Raise ViolationError unless all replicas have the same entries, and a table is what they come to."""
    truth = cluster.watch.multi.truth(shard_id)
    for machine, host in found:
        entries = entries_of(cluster, machine, host)
        for name, batch in entries.items():
            truth.take(name, batch, machine.node_id)
        begins = host.replica.log.index.at_or_before(host.replica.log_start).clock
        missing = [
            name for name in truth.entries if name not in entries and name[1] > component(begins, name[0])
        ]
        require(
            not missing,
            "convergence",
            f"node {machine.node_id} has not got {sorted(missing)[:5]} (origin, LSN), its log begins with {begins}",
            shard_id,
        )
        if host.table is not None:
            _check_rows(machine, host, entries)


def folded(host: "MultiWriterPartition", entries: dict[Identity, bytes]) -> dict[bytes, Cell]:
    """What the entries come to by the table's rule, in an order of their own: it must not matter."""
    table = host.table
    if table is None:
        return {}
    merge = table.merged.rule.merge
    cells: dict[bytes, Cell] = {}
    for name in sorted(entries):
        for key, value, packed in effects_of(entries[name]):
            cell = Cell(value, VERSION.unpack(packed))
            cells[key] = merge(cells[key], cell) if key in cells else cell
    return cells


def _check_rows(machine: "Machine", host: "MultiWriterPartition", entries: dict[Identity, bytes]) -> None:
    cells = folded(host, entries)
    wanted = {key: (cell.value, cell.version[0]) for key, cell in cells.items() if cell.value is not None}
    rows, more = host.state.require_table().state.scan(b"", b"", 1_000_000)
    found = {row.key: (row.value, row.version.id) for row in rows}
    require(
        found == wanted and not more,
        "convergence",
        f"the table on node {machine.node_id} has {found}, its entries come to {wanted}",
        host.shard_id,
    )
