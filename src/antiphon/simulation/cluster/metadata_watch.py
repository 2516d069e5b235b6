"""What has to hold of the cluster's metadata on every voter, whether its fold began at 0 or at a checkpoint.

- `metadata-is-its-log`: what a voter shows is what all committed records of `__cluster`, from the first one on, come to at
  that version.
- `checkpoint-covers`: no log of `__cluster` begins above 0 but where a committed checkpoint does. A damaged one
  begins with the first file that is left.

The judge folds the records by their keys, and knows nothing of checkpoints. What a voter shows is compared object by object,
with the look-ups that are kept beside them.
"""

from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import read_header
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.coordination.state import ClusterState
    from antiphon.node.node import Node
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.cluster.truth import Batch

CHECKPOINT: Final = "checkpoint"
KEPT_MAX: Final = 4_000

Objects = dict[str, bytes]
_encode = msgspec.msgpack.encode


class MetadataWatch:
    """See the module's text. `counts`: folds that were looked at, of those that began above 0, and closed checkpoints."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._objects: Objects = {}
        self._folded = 0  # batches of what is committed
        self._at: dict[int, Objects] = {0: {}}  # what the log comes to, by version
        self._begins: set[int] = {0}  # of committed checkpoints
        # By node: the state that was looked at last, its version, and where the log began.
        self._seen: dict[int, tuple[int, int, int]] = {}
        self.counts = {"folds": 0, "folds-from-checkpoints": 0, "checkpoints": 0}

    def cut(self) -> None:
        """What is committed ends earlier than it did: a cluster goes on from one voter's log."""
        end = self._evidence.truth(CLUSTER_SHARD_ID).end
        self._at = {version: objects for version, objects in self._at.items() if version <= end}
        self._objects = self._at[end]
        self._folded = len(self._evidence.truth(CLUSTER_SHARD_ID).batches)
        self._seen.clear()

    def at(self, version: int) -> Objects | None:
        """What the log comes to at a version; None where no batch ends there, or that is long ago."""
        self._learn()
        return self._at.get(version)

    def look(self, machine: "Machine", node: "Node") -> None:
        """A step of this node is over."""
        shell, host = node.coordinator, node.hosts.get(CLUSTER_SHARD_ID)
        if shell is None or host is None:
            return
        state, log_start = shell.state, host.log.log_start
        seen = (id(state), state.version, log_start)
        if self._seen.get(machine.node_id) == seen:
            return
        self._seen[machine.node_id] = seen
        self._learn()
        if state.version > self._evidence.truth(CLUSTER_SHARD_ID).end:
            del self._seen[machine.node_id]  # who leads is looked at first
            return
        require(
            log_start in self._begins or host.log.damaged is not None,
            "checkpoint-covers",
            f"the log of `__cluster` on node {machine.node_id} begins at {log_start}; committed checkpoints begin at "
            f"{sorted(self._begins)[-5:]}",
            CLUSTER_SHARD_ID,
        )
        self._check(machine.node_id, state)

    def _learn(self) -> None:
        batches = self._evidence.truth(CLUSTER_SHARD_ID).batches
        for batch in batches[self._folded :]:
            self._fold(batch)
        self._folded = len(batches)

    def _fold(self, batch: "Batch") -> None:
        if not read_header(batch.data).is_control:
            objects = dict(self._objects)
            for record in decode_records(batch.data):
                key = (record.key or b"").decode()
                if key == CHECKPOINT:
                    self._begins.add(msgspec.msgpack.decode(record.value or b"")[0])
                    self.counts["checkpoints"] += 1
                elif record.value is None:
                    objects.pop(key, None)
                else:
                    objects[key] = record.value
            self._objects = objects
        self._at[batch.next_offset] = self._objects
        if len(self._at) > KEPT_MAX:
            del self._at[next(iter(self._at))]

    def _check(self, node_id: int, state: "ClusterState") -> None:
        self.counts["folds"] += 1
        self.counts["folds-from-checkpoints"] += state.begins_at > 0
        wanted = self._at.get(state.version)
        if wanted is None:
            require(
                state.version < next(iter(self._at)),
                "metadata-is-its-log",
                f"node {node_id} shows the metadata at {state.version}, where no batch ends",
                CLUSTER_SHARD_ID,
            )
            return
        found = objects_of(state)
        differ = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        require(
            not differ,
            "metadata-is-its-log",
            f"node {node_id}, whose fold began at {state.begins_at}, shows at {state.version} {len(found)} objects, the log "
            f"comes to {len(wanted)}; they differ in {differ[:5]}",
            CLUSTER_SHARD_ID,
        )
        require(
            _look_ups(state) == _wanted_look_ups(state),
            "metadata-is-its-log",
            f"node {node_id}, whose fold began at {state.begins_at}, looks up at {state.version} what is not there",
            CLUSTER_SHARD_ID,
        )


def objects_of(state: "ClusterState") -> Objects:
    """Every object of the state, as its record would have it."""
    access = state.access
    kinds: tuple[tuple[str, dict[Any, Any]], ...] = (
        ("node", state.nodes),
        ("topic", state.topics),
        ("shard", state.shards),
        ("counter", state.counters),
        ("user", access.users),
        ("acl", access.acls),
        ("quota", access.quotas),
        ("settings", state.node_settings),
        ("subscription", state.subscriptions),
    )
    found = {f"{kind}/{name}": _encode(value) for kind, named in kinds for name, value in named.items()}
    if state.cluster is not None:
        found["cluster"] = _encode(state.cluster)
    if state.voters is not None:
        found["voters"] = _encode(state.voters)
    if state.recovery is not None:
        found["recovery"] = _encode(state.recovery)
    return found


def _look_ups(state: "ClusterState") -> Any:
    return (
        state.names,
        {topic: set(shards) for topic, shards in state.shards_of.items()},
        {node: set(shards) for node, shards in state.shards_on.items() if shards},
        _counted(state.led_by),
        _counted(state.aimed_at),
        _counted(state.preferred_on),
    )


def _counted(found: dict[int, int]) -> dict[int, int]:
    return {node: count for node, count in found.items() if count}


def _wanted_look_ups(state: "ClusterState") -> Any:
    names = {topic.topic_id: name for name, topic in state.topics.items()}
    shards_of: dict[bytes, set[int]] = {topic_id: set() for topic_id in names}
    shards_on: dict[int, set[int]] = {}
    led_by: dict[int, int] = {}
    aimed_at: dict[int, int] = {}
    preferred_on: dict[int, int] = {}
    for shard_id, record in state.shards.items():
        meta = record.meta
        shards_of.setdefault(record.topic_id, set()).add(shard_id)
        for node in meta.everybody:
            shards_on.setdefault(node, set()).add(shard_id)
        for node in meta.aim:
            aimed_at[node] = aimed_at.get(node, 0) + 1
        preferred_on[meta.aim[0]] = preferred_on.get(meta.aim[0], 0) + 1
        if meta.leader >= 0:
            led_by[meta.leader] = led_by.get(meta.leader, 0) + 1
    return names, shards_of, shards_on, led_by, aimed_at, preferred_on
