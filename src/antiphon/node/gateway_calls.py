"""The node as its listeners see it: `gateway.interface.Gateway`, on top of the shard hosts and the cluster agent."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    NotReadyError,
    TimedOutError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import (
    AdminRequest,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectLeader,
    ReplicaStatus,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.model.results import AppendResult, FetchResult, OffsetResult
from antiphon.node.agent import ClusterAgent
from antiphon.node.local_view import LocalView
from antiphon.partition.partition import Partition
from antiphon.records.batch import Buffer


class GatewayCalls:
    """Implements `Gateway`; the node is built on it."""

    node_id: int
    cluster_id: str
    agent: ClusterAgent
    hosts: dict[int, Partition]
    default_profile: str

    def __init__(self) -> None:
        self._follow_keys = count(1)

    # -- metadata -----------------------------------------------------------------------------------------------

    @property
    def view(self) -> LocalView:
        """The metadata as it is kept here."""
        return self.agent.view

    @property
    def metadata(self) -> ClusterMeta:
        """See Gateway."""
        return self.agent.view.cluster()

    def topic(self, name: str) -> TopicMeta:
        """See Gateway."""
        found = self.agent.view.topics.get(name)
        if found is None:
            raise UnknownTopicError(f"there is no topic or table {name!r}", name=name)
        return found

    def topic_by_id(self, topic_id: bytes) -> TopicMeta:
        """See Gateway."""
        found = self.agent.view.topic_by_id(topic_id)
        if found is None:
            raise UnknownTopicError(
                f"there is no topic or table with id {topic_id.hex()}", topic_id=topic_id.hex()
            )
        return found

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        """See Gateway."""
        found = self.agent.view.shard(shard_id)
        if found is None and self.view.version < 0:
            # A node that was told nothing since its start must not say that something does not exist.
            raise NotReadyError(
                f"node {self.node_id} was just started and does not know of shard {shard_id}; retry"
            )
        if found is None:
            raise UnknownShardError(f"there is no shard {shard_id}", shard_id=shard_id)
        return found

    def knows_producer(self, shard_id: int, producer_id: int) -> bool:
        """See `Gateway`."""
        host = self.hosts.get(shard_id)
        return host is None or host.log.producers.knows(producer_id)

    def term_led(self, shard_id: int) -> int | None:
        """See Gateway."""
        host = self.hosts.get(shard_id)
        return host.term if host is not None and host.is_serving else None

    def host(self, shard_id: int) -> Partition:
        """This node's replica of the shard; NotLeaderError with the leader where it has none, or UnknownShardError."""
        host = self.hosts.get(shard_id)
        if host is not None:
            return host
        _, shard = self.shard(shard_id)
        leader = None if shard.leader == ABSENT_NODE else shard.leader
        if shard_id not in self.broken_shards() and self.node_id in shard.ensemble:
            raise NotReadyError(f"node {self.node_id} is just opening its replica of shard {shard_id}; retry")
        raise NotLeaderError(
            f"node {self.node_id} has no replica of shard {shard_id}, node {leader} leads it",
            leader=leader,
            shard_id=shard_id,
        )

    async def wait_metadata(self, known_version: int, timeout_s: float) -> ClusterMeta:
        """See Gateway."""
        await self.agent.wait_version(known_version, timeout_s)
        return self.metadata

    async def create_topic(self, request: CreateTopic, timeout_s: float = 30.0) -> TopicMeta:
        """See Gateway."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        if not request.profile:
            request = msgspec.structs.replace(request, profile=self.default_profile)
        if "conflict" in request.config:
            from antiphon.table.merge import rule_named

            rule_named(request.config["conflict"])  # the coordinator cannot know what is installed here
        await self.agent.command(request, timeout_s)
        # Where a try whose answer got lost had made it already, this node may not have heard of it yet.
        while request.name not in self.view.topics:
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimedOutError(
                    f"{request.name!r} was created, but node {self.node_id} has not heard of it yet"
                )
            await self.agent.wait_version(self.view.version, left_s)
        return self.topic(request.name)

    async def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """See Gateway."""
        await self.agent.command(DeleteTopic(name), timeout_s)

    async def alter_topic(self, request: AlterTopic, timeout_s: float = 30.0) -> TopicMeta:
        """See Gateway."""
        await self.agent.command(request, timeout_s)
        return self.topic(request.name)

    async def elect_leader(self, shard_id: int, node: int = -1, timeout_s: float = 30.0) -> None:
        """See Gateway."""
        await self.agent.command(ElectLeader(shard_id, node), timeout_s)

    async def administer(self, request: AdminRequest, timeout_s: float = 30.0) -> None:
        """See Gateway."""
        await self.agent.command(request, timeout_s)

    async def new_producer_id(self) -> int:
        """See Gateway."""
        return await self.agent.new_producer_id()

    # -- logs ---------------------------------------------------------------------------------------------------

    async def append(
        self, shard_id: int, batch: Buffer, *, expected_offset: int | None = None, timeout_s: float = 30.0
    ) -> AppendResult:
        """See Gateway."""
        host = self.host(shard_id)
        future, done = _future()
        host.clients.append(batch, expected_offset, timeout_s, done)
        result: AppendResult = await future
        return result

    async def fetch(
        self,
        shard_id: int,
        offset: int,
        max_bytes: int,
        isolation: str = "committed",
        *,
        at_least_one: bool = True,
    ) -> FetchResult:
        """See Gateway."""
        reads = self.host(shard_id).reads
        if reads.is_cold(offset, isolation):
            return await reads.fetch_cold(offset, max_bytes, isolation, at_least_one=at_least_one)
        return reads.fetch(offset, max_bytes, isolation, at_least_one=at_least_one)

    async def wait_for_data(
        self, positions: Sequence[tuple[int, int]], isolation: str, timeout_s: float, min_bytes: int = 1
    ) -> None:
        """See Gateway. Data that is shorter than `min_bytes` returns too: the caller fetches and sees."""
        if timeout_s <= 0 or min_bytes <= 0 or not positions:
            return
        arrived = asyncio.Event()
        waiting: list[tuple[int, int]] = []
        try:
            for shard_id, offset in positions:
                key = next(self._follow_keys)
                host = self.hosts.get(shard_id)
                if host is None or not host.reads.follow(key, offset, isolation, arrived.set):
                    return
                waiting.append((shard_id, key))
            await asyncio.wait_for(arrived.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            for shard_id, key in waiting:
                self.unfollow(shard_id, key)

    def next_follow_key(self) -> int:
        """A key for `PartitionReads.follow`."""
        return next(self._follow_keys)

    def unfollow(self, shard_id: int, key: int) -> None:
        """Nobody waits for data under this key any more."""
        host = self.hosts.get(shard_id)
        if host is not None:
            host.reads.unfollow(key)

    async def list_offset(self, shard_id: int, timestamp_ms: int) -> OffsetResult:
        """See Gateway."""
        return self.host(shard_id).reads.list_offset(timestamp_ms)

    def end_of_term(self, shard_id: int, term: int) -> tuple[int, int]:
        """See Gateway."""
        host = self.host(shard_id)
        host.check_serving()
        found = host.log.terms.end_of_term(term)
        return found.term, found.offset

    # -- tables -------------------------------------------------------------------------------------------------

    async def table_write(self, request: TableWrite) -> TableWritten:
        """See Gateway."""
        future, done = _future()
        self.host(request.shard_id).table_write(request, done)
        written: TableWritten = await future
        return written

    async def table_get(self, request: TableGet) -> TableRows:
        """See Gateway."""
        future, done = _future()
        self.host(request.shard_id).table_get(request, done)
        rows: TableRows = await future
        return rows

    async def table_scan(self, request: TableScan) -> TableRows:
        """See Gateway."""
        future, done = _future()
        self.host(request.shard_id).table_scan(request, done)
        rows: TableRows = await future
        return rows

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        """See Gateway."""
        found = {shard_id: host.status() for shard_id, host in self.hosts.items()}
        for shard_id in self.broken_shards():
            found[shard_id] = ReplicaStatus(shard_id, "not_member", 0, 0, 0, 0, 0, state="failed")
        return tuple(found[shard_id] for shard_id in sorted(found))

    def broken_shards(self) -> Sequence[int]:
        """Shards whose replica here cannot be opened."""
        return ()


def _future() -> tuple["asyncio.Future[Any]", Callable[[Any], None]]:
    """A future and the callback that settles it."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, AntiphonError):
            future.set_exception(result)
        else:
            future.set_result(result)

    return future, done
