"""What jobs leave in the cluster and beside lake tables: staged blobs, rows of epochs and of jobs, plans of mirrors."""

import struct
from typing import Any, Final

import msgspec

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.lake.plans import Plans
from antiphon.lake.targets.folder import Folder
from antiphon.model.rows import Row, Version
from antiphon.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES
from antiphon.records.builder import seal
from antiphon.spark.jobs.job_state import decode_job_row
from antiphon.spark.staging import commit, epochs
from antiphon.spark.staging.blobs import BlobHead, decode_blob, encode_blob
from antiphon.spark.staging.epochs import Epoch, Opened, Part
from tests.fuzz.target import FolderTarget, Target, check

TARGET_ID: Final = bytes(range(16))
VERSION: Final = Version(3, 0, 0, 0)
QUERY: Final = "query/ü"
PART: Final = Part(0, bytes(16), 3, 7, ((10, 200), (11, 90)))


class StagedBlobs(Target):
    """A batch of `__staged`, as whoever applies an epoch reads it. First byte 1: length and checksum are made right."""

    def seeds(self) -> list[bytes]:
        made = [
            (BlobHead(bytes(16), 1, ((0, 5), (2, 3), (0, 0))), [b"hello", b"abc", b""]),
            (BlobHead(b"", 0, ()), []),
        ]
        good = [b"".join(map(bytes, encode_blob(head, parts, 1000))) for head, parts in made]
        return [bytes([sealed]) + batch for sealed in (0, 1) for batch in good]

    def run(self, data: bytes) -> None:
        batch = bytearray(data[1:])
        if data[:1] == b"\x01" and len(batch) >= HEADER_BYTES:
            struct.pack_into(">i", batch, 8, len(batch) - LENGTH_PREFIX_BYTES)
            seal(batch)
        try:
            blob = decode_blob(memoryview(batch))
        except CorruptBatchError:
            return
        parts = [bytes(part) for _, part in blob.parts()]
        check(b"".join(parts) == bytes(blob.value), "the parts of a blob are not all of it, in order")
        check(
            [len(part) for part in parts] == [size for _, size in blob.head.parts],
            "a part has another size than its head says",
        )
        again = b"".join(map(bytes, encode_blob(blob.head, parts, 1000)))
        check(decode_blob(memoryview(again)) == blob, "a blob is another one after it was written")


class EpochRows(Target):
    """Rows of `__epochs`, and lists in `__staged` that epochs name. The first byte says which, then there is the value."""

    def seeds(self) -> list[bytes]:
        epoch = Epoch(
            QUERY, 4, "t", TARGET_ID, False, b"plan", 3, 1000, 0, {7: 10}, (PART,), (7, 12, 50), once=True
        )
        values: list[Any] = [epoch, Opened(4, 1000, {7: 10, 8: 0}), 1_700_000_000_000, (PART,), PART.blobs]
        found = [bytes([kind]) + msgspec.msgpack.encode(value) for kind, value in enumerate(values)]
        return [*found, b"\x05" + epochs.key_of(epochs.HEAD, TARGET_ID, QUERY)]

    def run(self, data: bytes) -> None:
        kind, value = data[0] % 6 if data else 0, data[1:]
        row = Row(b"head/k", value, VERSION)
        try:
            if kind == 0:
                self._epoch(row)
            elif kind == 1:
                opened = epochs.opened_of(row)
                again = Row(row.key, msgspec.msgpack.encode(opened), VERSION)
                check(epochs.opened_of(again) == opened, "a row is another one after it was written")
            elif kind == 2:
                check(isinstance(epochs.pending_since_ms(row), int), "a time is no number")
            elif kind == 5:
                word, target_id, query = epochs.split_key(value)
                epochs.split_key(epochs.key_of(word, target_id, query))
            else:
                commit.decode_parts(memoryview(value)) if kind == 3 else commit.decode_blobs(
                    memoryview(value)
                )
        except (CorruptBatchError, InvalidRequestError):
            return

    def _epoch(self, row: Row) -> None:
        epoch = epochs.stored_of(row).epoch
        again = Row(row.key, msgspec.msgpack.encode(epoch), VERSION)
        check(epochs.stored_of(again).epoch == epoch, "an epoch is another one after it was written")
        check(bool(str(epoch)), "an epoch has no name")
        for part in epoch.parts:
            check(part.first_offset >= 0, "a part begins nowhere")
            check(all(at.size_bytes > 0 for at in epochs.blobs_of(part.blobs)), "a blob has no bytes")


class JobRows(Target):
    """A row of `__jobs`: what a job was told, what became of a part, what it came to."""

    def seeds(self) -> list[bytes]:
        plan = {"job": "fold_topic", "source": "t", "starts": {"0": 0}, "ends": {"0": 17}, "slices": 4}
        return [
            msgspec.json.encode(plan),
            msgspec.json.encode({"rows": 3, "total": "12345678901234567890"}),
            b"{}",
        ]

    def run(self, data: bytes) -> None:
        try:
            found = decode_job_row(b"replay/x\x00plan", data)
        except CorruptBatchError:
            return
        check(
            decode_job_row(b"k", msgspec.json.encode(found)) == found,
            "a row is another one after it was written",
        )


class Beside:
    """What a plan asks of a target: the folder beside its data."""

    def __init__(self, folder: str) -> None:
        self.meta = Folder.at(folder)


class LakePlans(FolderTarget):
    """The plan of a mirror, which the next run completes: it commits the files and removes those of bad records."""

    def __init__(self) -> None:
        super().__init__()
        self._beside = Beside(str(self.folder))
        self._plans = Plans(self._beside, "t")  # type: ignore[arg-type]  # all that it asks
        self._file = self.folder / self._plans.name
        self._file.parent.mkdir()

    def seeds(self) -> list[bytes]:
        file = (
            b'{"name": "part-0a.parquet", "rows": 3, "size_bytes": 900, "nulls": {"a": 1}, "lowest": {"a": -4}, '
            b'"highest": {"a": 7}}'
        )
        plan = b'{"id": "0a", "files": [%s], "bad_files": [%s], "marks": {"t/0": [null, 5]}, "bad": 1, "merge": false}'
        good = [plan % (file, file), plan % (b"", b"")]
        return [
            *good,
            good[1].replace(b'{"t/0": [null, 5]}', b"[]"),
            good[1].replace(b'"bad": 1', b'"bad": "1"'),
        ]

    def run(self, data: bytes) -> None:
        self._file.write_bytes(data)
        try:
            plan = self._plans.open()
        except InvalidRequestError:
            return
        check(plan is not None, "a plan is there and not found")
        if plan is not None:
            self._file.unlink()
            self._plans.write(plan)
            check(self._plans.open() == plan, "a plan is another one after it was written")
            beside = set(self.folder.rglob("*"))
            self._plans.remove(plan)
            check(beside - set(self.folder.rglob("*")) == {self._file}, "other files are removed")
            check(self._plans.open() is None, "a plan that is done is still there")
