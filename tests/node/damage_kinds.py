"""What is damaged, and how: every kind of file of a node, and the ways in which a file can go wrong."""

import errno
import re
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import msgspec

from antiphon.log.compacted_files import CLEAN_NAME, SWAP_MAGIC, SWAP_NAME, Clean, Swap, save_clean
from antiphon.log.compacted_files import VERSION as SWAP_VERSION
from antiphon.log.compaction import _Output
from antiphon.log.config import LogConfig
from antiphon.log.disk import replace_file
from antiphon.log.layout import DAMAGE_NAME
from antiphon.log.recovery import DamageReport
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault
from antiphon.log.simulated_tree import Copy
from antiphon.log.snapshot import (
    RESET_NAME,
    START_NAME,
    LogStart,
    Snapshot,
    encode_snapshot,
    encode_start,
    frame,
    seal,
)
from antiphon.model.metadata import CLUSTER_SHARD_ID, ShardMeta
from antiphon.node.audit_notes import BOOK_NAME as AUDIT_NAME
from antiphon.node.known_voters import VOTERS_NAME, Address, Note, write_note
from antiphon.node.leased import LEASED_NAME, note_leased
from antiphon.partition.multi_salvage import SALVAGE_FILE, SALVAGE_MAGIC, SALVAGE_VERSION
from antiphon.partition.table_files import (
    INSTALL_MAGIC,
    INSTALL_SUFFIX,
    INSTALL_VERSION,
    Installation,
    note_damage,
    store_path,
)
from antiphon.records.batch import read_header
from antiphon.records.entry_id import EntryId
from tests.node.damage_cluster import COUNT, FOLDERS, files_of
from tests.node.in_process import DIRECTORY, KEY_FILE, NATIVE_PORT, PEER_PORT

VICTIM: Final = 1
HARMS: Final = (
    "flip", "cut", "extend", "zero", "swap", "reorder", "duplicate", "replace", "delete", "empty", "forbid",
)  # fmt: skip
OF_POSITIONS: Final = ("reorder", "replace")  # what takes another file of its kind in the same folder
PAGE_BYTES: Final = 512
RESET_TOPIC: Final = "other"

SHARD: Final = rf"{DIRECTORY}/shards/[1-9]\d*"
STORE: Final = rf"{DIRECTORY}/tables/\d+"
KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("identity.json", rf"{DIRECTORY}/identity\.json"),
    ("identity.copy", rf"{DIRECTORY}/identity\.copy"),
    ("inventory", rf"{DIRECTORY}/inventory"),
    ("inventory.copy", rf"{DIRECTORY}/inventory\.copy"),
    ("joined", rf"{DIRECTORY}/joined"),
    ("lock", rf"{DIRECTORY}/lock"),
    ("scrub", rf"{DIRECTORY}/scrub"),
    ("findings", rf"{DIRECTORY}/findings"),
    ("audit", rf"{DIRECTORY}/audit"),
    ("voters", rf"{DIRECTORY}/voters"),
    ("reserve", rf"{DIRECTORY}/reserve"),
    ("peer.key", KEY_FILE),
    ("`__cluster`: segment", rf"{DIRECTORY}/shards/0/\d+\.log"),
    ("`__cluster`: index", rf"{DIRECTORY}/shards/0/\d+\.index"),
    ("`__cluster`: snapshot", rf"{DIRECTORY}/shards/0/\d+\.snapshot"),
    ("`__cluster`: hard-state", rf"{DIRECTORY}/shards/0/hard-state"),
    ("segment", rf"{SHARD}/\d+\.log"),
    ("index", rf"{SHARD}/\d+\.index"),
    ("aborted transactions", rf"{SHARD}/\d+\.aborted"),
    ("snapshot (log)", rf"{SHARD}/\d+\.snapshot"),
    ("start", rf"{DIRECTORY}/shards/\d+/start"),
    ("hard-state", rf"{SHARD}/hard-state"),
    ("high-watermark", rf"{DIRECTORY}/shards/\d+/high-watermark"),
    ("led-term", rf"{DIRECTORY}/shards/\d+/led-term"),
    ("compacted", rf"{SHARD}/compacted"),
    ("swap (of segments)", rf"{SHARD}/swap"),
    ("compacted segment", rf"{SHARD}/\d+\.log\.compacted"),
    ("compacted index", rf"{SHARD}/\d+\.index\.compacted"),
    ("leased", rf"{SHARD}/leased"),
    ("placement", rf"{DIRECTORY}/shards/\d+/placement"),
    ("origins", rf"{DIRECTORY}/shards/\d+/origins"),
    ("damaged", rf"{SHARD}/damaged"),
    ("behind-damage", rf"{SHARD}/behind-damage"),
    ("reset", rf"{SHARD}/reset"),
    ("store: CURRENT", rf"{STORE}/CURRENT"),
    ("store: MANIFEST", rf"{STORE}/MANIFEST-\d+"),
    ("store: rows (.sst)", rf"{STORE}/\d+\.sst"),
    ("store: OPTIONS", rf"{STORE}/OPTIONS-\d+"),
    ("store: IDENTITY", rf"{STORE}/IDENTITY"),
    ("store: .install", rf"{STORE}\.install"),
    ("store: .damaged", rf"{STORE}\.damaged"),
    ("arriving snapshot", rf"{DIRECTORY}/snapshots/receive-\d+/.*"),
)
PATTERNS: Final = dict(KINDS)
EMPTY_ONES: Final = ("joined",)
# What a running node reads again, or finds missing; the rest it reads at a start only.
READ_WHILE_RUNNING: Final = (
    "scrub", "findings", "identity.json", "inventory", "peer.key", "`__cluster`: segment", "`__cluster`: index",
    "`__cluster`: snapshot", "segment", "index", "aborted transactions", "snapshot (log)", "hard-state",
    "store: CURRENT", "store: MANIFEST", "store: rows (.sst)",
)  # fmt: skip

Shards = dict[str, int]  # by topic


# -- states that a node is in for a moment only -------------------------------------------------------------------------


def _log_of(disk: SimulatedDisk, shard_id: int) -> ShardLog:
    return ShardLog.open(disk, f"{DIRECTORY}/shards/{shard_id}", LogConfig(segment_bytes=4096))


def _found_damaged(disk: SimulatedDisk, shard_id: int) -> ShardLog:
    """A read of the running node had met damage, in the middle of the log."""
    log = _log_of(disk, shard_id)
    offset = (log.log_start + log.log_end) // 2
    log.note_damage(DamageReport(offset, log.path, 0, "a batch was not as it was written"))
    return log


def marked(disk: SimulatedDisk, shards: Shards) -> str:
    """The replica was found damaged, and is not whole again."""
    return f"{_found_damaged(disk, shards['log']).path}/{DAMAGE_NAME}"


def kept_behind_damage(disk: SimulatedDisk, shards: Shards) -> str:
    """The same where every replica writes: what stands whole behind the damage is kept."""
    log = _log_of(disk, shards["carts"])
    batches = b"".join(bytes(batch) for _, batch in log.reader.batches_from(log.log_start))
    path = f"{log.path}/{SALVAGE_FILE}"
    replace_file(disk, path, frame(SALVAGE_MAGIC, SALVAGE_VERSION, batches))
    _found_damaged(disk, shards["carts"])
    return path


def being_reset(disk: SimulatedDisk, shards: Shards) -> str:
    """A snapshot takes the place of the log, which is not emptied yet."""
    log = _log_of(disk, shards[RESET_TOPIC])
    at = EntryId(log.terms.end.term, log.log_end)
    snapshot = Snapshot(at.offset, at.offset, at.term, [], [], log.producers.encode(), b"")
    path = f"{log.path}/{RESET_NAME}"
    replace_file(disk, path, encode_snapshot(snapshot))
    replace_file(disk, f"{log.path}/{START_NAME}", encode_start(LogStart(at.offset, at.term, True)))
    return path


def being_installed(disk: SimulatedDisk, shards: Shards) -> str:
    """The new store of a table stands, and the log is still the old one."""
    log = _log_of(disk, shards["rows"])
    made = Installation(EntryId(log.terms.end.term, log.log_end), log.producers.encode())
    path = f"{DIRECTORY}/tables/{shards['rows']}{INSTALL_SUFFIX}"
    replace_file(disk, path, frame(INSTALL_MAGIC, INSTALL_VERSION, msgspec.msgpack.encode(made)))
    return path


def audited(disk: SimulatedDisk, shards: Shards) -> str:
    """An audit has found something in a replica here."""
    path = f"{DIRECTORY}/{AUDIT_NAME}"
    replace_file(disk, path, msgspec.json.encode({shards["log"]: "log/0 at offset 3: differs from node 2"}))
    return path


def with_voters(disk: SimulatedDisk, shards: Shards) -> str:
    """The voters have changed, and are who they were; every node has noted it."""
    path = f"{DIRECTORY}/{VOTERS_NAME}"
    addresses = tuple(
        Address(node, f"node-{node}:{NATIVE_PORT}", f"node-{node}:{PEER_PORT}") for node in range(COUNT)
    )
    write_note(disk, path, Note(ShardMeta(CLUSTER_SHARD_ID, 0, tuple(range(COUNT))), addresses))
    return path


def compacted(disk: SimulatedDisk, shards: Shards) -> str:
    """A part of a log is clean."""
    log = _log_of(disk, shards["other"])
    save_clean(disk, log.path, Clean(log.log_end // 2, log.log_end // 2, 1_000, 0))
    return f"{log.path}/{CLEAN_NAME}"


def being_swapped(disk: SimulatedDisk, shards: Shards) -> str:
    """Compaction has committed that a segment takes the place of two, and no name is changed yet."""
    log = _log_of(disk, shards[RESET_TOPIC])
    old = log.compacting.closed(log.log_end)[:2]
    made = _Output(disk, log.path, old[0].base_offset)
    batches = [bytes(batch) for _, batch in log.reader.batches_from(log.log_start)]
    made.add([one for one in batches if read_header(one).base_offset < old[-1].next_offset])
    swap = Swap(made.finish(), tuple(one.base_offset for one in old))
    path = f"{log.path}/{SWAP_NAME}"
    replace_file(disk, path, seal(SWAP_MAGIC, SWAP_VERSION, msgspec.msgpack.encode(swap)))
    return path


def _new_segment(suffix: str) -> Callable[[SimulatedDisk, Shards], str]:
    """The same; the damaged file is one of the new segment."""

    def prepared(disk: SimulatedDisk, shards: Shards) -> str:
        folder = being_swapped(disk, shards).rsplit("/", 1)[0]
        names = disk.listdir(folder)
        return f"{folder}/{next(name for name in names if name.endswith(suffix))}"

    return prepared


def leased(disk: SimulatedDisk, shards: Shards) -> str:
    """The replica may have promised to elect nobody but its leader."""
    path = f"{DIRECTORY}/shards/{shards['rows']}"
    note_leased(disk, path)
    return f"{path}/{LEASED_NAME}"


def store_marked(disk: SimulatedDisk, shards: Shards) -> str:
    """The store of a table was found damaged, and its log does not reach back to the beginning."""
    path = store_path(f"{DIRECTORY}/tables", shards["trimmed"])
    note_damage(disk, path)
    return next(one for one in paths_on(disk) if re.fullmatch(PATTERNS["store: .damaged"], one))


PREPARED: Final[dict[str, Callable[[SimulatedDisk, Shards], str]]] = {
    "damaged": marked,
    "behind-damage": kept_behind_damage,
    "reset": being_reset,
    "store: .install": being_installed,
    "audit": audited,
    "voters": with_voters,
    "compacted": compacted,
    "swap (of segments)": being_swapped,
    "compacted segment": _new_segment(".log.compacted"),
    "compacted index": _new_segment(".index.compacted"),
    "leased": leased,
    "store: .damaged": store_marked,
}
EVERYWHERE: Final = ("voters",)  # what all nodes have then


# -- damage ---------------------------------------------------------------------------------------------------------------


def disks_of(copies: dict[int, Copy], draw: Random) -> dict[int, SimulatedDisk]:
    """Disks with what was on others."""
    restored = {}
    for node_id, copy in copies.items():
        assert isinstance(copy, dict)
        restored[node_id] = SimulatedDisk(Random(draw.getrandbits(64)))
        for folder in FOLDERS:
            restored[node_id].restore(f"/{folder}", copy[folder])
    return restored


def paths_on(disk: SimulatedDisk) -> dict[str, bytes]:
    """All files of a node's disk."""
    return files_of({name: disk.copy(f"/{name}") for name in FOLDERS})


def harm_file(kind: str, path: str, harm: str, disks: dict[int, SimulatedDisk], draw: Random) -> None:
    """Do it, on the victim's disk."""
    disk = disks[VICTIM]
    data = bytes(disk.durable(path) or b"")
    match harm:
        case "flip" if data:
            disk.flip_bit(path, draw.randrange(8 * len(data)))
        case "cut":
            disk.restore(path, data[: len(data) // 2])
        case "extend":
            disk.restore(path, data + draw.randbytes(64))
        case "zero":
            at = draw.randrange(max(1, len(data) - PAGE_BYTES + 1))
            zeros = bytes(min(PAGE_BYTES, len(data) - at))
            disk.restore(path, data[:at] + zeros + data[at + len(zeros) :])
        case "swap":
            other_disk, other = _another(kind, path, disks)
            disk.restore(path, bytes(other_disk.durable(other) or b""))
            other_disk.restore(other, data) if other_disk is disk else None
        case "reorder" | "replace":
            other = neighbour(kind, path, paths_on(disk)) or path
            disk.restore(path, bytes(disk.durable(other) or b""))
            disk.restore(other, data) if harm == "reorder" else None
        case "duplicate":
            disk.restore(_twin(path), data)
        case "delete":
            disk.lose(path)
        case "empty":
            disk.restore(path, b"")
        case "forbid":
            disk.faults.append(Fault(("open", "read"), errno.EACCES, path))


def _another(kind: str, path: str, disks: dict[int, SimulatedDisk]) -> tuple[SimulatedDisk, str]:
    """A file of the same kind of another shard; elsewhere the same file of another node."""
    disk, folder = disks[VICTIM], path.rsplit("/", 1)[0]
    for found in paths_on(disk):
        if re.fullmatch(PATTERNS[kind], found) and not found.startswith(folder + "/"):
            return disk, found
    other = disks[(VICTIM + 1) % COUNT]
    return (other, path) if other.exists(path) else (disk, path)


def neighbour(kind: str, path: str, paths: Iterable[str]) -> str:
    """The next file of the same kind in the same folder, else the one before; empty: there is none."""
    folder = path.rsplit("/", 1)[0] + "/"
    alike = sorted(one for one in paths if one.startswith(folder) and re.fullmatch(PATTERNS[kind], one))
    behind = [one for one in alike if one > path]
    before = [one for one in alike if one < path]
    return (behind or before[::-1] or [""])[0]


def _twin(path: str) -> str:
    """A name under which a copy could be taken for another file of the same kind."""
    folder, name = path.rsplit("/", 1)
    number = re.match(r"\d{6,20}", name)
    if number is None:
        return f"{path}.copy"
    return f"{folder}/{int(number[0]) + 1:0{len(number[0])}d}{name[len(number[0]) :]}"
