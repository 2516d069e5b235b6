"""Appends of records that the topic's retention has given up already: taken, as Kafka takes them, but not silently.

Retention goes by the records' own timestamps, so a producer of old events to a topic with `retention.ms` loses them when
retention looks next, although each append was acknowledged.
"""

from typing import Final

import structlog

from antiphon import system
from antiphon.partition.state import PartitionState
from antiphon.records.batch import BatchHeader

QUIET_S: Final = 60.0  # between two warnings of one shard


class ExpiredRecords:
    """Counts such appends of one shard, and warns of them once a minute."""

    __slots__ = ("_quiet_until_s", "_state", "_unsaid")

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self._quiet_until_s = 0.0
        self._unsaid = 0  # such batches since the last warning

    def look(self, header: BatchHeader) -> None:
        """Look at a batch that is being appended to a log with `retention.ms`."""
        state = self._state
        retention_ms = state.log.config.retention_ms
        age_ms = system.wall_ms() - header.max_timestamp
        if age_ms <= retention_ms:
            return
        state.services.metrics.expired_appends += 1
        self._unsaid += 1
        now_s = state.services.now_s()
        if now_s < self._quiet_until_s:
            return
        structlog.get_logger().warning(
            "expired_records_appended",
            shard=state.shard_id,
            batches=self._unsaid,
            age_ms=age_ms,
            retention_ms=retention_ms,
            hint="retention.ms counts from the records' own timestamps: these records are removed soon",
        )
        self._unsaid = 0
        self._quiet_until_s = now_s + QUIET_S
