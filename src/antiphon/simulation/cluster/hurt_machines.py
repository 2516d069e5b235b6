"""Machines whose disks have lost what was durable: which may be hurt, and when they are sound again.

At most one machine is *hurt* at a time: until all its replicas are sound again no other disk loses anything. What a
majority has lost no protocol brings back. A machine is hurt only where every shard that it has a voter of has two more, and
nothing of it is being moved or split. Where every replica writes, what its disk alone had is lost with it; the others have
the rest.
"""

from typing import TYPE_CHECKING, Final

from antiphon.client.moves import is_on_its_way
from antiphon.errors import DamagedStoreError
from antiphon.log.directory import SHARDS_NAME
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX
from antiphon.model.cluster import mark_of
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.node.mending import NEEDED
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, read_header
from antiphon.simulation.cluster.disk_view import DIRECTORY, shard_path
from antiphon.simulation.cluster.faults import Fault, Faults
from antiphon.simulation.cluster.rotten_files import bytes_around, is_rotten
from antiphon.simulation.memory_store import MemoryStore
from antiphon.simulation.rocks_on_disk import RocksOnDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine


SHARDS: Final = f"{DIRECTORY}/{SHARDS_NAME}"
TABLES: Final = f"{DIRECTORY}/tables"
BESIDE_THE_LOG: Final = (
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
)  # of files; a start may go without, or need them later
LOOK_S: Final = 0.25  # between two looks at whether a hurt machine is sound again


def newest_metadata(cluster: "SimulatedCluster") -> "ClusterMeta | None":
    """The newest that any node knows."""
    found = [node.view.cluster() for node in cluster.nodes]
    return max(found, key=lambda meta: (mark_of(meta.recovery), meta.version), default=None)


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
    voters, operator = newest.voters, cluster.operator
    if operator is not None and (operator.may_change_voters or operator.may_change_replicas):
        return False  # with two replicas each is needed
    votes = voters is not None and machine.node_id in voters.everybody
    if voters is not None and votes and (is_on_its_way(voters) or len(voters.ensemble) < 3):
        return False
    for _, shard in shards_on(cluster, machine.node_id):
        if is_on_its_way(shard) or shard.split is not None or len(shard.ensemble) < 3:
            return False
        if shard.fence != "majority" and len(set(shard.live) - {machine.node_id}) < 2:
            return False  # the last of the live set holds what nobody else has to have
    return True


def to_be_hurt(faults: Faults, fault: Fault) -> "Machine | None":
    """The machine that a fault is about, if it is up and may be hurt; what it holds now is noted."""
    machine = faults.machine(fault)
    if not machine.is_up or not may_be_hurt(faults.cluster, machine):
        return None
    faults.cluster.watch.note_held(machine)
    return machine


def flip_bit(machine: "Machine", path: str, bit: int) -> None:
    """A bit of a file rots."""
    machine.disk.flip_bit(path, bit)
    if path.endswith(DATA_SUFFIX):
        # Rot needs longer than the system takes to write an index back, which alone tells it from a torn write.
        machine.disk.write_back(path.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX)


def lose_disk(faults: Faults, machine: "Machine") -> None:
    """The process ends, and the next one finds an empty disk."""
    faults.cluster.watch.note_held(machine)
    machine.kill()
    hurt(faults, machine, "a new disk")
    faults.cluster.watch.disk_is_new(machine)
    machine.has_new_disk, machine.disk_is_known = True, False
    machine.disk.lose(DIRECTORY)


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
            _take_back_what_waits_for_people(machine)
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
        host = node.hosts.get(shard.shard_id)
        # A shard that most lost, and that went on from one replica, has less since.
        end = min(needed.get(shard.shard_id, 0), cluster.evidence.truth(shard.shard_id).end)
        if host is None or host.state.failed is not None or host.log.damaged is not None:
            return False
        if host.log.durable_end < end or not cluster.evidence.holds_all(machine, host, end):
            return False
        if machine.has_new_disk and not host.mode.elects_itself and machine.node_id not in shard.live:
            return False  # the coordinator does not trust it yet
        if _is_store_damaged(host):
            return False
    own = node.hosts.get(CLUSTER_SHARD_ID)
    if own is None and node.voters.is_held_here:
        return False
    end = needed.get(CLUSTER_SHARD_ID, 0) if machine.cluster_log_decayed else 0
    if own is not None and not cluster.evidence.holds_all(machine, own, end):
        return False
    # Of a replica that was moved away nothing is left to mend, whenever its removal becomes durable.
    mended = node.hosts.keys() - for_people
    paths = [path for path, _ in machine.flipped if path.endswith(BESIDE_THE_LOG)]
    paths += machine.rotten.keys()
    if any(shard_of(path) in mended and is_rotten(machine.disk, path) for path in paths):
        return False
    if any(shard_of(path) in mended and _is_unlike(cluster, machine, path) for path in machine.rotten):
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
    if path.endswith(BESIDE_THE_LOG):
        return is_rotten(machine.disk, path)
    return not _is_whole(cluster, machine, host, end) or _is_unlike(cluster, machine, path)


def _is_unlike(cluster: "SimulatedCluster", machine: "Machine", path: str) -> bool:
    """Has this segment a batch that is not as it was committed? Also before the log's start, for a start reads that, too.

    A flip in what no CRC of a batch covers shows here only. What compaction made smaller is compared elsewhere.
    """
    truth = cluster.evidence.truth(shard_of(path))
    if not path.endswith(DATA_SUFFIX) or truth.compaction is not None:
        return False
    data, at = bytes(machine.disk.durable(path) or b""), 0
    while len(data) - at >= HEADER_BYTES:
        header = read_header(data, at)
        size = header.batch_length + LENGTH_PREFIX_BYTES
        if header.magic != 2 or size < HEADER_BYTES:
            return False  # room for what comes next, or what `is_rotten` sees
        known = truth.at(header.base_offset)
        if known is not None and known.data != data[at : at + size]:
            return True
        at += size
    return False


def _take_back_what_waits_for_people(machine: "Machine") -> None:
    """A log that the scrub has found rotten, on a replica that the shard cannot do without: its node says what to do.

    A person would give the shard another replica. Here the bit is flipped back.
    """
    node = machine.node
    told = set() if node is None else {one.shard_id for one in node.care.findings.now if one.do == NEEDED}
    for path, bit in [one for one in machine.rotten.items() if shard_of(one[0]) in told]:
        if path.startswith(SHARDS) and is_rotten(machine.disk, path):
            machine.disk.flip_bit(path, bit)


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
        for name in names_in(machine, TABLES):
            if name.split(".")[0] == str(shard_id):
                machine.disk.lose(f"{TABLES}/{name}")
    cluster.evidence.disk_changed(machine)
    machine.start()


def _is_whole(cluster: "SimulatedCluster", machine: "Machine", host: "Partition", end: int) -> bool:
    if isinstance(host, MultiWriterPartition):
        return cluster.watch.multi.is_whole(machine, host)
    return cluster.evidence.holds_all(machine, host, end)


def names_in(machine: "Machine", path: str) -> list[str]:
    """Names in a directory, past the disk's calls; none where there is no such directory."""
    if not machine.disk.is_dir(path):
        return []
    found = machine.disk.copy(path)
    return sorted(found) if isinstance(found, dict) else []
