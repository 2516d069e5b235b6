"""Checkpoints of the cluster's metadata, so that `__cluster` does not grow for ever.

When enough was recorded since the last one, the coordinator writes every object again as it is, a few at a time, between
what it records anyway. When all of that is committed it writes a record that names an offset from which on every object
that exists has a record. Once that record is committed too, voters let their logs begin at that offset, and a fold may
begin there.

Why that is enough: the offset is the end of what was committed when the checkpoint began. Whatever existed then is written
again behind it, unless it was removed before its turn; whatever changed, came or went since has a record of its own behind
it. An object is written as it has been decided, in one batch with all that was decided and is not proposed yet. So a repeat
never says more or less than a fold from 0 says at that offset, and changes nothing there.

A checkpoint belongs to one coordinator. What its successor finds of an unfinished one are repeats that mean nothing; it
begins anew when its time has come. A voter of an older version would go by half of the metadata, or stop: none begins before
every voter has said that it reads checkpoints (`NodeMeta.reads`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from antiphon.coordination.actions import Record
from antiphon.coordination.cluster_records import (
    CHECKPOINT_FORMAT,
    access_record,
    cluster_record,
    counter_record,
    node_record,
    recovery_record,
    settings_record,
    shard_record,
    subscription_record,
    topic_record,
    voters_record,
)
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.state import ClusterState
from antiphon.replication.messages import NodeId

BATCH_BYTES_MAX: Final = 256 * 1024

Name = tuple[str, Any]  # kind and name of an object


class CheckpointRule(NamedTuple):
    """When a checkpoint is due, and how large its batches are.

    Attributes:
        records: at least so many offsets after the last one; 0: never.
        per_object: and at least so many times as many as there are objects.
        batch: objects that are written at a time.
    """

    records: int = 10_000
    per_object: int = 2
    batch: int = 256


DEFAULT_RULE: Final = CheckpointRule()


class Checkpoints:
    """The checkpoints of one coordinator; see the module's text."""

    def __init__(self, ledger: Ledger, voters: Callable[[], Iterable[NodeId]], rule: CheckpointRule) -> None:
        self._ledger = ledger
        self._model = ledger.model
        self._voters = voters  # whoever holds `__cluster` now
        self._rule = rule
        found = ledger.model.checkpoint
        self._closed_at = ledger.model.begins_at if found is None else found.end
        self._begin = 0  # of the checkpoint under way
        # Of it, what is still to be written again; None: none is under way
        self._rest: Iterator[Name] | None = None
        self._is_waiting = False  # for the commit of what it wrote last

    @property
    def is_under_way(self) -> bool:
        """Has one begun that is not closed, as far as is known?"""
        return self._is_waiting or self._rest is not None

    def tick(self) -> None:
        """Time has passed: begin one, or go on with it."""
        if self._is_waiting:
            return
        if self._rest is None:
            if not self._is_due():
                return
            self._begin, self._rest = self._model.version, names(self._model)
        images = self._next_images(self._rest)
        if images:
            self._ledger.repeat(images)
        else:
            self._rest = None
            self._ledger.close_checkpoint(self._begin)
        self._is_waiting = True

    def committed(self, version: int) -> None:
        """What it wrote last is committed, in a batch that ends at `version`."""
        self._is_waiting = False
        if self._rest is None:
            self._closed_at = version

    def _is_due(self) -> bool:
        rule, model = self._rule, self._model
        since = model.version - self._closed_at
        if not rule.records or since < max(rule.records, rule.per_object * model.object_count):
            return False
        voters = (model.nodes.get(voter) for voter in self._voters())
        return all(voter is not None and voter.reads >= CHECKPOINT_FORMAT for voter in voters)

    def _next_images(self, rest: Iterator[Name]) -> list[Record]:
        found: list[Record] = []
        size_bytes = 0
        for kind, name in rest:
            record = image(self._model, kind, name)
            if record is None:
                continue  # gone since
            found.append(record)
            size_bytes += len(record[0]) + len(record[1] or b"")
            if len(found) >= self._rule.batch or size_bytes >= BATCH_BYTES_MAX:
                break
        return found


def names(state: ClusterState) -> Iterator[Name]:
    """All objects that exist now, in the order in which a checkpoint has them: topics before their shards."""
    kinds = [(kind, list(found)) for kind, found in state.objects().items()]
    return ((kind, name) for kind, found in kinds for name in found)


_RECORDS: Final[dict[str, Callable[[Any], Record]]] = {
    "cluster": cluster_record,
    "voters": voters_record,
    "recovery": recovery_record,
    "node": node_record,
    "topic": topic_record,
    "shard": shard_record,
    "settings": settings_record,
    "subscription": subscription_record,
}
"""By kind, of those whose objects name themselves."""


def image(state: ClusterState, kind: str, name: Any) -> Record | None:
    """The record of an object as it is; None where there is no such object."""
    value = state.objects()[kind].get(name)
    if value is None:
        return None
    if kind in _RECORDS:
        return _RECORDS[kind](value)
    return counter_record(name, value) if kind == "counter" else access_record(kind, name, value)
