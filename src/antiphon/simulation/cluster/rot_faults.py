"""What is on a disk decays while the node that wrote it runs, and nobody reads it: for the scrub to find.

The machine is *hurt* from then on (`hurt_machines`). Nothing is ever put back: a run in which the rot is not found and
mended by the end breaks `liveness`.
"""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.log.aborted import ABORTED_SUFFIX
from antiphon.log.index import ENTRY_BYTES
from antiphon.log.segment import (
    DATA_SUFFIX,
    SNAPSHOT_SUFFIX,
    file_of,
    offsets_of,
    without_padding,
)
from antiphon.log.snapshot import Snapshot, decode_snapshot
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import iter_batches
from antiphon.simulation.cluster.disk_view import shard_path
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.faults import NEVER, Fault, Faults, register, restart_later
from antiphon.simulation.cluster.hurt_machines import flip_bit, hurt, may_be_hurt

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.machine import Machine


OF_CLUSTER: Final = 0.25  # of all rot; it has few files
TERM_AT: Final = 12  # bytes from a batch's beginning


@register(
    "rot",
    30,
    Drawn(lambda draw, world: 2 * int(world["scrub"] and draw.random() < 0.5), "rot", 2),
    then=(
        "the machine is *hurt*. Nothing is flipped back: before the end of the run the scrub has to find it, "
        "and have it mended. A store that has written the rows of a rotten run anew, from memory, has mended it "
        "too. The index of a log is synced with the flip, as for `bit_flip`"
    ),
    needs="scrub",
)
def _rot(faults: Faults, fault: Fault, draw: Random) -> None:
    """While a node runs and scrubs, a bit flips in a closed segment, its index, a table's store or the cluster's log."""
    machine = faults.machine(fault)
    if _may_decay(faults, machine):
        is_of_cluster = draw.random() < OF_CLUSTER and not machine.cluster_log_decayed
        _decay(faults, machine, draw, _files(machine, is_of_cluster=is_of_cluster))


@register(
    "cluster_rot",
    31,
    NEVER,
    then="the machine is *hurt*",
    needs="scrub",
)
def _cluster_rot(faults: Faults, fault: Fault, draw: Random) -> None:
    """As `rot`, always in the cluster's own log."""
    machine = faults.machine(fault)
    if _may_decay(faults, machine) and not machine.cluster_log_decayed:
        _decay(faults, machine, draw, _files(machine, is_of_cluster=True))


@register(
    "aborted_rot",
    32,
    Drawn(lambda draw, world: int(world["scrub"] and draw.random() < 0.5), "rot", 3),
    then="the machine is *hurt*; the node makes the index anew by itself",
    needs="scrub",
)
def _aborted_rot(faults: Faults, fault: Fault, draw: Random) -> None:
    """As `rot`, in an index of aborted transactions that the newest snapshot counts on."""
    machine = faults.machine(fault)
    if _may_decay(faults, machine):
        _decay(
            faults, machine, draw, [path for host in _hosts(machine) for path in _indexes_of(machine, host)]
        )


@register(
    "term_rot",
    33,
    NEVER,
    then="the machine is *hurt*",
    needs="scrub",
)
def _term_rot(faults: Faults, fault: Fault, draw: Random) -> None:
    """A bit flips in the term of a durable batch, and the power fails before the batch's index entry is durable.

    The term becomes one that nobody can have promised.
    """
    machine = faults.machine(fault)
    found = [*_unproven_terms(machine)] if _may_decay(faults, machine) else []
    if not found:
        return
    path, at = draw.choice(found)
    # Not in the last byte, nor the sign: the term becomes a later one than any that can have been promised.
    bit = 8 * (at + draw.randrange(3)) + draw.randrange(7)
    faults.cluster.watch.note_held(machine)
    hurt(faults, machine, f"bit {bit} of {path}, the term of a batch, before a power failure")
    machine.disk.flip_bit(path, bit)
    machine.power_off()
    restart_later(faults, machine, fault.lasts_ms)


def _unproven_terms(machine: "Machine") -> Iterator[tuple[str, int]]:
    """Where the terms of durable batches are whose index entries are not durable: file and byte."""
    for host in _hosts(machine):
        for view in host.log.reader.views()[-1:]:
            data = bytes(machine.disk.durable(view.data_path) or b"")
            proven = len(machine.disk.durable(view.index_path) or b"") // ENTRY_BYTES - 1
            at = 0
            for number, (header, _) in enumerate(iter_batches(without_padding(data))):
                if number >= proven and header.next_offset <= host.log.durable_end:
                    yield view.data_path, at + TERM_AT
                at += header.size_bytes


def _may_decay(faults: Faults, machine: "Machine") -> bool:
    node = machine.node
    return node is not None and node.agent.registered.is_set() and may_be_hurt(faults.cluster, machine)


def _hosts(machine: "Machine") -> "Iterator[Partition]":
    """Its sound replicas, in order."""
    for _, host in sorted(machine.hosts.items()):
        if host.state.failed is None and host.log.damaged is None:
            yield host


def _files(machine: "Machine", *, is_of_cluster: bool) -> list[str]:
    return [
        path
        for host in _hosts(machine)
        if is_of_cluster == (host.shard_id == CLUSTER_SHARD_ID)
        for path in _files_of(machine, host)
    ]


def _indexes_of(machine: "Machine", host: "Partition") -> Iterator[str]:
    snapshot = _newest_snapshot(machine, host)
    counted = () if snapshot is None else zip(snapshot.segments, snapshot.aborted, strict=False)
    for segment, count in counted:
        path = file_of(host.log.path, segment.base_offset, ABORTED_SUFFIX)
        if count and machine.disk.durable(path):
            yield path


def _newest_snapshot(machine: "Machine", host: "Partition") -> Snapshot | None:
    """As a start finds it; looked for without a call to the disk, at which the node might have to end."""
    directory, limit = host.log.path, min(host.log.durable_end, host.log.log_end)
    for offset in reversed(offsets_of(machine.disk.durable_names(directory), SNAPSHOT_SUFFIX)):
        path = file_of(directory, offset, SNAPSHOT_SUFFIX)
        data = machine.disk.durable(path) if offset <= limit else None
        snapshot = None if data is None else decode_snapshot(bytes(data), path)
        if snapshot is not None:
            return snapshot
    return None


def _decay(faults: Faults, machine: "Machine", draw: Random, found: list[str]) -> None:
    if not found:
        return
    path = draw.choice(found)
    data = bytes(machine.disk.durable(path) or b"")
    written = without_padding(data) if path.endswith(DATA_SUFFIX) else data
    bit = draw.randrange(8 * len(written))
    if path.startswith(f"{shard_path(CLUSTER_SHARD_ID)}/"):
        # Once in a run: a replica is opened anew once a minute at most.
        machine.cluster_log_decayed = True
        bit //= 2  # what was written last may still look like a write that a crash cut off
    faults.cluster.watch.note_held(machine)
    hurt(faults, machine, f"bit {bit} of {path} while the node runs")
    faults.cluster.tell("rot", machine.node_id, path)
    flip_bit(machine, path, bit)  # decision 0007
    machine.rotten[path] = bit


def _files_of(machine: "Machine", host: "Partition") -> Iterator[str]:
    """Files of a replica that are not written to any more, and have something in them; of `__cluster` its only segment."""
    if host.shard_id == CLUSTER_SHARD_ID:
        return (view.data_path for view in host.log.reader.views() if machine.disk.durable(view.data_path))
    paths = [path for view in host.log.reader.views()[:-1] for path in (view.data_path, view.index_path)]
    if host.table is not None:
        folder = host.table.path
        runs = [f"{folder}/{name}" for name in machine.disk.durable_names(folder) if name.endswith(".run")]
        paths += [path for path in runs if machine.disk.exists(path)]  # or its removal is not durable yet
    return (path for path in paths if machine.disk.durable(path))
