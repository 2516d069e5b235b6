"""Mutants of what Kafka's consumers get of records that left their logs for the archive."""

from typing import Any, Final

from antiphon.archive import batches
from antiphon.archive.files import OpenFile
from antiphon.kafka.archived.catalog import ArchiveRows
from antiphon.kafka.archived.reader import ArchiveReader
from antiphon.kafka.handlers import fetch
from antiphon.kafka.handlers.log_offsets import LogOffsetsHandler
from antiphon.kafka.one_thread import OneThread
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_WORK: Final[dict[str, Any]] = {**CALM, **only(archive_readers=3)}

_CROWDED: Final[dict[str, Any]] = {
    **CALM,
    **only(1_000, archive_readers=8),
    "fault_ms": 6_000,
    "settle_ms": 6_000,
}
"""Many readers, of whom several look for the same offsets."""

ARCHIVE_MUTANTS: Final = (
    ClusterMutant(
        "archive-share-is-used-up",
        "what a client has looked for in the archive counts against his share for good",
        Edit(ArchiveReader, "_looked", "self._looks[client] -= 1", "pass"),
        options=_CROWDED,
        rare=True,
    ),
    ClusterMutant(
        "archive-turn-is-kept",
        "whoever finds a row group in memory when it is his turn to have a file read keeps the turn for good",
        Edit(OneThread, "run", "self._gate.leave()\n            return found", "return found"),
        options=_CROWDED,
    ),
    ClusterMutant(
        "archive-unreadable-is-out-of-range",
        "a position whose file cannot be read now is said to be out of range",
        Edit(ArchiveReader, "_with_errors_logged", "        raise", "        return None"),
        options=_WORK,
        quick=True,
    ),
    ClusterMutant(
        "archive-passes-over-a-record",
        "batches from the archive begin behind the record that was asked for",
        Edit(
            batches,
            "batches_of",
            "np.searchsorted(offsets, offset)",
            'np.searchsorted(offsets, offset, side="right")',
        ),
        options=_WORK,
    ),
    ClusterMutant(
        "archive-begins-before-a-gap",
        "the earliest offset is that of the first file, whether or not the others reach the log without a gap",
        Edit(ArchiveRows, "run", "file.start > end", "end < 0"),
        options=_WORK,
    ),
    ClusterMutant(
        "archive-not-asked",
        "a fetch before the start of a log is refused, also where the archive has its records",
        Edit(vars(fetch)["_Sweep"], "_archived", "not self._archive.serves()", "True"),
        options=_WORK,
    ),
    ClusterMutant(
        "archive-time-not-looked-for",
        "the offset of a time is looked for in the log alone",
        Edit(LogOffsetsHandler, "_archived", " and timestamp < 0", ""),
        options=_WORK,
    ),
    ClusterMutant(
        "archive-time-passes-over-a-file",
        "of a file that begins before a time that is asked for no record counts, however late it is",
        Edit(ArchiveReader, "_first_since", "file.latest_ms >=", "file.earliest_ms >="),
        options=_WORK,
    ),
    ClusterMutant(
        "archive-time-before-a-gap",
        "the offset of a time is looked for in files that do not reach the log, too",
        Edit(LogOffsetsHandler, "_archived", "timestamp, start, log_start", "timestamp, 0, log_start"),
        options={**_WORK, "fault_ms": 5_000},
    ),
    ClusterMutant(
        "archive-times-taken-for-ordered",
        "a group of rows whose last record is earlier than a time that is asked for is passed over",
        Edit(
            OpenFile,
            "first_since",
            "pc.greater_equal(times, timestamp_ms * 1000)",
            "pc.and_(pc.greater_equal(times, timestamp_ms * 1000), times[-1].as_py() >= timestamp_ms * 1000)",
        ),
        options=_WORK,
    ),
)
