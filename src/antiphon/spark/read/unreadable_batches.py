"""What a task does with batches that it cannot read: fail with their place, skip them, or append them to a topic.

A dead letter is appended by the task that reads the range in which the batch begins. A task that Spark runs again appends it
again: its headers say which batch it is.
"""

import logging
from typing import Final

from antiphon import system
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import CorruptBatchError
from antiphon.model.requests import AppendBatch
from antiphon.records.batch import BatchHeader
from antiphon.records.builder import build_batch
from antiphon.records.decode import BadBatch
from antiphon.records.unreadable import UnreadableBatch, unreadable

_LOG: Final = logging.getLogger(__name__)


def pass_over(
    cluster: Cluster,
    place: tuple[str, int],
    batch: tuple[BatchHeader, memoryview],
    error: CorruptBatchError,
    dead_letters: str | None,
) -> None:
    """Note a batch of a topic's shard that is left out, and append it to the topic for dead letters, if there is one."""
    header, data = batch
    found = unreadable(*place, BadBatch(header.base_offset, header.next_offset, bytes(data), error))
    _LOG.warning(
        "%s shard %d: offsets %d to %d cannot be read and are left out: %s",
        found.topic,
        found.shard,
        found.start,
        found.end,
        found.reason,
    )
    if dead_letters is not None:
        _send(cluster, found, dead_letters)


def _send(cluster: Cluster, found: UnreadableBatch, topic: str) -> None:
    shards = cluster.topic(topic, table=False).shards
    shard_id = shards[found.shard % len(shards)].shard_id
    letter = build_batch([(None, found.data, found.headers, system.wall_ms())])
    cluster.call(ShardCall(shard_id, AppendBatch(shard_id), [bytes(letter)]))
