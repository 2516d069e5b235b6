"""Fixes what an audit looks at: which replicas, and one cut per shard for the whole run.

The cut of a shard is the furthest that anybody knew to be committed when the planner first asked; it then waits a moment for
every replica to know that, too. So nothing below it moves any more, and writes that go on do not matter. A replica that does
not get there in time is read as far as it is, and reported: as are those that are down, damaged or still joining.
"""

import difflib
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Final

from antiphon.client.access import access_with
from antiphon.client.blocking import Cluster
from antiphon.errors import AntiphonError, InvalidRequestError, UnknownTopicError, WrongKindError
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, Kind, TopicMeta
from antiphon.model.requests import ReplicaStatus
from antiphon.spark.jobs.audit_link import NodeLink
from antiphon.spark.jobs.audit_model import (
    INCOMPLETE,
    NOBODY,
    NOTE,
    NOWHERE,
    AuditPlan,
    Finding,
    ReplicaPlan,
    ShardPlan,
)

BLOCK_OFFSETS: Final = 65_536
BLOCK_BYTES: Final = 32 * 1024 * 1024
POLL_S: Final = 0.05
CLUSTER_LOG: Final = "__cluster"

Statuses = dict[int, dict[int, ReplicaStatus]]
"""By node, then by shard id; nodes that do not answer are not there."""


class Scope:
    """Which topics and tables are audited. None: all of that kind; where only one of the two is given, none of the other."""

    def __init__(
        self,
        topics: Sequence[str] | None = None,
        tables: Sequence[str] | None = None,
        *,
        internal: bool = True,
    ) -> None:
        self.names: dict[str, bool] | None = None  # name -> is it a table
        if topics is not None or tables is not None:
            self.names = {**dict.fromkeys(topics or (), False), **dict.fromkeys(tables or (), True)}
        self.internal = internal

    def chosen(self, meta: ClusterMeta) -> list[TopicMeta]:
        """The topics and tables of `meta` that are audited, without `__cluster`.

        Raises UnknownTopicError (with the nearest name) and WrongKindError.
        """
        known = {topic.name: topic for topic in meta.topics}
        if self.names is None:
            return [topic for topic in known.values() if self.internal or not is_internal(topic)]
        found = []
        for name, is_table in self.names.items():
            topic = known.get(name)
            if topic is None:
                if name == CLUSTER_LOG and not is_table:
                    continue
                near = difflib.get_close_matches(name, [*known, CLUSTER_LOG], 1)
                hint = f"; is it {near[0]!r}?" if near else ""
                raise UnknownTopicError(
                    f"there is no {'table' if is_table else 'topic'} {name!r}{hint}", name=name
                )
            if (topic.kind == Kind.TABLE) != is_table:
                raise WrongKindError(
                    f"{name} is a {topic.kind}: name it among the {topic.kind}s",
                    name=name,
                    found=str(topic.kind),
                )
            found.append(topic)
        return found

    @property
    def has_cluster_log(self) -> bool:
        """Is the coordinator's own log audited?"""
        return self.internal if self.names is None else CLUSTER_LOG in self.names


def is_internal(topic: TopicMeta) -> bool:
    """Does it belong to the nodes rather than to users?"""
    return topic.internal or topic.name.startswith("__")


def plan_audit(
    servers: Sequence[tuple[str, int]],
    scope: Scope,
    *,
    timeout_ms: int = 10_000,
    block_offsets: int = BLOCK_OFFSETS,
) -> AuditPlan:
    """The plan of a run. `timeout_ms` bounds what one replica is waited for.

    Raises UnreachableError where no node answers, UnknownTopicError, WrongKindError, InvalidRequestError.
    """
    if block_offsets < 1:
        raise InvalidRequestError(f"a block has at least one offset, not {block_offsets}")
    with Cluster(servers, timeout_ms) as cluster, ExitStack() as stack:
        meta = cluster.metadata()
        chosen = scope.chosen(meta)
        nodes = {node.node_id: node.native for node in meta.nodes if node.native}
        links = {
            node: stack.enter_context(NodeLink(node, address, timeout_ms, access_with(servers)))
            for node, address in nodes.items()
        }
        asker = _Asker(links)
        statuses, findings = asker.ask(links)
        shards: list[ShardPlan] = []
        wanted = [
            _Wanted(topic, shard.index, shard.shard_id, shard.everybody, shard.hashes)
            for topic in chosen
            for shard in topic.shards
            if not topic.is_compacted
        ]
        own = "each replica compacts its log by itself: their bytes differ, and are not compared"
        findings += [
            Finding(NOTE, "compacted", shard.shard_id, NOBODY, NOWHERE, own)
            for topic in chosen
            for shard in topic.shards
            if topic.is_compacted
        ]
        if scope.has_cluster_log:
            wanted.append(_cluster_shard(statuses))
        for one in wanted:
            one.fix_target(statuses)
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            late = {node for one in wanted for node in one.late(statuses)}
            if not late or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
            again, _ = asker.ask(late)
            statuses.update(again)
        for one in wanted:
            plan, more = one.plan(statuses, nodes, block_offsets)
            shards.append(plan)
            findings += more
        return AuditPlan(meta.cluster_id, nodes, timeout_ms, tuple(shards), tuple(findings))


class _Asker:
    """Asks nodes for their status; one that was silent once is not waited for again."""

    def __init__(self, links: dict[int, NodeLink]) -> None:
        self._links = links
        self._silent: set[int] = set()

    def ask(self, nodes: Iterable[int]) -> tuple[Statuses, list[Finding]]:
        statuses: Statuses = {}
        findings: list[Finding] = []
        for node in sorted(nodes):
            if node in self._silent:
                continue
            try:
                statuses[node] = self._links[node].statuses()
            except AntiphonError as error:
                self._silent.add(node)
                findings.append(Finding(INCOMPLETE, "unreachable", NOWHERE, node, NOWHERE, error.message))
        return statuses, findings


class _Wanted:
    """One shard on its way to a plan."""

    def __init__(
        self,
        topic: TopicMeta | None,
        index: int,
        shard_id: int,
        members: Sequence[int],
        hashes: tuple[int, ...],
    ) -> None:
        self.topic = topic
        self.index = index
        self.shard_id = shard_id
        self.members = tuple(members)
        self.hashes = hashes
        self.target = 0
        self.origins: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return CLUSTER_LOG if self.topic is None else self.topic.name

    @property
    def is_table(self) -> bool:
        return self.topic is not None and self.topic.kind == Kind.TABLE

    @property
    def every_replica_writes(self) -> bool:
        return self.topic is not None and self.topic.config.get("writers") == "multi"

    def _working(self, statuses: Statuses) -> dict[int, ReplicaStatus]:
        found = {node: statuses.get(node, {}).get(self.shard_id) for node in self.members}
        return {
            node: status
            for node, status in found.items()
            if status is not None and status.state in {"ok", "disk_full"}
        }

    def fix_target(self, statuses: Statuses) -> None:
        """Where every replica has to be: as far as any of them is now."""
        working = self._working(statuses).values()
        self.target = max((status.high_watermark for status in working), default=0)
        clocks = [status.vclock for status in working]
        width = max(map(len, clocks), default=0)
        self.origins = tuple(max(clock[i] if i < len(clock) else 0 for clock in clocks) for i in range(width))

    def late(self, statuses: Statuses) -> list[int]:
        """Nodes whose replica works and is not there yet, or is still to be opened or to catch up."""
        found = [node for node, status in self._working(statuses).items() if not self._is_there(status)]
        for node in self.members:
            status = statuses[node].get(self.shard_id) if node in statuses else None
            if node in statuses and (status is None or status.state == "joining"):
                found.append(node)
        return found

    def _is_there(self, status: ReplicaStatus) -> bool:
        if self.is_table and status.applied < min(status.high_watermark, self.target):
            return False
        if self.every_replica_writes:
            clock = status.vclock
            reached = all(i < len(clock) and clock[i] >= lsn for i, lsn in enumerate(self.origins) if i)
            return reached and status.high_watermark >= status.log_end
        return status.high_watermark >= self.target

    def plan(
        self, statuses: Statuses, nodes: dict[int, str], block_offsets: int
    ) -> tuple[ShardPlan, list[Finding]]:
        """The shard's plan, and what cannot be read of it."""
        findings = [
            Finding(INCOMPLETE, kind, self.shard_id, node, offset, what)
            for node in self.members
            for kind, offset, what in self._missing(node, nodes, statuses)
        ]
        working = self._working(statuses)
        multi = self.every_replica_writes
        replicas = tuple(
            ReplicaPlan(
                node,
                status.log_start,
                status.high_watermark
                if multi
                else max(status.log_start, min(status.high_watermark, self.target)),
                status.size_bytes,
            )
            for node, status in sorted(working.items())
        )
        starts = {replica.start for replica in replicas}
        if len(starts) > 1 and not multi:
            what = f"replicas begin at offsets {', '.join(map(str, sorted(starts)))}: below the last, fewer are compared"
            findings.append(Finding(NOTE, "log_starts", self.shard_id, NOBODY, max(starts), what))
        step = _step(replicas, block_offsets)
        ends = {replica.end for replica in replicas}
        bounds = () if multi else _bounds(min(starts, default=0), max(ends, default=0), step, starts | ends)
        own = tuple(_bounds(one.start, one.end, step, set()) for one in replicas) if multi else ()
        reached = [replica for replica in replicas if multi or replica.end == self.target]
        reference = min(reached, key=lambda replica: (replica.start, replica.node), default=None)
        config = {} if self.topic is None else self.topic.config
        return ShardPlan(
            self.name,
            self.is_table,
            self.index,
            self.shard_id,
            max(ends, default=0) if multi else self.target,
            bounds,
            replicas,
            self.members,
            self.hashes,
            config.get("conflict", "last-writer-wins") if multi and self.is_table else "",
            multi,
            self._common_clock(working) if multi else (),
            own,
            NOBODY if reference is None else reference.node,
            self.topic is None or is_internal(self.topic),
        ), findings

    def _common_clock(self, working: dict[int, ReplicaStatus]) -> tuple[int, ...]:
        """What everybody has reached: the clock that was waited for, or less where somebody did not get there."""
        clocks = [status.vclock for status in working.values()]
        return tuple(
            min([lsn, *(clock[i] if i < len(clock) else 0 for clock in clocks)])
            for i, lsn in enumerate(self.origins)
        )

    def _missing(
        self, node: int, nodes: dict[int, str], statuses: Statuses
    ) -> Iterable[tuple[str, int, str]]:
        """Why the replica on `node` is not read, or not to its end."""
        if node not in nodes or node not in statuses:
            yield "unreachable", NOWHERE, f"node {node} is not reached: its replica is not read"
            return
        status = statuses[node].get(self.shard_id)
        if status is None:
            yield "no_replica", NOWHERE, f"node {node} has no replica, though it is a member"
        elif status.state not in {"ok", "disk_full"}:
            yield (
                status.state,
                NOWHERE,
                f"the replica is {status.state}: it is not read (it has {status.log_start} to {status.log_end})",
            )
        elif not self._is_there(status):
            at = status.high_watermark
            behind = f"it knows offsets up to {at} to be committed, the others up to {self.target}"
            if self.every_replica_writes:
                behind = f"its vector clock is {list(status.vclock)}, waited for was {list(self.origins)}"
            elif self.is_table and at >= self.target:
                behind = f"its store has applied offsets up to {status.applied} of {self.target}"
            yield "lagging", at, f"the replica lags: {behind}"


def _cluster_shard(statuses: Statuses) -> _Wanted:
    """`__cluster`, which no metadata lists: its members are those who have it, and to whom its leader replicates."""
    members: set[int] = set()
    for node, replicas in statuses.items():
        status = replicas.get(CLUSTER_SHARD_ID)
        if status is not None:
            members.add(node)
            members.update(follower for follower, _ in status.followers)
    return _Wanted(None, 0, CLUSTER_SHARD_ID, sorted(members), ())


def _step(replicas: Sequence[ReplicaPlan], block_offsets: int) -> int:
    """Offsets of a block: a power of two, so that about as many bytes as are wanted are in it."""
    offsets = max((one.end - one.start for one in replicas), default=0)
    size = max((one.size_bytes for one in replicas), default=0)
    step = block_offsets
    while step > 1 and offsets and step * size > BLOCK_BYTES * offsets:
        step //= 2
    return step


def _bounds(start: int, end: int, step: int, more: set[int]) -> tuple[int, ...]:
    if start >= end:
        return ()
    found = {start, end, *range(start - start % step + step, end, step)}
    found.update(bound for bound in more if start < bound < end)
    return tuple(sorted(found))
