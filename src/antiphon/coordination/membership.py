"""Which nodes are alive: a node registers once per process, then sends one heartbeat per interval, never one per shard.

A node counts as dead after `dead_after_ms` of silence, or at once when its connection is refused or reset. Silence
while the coordinator itself was paused does not count. The ids in a registration distinguish three cases: the same
process, a new process on the same disk (it remembers its promises), and a replaced disk (it does not).
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from antiphon.coordination.cluster_records import OPTIONS, options_in
from antiphon.coordination.state import ClusterState
from antiphon.errors import ForeignDirectoryError, InvalidRequestError, UnavailableError
from antiphon.model.cluster import Register, mark_of
from antiphon.model.metadata import NodeMeta
from antiphon.replication.messages import NodeId

NODE_ID_MAX = (1 << 31) - 1


class Arrival(Enum):
    """What a registration means."""

    NEW = "new"  # never seen
    SAME = "same"  # the same process, already counted as alive
    BACK = "back"  # the same process, taken for dead in between
    RESTARTED = "restarted"  # another process on the same disk
    REPLACED = "replaced"  # another disk: what the old one had promised or held is forgotten


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a node may be silent, in ms, and how long after a new coordinator has started."""

    dead_after_ms: int = 700
    after_start_ms: int = 1_500


class Membership:
    """Times of the last heartbeat of each node that is alive, oldest first."""

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self._last_ms: dict[NodeId, int] = {}
        self._tick_ms: int | None = None

    def start(self, state: ClusterState, now_ms: int) -> None:
        """A new coordinator has heard from nobody: give all nodes time to find it."""
        head_start_ms = max(0, self._silence.after_start_ms - self._silence.dead_after_ms)
        self._last_ms = {node.node_id: now_ms + head_start_ms for node in state.nodes.values() if node.alive}
        self._tick_ms = now_ms

    def heard(self, node: NodeId, now_ms: int) -> None:
        """The node is alive as of `now_ms`."""
        last_ms = self._last_ms.pop(node, now_ms)
        self._last_ms[node] = max(last_ms, now_ms)

    def lost(self, node: NodeId) -> None:
        """Stop waiting for the node."""
        self._last_ms.pop(node, None)

    def silent(self, now_ms: int) -> list[NodeId]:
        """Nodes that have been silent for too long. The cost depends on how many are found."""
        asleep_ms = 0 if self._tick_ms is None else now_ms - self._tick_ms
        self._tick_ms = now_ms
        if asleep_ms > self._silence.dead_after_ms // 2:
            # The coordinator itself did not run: it has heard nobody, and that is nobody's fault.
            self._last_ms = {node: last_ms + asleep_ms for node, last_ms in self._last_ms.items()}
            return []
        found = []
        for node, last_ms in self._last_ms.items():
            if now_ms - last_ms <= self._silence.dead_after_ms:
                break
            found.append(node)
        return found


def old_history(node: NodeId, mark: int) -> ForeignDirectoryError:
    """Why a voter of before a recovery is let into nothing."""
    return ForeignDirectoryError(
        f"node {node} has the cluster's own log as it was before the recovery of term {mark}, and that history is over. "
        "Stop it. Either move its directory away and start it with an empty one; or, if replicas in it are needed, have "
        "`antiphon node recover --dir DIR --join` set that log alone aside, and start it again",
        node=node,
    )


def classify(state: ClusterState, cluster_id: str, request: Register) -> Arrival:
    """Check a registration and say what it means.

    Raises ForeignDirectoryError for another cluster's node, or a voter of before a recovery; UnavailableError while a
    process on another disk holds the node id and is alive (it may be about to be found dead); InvalidRequestError for a
    registration that makes no sense, or a version that would do harm to a topic that there is.
    """
    node = request.node
    if request.cluster_id != cluster_id:
        raise ForeignDirectoryError(
            f"node {node.node_id} belongs to cluster {request.cluster_id!r}, this is {cluster_id!r}",
            asked=request.cluster_id,
            cluster_id=cluster_id,
        )
    if not 0 <= node.node_id <= NODE_ID_MAX:
        raise InvalidRequestError(f"node ids are 0..{NODE_ID_MAX}, not {node.node_id}")
    if not (node.native and node.incarnation and node.disk_id):
        raise InvalidRequestError(
            f"node {node.node_id} registers without its address, incarnation or disk id"
        )
    if 0 <= request.history < mark_of(state.recovery):
        raise old_history(node.node_id, mark_of(state.recovery))
    old = state.nodes.get(node.node_id)
    if old is not None and old.disk_id != node.disk_id and old.alive:
        raise UnavailableError(
            f"node id {node.node_id} is held by a process at {old.native} with another data directory: "
            "stop it, or give this node an id of its own"
        )
    if old is None or node.reads < old.reads:
        _refuse_earlier(state, node)
    if old is None:
        return Arrival.NEW
    if old.disk_id != node.disk_id:
        return Arrival.REPLACED
    if old.incarnation != node.incarnation:
        return Arrival.RESTARTED
    return Arrival.SAME if old.alive else Arrival.BACK


def _refuse_earlier(state: ClusterState, node: NodeMeta) -> None:
    """Refuse a version that knows less than the topics have: where it is let in, replicas are placed on it, and it leads."""
    if node.reads >= max(option.reads for option in OPTIONS):
        return
    for topic in state.topics.values():
        for option in options_in(topic.config):
            if node.reads < option.reads:
                raise InvalidRequestError(
                    f"node {node.node_id} reads format {node.reads} of the cluster's records, and {topic.kind.value} "
                    f"{topic.name!r} with {option} takes {option.reads}: a node of such a version {option.earlier}. "
                    "Start the node with a later version, that of the other nodes"
                )


def as_dead(node: NodeMeta) -> NodeMeta:
    """The after-image of a node that is lost."""
    return msgspec.structs.replace(node, alive=False)


def arrived(state: ClusterState, node: NodeMeta) -> NodeMeta:
    """The after-image of a node that registers; an operator's settings for it stay."""
    old = state.nodes.get(node.node_id)
    return msgspec.structs.replace(node, alive=True, draining=old is not None and old.draining)
