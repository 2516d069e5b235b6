"""Splits a table's shard: the upper part of its hashes becomes a shard of its own while clients read and write.

    (command) --> Copy --close--> Freeze --all is copied--> Release --the parent let go--> (part of the table)
                   | ^              | |                        |
                   | +--too long----+ |                        |
                   | +-----------the freeze was lost-----------+
                   +-----given up-----+--> (the child is dropped, the parent keeps its keys)

The phase is a field of the child's record, so each arrow is a record of `__cluster`, and any coordinator continues from
there. The coordinator sends no messages: the nodes that lead the two shards see the phase in the metadata, do their
part, and report until the phase has changed (`antiphon.node.splits`). So a lost message, a new leader and a new
coordinator have the same effect: the phase is evaluated again.

The safety lies in the parent's log, not here. A freeze is an entry, named by its offset. The child reports everything
up to *that* entry as copied. The parent's leader releases the keys, also by an entry, only if that same freeze is still
in force. Only after that entry is committed does a record make the child part of the table. So two shards never accept
writes for one key, whatever nodes believe. The worst effect of stale metadata is a thawed freeze, which costs a repeat.

A cancelled split drops the child: the parent's leader thaws a freeze that no child waits for. Nobody cancels in the
phase Release. Only the report that the freeze is lost, and cannot come back, leads out of it.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from antiphon.coordination import topic_rules
from antiphon.coordination.capacity import DEFAULT, Capacity
from antiphon.coordination.cluster_records import SHARD_COUNTER, ShardRecord
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.profiles import replication_of
from antiphon.coordination.state import has_leader
from antiphon.errors import AntiphonError, InvalidRequestError, UnavailableError
from antiphon.model.cluster import SplitReport, SplitStep
from antiphon.model.metadata import HASH_MAX, KeyRanges, Kind, ShardMeta, Split, SplitPhase, TopicMeta
from antiphon.model.requests import SplitShard
from antiphon.replication.messages import NodeId

# What a report leads to, by the phase it is for. Who may say it: the child's leader, or the parent's.
EDGES: Final[dict[tuple[SplitPhase, SplitStep], SplitPhase | None]] = {
    (SplitPhase.COPY, SplitStep.CLOSE): SplitPhase.FREEZE,
    (SplitPhase.FREEZE, SplitStep.COPIED): SplitPhase.RELEASE,
    (SplitPhase.RELEASE, SplitStep.LOST): SplitPhase.COPY,
    (SplitPhase.RELEASE, SplitStep.RELEASED): None,  # the child is part of the table
}
FREEZE_MS_MAX: Final = 5_000  # usually it takes a few commits
SAID_BY_CHILD: Final = frozenset({SplitStep.CLOSE, SplitStep.COPIED, SplitStep.STUCK})


class Splits:
    """The splits that are under way; decides on `ledger.model`."""

    def __init__(
        self,
        ledger: Ledger,
        elect: Callable[[int, NodeId], None],
        forget: Callable[[int], None],
        capacity: Capacity = DEFAULT,
    ) -> None:
        """`elect(shard, node)` finds a new shard a leader, `node` if that can be; `forget(shard)` drops its election."""
        self._ledger = ledger
        self._model = ledger.model
        self._elect = elect
        self._forget = forget
        self._capacity = capacity
        self._waiting: dict[int, list[int]] = {}  # child -> tokens of who asked
        # Child -> when it was first seen to be in the phase FREEZE
        self._frozen_since_ms: dict[int, int] = {}
        self._child_of: dict[int, int] = {
            record.meta.split.parent: shard_id
            for shard_id, record in self._model.shards.items()
            if record.meta.split is not None
        }

    def __len__(self) -> int:
        return len(self._child_of)

    # -- commands -------------------------------------------------------------------------------------------------

    def is_splitting(self, shard_id: int) -> bool:
        """Is the shard being split, or split off another one?"""
        record = self._model.shards.get(shard_id)
        return shard_id in self._child_of or (record is not None and record.meta.split is not None)

    def split(self, token: int, request: SplitShard) -> None:
        """Begin; answered when the child is part of its table, or when it is given up.

        Raises UnknownShardError, InvalidRequestError, UnavailableError, LimitReachedError.
        """
        record = self._model.shard(request.shard_id)
        topic = self._topic_of(record)
        if self._is_repeat(token, request, topic):
            return
        self._check(topic, record.meta)
        first, last = self._ranges(topic).range_of(record.meta)
        at = (first + last + 1) // 2 if request.at < 0 else request.at
        if not first < at <= last:
            raise InvalidRequestError(
                f"shard {request.shard_id} holds hashes {first} to {last}: it can be split from {first + 1} on, not at {at}"
            )
        child = self._ledger.take(SHARD_COUNTER)
        parent = record.meta
        meta = ShardMeta(
            shard_id=child,
            index=len(self._model.shards_of[topic.topic_id]),
            ensemble=parent.ensemble,
            hashes=(at, last),
            split=Split(parent.shard_id, SplitPhase.COPY),
        )
        self._ledger.put_shard(ShardRecord(topic.topic_id, meta))
        self._child_of[parent.shard_id] = child
        self._waiting[child] = [token]
        self._elect(child, parent.leader)

    def _is_repeat(self, token: int, request: SplitShard, topic: TopicMeta) -> bool:
        """Is this split under way, or done, already? A command that is sent again must not split once more."""
        child = self._model.shards.get(self._child_of.get(request.shard_id, -1))
        if child is not None:
            if request.at >= 0 and request.at != child.meta.hashes[0]:
                return False
            self._waiting.setdefault(child.meta.shard_id, []).append(token)
            return True
        meta = self._model.shards[request.shard_id].meta
        if meta.hashes and request.at == meta.hashes[1] + 1:
            at = self._ranges(topic).shard_of_hash(request.at & HASH_MAX)
            if at.hashes[0] == request.at:
                self._ledger.answer_when_committed(token)
                return True
        return False

    def _check(self, topic: TopicMeta, meta: ShardMeta) -> None:
        if topic.kind is not Kind.TABLE:
            raise InvalidRequestError(
                f"{topic.name!r} is a topic: only the shards of tables are split",
                kind="topic",
                name=topic.name,
            )
        if topic.internal:
            raise InvalidRequestError(f"table {topic.name!r} belongs to the cluster and cannot be split")
        options = replication_of(topic.profile, topic.config)
        if options.is_multi:
            raise InvalidRequestError(
                f"every replica of {topic.name!r} accepts writes (writers=multi), so no leader could freeze a part of it: "
                "it cannot be split"
            )
        if options.unclean:
            raise InvalidRequestError(
                f"{topic.name!r} allows unclean elections, which could undo the move of keys: it cannot be split"
            )
        rule = options.commit
        if rule.may_lose(len(meta.ensemble)):
            raise InvalidRequestError(
                f"commit={rule} can lose acknowledged entries, and so a freeze: {topic.name!r} cannot be split"
            )
        if meta.split is not None or meta.shard_id in self._child_of:
            raise InvalidRequestError(f"shard {meta.shard_id} is being split already")
        if meta.goal or meta.outgoing or meta.learners:
            raise UnavailableError(
                f"the members of shard {meta.shard_id} are being changed: split it afterwards"
            )
        if not has_leader(meta):
            raise UnavailableError(f"shard {meta.shard_id} has no leader right now")
        topic_rules.check_shards(len(self._model.shards_of[topic.topic_id]) + 1)
        self._capacity.check_shards(self._model, 1)
        self._capacity.check_nodes(self._model, [meta.ensemble])

    # -- reports --------------------------------------------------------------------------------------------------

    def report(self, sender: NodeId, report: SplitReport) -> None:
        """A leader's report on a split. Late, repeated and old reports do no harm."""
        child = self._model.shards.get(report.shard_id)
        if child is None:
            return
        if child.meta.split is None:
            self._begins(sender, child, report)
            return
        split = child.meta.split
        parent = self._model.shards.get(split.parent)
        if parent is None:
            return
        speaker = child.meta if report.step in SAID_BY_CHILD else parent.meta
        if speaker.leader != sender or speaker.term != report.term or not has_leader(speaker):
            return
        if report.step is SplitStep.STUCK:
            if split.phase is not SplitPhase.RELEASE:
                self._give_up(child, UnavailableError(f"shard {split.parent} was not split: {report.reason}"))
            return
        if (split.phase, report.step) not in EDGES:
            return
        if split.phase is SplitPhase.RELEASE and report.frozen_at != split.frozen_at:
            return  # of another freeze
        if report.step is SplitStep.LOST and parent.meta.recovery is not None:
            # The child may have copied what the parent has lost since, and be ahead of it: it is no copy to go on with.
            self._give_up(
                child, UnavailableError(f"shard {split.parent} was not split: it lost most replicas")
            )
            return
        phase = EDGES[split.phase, report.step]
        if phase is None:
            self._join(child, parent)
        elif phase is SplitPhase.RELEASE:
            self._set(child, Split(split.parent, phase, report.frozen_at, report.start))
        else:
            self._set(child, Split(split.parent, phase))

    def _begins(self, sender: NodeId, child: ShardRecord, report: SplitReport) -> None:
        """A part of its table that went on from a replica without the end of the copy has its own changes elsewhere now."""
        meta = child.meta
        is_led = meta.leader == sender and meta.term == report.term and has_leader(meta)
        is_new = report.start > 0 and meta.own_start not in {0, report.start}
        if report.step is SplitStep.COPIED and meta.recovery is not None and is_led and is_new:
            changed = msgspec.structs.replace(meta, own_start=report.start)
            self._ledger.put_shard(msgspec.structs.replace(child, meta=changed))

    def _set(self, child: ShardRecord, split: Split) -> None:
        self._ledger.put_shard(
            msgspec.structs.replace(child, meta=msgspec.structs.replace(child.meta, split=split))
        )

    def _join(self, child: ShardRecord, parent: ShardRecord) -> None:
        """The child becomes a shard of its table; from now on every shard of it names its range."""
        split = child.meta.split
        if split is None:
            return
        topic = self._topic_of(parent)
        ranges = self._ranges(topic)
        siblings = [record for record in self._records(topic) if record.meta.split is None]
        for record in siblings:
            hashes = ranges.range_of(record.meta)
            if record is parent:
                hashes = (hashes[0], child.meta.hashes[0] - 1)
            if record.meta.hashes != hashes:
                changed = msgspec.structs.replace(record.meta, hashes=hashes)
                self._ledger.put_shard(msgspec.structs.replace(record, meta=changed))
        meta = msgspec.structs.replace(child.meta, index=len(siblings), split=None, own_start=split.start)
        self._ledger.put_shard(msgspec.structs.replace(child, meta=meta))
        self._child_of.pop(split.parent, None)
        for token in self._waiting.pop(child.meta.shard_id, []):
            self._ledger.answer_when_committed(token)

    def _give_up(self, child: ShardRecord, error: AntiphonError) -> None:
        shard_id = child.meta.shard_id
        if child.meta.split is not None:
            self._child_of.pop(child.meta.split.parent, None)
        self._forget(shard_id)
        self._ledger.drop_shard(shard_id)
        for token in self._waiting.pop(shard_id, []):
            self._ledger.answer(token, error)

    # -- what happens to the shards ---------------------------------------------------------------------------------

    def committed(self, record: ShardRecord) -> None:
        """A record of any shard is committed: a child whose replicas are no longer beside the parent's cannot copy."""
        shard_id = record.meta.shard_id
        parent_id = record.meta.split.parent if record.meta.split is not None else shard_id
        child = self._model.shards.get(self._child_of.get(parent_id, -1))
        parent = self._model.shards.get(parent_id)
        if child is None or parent is None or child.meta.split is None:
            return
        beside = set(child.meta.ensemble) <= set(parent.meta.everybody)
        if not beside and child.meta.split.phase is not SplitPhase.RELEASE:
            self._give_up(
                child, UnavailableError(f"shard {parent_id} was not split: its replicas are moving")
            )

    def tick(self, now_ms: int) -> None:
        """Time has passed: writers wait for a freeze only as long as the child makes progress."""
        for child_id in list(self._child_of.values()):
            child = self._model.shards.get(child_id)
            split = None if child is None else child.meta.split
            if child is None or split is None or split.phase is not SplitPhase.FREEZE:
                self._frozen_since_ms.pop(child_id, None)
            elif now_ms - self._frozen_since_ms.setdefault(child_id, now_ms) >= FREEZE_MS_MAX:
                self._frozen_since_ms.pop(child_id)
                self._set(child, Split(split.parent, SplitPhase.COPY))

    def deleted(self, shard_id: int, error: AntiphonError) -> None:
        """The shard is about to be deleted, with its table."""
        self._child_of = {parent: child for parent, child in self._child_of.items() if child != shard_id}
        for token in self._waiting.pop(shard_id, []):
            self._ledger.answer(token, error)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _topic_of(self, record: ShardRecord) -> TopicMeta:
        return self._model.topics[self._model.names[record.topic_id]]

    def _records(self, topic: TopicMeta) -> list[ShardRecord]:
        return [self._model.shards[shard_id] for shard_id in self._model.shards_of[topic.topic_id]]

    def _ranges(self, topic: TopicMeta) -> KeyRanges:
        return KeyRanges([record.meta for record in self._records(topic) if record.meta.split is None])
