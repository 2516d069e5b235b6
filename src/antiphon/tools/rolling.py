"""Restarting nodes one after the other, so that clients notice nothing but a moment's wait.

For each node: wait until no shard would miss it, hand over what it leads, have its process restarted, wait until it takes
part everywhere again. Only then comes the next. All of it is made of requests that any client may send. Who restarts the
process is a `Restarter` (`restarters.py`).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from antiphon.coordination.profiles import Replication, replication_of
from antiphon.errors import AntiphonError, InvalidRequestError, TimedOutError, UnavailableError
from antiphon.model.in_step import not_to_be_missed, out_of_step
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, NodeMeta, ShardMeta, TopicMeta
from antiphon.model.requests import ReplicaStatus, StatusReply
from antiphon.replication.quorum import majority
from antiphon.tools.cluster_health import status_of

if TYPE_CHECKING:
    import antiphon

HAND_OVER_AT_ONCE: Final = 16
POLL_S: Final = 0.1
SAY_EVERY_S: Final = 1.0
ANSWER_S: Final = 3.0
_NAMED_MAX: Final = 3

Tell = Callable[[str], None]


class Planned(msgspec.Struct, frozen=True):
    """What a restart of a node means now.

    Attributes:
        leads: shards that it leads; `hands_over`: those of them that another replica can lead meanwhile.
        stalls: shards that take no writes while it is away, because too few replicas are left.
        coordinates: it runs the coordinator.
    """

    node: int
    alive: bool
    replicas: int
    leads: int
    hands_over: int
    stalls: int
    coordinates: bool


class Restarted(msgspec.Struct, frozen=True):
    """A node that was restarted. `away_s`: from the order to restart it until it was part of the cluster again; `behind_s`:
    from then until it was in step.
    """

    node: int
    handed_over: int
    hand_over_s: float
    away_s: float
    behind_s: float


class Restarter(Protocol):
    """Ends and starts the process of a node."""

    def restart(self, node: NodeMeta, timeout_s: float) -> None:
        """Returns when it is on its way. Raises AntiphonError where it is clear that it will not come."""


# -- the plan -------------------------------------------------------------------------------------------------------


def plan(cluster: ClusterMeta, wanted: Collection[int]) -> list[Planned]:
    """The nodes in the order in which they are restarted: those that are down first, the coordinator's last.

    Raises InvalidRequestError for a node that is not there.
    """
    nodes = {node.node_id: node for node in cluster.nodes}
    strange = sorted(set(wanted) - set(nodes))
    if strange:
        raise InvalidRequestError(
            f"there is no node {strange[0]}; there are {', '.join(map(str, sorted(nodes)))}", unknown="node"
        )
    found = [_planned(cluster, nodes[node_id]) for node_id in sorted(set(wanted))]
    return sorted(found, key=lambda one: (one.alive, one.coordinates, one.node))


def _planned(cluster: ClusterMeta, node: NodeMeta) -> Planned:
    mine = [
        (topic, shard)
        for topic in cluster.topics
        for shard in topic.shards
        if node.node_id in shard.everybody
    ]
    return Planned(
        node=node.node_id,
        alive=node.alive,
        replicas=len(mine),
        leads=sum(shard.leader == node.node_id for _, shard in mine),
        hands_over=len(successors(cluster, node.node_id)),
        stalls=sum(_stalls(topic, shard, node.node_id) for topic, shard in mine),
        coordinates=cluster.controller == node.node_id,
    )


def _stalls(topic: TopicMeta, shard: ShardMeta, node_id: int) -> bool:
    """Does the shard take no writes while this node is away?"""
    options = replication_of(topic.profile, topic.config)
    left = sum(node != node_id for node in shard.ensemble)
    if options.is_multi:
        return left == 0
    if options.election == "manual" and shard.leader == node_id:
        return True
    if options.is_live:
        return sum(node != node_id for node in shard.live) < options.min_live
    return left < max(options.commit.enough(len(shard.ensemble)), majority(len(shard.ensemble)))


def successors(cluster: ClusterMeta, node_id: int) -> dict[tuple[str, int], int]:
    """Who leads next what a node leads, by (topic, shard): a replica that keeps up, on the node that leads least.

    Without the shards that have nobody else, and those whose leader only an operator chooses.
    """
    alive = {node.node_id for node in cluster.nodes if node.alive}
    leads = dict.fromkeys(alive, 0)
    for topic in cluster.topics:
        for shard in topic.shards:
            if shard.leader in leads:
                leads[shard.leader] += 1
    found = {}
    for topic in cluster.topics:
        if not _is_handed_over(replication_of(topic.profile, topic.config)):
            continue
        for shard in topic.shards:
            others = [n for n in shard.ensemble if n != node_id and n in shard.live and n in alive]
            if shard.leader == node_id and others:
                chosen = min(others, key=lambda node: (leads[node], node))
                leads[chosen] += 1
                found[topic.name, shard.index] = chosen
    return found


def _is_handed_over(options: Replication) -> bool:
    return not options.is_multi and options.election != "manual"


# -- one node -------------------------------------------------------------------------------------------------------


def hand_over(db: "antiphon.Client", node_id: int, timeout_s: float) -> int:
    """Have other nodes lead what a node leads, where others can; returns how many shards that were.

    Raises TimedOutError with what was in the way.
    """
    deadline = time.monotonic() + timeout_s
    moved: set[tuple[str, int]] = set()
    while True:
        wanted = successors(db.metadata(), node_id)
        if not wanted:
            return len(moved)
        problems = db.run(_elect_all(db, wanted))
        moved |= wanted.keys() - problems.keys()
        if problems and time.monotonic() > deadline:
            (name, shard), why = next(iter(problems.items()))
            raise TimedOutError(
                f"node {node_id} still leads {len(problems)} shards that others should lead, first {name}/{shard}: "
                f"{why.message}; nothing was restarted"
            )
        time.sleep(POLL_S)


async def _elect_all(
    db: "antiphon.Client", wanted: dict[tuple[str, int], int]
) -> dict[tuple[str, int], AntiphonError]:
    places = asyncio.Semaphore(HAND_OVER_AT_ONCE)
    problems: dict[tuple[str, int], AntiphonError] = {}

    async def elect(name: str, shard: int, node: int) -> None:
        async with places:
            try:
                await db.aio.elect_leader(name, shard, node=node)
            except AntiphonError as error:
                problems[name, shard] = error

    await asyncio.gather(*(elect(*place, node) for place, node in wanted.items()))
    return problems


def wait_until_spared(db: "antiphon.Client", node_id: int, timeout_s: float, tell: Tell) -> None:
    """Return when no shard would miss the node. Raises TimedOutError with what is in the way."""

    def missing() -> str:
        cluster = db.metadata()
        lacks = not_to_be_missed(cluster, node_id)
        if lacks:
            return _named(f"{len(lacks)} shards of node {node_id} cannot spare it", lacks)
        return _voters_lack(db, cluster, without=node_id)

    wait_until(missing, timeout_s, tell, f"node {node_id} was not restarted")


def wait_until_back(
    db: "antiphon.Client", node_id: int, before: str, timeout_s: float, tell: Tell
) -> tuple[float, float]:
    """Return when a process of the node, another one than `before`, takes part in everything.

    Returns how long it was away, and how long it was behind then. Raises TimedOutError with what is missing.
    """
    began = time.monotonic()
    back = 0.0

    def missing() -> str:
        nonlocal back
        cluster = db.metadata()
        node = next((one for one in cluster.nodes if one.node_id == node_id), None)
        if node is None or not node.alive or node.incarnation == before:
            return f"node {node_id} is not back"
        back = back or time.monotonic()
        return what_lacks(db, cluster, node_id)

    wait_until(missing, timeout_s, tell, "its shards go on without it where a majority is left")
    return round(back - began, 3), round(time.monotonic() - back, 3)


def what_lacks(db: "antiphon.Client", cluster: ClusterMeta, node_id: int) -> str:
    """What is missing until the node takes part in everything that it holds, in words; empty: nothing."""
    lacks = out_of_step(cluster, node_id)
    if lacks:
        return _named(f"node {node_id} is behind in {len(lacks)} shards", lacks)
    answer = status_of(db, node_id, timeout_s=ANSWER_S)
    if answer is None:
        return f"node {node_id} does not answer"
    bad = [one for one in answer.replicas if one.state != "ok"]
    if bad:
        return f"node {node_id}: the replica of shard {bad[0].shard_id} is {bad[0].state}"
    if 0 <= answer.metadata_version < cluster.version:
        return f"node {node_id} has not heard of the newest metadata"
    return _voters_lack(db, cluster, of=node_id) or _writers_lack(db, cluster, answer)


def _voters_lack(db: "antiphon.Client", cluster: ClusterMeta, *, of: int = -1, without: int = -1) -> str:
    """Which voter of `__cluster` is behind: one node, or any but one."""
    answer = status_of(db, cluster.controller, timeout_s=ANSWER_S)
    own = None if answer is None else _replica(answer, CLUSTER_SHARD_ID)
    if own is None or own.role != "leader":
        return "nobody coordinates"
    alive = {node.node_id for node in cluster.nodes if node.alive}
    voters = {cluster.controller, *(node for node, _ in own.followers)}
    if without >= 0 and without not in voters:
        return ""
    for node, end in own.followers:
        asked = node == of if of >= 0 else node != without
        if asked and (node not in alive or end < own.high_watermark):
            return f"node {node} is behind in the cluster's own log"
    return ""


def _writers_lack(db: "antiphon.Client", cluster: ClusterMeta, answer: StatusReply) -> str:
    """Where every replica writes: has the node what the others had when they were asked?"""
    node_id = answer.node.node_id
    for topic in cluster.topics:
        if not replication_of(topic.profile, topic.config).is_multi:
            continue
        for shard in topic.shards:
            mine = _replica(answer, shard.shard_id)
            if node_id not in shard.ensemble or mine is None:
                continue
            for other in shard.live:
                theirs = None if other == node_id else status_of(db, other, timeout_s=ANSWER_S)
                known = None if theirs is None else _replica(theirs, shard.shard_id)
                if known is not None and _is_behind(mine.vclock, known.vclock):
                    return f"node {node_id} is behind in {topic.name}/{shard.index}"
    return ""


def _is_behind(mine: Sequence[int], theirs: Sequence[int]) -> bool:
    """Does `theirs` have entries of an origin that `mine` lacks? The first number is of what stays on a node."""
    padded = [*mine[1:], *[0] * len(theirs)]
    return any(one < other for one, other in zip(padded, theirs[1:], strict=False))


def _replica(answer: StatusReply, shard_id: int) -> ReplicaStatus | None:
    return next((one for one in answer.replicas if one.shard_id == shard_id), None)


def _named(what: str, lacks: Sequence[object]) -> str:
    more = f" and {len(lacks) - _NAMED_MAX} more" if len(lacks) > _NAMED_MAX else ""
    return f"{what} ({'; '.join(map(str, lacks[:_NAMED_MAX]))}{more})"


def wait_until(missing: Callable[[], str], timeout_s: float, tell: Tell, ending: str) -> None:
    """Until nothing is missing; tell what is, when it has changed. Raises TimedOutError with that, and `ending`."""
    deadline = time.monotonic() + timeout_s
    said, said_s = "", time.monotonic()
    while True:
        try:
            words = missing()
        except AntiphonError as error:
            words = error.message
        if not words:
            return
        now = time.monotonic()
        if now > deadline:
            raise TimedOutError(f"{words}, after {timeout_s:g} s; {ending}")
        if words != said and now - said_s >= SAY_EVERY_S:
            tell(words)
            said, said_s = words, now
        time.sleep(POLL_S)


def restart_node(
    db: "antiphon.Client", node_id: int, restarter: Restarter, timeout_s: float, tell: Tell
) -> Restarted:
    """Restart one node: see the module's text. Raises AntiphonError with what was in the way."""
    deadline = time.monotonic() + timeout_s

    def left_s() -> float:
        return max(1.0, deadline - time.monotonic())

    wait_until_spared(db, node_id, left_s(), tell)
    began = time.monotonic()
    handed = hand_over(db, node_id, left_s())
    took = round(time.monotonic() - began, 3)
    tell(f"node {node_id}: {handed} leaderships handed over in {took:.1f} s")
    node = next((one for one in db.metadata().nodes if one.node_id == node_id), None)
    if node is None:
        raise UnavailableError(f"node {node_id} was removed meanwhile")
    ordered = time.monotonic()
    restarter.restart(node, left_s())
    gone_s = time.monotonic() - ordered
    away_s, behind_s = wait_until_back(db, node_id, node.incarnation, left_s(), tell)
    away_s = round(gone_s + away_s, 3)
    tell(f"node {node_id}: in step again, {away_s:.1f} s away and {behind_s:.1f} s behind")
    return Restarted(node_id, handed, took, away_s, behind_s)
