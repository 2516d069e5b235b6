"""Keeps what happened lately, from the changes of the metadata that reach a node.

It costs a comparison for each shard that changes. What one change of the metadata does to many shards is a few events: a
node that dies with ten thousand leaderships must not drive everything else out of what is kept.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from antiphon import system
from antiphon.model.cluster import MetadataDelta, MetadataView, ShardChange
from antiphon.model.events import Event, EventKind
from antiphon.model.metadata import ABSENT_NODE, ShardMeta

KEPT_MAX: Final = 500
FIRST_TERM: Final = 1
EACH_MAX: Final = 8  # of one kind in one change; more are told as a number


class Events:
    """See the module's text. `kept`: the oldest first. `view` is as it was before the change that is told of."""

    def __init__(self, view: MetadataView) -> None:
        self.kept: deque[Event] = deque(maxlen=KEPT_MAX)
        self._view = view
        self._underway: dict[EventKind, list[tuple[str, str]]] | None = None
        self._counts: dict[EventKind, int] = {}
        self._coordinator = (0, ABSENT_NODE)  # that was told of last, with its term

    @contextmanager
    def of_change(self) -> Iterator[None]:
        """While this lasts, one change of the metadata is taken over; only then events are noted."""
        self._underway, self._counts = {}, {}
        try:
            yield
        finally:
            found, self._underway = self._underway, None
            now_ms = system.wall_ms()
            for kind, some in found.items():
                more = self._counts[kind] - len(some)
                self.kept.extend(Event(now_ms, kind, subject, what) for subject, what in some)
                if more:
                    self.kept.append(Event(now_ms, kind, f"{more} more", "at the same time"))

    def delta(self, delta: MetadataDelta) -> None:
        """What a delta says of nodes and topics."""
        view = self._view
        for node in delta.nodes:
            before = view.nodes.get(node.node_id)
            if before is None or node.alive != before.alive:
                kind = EventKind.NODE_UP if node.alive else EventKind.NODE_DOWN
                what = "joined" if before is None else "is back" if node.alive else "is not heard of any more"
                self._note(kind, f"node {node.node_id}", what)
            elif node.incarnation != before.incarnation:
                self._note(EventKind.NODE_UP, f"node {node.node_id}", "was started anew")
            if node.draining and not (before is not None and before.draining):
                self._note(EventKind.NODE_DRAINS, f"node {node.node_id}", "its replicas move elsewhere")
        for node_id in delta.gone_nodes:
            self._note(EventKind.NODE_GONE, f"node {node_id}", "was removed")
        told = (delta.coordinator_term, delta.controller)
        if told > self._coordinator and delta.controller != view.controller:
            self._coordinator = told
            what = f"coordinates since term {delta.coordinator_term}"
            self._note(EventKind.COORDINATOR, f"node {delta.controller}", what)
        for topic_id in delta.gone_topics:
            gone = view.topic_by_id(topic_id)
            if gone is not None:
                self._note(EventKind.TOPIC_GONE, gone.name, f"{gone.kind} of {len(gone.shards)} shards")
        for topic in delta.topics:
            known = view.topics.get(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                self._note(EventKind.TOPIC_MADE, topic.name, f"{topic.kind}, profile {topic.profile}")
            elif known.config != topic.config or known.replicas != topic.replicas:
                self._note(EventKind.TOPIC_CHANGED, topic.name, "its settings changed")

    def shard(self, change: ShardChange) -> None:
        """What becomes of a shard."""
        if self._underway is None:
            return
        found = self._view.shard(change.shard.shard_id)
        if found is None:
            return  # it was just made
        topic, before = found
        name, now = f"{topic.name}/{before.index}", change.shard
        known = now.recovery
        if known is not None and (before.recovery is None or before.recovery.number != known.number):
            what = f"goes on from node {known.node} alone: what others had from offset {known.at} on is lost"
            self._note(EventKind.RECOVERED, name, what)
        if now.leader != before.leader or (now.term != before.term and now.leader != ABSENT_NODE):
            self._led(name, before, now)
        if now.everybody != before.everybody:
            self._note(EventKind.MEMBERS, name, f"{_nodes(before)} became {_nodes(now)}")

    def _led(self, name: str, before: ShardMeta, now: ShardMeta) -> None:
        if now.leader == ABSENT_NODE:
            what = f"lost node {before.leader} as its leader; term {now.term} is being decided"
            self._note(EventKind.NO_LEADER, name, what)
        elif before.leader == ABSENT_NODE and now.term <= FIRST_TERM:
            return  # it was just made
        elif before.leader in {ABSENT_NODE, now.leader}:
            self._note(EventKind.LEADER, name, f"is led by node {now.leader} in term {now.term}")
        else:
            what = f"went from node {before.leader} to node {now.leader} in term {now.term}"
            self._note(EventKind.LEADER, name, what)

    def _note(self, kind: EventKind, subject: str, what: str) -> None:
        if self._underway is None:
            return
        self._counts[kind] = self._counts.get(kind, 0) + 1
        some = self._underway.setdefault(kind, [])
        if len(some) < EACH_MAX:
            some.append((subject, what))


def _nodes(shard: ShardMeta) -> str:
    return "{" + ", ".join(map(str, shard.everybody)) + "}"
