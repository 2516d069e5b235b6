"""What pages ask nodes: this one by its gateway, others over the connections that nodes have with each other.

A page asks on behalf of a client, so each question is first held against the client's rights, by the table that the native
protocol's requests are held against. Whatever is asked for is bounded, in bytes or rows and in time.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from antiphon.errors import AntiphonError, NotLeaderError, UnavailableError, UnknownTopicError
from antiphon.gateway.access import check
from antiphon.gateway.interface import Gateway
from antiphon.gateway.settings_reply import settings_reply
from antiphon.model.access import Operation, Resource
from antiphon.model.findings import StartScrub
from antiphon.model.internal import is_internal
from antiphon.model.metadata import ABSENT_NODE, Kind, TopicMeta
from antiphon.model.node_settings import GetNodeSettings
from antiphon.model.requests import (
    Fetch,
    Fetched,
    GetStatus,
    ListOffset,
    OffsetReply,
    ReplicaStatus,
    StatusReply,
    TableGet,
    TableRows,
    TableScan,
)
from antiphon.model.sessions import ListSessions, SessionsReply
from antiphon.security.authorizer import Rights

ASK_S: Final = 3.0
BEGINNING: Final = -2  # in the place of a time: where the log begins
NODES_MAX: Final = 64  # that one page asks
STATUS_SHARDS: Final = 1_000

ReplyT = TypeVar("ReplyT")


class Piece(NamedTuple):
    """Batches of a shard's log, and what stands there. `by_node` read them; `is_stale`: it does not lead the shard."""

    batches: memoryview
    log_start: int
    high_watermark: int
    stable_end: int
    aborted: tuple[tuple[int, int, int], ...]
    by_node: int
    is_stale: bool = False


class Asker:
    """See the module's text."""

    def __init__(self, gateway: Gateway, rights: Rights) -> None:
        self._gateway = gateway
        self._rights = rights

    async def node(self, node_id: int, body: Any) -> Any:
        """What a node says; raises AccessDeniedError, UnavailableError, TimedOutError, and what the node refuses with."""
        check(self._gateway, self._rights, body)
        return await self._node(node_id, body)

    async def _node(self, node_id: int, body: Any) -> Any:
        if node_id == self._gateway.node_id and isinstance(body, GetStatus):
            return self._gateway.status(body.shards)
        if node_id == self._gateway.node_id and isinstance(body, GetNodeSettings):
            return settings_reply(self._gateway)
        return await self._gateway.questions.ask(node_id, body, ASK_S)

    async def scrub(self, node_id: int, body: StartScrub) -> None:
        """Have a node read what is on its disk."""
        check(self._gateway, self._rights, body)
        if node_id == self._gateway.node_id:
            self._gateway.start_scrub(body.shard_id)
        else:
            await self._gateway.questions.ask_bulk(node_id, body, ASK_S)

    async def each_node(self, body: Any) -> dict[int, Any]:
        """What each node says that is alive; of the others, and of those that do not answer, an AntiphonError."""
        check(self._gateway, self._rights, body)
        return await self.cluster_each(body)

    async def cluster_each(self, body: Any) -> dict[int, Any]:
        """The same where whoever asks has looked at what the client may see of the answers."""
        nodes = self._gateway.metadata.nodes[:NODES_MAX]

        async def ask(node_id: int) -> Any:
            try:
                return await self._node(node_id, body)
            except AntiphonError as error:
                return error

        alive = [node.node_id for node in nodes if node.alive]
        answers = await asyncio.gather(*(ask(node_id) for node_id in alive))
        found: dict[int, Any] = {
            node.node_id: UnavailableError(f"node {node.node_id} is down") for node in nodes if not node.alive
        }
        return found | dict(zip(alive, answers, strict=True))

    async def statuses(self, shards: Sequence[int]) -> dict[int, StatusReply]:
        """How each node is that answers, and its replicas of these shards (of the first thousand)."""
        answers = await self.each_node(GetStatus(tuple(shards[:STATUS_SHARDS])))
        return {node: one for node, one in sorted(answers.items()) if isinstance(one, StatusReply)}

    async def raw_piece(self, shard_id: int, offset: int, max_bytes: int) -> Piece:
        """Batches from an offset on as the leader has them, also of transactions that are open or were aborted."""
        body = Fetch(shard_id, offset, max_bytes, isolation="read_uncommitted")
        check(self._gateway, self._rights, body)
        return await self._read(self._leader(shard_id), body)

    async def log_piece(self, shard_id: int, offset: int, max_bytes: int) -> Piece:
        """Batches from an offset on that transactions have committed; from this node's replica where no leader answers."""
        body = Fetch(shard_id, offset, max_bytes, isolation="committed")
        check(self._gateway, self._rights, body)
        try:
            return await self._read(self._leader(shard_id), body)
        except (UnavailableError, NotLeaderError):
            return await self._read_here(body)

    async def _read(self, leader: int, body: Fetch) -> Piece:
        if leader == self._gateway.node_id:
            return await self._own(body, is_stale=False)
        reply, bulk = await self._gateway.questions.ask_bulk(leader, body, ASK_S)
        if not isinstance(reply, Fetched):
            raise UnavailableError(f"node {leader} answered a fetch with a {type(reply).__name__}")
        return Piece(
            bulk, reply.log_start, reply.high_watermark, reply.stable_end, reply.aborted, by_node=leader
        )

    async def _read_here(self, body: Fetch) -> Piece:
        try:
            return await self._own(
                Fetch(body.shard_id, body.offset, body.max_bytes, isolation="replica_committed"),
                is_stale=True,
            )
        except NotLeaderError:
            raise UnavailableError(
                "nobody leads this shard now, and this node has no replica of it: look at the overview for nodes that are "
                "down, or open the dashboard of a node that has a replica"
            ) from None

    async def _own(self, body: Fetch, *, is_stale: bool) -> Piece:
        found = await self._gateway.fetch(body.shard_id, body.offset, body.max_bytes, body.isolation)
        return Piece(
            memoryview(b"".join(bytes(one) for one in found.batches)),
            found.log_start,
            found.high_watermark,
            found.stable_end,
            found.aborted,
            self._gateway.node_id,
            is_stale,
        )

    async def offset_at(self, shard_id: int, timestamp_ms: int) -> OffsetReply:
        """The first offset of that time or later (-1: the high watermark, -2: the log's start), as the leader says.

        Where no leader answers, the start and the high watermark are what this node's replica knows.
        """
        body = ListOffset(shard_id, timestamp_ms)
        check(self._gateway, self._rights, body)
        try:
            return await self._offset_at(self._leader(shard_id), body)
        except (UnavailableError, NotLeaderError):
            here = self._gateway.status((shard_id,)).replicas
            if timestamp_ms != BEGINNING or not here:
                raise
            own = here[0]
            return OffsetReply(own.log_start, -1, own.term, own.log_start, own.high_watermark)

    async def _offset_at(self, leader: int, body: ListOffset) -> OffsetReply:
        if leader != self._gateway.node_id:
            return await self._asked(leader, body, OffsetReply)
        own = self._gateway.list_offset(body.shard_id, body.timestamp_ms)
        return OffsetReply(own.offset, own.timestamp_ms, own.term, own.log_start, own.high_watermark)

    async def rows(self, body: TableGet | TableScan) -> TableRows:
        """Rows of a table's shard, as its leader has them."""
        check(self._gateway, self._rights, body)
        return await self.cluster_rows(body)

    async def cluster_rows(self, body: TableGet | TableScan) -> TableRows:
        """The same of the cluster's own tables: whoever asks has looked at what the client may see of them."""
        leader = self._leader(body.shard_id)
        if leader == self._gateway.node_id:
            if isinstance(body, TableGet):
                return await self._gateway.table_get(body)
            return await self._gateway.table_scan(body)
        return await self._asked(leader, body, TableRows)

    async def sessions(self, body: ListSessions) -> SessionsReply:
        """The open sessions of a table's shard, as its leader tells."""
        check(self._gateway, self._rights, body)
        leader = self._leader(body.shard_id)
        if leader == self._gateway.node_id:
            return self._gateway.list_sessions(body)
        return await self._asked(leader, body, SessionsReply)

    async def _asked(self, leader: int, body: Any, kind: type[ReplyT]) -> ReplyT:
        reply, _ = await self._gateway.questions.ask_bulk(leader, body, ASK_S)
        if not isinstance(reply, kind):
            raise UnavailableError(f"node {leader} answered with a {type(reply).__name__}")
        return reply

    async def ends(self, shards: Collection[int]) -> dict[int, int]:
        """The high watermark of each of these shards, as its leader says; those of which no leader answers are missing."""
        by_leader: dict[int, list[int]] = {}
        for shard_id in list(shards)[:STATUS_SHARDS]:
            leader = self._gateway.shard(shard_id)[1].leader
            if leader != ABSENT_NODE:
                by_leader.setdefault(leader, []).append(shard_id)

        async def ask(leader: int, some: list[int]) -> dict[int, int]:
            try:
                status = await self._node(leader, GetStatus(tuple(some)))
            except AntiphonError:
                return {}
            return {one.shard_id: one.high_watermark for one in status.replicas}

        found: dict[int, int] = {}
        for part in await asyncio.gather(*(ask(leader, some) for leader, some in by_leader.items())):
            found.update(part)
        return found

    def _leader(self, shard_id: int) -> int:
        leader = self._gateway.shard(shard_id)[1].leader
        if leader == ABSENT_NODE:
            raise UnavailableError(
                f"shard {shard_id} has no leader now: the overview says which nodes are down",
                shard_id=shard_id,
            )
        return leader


async def off_loop(work: Any, *args: Any) -> Any:
    """What takes longer than a turn of the event loop should, on a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


def leaders_of(statuses: dict[int, StatusReply]) -> dict[int, ReplicaStatus]:
    """By shard the replica that leads it, or else the one that is furthest."""
    found: dict[int, ReplicaStatus] = {}
    for status in statuses.values():
        for one in status.replicas:
            best = found.get(one.shard_id)
            rank = (one.role == "leader", one.term, one.log_end)
            if best is None or rank > (best.role == "leader", best.term, best.log_end):
                found[one.shard_id] = one
    return found


def topic_for(
    gateway: Gateway, rights: Rights, name: str, operation: Operation = Operation.DESCRIBE
) -> TopicMeta:
    """A topic that somebody asks about. Who may not describe one is not told whether it is there."""
    try:
        topic = gateway.topic(name)
    except UnknownTopicError:
        rights.require(Operation.DESCRIBE, Resource.TOPIC, name)
        raise
    if is_internal(topic):
        rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    else:
        resource = Resource.TABLE if topic.kind is Kind.TABLE else Resource.TOPIC
        rights.require(operation, resource, topic.name)
    return topic


async def sizes_of(asker: Asker, rights: Rights, topics: Sequence[TopicMeta]) -> dict[str, tuple[int, int]]:
    """Records and bytes by topic, where the client may look into replicas, for the first thousand shards."""
    if not rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        return {}
    shards = [shard.shard_id for topic in topics for shard in topic.shards]
    by_shard = leaders_of(await asker.statuses(shards))
    known = set(shards[:STATUS_SHARDS])
    found = {}
    for topic in topics:
        some = [by_shard[one.shard_id] for one in topic.shards if one.shard_id in by_shard]
        if some and all(one.shard_id in known for one in topic.shards):
            count = sum(one.high_watermark - one.log_start for one in some)
            found[topic.name] = (count, sum(one.size_bytes for one in some))
    return found
