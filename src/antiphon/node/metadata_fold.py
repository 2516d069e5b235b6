"""Folds the committed batches of `__cluster` into the cluster's metadata, on every voter alike.

No entry of that log may stop a voter for good, for it would stop them all, and at every start again. So what cannot be read
is passed over, by its bytes alone: a batch that is compressed (no coordinator compresses, and not every node can unpack)
or whose records cannot be told apart, and single records that mean nothing (`ClusterState.apply_readable`). Two things are
not passed over: a batch whose bytes are not what was written, for the damage is this disk's alone; and what a newer version
says it wrote, for the voters that can read it do not pass over it.

The log may begin above 0, at or behind a checkpoint (`coordination.checkpoints`), and may come to begin above what was
folded, when a leader sends a voter that was away for long the place to go on from. What is folded from there on is shown
when it is whole; until then the fold shows what it showed before.
"""

from collections.abc import Iterable

import structlog
from crc32c import crc32c

from antiphon.coordination.cluster_records import FORMAT, FORMAT_HEADER
from antiphon.coordination.state import ClusterState
from antiphon.errors import CorruptBatchError, NewerFormatError, StorageFailedError
from antiphon.node.metrics import NodeMetrics
from antiphon.records.batch import UNCHECKED_BYTES, BatchHeader, Buffer, iter_batches
from antiphon.records.decode import Record, decode_records


class MetadataFold:
    """The fold of one voter.

    Attributes:
        state: what it shows: the newest state that is whole.
        offset: where the next batch begins.
        checkpoint_ms: when the newest checkpoint that was met was closed, ms since 1970; 0: none was.
    """

    def __init__(self, offset: int, metrics: NodeMetrics) -> None:
        self.state = ClusterState()
        self.checkpoint_ms = 0
        self._metrics = metrics
        self._log = structlog.get_logger().bind(part="coordinator")
        self._begin(offset)

    @property
    def is_whole(self) -> bool:
        """Does `state` have everything up to `offset`?"""
        return self.state is self._folding

    def lacks(self) -> StorageFailedError:
        """Why nobody may decide by `state` where it is not whole."""
        return StorageFailedError(
            f"the log of `__cluster` here begins at {self._folding.begins_at}, and no checkpoint in it covers that: this "
            "node does not coordinate, another voter has to; keep its directory"
        )

    def _begin(self, offset: int) -> None:
        self.offset = offset
        self._folding = ClusterState(offset)
        self._show()

    def _show(self) -> None:
        if self._folding.is_whole:
            self.state = self._folding

    def starts_at(self, log_start: int) -> None:
        """The log begins there now. If something between that and what is folded is gone, begin anew."""
        if log_start > self.offset:
            self._log.warning("metadata_begins_anew", folded=self.offset, log_start=log_start)
            self._begin(log_start)

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
        before = self._folding.checkpoint
        for place, reason in self._folding.apply_readable(pairs, header.next_offset):
            self._passed_over(records[place].offset, reason)
        if self._folding.checkpoint != before:
            self.checkpoint_ms = header.max_timestamp
        self._show()

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
