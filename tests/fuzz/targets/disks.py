"""What is read from disks: a shard's files and the node's own, one of them hostile at a time.

An input is a number (which file), a mode (as it is, or sealed: with the CRC that its content has) and the content.
"""

import os
import struct
from random import Random
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from antiphon.coordination.cluster_records import checkpoint_record
from antiphon.errors import AntiphonError, CorruptBatchError, ForeignDirectoryError, NewerFormatError
from antiphon.log.aborted import ABORTED_SUFFIX, load_aborted
from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import read_whole, write_whole
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.index import ENTRY_BYTES
from antiphon.log.inventory import Holding
from antiphon.log.producer_state import ProducerState
from antiphon.log.segment import INDEX_SUFFIX
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.access import Acl, Credential, Operation, Resource
from antiphon.model.metadata import Kind
from antiphon.model.requests import AlterAcls, AlterUser, CreateTopic
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.metrics import NodeMetrics
from antiphon.records.batch import TRANSACTIONAL_BIT, read_header
from antiphon.records.builder import build_batch, build_end_marker, build_members, seal
from antiphon.records.decode import decode_records
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members
from tests.fuzz.target import Target, check, quiet
from tests.log.helpers import finish
from tests.node import in_process

if TYPE_CHECKING:
    from antiphon.log.transactions import Aborted

SHARD: Final = "/shard"
NODE: Final = "/node"
SEALED: Final = 1
CREDENTIAL: Final = Credential("SCRAM-SHA-256", bytes(24), 8192, bytes(32), bytes(32))
CONFIG: Final = LogConfig(segment_bytes=4096)
Files = dict[str, bytes]


def committed(disk: SimulatedDisk, *operations: Any) -> None:
    """Carry operations out, as the WAL thread does."""
    committer = GroupCommitter(disk)
    for operation in operations:
        if operation is not None:
            committer.add(operation)
    for operation, error in committer.commit():
        check(error is None, f"{error}")
        finish(operation, error)


def files_under(disk: SimulatedDisk, folder: str) -> Files:
    """Every file there, by its name from there."""
    found: Files = {}
    for name in disk.listdir(folder):
        path = os.path.join(folder, name)
        if disk.is_dir(path):
            found |= {f"{name}/{below}": data for below, data in files_under(disk, path).items()}
        else:
            found[name] = read_whole(disk, path) or b""
    return found


def disk_of(folder: str, files: Files) -> SimulatedDisk:
    """A disk with these files."""
    disk = SimulatedDisk(Random(0), lambda: 0.0)
    disk.makedirs(folder)
    for name, data in files.items():
        path = os.path.join(folder, name)
        if "/" in name:
            disk.makedirs(os.path.dirname(path))
        write_whole(disk, path, data)
    return disk


def sealed(name: str, data: bytes) -> bytes:
    """The content with the checksum that its bytes have, where the file has one."""
    if name.endswith(INDEX_SUFFIX):
        entries = [
            data[at : at + ENTRY_BYTES - 4] for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES)
        ]
        return b"".join(entry + struct.pack(">I", crc32c(entry)) for entry in entries)
    if name.endswith(".log"):
        batch = bytearray(data)
        if len(batch) >= 61:
            size = struct.unpack_from(">i", batch, 8)[0] + 12
            if 61 <= size <= len(batch):
                first = batch[:size]
                seal(first)
                batch[:size] = first
        return bytes(batch)
    if len(data) >= 16 and data[:6] == b"ANTIPH":
        return data[:12] + struct.pack(">I", crc32c(data[16:])) + data[16:]
    return data


class OneFile(Target):
    """Base: good files, of which the input replaces one."""

    folder: str
    slow_s = 2.0
    is_sealed = False  # is the input that is running one with a checksum that was made right?

    def __init__(self) -> None:
        self.files = self.good_files()
        self.names = sorted(self.files)

    def good_files(self) -> Files:
        """The files of a healthy replica or node."""
        raise NotImplementedError

    def open(self, disk: SimulatedDisk) -> None:
        """Open what is there, and use it."""
        raise NotImplementedError

    def seeds(self) -> list[bytes]:
        return [
            bytes([number, mode]) + self.files[name]
            for number, name in enumerate(self.names)
            for mode in (0, SEALED)
        ]

    def run(self, data: bytes) -> None:
        if len(data) < 2:
            return
        name = self.names[data[0] % len(self.names)]
        self.is_sealed = bool(data[1] & SEALED)
        content = sealed(name, data[2:]) if self.is_sealed else data[2:]
        self.open(disk_of(self.folder, {**self.files, name: content}))


def _aborted(disk: SimulatedDisk, log: ShardLog, term: int, number: int) -> None:
    """A transaction, and the marker that aborts it."""
    batch = build_batch(
        [(None, b"gone", (), 1)],
        base_offset=log.log_end,
        leader_epoch=term,
        producer_id=9,
        producer_epoch=0,
        base_sequence=number,
    )
    batch[22] |= TRANSACTIONAL_BIT
    seal(batch)
    committed(disk, log.stage_append([batch]))
    said = {"commit": False, "number": number, "producer": (9, 0), "term": term, "timestamp_ms": 1}
    committed(disk, log.stage_append([build_end_marker(base_offset=log.log_end, **said)]))  # type: ignore[arg-type]


def _history(disk: SimulatedDisk) -> None:
    """A log with several segments, members, producers, aborted transactions, a trimmed start, promises, snapshots."""
    log = ShardLog.open(disk, SHARD, CONFIG, clock_ms=lambda: 1000)
    committed(disk, log.hard_state.stage(1, 2))
    term = 1
    for number in range(40):
        end = log.log_end
        batch = build_batch(
            [(b"k%d" % number, b"v" * 300, [("h", b"x")], 1000 + number)],
            base_offset=end,
            leader_epoch=term,
            producer_id=5,
            producer_epoch=0,
            base_sequence=number,
        )
        committed(disk, log.stage_append([batch]))
        if number % 6 == 2:
            _aborted(disk, log, term, number)
        if number == 20:
            term = 2
            committed(disk, log.hard_state.stage(term, None))
            members = build_members(Members((0, 1, 2), (), ()), term, log.log_end, 1)
            committed(disk, log.stage_append([members]))
    committed(disk, log.hard_state.stage_high_watermark(30), log.hard_state.stage_led_term(2))
    committed(disk, log.checkpoint(), log.trim(14))
    committed(disk, log.checkpoint())


class ShardFiles(OneFile):
    """A replica's files: it opens, says what is damaged, and reads, writes and opens again what is left."""

    folder = SHARD

    def good_files(self) -> Files:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        _history(disk)
        return files_under(disk, SHARD)

    def open(self, disk: SimulatedDisk) -> None:
        try:
            log = ShardLog.open(disk, SHARD, CONFIG, clock_ms=lambda: 1000)
            self._read_all(log)
            if log.damaged is None:
                log = self._written(disk, log)
            again = ShardLog.open(disk, SHARD, CONFIG, clock_ms=lambda: 1000)
        except NewerFormatError:
            return
        if self.is_sealed:
            return  # whoever makes checksums right can tell any lie: that it is borne is all
        if log.damaged is None:
            check(
                again.log_end == log.log_end,
                f"the log ended at {log.log_end}, opened again at {again.log_end}",
            )
        else:
            check(again.damaged is not None, "the report of damage is lost by opening again")

    def _read_all(self, log: ShardLog) -> None:
        at = log.log_start
        while at < log.log_end:
            try:
                batches = log.read(at, 1 << 16, log.log_end)
            except AntiphonError:
                return  # damage that only reading meets
            if not batches:
                check(self.is_sealed, f"nothing to read at {at} of {log.log_start}..{log.log_end}")
                return
            before = at
            for batch in batches:
                header_end = (
                    int.from_bytes(batch[0:8], "big", signed=True) + int.from_bytes(batch[23:27], "big") + 1
                )
                at = max(at, header_end)
            check(at > before or self.is_sealed, f"a read at {before} did not get on")
            if at <= before:
                return

    def _written(self, disk: SimulatedDisk, log: ShardLog) -> ShardLog:
        term = max(log.terms.end.term, 1)
        batch = build_batch([(None, b"new", (), 1)], base_offset=log.log_end, leader_epoch=term)
        committed(disk, log.stage_append([batch]))
        return log


class AbortedFiles(Target):
    """An index of aborted transactions: the first byte says how it is sealed, the next eight are the snapshot's offset."""

    path = f"{SHARD}/00000000000000000000{ABORTED_SUFFIX}"

    def seeds(self) -> list[bytes]:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        _history(disk)
        found = [data for name, data in files_under(disk, SHARD).items() if name.endswith(ABORTED_SUFFIX)]
        check(len(found) > 1, "no index of aborted transactions to begin with")
        return [
            bytes([mode]) + struct.pack(">q", before) + data
            for data in found
            for mode in (0, SEALED)
            for before in (0, 20, 1 << 40)
        ]

    def run(self, data: bytes) -> None:
        if len(data) < 9:
            return
        content = sealed(self.path, data[9:]) if data[0] & SEALED else data[9:]
        (before,) = struct.unpack_from(">q", data, 1)
        disk = disk_of(SHARD, {os.path.basename(self.path): content})
        try:
            found = load_aborted(disk, self.path, before)
        except NewerFormatError:
            return
        if found is None:
            return
        check(len(found) * 32 <= len(content), "it names more than the file has room for")
        for start, end in ((0, 1 << 62), (before, before + 10), (-5, 0)):
            told: list[Aborted] = []
            found.find(start, end, told)
            check(len(told) <= len(found), "a transaction is told twice")
            check(all(one.first_offset < end for one in told), "what is told begins behind the end")
        write_whole(disk, self.path, found.encode())
        again = load_aborted(disk, self.path, 1 << 62)
        check(
            again is not None and again.encode() == found.encode(), "it is another one after it was written"
        )


class NodeFiles(OneFile):
    """A node's own files: who it is, and which replicas it holds."""

    folder = NODE

    def good_files(self) -> Files:
        disk = SimulatedDisk(Random(0), lambda: 0.0)
        directory = self._opened(disk)
        for shard in (1, 7):
            directory.inventory.put(shard, Holding(3, EntryId(2, 17)), durable=True)
        directory.note_joined()
        directory.close()
        return {name: data for name, data in files_under(disk, NODE).items() if name != "lock"}

    def _opened(self, disk: SimulatedDisk) -> NodeDirectory:
        return NodeDirectory.open(NODE, "cluster", 0, disk=disk, bootstrap=True)

    def open(self, disk: SimulatedDisk) -> None:
        try:
            directory = self._opened(disk)
        except (ForeignDirectoryError, NewerFormatError):
            return
        shards = directory.shard_ids()
        directory.close()
        again = self._opened(disk)
        check(again.shard_ids() == shards, "opened again, the node holds other replicas")
        again.close()


class Producers(Target):
    """The state of a shard's producers, as it comes with snapshots of other nodes."""

    def seeds(self) -> list[bytes]:
        log = SimulatedDisk(Random(0), lambda: 0.0)
        _history(log)
        found = ShardLog.open(log, SHARD, CONFIG, clock_ms=lambda: 1000)
        return [found.producers.encode(), found.producers.encode(10), ProducerState().encode()]

    def run(self, data: bytes) -> None:
        try:
            state = ProducerState.decode(data)
        except CorruptBatchError:
            return
        again = ProducerState.decode(state.encode()).encode()
        check(again == state.encode(), "the producers are others after they were written")


class Metadata(Target):
    """A record of `__cluster` (its key's length, key, value) behind those of a real cluster. What is bad is passed over."""

    def __init__(self) -> None:
        self._records = cluster_records()
        self._good = bytes(build_batch([(key, value, (), 1) for key, value in self._records]))

    def seeds(self) -> list[bytes]:
        records = [*self._records, checkpoint_record(1)]
        return [bytes([len(key)]) + key + (value or b"") for key, value in records]

    def run(self, data: bytes) -> None:
        if not data:
            return
        key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
        fold = MetadataFold(0, NodeMetrics())
        fold.fold([self._good])
        after = read_header(self._good).next_offset
        try:
            fold.fold([bytes(build_batch([(key, value, (), 1)], base_offset=after))])
        except NewerFormatError:
            return
        check(fold.offset == after + 1, "the fold did not get on")
        state = fold.state
        state.clone()
        for topic in state.topics:
            state.topic_with_shards(topic)


def cluster_records() -> list[tuple[bytes, bytes | None]]:
    """What a cluster with a topic, a table, users and access control lists has written of itself."""
    found: list[tuple[bytes, bytes | None]] = []

    async def make() -> None:
        async with in_process.cluster_of(1) as nodes:
            gateway = nodes.nodes[0].gateway
            await gateway.create_topic(CreateTopic("topic", Kind.TOPIC, 2))
            await gateway.create_topic(CreateTopic("table", Kind.TABLE, 1))
            await gateway.administer(AlterUser("eve", (CREDENTIAL,)))
            await gateway.administer(AlterAcls((Acl("User:eve", Resource.TOPIC, "topic", Operation.READ),)))
            log = nodes.nodes[0].hosts[0].log
            at = 0
            while at < log.log_end:
                for batch in log.read(at, 1 << 20, log.log_end):
                    found.extend((record.key or b"", record.value) for record in decode_records(batch))
                    at = read_header(batch).next_offset

    with quiet():
        in_process.run(make())
    return found
