"""What disks do to simulated machines: they fill up, fail, lose files, rot, and have old copies of files put back.

Where every replica writes, what its disk alone had is lost with it; the others have the rest.

At most one machine is *hurt* at a time: its disk has lost what was durable, and until all its replicas are sound again no
other disk loses anything. What a majority has lost no protocol brings back. A machine is hurt only where every shard that it
has a voter of has two more, and nothing of it is being moved or split.

A replica that stops because its disk failed has done what it should. An operator starts such a node again when the disk
is as it should be (`Machine.mend`).
"""

import errno
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.client.moves import is_on_its_way
from antiphon.errors import DamagedStoreError
from antiphon.log.directory import SHARDS_NAME
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
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.simulation.cluster.disk_view import DIRECTORY, end_of_log, promise_of, shard_path
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later
from antiphon.simulation.cluster.rotten_files import bytes_around, is_rotten
from antiphon.simulation.memory_store import MemoryStore
from antiphon.simulation.rocks_on_disk import RocksOnDisk

if TYPE_CHECKING:
    from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine

SHARDS: Final = f"{DIRECTORY}/{SHARDS_NAME}"
TABLES: Final = f"{DIRECTORY}/tables"
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
STOP_S: Final = 10.0  # a node that takes longer to stop goes on
LOOK_S: Final = 0.25  # between two looks at whether a hurt machine is sound again


# -- disks that refuse ---------------------------------------------------------------------------------------------


@register("disk_full")
def _disk_full(faults: Faults, fault: Fault, draw: Random) -> None:
    """There is room for a little more, and then for nothing, until somebody makes room."""
    machine = faults.machine(fault)
    machine.set_capacity(machine.disk.used_bytes() + draw.choice((0, 1_000, 50_000)))
    faults.later(fault.lasts_ms / 1000, machine.set_capacity, None)


def _arm(faults: Faults, fault: Fault, disk_fault: DiskFault) -> None:
    machine = faults.machine(fault)
    machine.trouble.append(disk_fault)
    machine.may_stop = machine.may_stop or disk_fault.error not in PASSING

    def over() -> None:
        if disk_fault in machine.trouble:
            machine.trouble.remove(disk_fault)

    faults.later(fault.lasts_ms / 1000, over)


def _some_path(machine: "Machine", draw: Random) -> str:
    """All of the disk, or one replica's files."""
    found = _names(machine, SHARDS)
    return f"{SHARDS}/{draw.choice(found)}" if found and draw.random() < 0.5 else DIRECTORY


@register("disk_error")
def _disk_error(faults: Faults, fault: Fault, draw: Random) -> None:
    """Some calls fail: one, a few, or each with a chance, until the disk is well again."""
    path = _some_path(faults.machine(fault), draw)
    calls, chance = draw.choice(((1, 1.0), (3, 1.0), (1 << 60, 0.2)))
    kinds = () if draw.random() < 0.2 else (draw.choice(CALLS),)
    _arm(faults, fault, DiskFault(kinds, errno.EIO, path, draw.randrange(20), calls, chance))


@register("fsync")
def _fsync(faults: Faults, fault: Fault, draw: Random) -> None:
    """A sync fails, and the pages that it was to write count as written."""
    machine = faults.machine(fault)
    _arm(
        faults, fault, DiskFault(("fdatasync",), errno.EIO, _some_path(machine, draw), draw.randrange(10), 1)
    )


@register("descriptors")
def _descriptors(faults: Faults, fault: Fault, _draw: Random) -> None:
    """The process has as many files open as it may."""
    _arm(faults, fault, descriptors_used_up())


@register("slow_calls")
def _slow_calls(faults: Faults, fault: Fault, draw: Random) -> None:
    """Each call to the disk takes long, and every byte adds to it; syncs are the slowest."""
    machine = faults.machine(fault)
    call_s, sync_s, byte_s = draw.choice((0.0005, 0.005)), draw.choice((0.01, 0.1)), draw.choice((1e-8, 1e-6))

    def takes_s(kind: str, _path: str, size_bytes: int) -> float:
        return (sync_s if kind == "fdatasync" else call_s) + size_bytes * byte_s

    machine.set_duration(takes_s)
    faults.later(fault.lasts_ms / 1000, machine.set_duration, None)


# -- who may be hurt -----------------------------------------------------------------------------------------------


def newest_metadata(cluster: "SimulatedCluster") -> "ClusterMeta | None":
    """The newest that any node knows."""
    found = [machine.node.view.cluster() for machine in cluster.machines if machine.node is not None]
    return max(found, key=lambda meta: meta.version, default=None)


def shards_on(cluster: "SimulatedCluster", node_id: int) -> "Iterator[tuple[TopicMeta, ShardMeta]]":
    """What the node has a replica of, as the newest metadata says."""
    meta = newest_metadata(cluster)
    for topic in () if meta is None else meta.topics:
        for shard in topic.shards:
            if node_id in shard.everybody:
                yield topic, shard


def may_be_hurt(cluster: "SimulatedCluster", machine: "Machine") -> bool:
    """Can every shard do without what this machine's disk holds?"""
    newest = newest_metadata(cluster)
    if cluster.evidence.hurt or newest is None or newest.version < cluster.watch.modes.version:
        return False  # after a power failure the nodes may know older live sets than those that are recorded
    for _, shard in shards_on(cluster, machine.node_id):
        if is_on_its_way(shard) or shard.split is not None or len(shard.ensemble) < 3:
            return False
        if shard.fence != "majority" and len(set(shard.live) - {machine.node_id}) < 2:
            return False  # the last of the live set holds what nobody else has to have
    return True


def hurt(faults: Faults, machine: "Machine", what: str) -> None:
    """From now on, and until it is sound, this machine's disk proves nothing."""
    cluster = faults.cluster
    cluster.tell("hurt", machine.node_id, what)
    cluster.evidence.hurt.add(machine.node_id)
    cluster.watch.word.forget(machine.node_id)
    machine.may_stop = True
    needed = {shard_id: truth.end for shard_id, truth in cluster.evidence.truths.items()}
    clocks = cluster.watch.multi.disk_hurt(machine)
    cluster.evidence.disk_changed(machine)

    def look() -> None:
        if is_sound(cluster, machine, needed) and cluster.watch.multi.is_sound(machine, clocks):
            cluster.evidence.hurt.discard(machine.node_id)
            machine.flipped.clear()  # what has those names by now may be other files
            machine.rotten.clear()
            cluster.tell("sound", machine.node_id)
            return
        if faults.stopped:
            _take_back_flips(cluster, machine, needed)
            _remove_closed_tables(cluster, machine)
        faults.later(LOOK_S, look)

    faults.later(LOOK_S, look)


def is_sound(cluster: "SimulatedCluster", machine: "Machine", needed: dict[int, int]) -> bool:
    """Does this machine hold again, on its disk, all that was committed when it was hurt?"""
    node = machine.node
    if node is None or not node.agent.registered.is_set() or node.shards.broken:
        return False
    for_people = _told_to_people(cluster, machine)
    for _, shard in shards_on(cluster, machine.node_id):
        if shard.shard_id in for_people:
            continue
        host, end = node.hosts.get(shard.shard_id), needed.get(shard.shard_id, 0)
        if host is None or host.state.failed is not None or host.log.damaged is not None:
            return False
        if host.log.durable_end < end or not cluster.evidence.holds_all(machine, host, end):
            return False
        if machine.has_new_disk and not host.mode.elects_itself and machine.node_id not in shard.live:
            return False  # the coordinator does not trust it yet
        if _is_store_damaged(host):
            return False
    own = node.hosts.get(CLUSTER_SHARD_ID)
    if machine.cluster_log_decayed and not (
        own is not None and cluster.evidence.holds_all(machine, own, needed.get(CLUSTER_SHARD_ID, 0))
    ):
        return False
    # Of a replica that was moved away nothing is left to mend, whenever its removal becomes durable.
    mended = node.hosts.keys() - for_people
    paths = [path for path, _ in machine.flipped if path.endswith(INDEX_SUFFIX)]
    paths += machine.rotten
    if any(shard_of(path) in mended and is_rotten(machine.disk, path) for path in paths):
        return False
    return all(host.log.damaged is None for host in node.hosts.values())


def _told_to_people(cluster: "SimulatedCluster", machine: "Machine") -> set[int]:
    """Shards of two replicas by now whose log cannot make a store anew: the shard needs both, and the node says so."""
    node = machine.node
    if node is None:
        return set()
    told = {one.shard_id for one in node.care.findings.now}
    few = {shard.shard_id for _, shard in shards_on(cluster, machine.node_id) if len(shard.everybody) < 3}
    return {one for one in few & told if one in node.hosts and node.hosts[one].log.log_start > 0}


def shard_of(path: str) -> int:
    """Whose file it is: `/data/shards/7/...` or `/data/tables/7/...`."""
    return int(path.split("/")[3].split(".", maxsplit=1)[0])


def _is_store_damaged(host: "Partition") -> bool:
    """Was a block of the table's store found to be rotten when it was opened?"""
    store = None if host.table is None else host.table.state._store  # noqa: SLF001 - what nobody is told yet
    return isinstance(store, MemoryStore | RocksOnDisk) and bool(store.damaged)


def _take_back_flips(cluster: "SimulatedCluster", machine: "Machine", needed: dict[int, int]) -> None:
    """Rot that nobody has read by the end of the faults is none: what else would the checks at the end find?

    What the node has found stays: it may be about to act on it.
    """
    node = machine.node
    if node is None or not node.agent.registered.is_set():
        return
    read = {one.shard_id for one in node.care.findings.now} - _told_to_people(cluster, machine)
    for path, bit in machine.flipped:
        shard_id = shard_of(path)
        host = node.hosts.get(shard_id)
        if (
            host is None
            or host.state.failed is not None
            or host.log.damaged is not None
            or not machine.disk.exists(path)
        ):
            continue
        if path.startswith(TABLES):
            if _is_store_damaged(host):
                machine.kill()
                machine.disk.flip_bit(path, bit)
                machine.start()
                return
        elif machine.around_flips.get((path, bit)) != bytes_around(machine.disk, path, bit):
            continue  # compaction, or a copy of another node's, has put other bytes there
        elif shard_id not in read and _is_hurt(cluster, machine, host, path, needed.get(shard_id, 0)):
            machine.disk.flip_bit(path, bit)


def _is_hurt(cluster: "SimulatedCluster", machine: "Machine", host: "Partition", path: str, end: int) -> bool:
    if path.endswith(INDEX_SUFFIX):
        return is_rotten(machine.disk, path)
    return not _is_whole(cluster, machine, host, end)


def _remove_closed_tables(cluster: "SimulatedCluster", machine: "Machine") -> None:
    """An operator does what a replica asks for whose store is damaged, or lost, and not to be made from its log."""
    node = machine.node
    broken = {} if node is None else node.shards.broken
    closed = [shard_id for shard_id, error in broken.items() if isinstance(error, DamagedStoreError)]
    if not closed:
        return
    machine.kill()
    for shard_id in closed:
        cluster.tell("removed", machine.node_id, shard_id)
        machine.disk.lose(shard_path(shard_id))
        for name in _names(machine, TABLES):
            if name.split(".")[0] == str(shard_id):
                machine.disk.lose(f"{TABLES}/{name}")
    cluster.evidence.disk_changed(machine)
    machine.start()


def _is_whole(cluster: "SimulatedCluster", machine: "Machine", host: "Partition", end: int) -> bool:
    if isinstance(host, MultiWriterPartition):
        return cluster.watch.multi.is_whole(machine, host)
    return cluster.evidence.holds_all(machine, host, end)


# -- what happens while the node is down ---------------------------------------------------------------------------


def _names(machine: "Machine", path: str) -> list[str]:
    """Names in a directory, past the disk's calls; none where there is no such directory."""
    if not machine.disk.is_dir(path):
        return []
    found = machine.disk.copy(path)
    return sorted(found) if isinstance(found, dict) else []


def _files(part: Copy, path: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(part, bytes):
        yield path, part
        return
    for name in sorted(part):
        yield from _files(part[name], f"{path}/{name}")


def _replicas_of(machine: "Machine") -> list[str]:
    """Folders of all replicas, also those of shards that nobody has written to."""
    return [f"{SHARDS}/{name}" for name in _names(machine, SHARDS) if name.isdigit()]


@register("lost_files")
def _lost_files(faults: Faults, fault: Fault, draw: Random) -> None:
    """The node is killed, and starts again without a segment, a shard's folder, a table's store, or all of them."""
    machine = faults.machine(fault)
    if not machine.is_up or not may_be_hurt(faults.cluster, machine):
        return
    faults.cluster.watch.note_held(machine)
    machine.kill()
    lost = _some_loss(machine, draw)
    if lost:
        hurt(faults, machine, f"lost {' '.join(lost)}")
    for path in lost:
        machine.disk.lose(path)
    restart_later(faults, machine, fault.lasts_ms)


def _some_loss(machine: "Machine", draw: Random) -> list[str]:
    shards = _replicas_of(machine)
    tables = [f"{TABLES}/{name}" for name in _names(machine, TABLES)]
    segments = [
        f"{shard}/{name}" for shard in shards for name in _names(machine, shard) if name.endswith(DATA_SUFFIX)
    ]
    kind = draw.choice(("segment", "segment", "shard", "shard", "table", "all"))
    if kind == "all":
        return shards
    menu = {"segment": segments, "shard": shards, "table": tables}[kind]
    return [draw.choice(menu)] if menu else []


@register("bit_flip")
def _bit_flip(faults: Faults, fault: Fault, draw: Random) -> None:
    """The node is killed, and starts again with one bit flipped in a log, index, snapshot, hard state or store."""
    _flip(faults, fault, draw, "")


@register("store_flip")
def _store_flip(faults: Faults, fault: Fault, draw: Random) -> None:
    """The same, always in a table's store."""
    _flip(faults, fault, draw, "store")


def _flip(faults: Faults, fault: Fault, draw: Random, wanted: str) -> None:
    machine = faults.machine(fault)
    if not machine.is_up or not may_be_hurt(faults.cluster, machine):
        return
    faults.cluster.watch.note_held(machine)
    opened = set() if machine.node is None else set(machine.node.hosts)
    machine.kill()
    by_kind: dict[str, list[tuple[str, int]]] = {}
    tables = [f"{TABLES}/{name}" for name in _names(machine, TABLES)]
    for root in (*_replicas_of(machine), *tables):
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
        machine.disk.flip_bit(path, bit)
        if path.endswith(DATA_SUFFIX):
            # Rot needs longer than the system takes to write an index back, which alone tells it from a torn write.
            machine.disk.write_back(path.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX)
        machine.flipped.append((path, bit))
        machine.around_flips[path, bit] = bytes_around(machine.disk, path, bit)
    restart_later(faults, machine, fault.lasts_ms)


def _kind_of_file(path: str) -> str:
    if path.startswith(TABLES):
        return "store"
    ends = (DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, HARD_STATE_NAME, ORIGINS_FILE)
    return next((end for end in ends if path.endswith(end)), "")


@register("old_shard")
def _old_shard(faults: Faults, fault: Fault, draw: Random) -> None:
    """An operator stops the node, puts an old copy of a replica's folder in its place, and starts it."""
    machine = faults.machine(fault)
    found = _replicas_of(machine)
    if not found:
        return
    path = draw.choice(found)
    copy = machine.disk.copy(path)

    def put_back() -> None:
        if machine.disk.is_dir(path) and is_known_to_be_older(machine.disk, path, copy):
            hurt(faults, machine, f"old copy of {path}")
            machine.disk.restore(path, copy)

    faults.later(fault.lasts_ms / 1000 + 0.5, _while_stopped, faults, machine, put_back)


@register("old_disk")
def _old_disk(faults: Faults, fault: Fault, _draw: Random) -> None:
    """The same with all that the node has."""
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


@register("new_disk")
def _new_disk(faults: Faults, fault: Fault, draw: Random) -> None:
    """The machine fails, and comes back with an empty disk; or all lose power, and one disk does not survive that."""
    machine = faults.machine(fault)
    if not machine.is_up or not may_be_hurt(faults.cluster, machine):
        return
    faults.cluster.watch.note_held(machine)
    for other in faults.cluster.machines if draw.random() < 0.5 else ():
        other.power_off()
        restart_later(faults, other, draw.randint(1, fault.lasts_ms))
    machine.kill()
    hurt(faults, machine, "a new disk")
    faults.cluster.watch.disk_is_new(machine)
    machine.has_new_disk, machine.disk_is_known = True, False
    machine.disk.lose(DIRECTORY)
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
