"""What a task does with batches that it cannot read: fail with their place, skip them, or append them to a topic.

A dead letter is appended by the task that reads the range in which the batch begins. A task that Spark runs again appends it
again: its headers say which batch it is.
"""

import logging
from typing import Final

from antiphon import system
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.model.requests import AppendBatch
from antiphon.records.decode import BadBatch
from antiphon.records.unreadable import Choice, UnreadableBatch, letter, letter_shard, letters_of, unreadable

_LOG: Final = logging.getLogger(__name__)


def pass_over(cluster: Cluster, place: tuple[str, int], bad: BadBatch, choice: Choice) -> None:
    """Note a batch of a topic's shard that is left out, and append it to the topic for dead letters, if there is one."""
    found = unreadable(*place, bad)
    _LOG.warning(
        "%s shard %d: offsets %d to %d cannot be read and are left out: %s",
        found.topic,
        found.shard,
        found.start,
        found.end,
        found.reason,
    )
    letters = letters_of(choice)
    if letters is not None:
        _send(cluster, found, letters)


def _send(cluster: Cluster, found: UnreadableBatch, topic: str) -> None:
    shards = cluster.topic(topic, table=False).shards
    shard_id = shards[letter_shard(found, len(shards))].shard_id
    data = bytes(letter(found, system.wall_ms()))
    cluster.call(ShardCall(shard_id, AppendBatch(shard_id), [data]))
