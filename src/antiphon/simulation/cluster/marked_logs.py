"""What a replica knows of transactions, beside what the batches in its log say, read here without the product's code for it.

- `transactions-known`: open transactions with epochs and first offsets, last markers with epochs, numbers and offsets, and
  the index of aborted transactions are those of the log. Where the log begins later than at 0, more may be known of before.
- `last-stable`: if all of the log were committed, reads of committed transactions would end before the first open one; as
  it is, they end at or before the first one whose marker is not below the high watermark.
- `marker-once`: no producer's markers have numbers that do not rise.
- `batch-in-no-transaction`: no batch is of an epoch older than its producer's last marker, nor outside of a transaction that
  its producer has open.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from antiphon.records.batch import BatchHeader
from antiphon.records.builder import end_marker_of
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition


class _Said(NamedTuple):
    open: dict[int, tuple[int, int]]
    markers: dict[int, tuple[int, int, int]]
    aborted: list[tuple[int, int, int]]


def check_transactions(
    host: "Partition",
    batches: Iterable[tuple[BatchHeader, bytes]],
    node_id: int,
    log_start: int,
    *,
    is_compacted: bool = False,
    is_own: bool = False,
) -> None:
    """Raise ViolationError unless the replica knows what these batches, all of its log's and before, say.

    `is_compacted`: its log may have less than was committed. `is_own`: the batches are what it has.
    """
    batches = list(batches)
    said = _said(host.shard_id, batches)
    _check_stable(host, batches, node_id)
    known = host.log.producers.transactions
    opened = {one: (found.epoch, found.first_offset) for one, found in known.open.items()}
    markers = {one: (found.epoch, found.number, found.offset) for one, found in known.markers.items()}
    if log_start:  # of what was trimmed before, a snapshot may know less
        said.open.update(
            {one: opened[one] for one in said.open if one in opened and said.open[one][1] < log_start}
        )
        markers = {one: found for one, found in markers.items() if one in said.markers}
        said.markers.update(
            {
                one: markers[one]
                for one, found in said.markers.items()
                if found[2] < log_start and one in markers
            }
        )
    for what, found, wanted in (("open", opened, said.open), ("last markers", markers, said.markers)):
        require(
            found == wanted,
            "transactions-known",
            f"{what} by the log {wanted}; node {node_id} takes {found} for it",
            host.shard_id,
        )
    start, end = log_start, host.log.log_end
    stable, wanted_end = known.last_stable(end), min([end, *(first for _, first in said.open.values())])
    require(
        stable == wanted_end,
        "last-stable",
        f"transactions are open from {wanted_end} on, and node {node_id} takes {stable} for the last stable offset",
        host.shard_id,
    )
    aborted = [one[:3] for one in host.log.aborted(start, end)]
    if is_compacted:  # what a transaction wrote may be gone, and then it need not be known
        _check_aborted(host, said, aborted, node_id, is_own=is_own)
        return
    require(
        [(one, max(first, start), at) for one, first, at in aborted]
        == [(one, max(first, start), at) for one, first, at in said.aborted if at >= start],
        "transactions-known",
        f"aborted by the log {said.aborted}; node {node_id} has {aborted} in its index",
        host.shard_id,
    )


def _check_stable(host: "Partition", batches: list[tuple[BatchHeader, bytes]], node_id: int) -> None:
    """Nobody may take what is open by the committed part of the log for ended."""
    end = host.state.high_watermark
    opened = _said(host.shard_id, [one for one in batches if one[0].base_offset < end]).open
    wanted, known = min([end, *(first for _, first in opened.values())]), host.state.stable_end
    require(
        known <= wanted,
        "last-stable",
        f"up to its high watermark {end} transactions are open from {wanted} on, and node {node_id} takes {known} for the "
        "last stable offset",
        host.shard_id,
    )


def _check_aborted(
    host: "Partition", said: _Said, known: list[tuple[int, int, int]], node_id: int, *, is_own: bool
) -> None:
    """Each aborted transaction that has batches in the log is known, and no other than were aborted."""
    by_log, by_index = ({(one, at) for one, _, at in found} for found in (said.aborted, known))
    require(
        by_log <= by_index if is_own else by_index <= by_log,
        "transactions-known",
        f"aborted by the log {said.aborted}; node {node_id} has {known} in its index",
        host.shard_id,
    )


def check_own_log(host: "Partition", node_id: int) -> None:
    """The same beside the replica's own log, uncommitted batches included, where it is whole and begins at 0."""
    log = host.log
    if log.log_start == 0 and log.damaged is None and log.producers.transactions.is_used:
        try:
            batches = [(header, bytes(batch)) for header, batch in log.reader.batches_from(0)]
        except OSError:  # of a disk that fails at this moment, for the judge too
            return
        is_compacted = host.log.config.compaction is not None
        check_transactions(host, batches, node_id, 0, is_compacted=is_compacted, is_own=True)


def _said(shard_id: int, batches: Iterable[tuple[BatchHeader, bytes]]) -> _Said:
    said = _Said({}, {}, [])
    for header, batch in batches:
        one, at = header.producer_id, header.base_offset
        epoch, number, _ = said.markers.get(one, (-1, -1, -1))
        if one < 0 or not header.record_count:
            continue
        if not header.is_control:
            require(
                header.producer_epoch >= epoch and (header.is_transactional or one not in said.open),
                "batch-in-no-transaction",
                f"the batch at {at} of producer {one} has epoch {header.producer_epoch}, its last marker {epoch}, and its "
                f"transaction {said.open.get(one)} is open",
                shard_id,
            )
            if header.is_transactional:
                said.open.setdefault(one, (header.producer_epoch, at))
            continue
        found = end_marker_of(batch)
        if found is None:
            continue
        require(
            found[1] > number,
            "marker-once",
            f"the marker at {at} of producer {one} has number {found[1]}, the one before {number}",
            shard_id,
        )
        said.markers[one] = (max(header.producer_epoch, epoch), found[1], at)
        if one in said.open:
            first = said.open.pop(one)[1]
            if not found[0]:
                said.aborted.append((one, first, at))
    return said
