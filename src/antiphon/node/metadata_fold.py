"""Folds the committed batches of `__cluster` into the cluster's metadata, on every voter alike.

No entry of that log may stop a voter for good, for it would stop them all, and at every start again. So what cannot be read
is passed over, by its bytes alone: a batch that is compressed (no coordinator compresses, and not every node can unpack)
or whose records cannot be told apart, and single records that mean nothing (`ClusterState.apply_readable`). Two things are
not passed over: a batch whose bytes are not what was written, for the damage is this disk's alone; and what a newer version
says it wrote, for the voters that can read it do not pass over it.
"""

from collections.abc import Iterable

import structlog
from crc32c import crc32c

from antiphon.coordination.state import FORMAT, FORMAT_HEADER, ClusterState
from antiphon.errors import CorruptBatchError, NewerFormatError
from antiphon.node.metrics import NodeMetrics
from antiphon.records.batch import UNCHECKED_BYTES, BatchHeader, Buffer, iter_batches
from antiphon.records.decode import Record, decode_records


class MetadataFold:
    """The fold of one voter. `offset` is where the next batch begins."""

    def __init__(self, offset: int, metrics: NodeMetrics) -> None:
        self.state = ClusterState()
        self.offset = offset
        self._metrics = metrics
        self._log = structlog.get_logger().bind(part="coordinator")

    def fold(self, chunks: Iterable[Buffer]) -> None:
        """Fold whole committed batches that begin at `offset`, in order.

        Raises CorruptBatchError for bytes that are not what was written, NewerFormatError; what came before is folded.
        """
        for chunk in chunks:
            for header, batch in iter_batches(chunk):
                self._fold_batch(header, batch)
                self.offset = header.next_offset

    def _fold_batch(self, header: BatchHeader, batch: memoryview) -> None:
        if crc32c(batch[UNCHECKED_BYTES:]) != header.crc:
            raise CorruptBatchError(
                f"the batch of `__cluster` at offset {header.base_offset} is damaged here"
            )
        records = self._records(header, batch)
        for record in records:
            _check_format(record)
        pairs = [(record.key or b"", record.value) for record in records]
        for place, reason in self.state.apply_readable(pairs, header.next_offset):
            self._passed_over(records[place].offset, reason)

    def _records(self, header: BatchHeader, batch: memoryview) -> list[Record]:
        if header.is_control:
            return []
        try:
            if header.codec:
                raise CorruptBatchError("the batch is compressed")
            return decode_records(batch, check_crc=False)
        except CorruptBatchError as error:
            self._passed_over(header.base_offset, error.message)
            return []

    def _passed_over(self, offset: int, reason: str) -> None:
        self._metrics.metadata_unreadable += 1
        self._log.error("metadata_not_readable", offset=offset, reason=reason)


def _check_format(record: Record) -> None:
    """Raise NewerFormatError for what this version must not judge."""
    for name, value in record.headers:
        if name == FORMAT_HEADER and value is not None and value.isdigit() and int(value[:9]) > FORMAT:
            raise NewerFormatError(
                f"the record of `__cluster` at offset {record.offset} has format {value[:9].decode()}, this version reads "
                f"up to {FORMAT}: a newer antiphon coordinates this cluster; start this node with that version"
            )
