"""Which replica a shard can go on from that lost most of the others: what is known of each, and the best of them."""

from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.model.metadata import ABSENT_NODE, ShardMeta
from antiphon.model.requests import GetStatus, ReplicaStatus
from antiphon.tools.cluster_health import status_of

if TYPE_CHECKING:
    import antiphon

ANSWER_S: Final = 5.0
SOUND: Final = ("ok", "disk_full", "ahead_of_leader")  # a shard can go on from a replica that says so
DOWN: Final = "down"
NOT_OPEN: Final = "not open"


class Replica(NamedTuple):
    """What is known of a member's replica; `status` None: its node does not answer, or has not opened it."""

    node: int
    state: str
    status: ReplicaStatus | None

    @property
    def is_sound(self) -> bool:
        """May the shard go on from it?"""
        return self.status is not None and self.state in SOUND

    @property
    def head(self) -> tuple[int, int]:
        """How much it has: by the term of its last entry, then by its length."""
        return (-1, -1) if self.status is None else (self.status.last_term, self.status.log_end)


def look(db: "antiphon.Client", meta: ShardMeta) -> list[Replica]:
    """Ask every node that may have a replica what it has."""
    known = meta.recovery
    before = () if known is None or known.done else known.members
    alive = {node.node_id for node in db.metadata().nodes if node.alive}
    found = []
    for node in dict.fromkeys((*meta.everybody, *before)):
        asked = GetStatus((meta.shard_id,))
        answer = status_of(db, node, asked, timeout_s=ANSWER_S) if node in alive else None
        there = () if answer is None else answer.replicas
        status = next((one for one in there if one.shard_id == meta.shard_id), None)
        state = DOWN if answer is None else NOT_OPEN if status is None else status.state
        found.append(Replica(node, state, status))
    return found


def choose(meta: ShardMeta, replicas: list[Replica], wanted: int | None, name: str) -> Replica:
    """The replica to go on from: the longest one, or the one that was named, if nothing more is lost by that."""
    if meta.leader != ABSENT_NODE:
        there = [one for one in replicas if one.node in meta.ensemble and one.state != DOWN]
        if len(there) > len(meta.ensemble) // 2 or meta.fence == "live":
            raise InvalidRequestError(f"{name} is led by node {meta.leader}: nothing is to be recovered")
        replicas = [one for one in replicas if one.node == meta.leader]  # it has what it led the others to
    best = max((one for one in replicas if one.is_sound), key=lambda one: (one.head, -one.node), default=None)
    if wanted is not None:
        named = next((one for one in replicas if one.node == wanted), None)
        if named is None:
            raise InvalidRequestError(
                f"node {wanted} has no replica of {name}: nodes {[one.node for one in replicas]} have"
            )
        if best is not None and named.head < best.head:
            raise InvalidRequestError(
                f"node {best.node} has more of {name} (up to offset {best.head[1]}, last term {best.head[0]}) than node "
                f"{wanted} ({_known(named)}): go on from node {best.node}, so that less is lost"
            )
        return named
    if best is None:
        raise UnavailableError(
            f"no replica of {name} is left that can be read whole: start the nodes that are down, or restore it from a "
            "backup (`antiphon backup restore-topic PLACE NAME`)"
        )
    return best


def _known(replica: Replica) -> str:
    if replica.status is None:
        return replica.state
    return f"up to offset {replica.head[1]}, last term {replica.head[0]}"
