"""Files that a replica or a node has for a moment only, or in some kinds of shards, one of them hostile at a time."""

import struct
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from crc32c import crc32c

from antiphon.errors import AntiphonError, DamagedStoreError, NewerFormatError
from antiphon.log.compacted_files import (
    SWAP_MAGIC,
    SWAP_NAME,
    VERSION,
    Clean,
    Swap,
    load_clean,
    save_clean,
)
from antiphon.log.disk import replace_file
from antiphon.log.layout import DAMAGE_NAME
from antiphon.log.recovery import DamageReport, load_damage
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.snapshot import (
    RESET_NAME,
    START_NAME,
    LogStart,
    SegmentSummary,
    Snapshot,
    encode_snapshot,
    encode_start,
    frame,
    seal,
)
from antiphon.model.findings import AUDIT_TEXT_MAX
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta
from antiphon.node.audit_notes import load_notes
from antiphon.node.config import Member, NodeConfig
from antiphon.node.first_seen import FirstSeen
from antiphon.node.known_voters import VOTERS_NAME, Address, KnownVoters, Note, write_note
from antiphon.node.local_view import LocalView
from antiphon.node.raft_shards import known_placement, note_placement
from antiphon.node.scrub import BOOK_NAME, _load_book
from antiphon.partition.multi_batches import number_batch
from antiphon.partition.multi_files import pass_over, save_marks
from antiphon.partition.multi_opening import recover_multi_writer
from antiphon.partition.multi_salvage import SALVAGE_FILE, SALVAGE_MAGIC, SALVAGE_VERSION
from antiphon.partition.table_files import (
    INSTALL_MAGIC,
    INSTALL_SUFFIX,
    INSTALL_VERSION,
    Installation,
    recover_install,
)
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members
from antiphon.replication.origin_history import START, History
from antiphon.simulation.memory_store import MemoryEngine
from antiphon.table.rocks_manifest import BLOCK_BYTES, RECYCLED, recycled_record
from tests.fuzz.target import Target, check
from tests.fuzz.targets.disks import (
    CONFIG,
    SHARD,
    Files,
    OneFile,
    ShardFiles,
    _history,
    committed,
    files_under,
)

NODE: Final = "/node"
STORE: Final = f"{NODE}/tables/7"
LOG: Final = f"{NODE}/shards/7"
CONFIGURED: Final = NodeConfig(
    cluster_id="c", node_id=0, nodes=[Member(n, f"node-{n}:7400") for n in range(3)], dir=Path(NODE)
)
CONFLICT: Final = "last-writer-wins"
MASK_DELTA: Final = 0xA282EAD8


def _opened(disk: SimulatedDisk, path: str = SHARD) -> ShardLog:
    return ShardLog.open(disk, path, CONFIG, clock_ms=lambda: 1000)


class ShardStates(OneFile):
    """A replica that is known to be damaged, in the middle of being reset by a snapshot."""

    folder = SHARD

    def good_files(self) -> Files:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        _history(disk)
        log = _opened(disk)
        at = EntryId(log.terms.end.term, log.log_end)
        members = Members((0, 1, 2))
        waiting = Snapshot(at.offset, at.offset, at.term, [], [], log.producers.encode(), b"")
        log.note_damage(DamageReport(30, log.path, 0, "a batch was not as it was written"))
        replace_file(disk, f"{SHARD}/{RESET_NAME}", encode_snapshot(waiting))
        replace_file(disk, f"{SHARD}/{START_NAME}", encode_start(LogStart(at.offset, at.term, True, members)))
        return {
            name: data
            for name, data in files_under(disk, SHARD).items()
            if name in {RESET_NAME, START_NAME, DAMAGE_NAME, "hard-state"}
        }

    def open(self, disk: SimulatedDisk) -> None:
        try:
            log = _opened(disk)
            again = _opened(disk)
        except NewerFormatError:
            return
        check(load_damage(disk, SHARD) is not None, "the mark of damage is gone")
        check(log.damaged is not None, "the mark of damage counts for nothing")
        check(
            again.log_end == log.log_end, f"the log ended at {log.log_end}, opened again at {again.log_end}"
        )


class CompactedFiles(ShardFiles):
    """A log of which a part was compacted, and is about to take its place: `swap`, `compacted`, and the new segment."""

    def good_files(self) -> Files:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        _history(disk)
        files = files_under(disk, SHARD)
        first = min(name for name in files if name.endswith(".log"))
        stem = first.removesuffix(".log")
        data = files[first]
        headers = [header for header, _ in iter_batches(data)]
        size = sum(header.size_bytes for header in headers)
        end, newest = headers[-1].next_offset, max(header.max_timestamp for header in headers)
        new = SegmentSummary(int(stem), end, size, len(headers), newest)
        swap = Swap(new, (int(stem),), ())
        replace_file(disk, f"{SHARD}/{first}.compacted", data[:size])
        replace_file(disk, f"{SHARD}/{stem}.index.compacted", files[f"{stem}.index"])
        save_clean(disk, SHARD, Clean(end, end, 500, 0))
        replace_file(disk, f"{SHARD}/{SWAP_NAME}", seal(SWAP_MAGIC, VERSION, msgspec.msgpack.encode(swap)))
        return files_under(disk, SHARD)

    def open(self, disk: SimulatedDisk) -> None:
        try:
            clean = load_clean(disk, SHARD)
        except NewerFormatError:
            return
        check(self.is_sealed or clean.end >= 0, "clean before the log begins")
        super().open(disk)


class MultiFiles(OneFile):
    """A replica where every replica writes: what its files say of origins, and what was kept behind damage."""

    folder = SHARD

    def good_files(self) -> Files:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        log = _opened(disk)
        history, batches = History(START), []
        for number in range(12):
            batch = build_batch([(b"k", b"v%d" % number, [], 1000)], base_offset=number, leader_epoch=1)
            number_batch(batch, 1 + number % 2, number // 2 + 1)
            batches.append(bytes(batch))
        for whole in batches[:8]:
            committed(disk, log.stage_append([bytearray(whole)]))
        check(pass_over(log, history, 4), "the log cannot be read")
        committed(disk, save_marks(disk, log, (START, history.mark())))
        log.note_damage(DamageReport(6, log.path, 0, "a batch was not as it was written"))
        kept = frame(SALVAGE_MAGIC, SALVAGE_VERSION, b"".join(batches[8:]))
        replace_file(disk, f"{SHARD}/{SALVAGE_FILE}", kept)
        return files_under(disk, SHARD)

    def open(self, disk: SimulatedDisk) -> None:
        try:
            log = _opened(disk)
            for _ in range(2):
                stores = MemoryEngine(disk, Random(0))
                found = recover_multi_writer(disk, log, _topic(), CONFLICT, STORE, stores)
                for entry in found.behind_damage:
                    check(entry.size_bytes > 0, "nothing was kept, and is told")
        except (NewerFormatError, AntiphonError):
            return


def _topic() -> TopicMeta:
    return TopicMeta("t", b"t" * 16, Kind.TOPIC, 3, "multi", ())


class NodeStates(OneFile):
    """Small files of a node that are no identity and no inventory: books, placements, an installation under way."""

    folder = NODE

    def good_files(self) -> Files:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        for path in (LOG, STORE):
            disk.makedirs(path)
        shard = ShardMeta(7, 0, (0, 1, 2))
        note_placement(disk, LOG, (_topic(), shard))
        replace_file(disk, f"{NODE}/{BOOK_NAME}", msgspec.json.encode({7: 1000, 9: 2000}))
        replace_file(disk, f"{NODE}/findings", msgspec.json.encode({"7 ": 1000, "-1 disk_full": 2000}))
        replace_file(disk, f"{NODE}/audit", msgspec.json.encode({7: "t/0 at offset 3: differs", 9: "gap"}))
        voters = ShardMeta(0, 0, (0, 1, 3))
        write_note(
            disk, f"{NODE}/{VOTERS_NAME}", Note(voters, (Address(3, "node-3:7400", "node-3:7500"),), 9)
        )
        made = Installation(EntryId(2, 17), b"", Members((0, 1, 2)))
        data = frame(INSTALL_MAGIC, INSTALL_VERSION, msgspec.msgpack.encode(made))
        replace_file(disk, STORE + INSTALL_SUFFIX, data)
        return files_under(disk, NODE)

    def open(self, disk: SimulatedDisk) -> None:
        book = _load_book(disk, f"{NODE}/{BOOK_NAME}")
        check(all(isinstance(at, int) for at in book.values()), "no time")
        notes = load_notes(disk, f"{NODE}/audit")
        check(all(len(what) <= AUDIT_TEXT_MAX for what in notes.values()), "a long note")
        known = KnownVoters(CONFIGURED, LocalView("c"), disk)
        check(bool(known.voting) and set(known.asked) >= set(known.voting), "nobody votes")
        check(known.mark >= 0, "a history before the first one")
        first = FirstSeen(disk, NODE)
        check(first.since_ms((7, ""), 5000) <= 5000, "it is known since the future")
        try:
            placed = known_placement(disk, LOG)
            check(placed is None or isinstance(placed[1].shard_id, int), "no placement")
            found = recover_install(disk, STORE, LOG)
        except (NewerFormatError, DamagedStoreError):
            return
        if found is not None:
            check(not disk.exists(STORE + INSTALL_SUFFIX), "an installation never ends")
            _opened(disk, LOG)


class RocksManifest(Target):
    """The look at a manifest before RocksDB reads it: it ends, and tells of records that RocksDB reads for ever."""

    slow_s = 2.0

    def seeds(self) -> list[bytes]:
        whole = b"".join(_record(1, b"x" * size) for size in (0, 5, 300, 7000))
        return [whole, whole + _record(5, b"old"), whole + bytes(BLOCK_BYTES - len(whole)) + _record(11, b"")]

    def run(self, data: bytes) -> None:
        at = recycled_record(data)
        if at is not None:
            check(data[at + 6] in RECYCLED, "that is no record of a recycled file")
            check(recycled_record(data[:at]) is None, "there is one before it")
            check(recycled_record(data + b"more") == at, "what follows changes what is found")
        good = b"".join(
            _record(1, data[start : start + 900]) for start in range(0, min(len(data), 9000), 900)
        )
        kind = sorted(RECYCLED)[len(data) % len(RECYCLED)]
        check(recycled_record(good) is None, "a good manifest is refused")
        check(recycled_record(good + _record(kind, data[:50])) == len(good), "a recycled record is not found")


def _record(kind: int, data: bytes) -> bytes:
    """A record as RocksDB writes it."""
    checksum = crc32c(bytes([kind]) + data)
    masked = ((checksum >> 15 | checksum << 17) + MASK_DELTA) & 0xFFFFFFFF
    return struct.pack("<IHB", masked, len(data), kind) + data
