"""May this batch of a producer stand behind that one? What `antiphon.log.producer_state` lets in, looked at from the log.

The rules go by the producer's id, as there: Kafka's and our producers count without gaps, table writers only upwards, jobs
without gaps within an epoch; on a table nobody does more than rise. The leader keeps to them batch by batch, so in a shard's
log every producer's batches follow each other, and a pair of neighbours that does not is a marker that stands twice, or
batches that are missing.
"""

from typing import Final, NamedTuple

from antiphon.records.changes import TABLE_PRODUCER_BIT
from antiphon.spark.jobs.audit_model import Marker

JOB_ID_MIN: Final = 1 << 62
_EPOCH_MODULUS: Final = 1 << 15
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_CONTENT_BITS: Final = 16


class MarkerProblem(NamedTuple):
    """Why a batch cannot stand where it does."""

    kind: str
    what: str


def marker_problem(producer: int, before: Marker, after: Marker, *, is_table: bool) -> MarkerProblem | None:
    """What is wrong with `after`, which is the next batch of `producer` behind `before` in a shard's log; None: nothing."""
    who = f"producer {producer} epoch {after.epoch}"
    is_job = producer >= JOB_ID_MIN
    if after.epoch != before.epoch:
        if not _is_newer(after.epoch, before.epoch, is_job=is_job):
            return MarkerProblem(
                "stale_epoch", f"{who} comes behind epoch {before.epoch}, at offset {before.offset}"
            )
        if after.first != 0 and not is_table and _is_dense(producer):
            return MarkerProblem("sequence_gap", f"{who} begins with sequence {after.first}, not 0")
        return None
    rises_only = is_table or not _is_dense(producer)
    if rises_only:
        if after.first <= before.first or _is_other_content(producer, before, after):
            return _doubled(who, before, after)
        return None
    expected = (before.last + 1) & _SEQUENCE_MASK
    if after.first == expected:
        return None
    if after.first < expected:
        return _doubled(who, before, after)
    return MarkerProblem(
        "sequence_gap",
        f"{who}: sequence {after.first} follows {before.last} (offset {before.offset}): batches are missing",
    )


def _is_newer(epoch: int, current: int, *, is_job: bool) -> bool:
    if is_job:  # epochs of jobs go round
        return 0 < (epoch - current) % _EPOCH_MODULUS < _EPOCH_MODULUS // 2
    return epoch > current


def _is_dense(producer: int) -> bool:
    return producer >= JOB_ID_MIN or not producer & TABLE_PRODUCER_BIT


def _is_other_content(producer: int, before: Marker, after: Marker) -> bool:
    """A job's requests to a table have their number above a checksum of what they ask for."""
    if producer < JOB_ID_MIN or not producer & TABLE_PRODUCER_BIT:
        return False
    return before.first >> _CONTENT_BITS == after.first >> _CONTENT_BITS


def _doubled(who: str, before: Marker, after: Marker) -> MarkerProblem:
    if (before.first, before.last) == (after.first, after.last):
        where = f"stands at offset {before.offset} already"
    else:
        where = f"came before: the log was at sequence {before.last} at offset {before.offset}"
    return MarkerProblem("doubled_marker", f"{who} sequence {after.first}..{after.last} {where}")
