"""What disks do to simulated machines: they fill up, fail, lose files, rot, and have old copies of files put back.

What loses data makes the machine *hurt* (`hurt_machines`). A replica that stops because its disk failed has done what it
should. An operator starts such a node again when the disk is as it should be (`Machine.mend`).
"""

import errno
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.log.disk import PASSING
from antiphon.log.hard_state import HARD_STATE_NAME
from antiphon.log.inventory import Holding, Inventory
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, without_padding
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault as DiskFault
from antiphon.log.simulated_faults import descriptors_used_up
from antiphon.log.simulated_tree import Copy
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.partition.multi_files import ORIGINS_FILE
from antiphon.simulation.cluster.disk_view import DIRECTORY, end_of_log, promise_of
from antiphon.simulation.cluster.drawing import MAIN, Drawn, one_of, seldom
from antiphon.simulation.cluster.faults import NEVER, Fault, Faults, register, restart_later, trouble
from antiphon.simulation.cluster.hurt_machines import (
    SHARDS,
    TABLES,
    flip_bit,
    hurt,
    lose_disk,
    may_be_hurt,
    names_in,
    shard_of,
    to_be_hurt,
)
from antiphon.simulation.cluster.rotten_files import bytes_around

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

CALLS: Final = (
    "open",
    "create",
    "read",
    "write",
    "truncate",
    "rename",
    "remove",
    "mkdir",
    "fsync_dir",
    "listdir",
)
RESTARTED: Final = (
    "a node whose replicas stopped or could not be opened is restarted, as by an operator, when faults are "
    "over"
)
STOP_S: Final = 10.0  # a node that takes longer to stop goes on


# -- disks that refuse ---------------------------------------------------------------------------------------------


@register(
    "disk_full",
    13,
    Drawn(one_of(0, 0, 2), MAIN, 24),
    then="a node that cannot start tries again every 0.5 s",
    told="the disk of node {node} was full for {ms} ms",
)
def _disk_full(faults: Faults, fault: Fault, draw: Random) -> None:
    """For a while nothing more can be written, or only a little, over restarts too."""
    machine = faults.machine(fault)
    machine.set_capacity(machine.disk.used_bytes() + draw.choice((0, 1_000, 50_000)))
    faults.later(fault.lasts_ms / 1000, machine.set_capacity, None)


def _arm(faults: Faults, fault: Fault, disk_fault: DiskFault) -> None:
    machine = faults.machine(fault)
    machine.may_stop = machine.may_stop or disk_fault.error not in PASSING
    trouble(faults, machine, disk_fault, fault.lasts_ms / 1000)


def _some_path(machine: "Machine", draw: Random) -> str:
    """All of the disk, or one replica's files."""
    found = names_in(machine, SHARDS)
    return f"{SHARDS}/{draw.choice(found)}" if found and draw.random() < 0.5 else DIRECTORY


@register(
    "disk_error",
    14,
    Drawn(one_of(0, 0, 1), MAIN, 25),
    then=RESTARTED,
    told="the disk of node {node} refused a call",
    renews=True,
)
def _disk_error(faults: Faults, fault: Fault, draw: Random) -> None:
    """Reads, writes or other calls fail (EIO): one, three, or each with a chance; of one replica or of the node."""
    path = _some_path(faults.machine(fault), draw)
    calls, chance = draw.choice(((1, 1.0), (3, 1.0), (1 << 60, 0.2)))
    kinds = () if draw.random() < 0.2 else (draw.choice(CALLS),)
    _arm(faults, fault, DiskFault(kinds, errno.EIO, path, draw.randrange(20), calls, chance))


@register(
    "fsync",
    15,
    Drawn(one_of(0, 0, 1), MAIN, 26),
    then=RESTARTED,
    told="a sync of the disk of node {node} failed",
    renews=True,
)
def _fsync(faults: Faults, fault: Fault, draw: Random) -> None:
    """One sync fails; its pages count as written, and are lost with the next power failure."""
    machine = faults.machine(fault)
    _arm(
        faults, fault, DiskFault(("fdatasync",), errno.EIO, _some_path(machine, draw), draw.randrange(10), 1)
    )


@register(
    "descriptors",
    16,
    Drawn(one_of(0, 0, 1), MAIN, 27),
    told="node {node} had no file descriptors left for {ms} ms",
)
def _descriptors(faults: Faults, fault: Fault, _draw: Random) -> None:
    """No file can be opened."""
    _arm(faults, fault, descriptors_used_up())


@register(
    "slow_calls",
    17,
    Drawn(one_of(0, 0, 1), "disks", 0),
)
def _slow_calls(faults: Faults, fault: Fault, draw: Random) -> None:
    """Each call takes 0.5 or 5 ms, each sync 10 or 100 ms, each byte 10 ns or 1 us; groups of writes are delayed by that."""
    machine = faults.machine(fault)
    call_s, sync_s, byte_s = draw.choice((0.0005, 0.005)), draw.choice((0.01, 0.1)), draw.choice((1e-8, 1e-6))

    def takes_s(kind: str, _path: str, size_bytes: int) -> float:
        return (sync_s if kind == "fdatasync" else call_s) + size_bytes * byte_s

    machine.set_duration(takes_s)
    faults.later(fault.lasts_ms / 1000, machine.set_duration, None)


# -- what happens while the node is down ---------------------------------------------------------------------------


def _files(part: Copy, path: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(part, bytes):
        yield path, part
        return
    for name in sorted(part):
        yield from _files(part[name], f"{path}/{name}")


def _opened(machine: "Machine") -> set[int]:
    """Shards whose replicas are open."""
    return set(machine.hosts)


def _replicas_of(machine: "Machine", opened: set[int]) -> list[str]:
    """Folders of all replicas, also those of shards that nobody has written to.

    Not of `__cluster` where its replica was not open: who does not vote keeps its log, and nobody finds and mends what
    happens to it before the node votes again.
    """
    found = [name for name in names_in(machine, SHARDS) if name.isdigit()]
    return [
        f"{SHARDS}/{name}" for name in found if int(name) != CLUSTER_SHARD_ID or CLUSTER_SHARD_ID in opened
    ]


@register(
    "lost_files",
    18,
    Drawn(one_of(0, 0, 0, 1), MAIN, 28),
    then="the machine is *hurt*",
    told="node {node} lost files",
    renews=True,
)
def _lost_files(faults: Faults, fault: Fault, draw: Random) -> None:
    """The node is killed, and starts without a segment's data, a replica's folder, a table's store, or all replicas'
    folders.
    """
    machine = to_be_hurt(faults, fault)
    if machine is None:
        return
    opened = _opened(machine)
    machine.kill()
    lost = _some_loss(machine, opened, draw)
    if lost:
        hurt(faults, machine, f"lost {' '.join(lost)}")
    for path in lost:
        machine.disk.lose(path)
    restart_later(faults, machine, fault.lasts_ms)


def _some_loss(machine: "Machine", opened: set[int], draw: Random) -> list[str]:
    shards = _replicas_of(machine, opened)
    tables = [f"{TABLES}/{name}" for name in names_in(machine, TABLES)]
    segments = [
        f"{shard}/{name}"
        for shard in shards
        for name in names_in(machine, shard)
        if name.endswith(DATA_SUFFIX)
    ]
    kind = draw.choice(("segment", "segment", "shard", "shard", "table", "all"))
    if kind == "all":
        return shards
    menu = {"segment": segments, "shard": shards, "table": tables}[kind]
    return [draw.choice(menu)] if menu else []


@register(
    "bit_flip",
    19,
    Drawn(one_of(0, 0, 0, 1), MAIN, 29),
    then=(
        "the machine is *hurt*. A flipped bit that nobody has read when faults are over is flipped back. Before "
        "a log's bit is flipped its index is synced: nobody can tell a flipped bit in the last batch from a "
        "torn write if a power failure removed the index entry. For the same reason no bit of a log is flipped "
        "that the killed process had not opened yet"
    ),
    told="a bit flipped on the disk of node {node}",
    renews=True,
)
def _bit_flip(faults: Faults, fault: Fault, draw: Random) -> None:
    """The node is killed, and starts with one bit flipped in a log, index, snapshot, hard state or store."""
    _flip(faults, fault, draw, "")


@register(
    "store_flip",
    20,
    Drawn(seldom(0.05), "seldom", 3),
    then="the machine is *hurt*",
)
def _store_flip(faults: Faults, fault: Fault, draw: Random) -> None:
    """As `bit_flip`, always in a table's store."""
    _flip(faults, fault, draw, "store")


def _flip(faults: Faults, fault: Fault, draw: Random, wanted: str) -> None:
    machine = to_be_hurt(faults, fault)
    if machine is None:
        return
    opened = _opened(machine)
    machine.kill()
    by_kind: dict[str, list[tuple[str, int]]] = {}
    tables = [f"{TABLES}/{name}" for name in names_in(machine, TABLES)]
    for root in (*_replicas_of(machine, opened), *tables):
        for path, data in _files(machine.disk.copy(root), root):
            kind = _kind_of_file(path)
            if path.endswith(DATA_SUFFIX) and shard_of(path) not in opened:
                continue  # its index may be what a power failure left of it, and nobody has mended that since
            # A bit of the room behind the last batch says nothing, and the next batch is written over it.
            size = len(without_padding(data)) if kind == DATA_SUFFIX else len(data)
            if size and kind and wanted in {"", kind}:
                by_kind.setdefault(kind, []).append((path, size))
    if by_kind:
        path, size = draw.choice(by_kind[draw.choice(sorted(by_kind))])
        bit = draw.randrange(size * 8)
        hurt(faults, machine, f"bit {bit} of {path}")
        flip_bit(machine, path, bit)
        machine.flipped.append((path, bit))
        machine.around_flips[path, bit] = bytes_around(machine.disk, path, bit)
    restart_later(faults, machine, fault.lasts_ms)


def _kind_of_file(path: str) -> str:
    if path.startswith(TABLES):
        return "store"
    ends = (DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, HARD_STATE_NAME, ORIGINS_FILE)
    return next((end for end in ends if path.endswith(end)), "")


@register(
    "old_shard",
    21,
    Drawn(one_of(0, 0, 0, 1), "disks", 1),
    then="the machine is *hurt*",
    renews=True,
)
def _old_shard(faults: Faults, fault: Fault, draw: Random) -> None:
    """An operator stops the node, restores a copy of a replica's folder that is older according to the inventory, and
    starts the node.
    """
    machine = faults.machine(fault)
    found = _replicas_of(machine, _opened(machine))
    if not found:
        return
    path = draw.choice(found)
    copy = machine.disk.copy(path)

    def put_back() -> None:
        if machine.disk.is_dir(path) and is_known_to_be_older(machine.disk, path, copy):
            hurt(faults, machine, f"old copy of {path}")
            machine.disk.restore(path, copy)

    def stop() -> None:
        if path in _replicas_of(machine, _opened(machine)):
            _while_stopped(faults, machine, put_back)

    faults.later(fault.lasts_ms / 1000 + 0.5, stop)


@register(
    "old_disk",
    22,
    NEVER,
    then="the machine is *hurt*",
    renews=True,
)
def _old_disk(faults: Faults, fault: Fault, _draw: Random) -> None:
    """The same as `old_shard` with the node's whole directory: the inventory is as old as the rest, so the node cannot
    detect it.
    """
    machine = faults.machine(fault)
    if not machine.disk.is_dir(DIRECTORY):
        return
    copy = machine.disk.copy(DIRECTORY)

    def put_back() -> None:
        hurt(faults, machine, "old copy of the disk")
        machine.disk.restore(DIRECTORY, copy)

    faults.later(fault.lasts_ms / 1000 + 0.5, _while_stopped, faults, machine, put_back)


def _while_stopped(faults: Faults, machine: "Machine", work: Callable[[], None]) -> None:
    """Stop the node in good order, do this to its disk, start it again."""
    process, server = machine.process, machine.server
    if (
        faults.stopped
        or process is None
        or server is None
        or not machine.is_up
        or not server.node.agent.registered.is_set()
    ):
        return
    if not may_be_hurt(faults.cluster, machine):
        return

    faults.cluster.watch.note_held(machine)

    def stopped() -> None:
        if machine.process is process and machine.is_up:
            machine.kill()
            if not faults.stopped and may_be_hurt(faults.cluster, machine):
                work()
            machine.start()

    task = process.run(server.stop())
    task.add_done_callback(lambda _: faults.later(0.0, stopped))
    faults.later(STOP_S, stopped)


@register(
    "new_disk",
    23,
    Drawn(seldom(0.1), "seldom", 1),
    then="the machine is *hurt*. In a shard that nobody has written to its replica must become whole too",
    renews=True,
)
def _new_disk(faults: Faults, fault: Fault, draw: Random) -> None:
    """The node is killed, or all lose power; one machine comes back with an empty disk."""
    machine = to_be_hurt(faults, fault)
    if machine is None:
        return
    for other in faults.cluster.machines if draw.random() < 0.5 else ():
        other.power_off()
        restart_later(faults, other, draw.randint(1, fault.lasts_ms))
    lose_disk(faults, machine)
    restart_later(faults, machine, fault.lasts_ms)


def is_known_to_be_older(disk: SimulatedDisk, path: str, copy: Copy) -> bool:
    """Does the node's inventory say that the replica had more? What nobody wrote down cannot be missed (guarantees.md)."""
    scratch = SimulatedDisk(Random(0))
    scratch.makedirs(path)
    for name in ("inventory", "inventory.copy"):
        if disk.exists(f"{DIRECTORY}/{name}"):
            scratch.restore(f"{DIRECTORY}/{name}", disk.copy(f"{DIRECTORY}/{name}"))
    inventory = Inventory.load(scratch, DIRECTORY)
    held = None if inventory is None else inventory.get(int(path.rsplit("/", 1)[1]))
    if held is None:
        return False
    scratch.restore(path, copy)
    found = Holding(promise_of(scratch, path)[0], end_of_log(scratch, path))
    return found.term < held.term or found.end < held.end
