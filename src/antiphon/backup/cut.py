"""Takes a cut: one moment of the whole cluster, as the end of every shard's log at that moment.

A try has four steps. The metadata is read up to an end of `__cluster` that its leader tells. The leaders of all shards
are asked to hold, at once; each answers where its log ends. When all have answered, all are asked to let go and to confirm,
and the leader of `__cluster` whether its log still ends there. If all do, there was a moment, between the last answer and
the first question, at which every log ended where its leader said: the cut (docs/guarantees.md). If one does not, because
its lease was over, its leader changed or the metadata changed, nothing is kept. Another try follows after a pause, in which
clients write.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from antiphon import system
from antiphon.backup.log_copy import TrimmedError, read_batches
from antiphon.backup.metadata import Metadata, being_split, topics_of
from antiphon.client.aio import AsyncClient
from antiphon.client.routing.tries import BackOff
from antiphon.client.tasks import end_tasks
from antiphon.errors import (
    AccessDeniedError,
    AntiphonError,
    BackupError,
    InvalidRequestError,
    UnauthenticatedError,
    UnavailableError,
    WrongKindError,
)
from antiphon.model.backup import NOBODY, ConfirmHold, HoldConfirmed, HoldShard, ReleaseHold, ShardHeld
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, TopicMeta, is_multi

LEASE_MS: Final = 1_000
TRIES: Final = 10
PAUSE_S: Final = 0.3  # after the first try that failed; twice as long after each next one
PAUSE_S_MAX: Final = 5.0
ANSWER_S: Final = 10.0
FINAL: Final = (InvalidRequestError, BackupError, AccessDeniedError, UnauthenticatedError, WrongKindError)


class Cut(NamedTuple):
    """The moment. `ends`: of each shard, `__cluster` included. `held_ms`: the longest that a shard was held, `tries` in all.

    `tried_ms`: for how long shards were held at most in tries before that gave nothing.
    """

    ends: dict[int, ShardHeld]
    metadata: Metadata
    topics: list[TopicMeta]
    began_ms: int
    ended_ms: int
    held_ms: float
    tries: int
    tried_ms: float


class CutTry:
    """One try. `held` has the answers so far."""

    def __init__(self, client: AsyncClient, metadata: Metadata, lease_ms: int) -> None:
        self._client = client
        self._metadata = metadata
        self._lease_ms = lease_ms
        self._hold_id = system.new_uuid().bytes
        self.held: dict[int, ShardHeld] = {}
        self.meta: ClusterMeta | None = None  # as a node tells it

    async def cluster_end(self) -> ShardHeld:
        """What `__cluster` has now; the metadata is folded up to there."""
        self.meta = await self._client.whole.refresh()
        body = HoldShard(CLUSTER_SHARD_ID, NOBODY, 0)
        reply, _ = await self._client.whole.ask_coordinator(body, timeout_s=ANSWER_S)
        if not isinstance(reply, ShardHeld):
            raise UnavailableError(f"asked for the end of `__cluster`, got {type(reply).__name__}")
        metadata = self._metadata
        if reply.end < metadata.offset:
            raise UnavailableError("the node that was asked coordinates no more")
        metadata.starts_at(reply.log_start)
        try:
            async for chunk in read_batches(self._client, CLUSTER_SHARD_ID, metadata.offset, reply.end):
                metadata.fold([chunk])
        except TrimmedError as error:
            raise UnavailableError(f"{error.message}: a checkpoint was made meanwhile") from error
        if not metadata.is_whole:
            raise UnavailableError(f"no checkpoint of `__cluster` covers its beginning at {reply.log_start}")
        return reply

    async def hold(self, shards: Collection[int]) -> None:
        """Have all shards held; raises what the first one that is not says."""
        lease_s = self._lease_ms / 1000

        async def one(shard_id: int) -> None:
            body = HoldShard(shard_id, self._hold_id, self._lease_ms)
            reply, _ = await self._client.whole.ask_shard(shard_id, body, timeout_s=lease_s)
            if not isinstance(reply, ShardHeld):
                raise UnavailableError(f"asked shard {shard_id} to hold, got {type(reply).__name__}")
            self.held[shard_id] = reply

        await all_of([one(shard_id) for shard_id in shards])

    async def confirm(self, cluster: ShardHeld) -> float:
        """Let go, and prove that all were held at one moment; for how long at most, in ms. Raises what one says instead."""
        held_us = [0]

        async def one(shard_id: int, held: ShardHeld) -> None:
            body = ConfirmHold(shard_id, self._hold_id, held.end, held.term)
            reply, _ = await self._client.whole.ask_shard(shard_id, body, timeout_s=ANSWER_S)
            held_us.append(_confirmed(shard_id, reply))

        async def of_cluster() -> None:
            body = ConfirmHold(CLUSTER_SHARD_ID, NOBODY, cluster.end, cluster.term)
            reply, _ = await self._client.whole.ask_coordinator(body, timeout_s=ANSWER_S)
            _confirmed(CLUSTER_SHARD_ID, reply)

        await all_of([of_cluster(), *(one(*item) for item in self.held.items())])
        return max(held_us) / 1000

    async def release(self, shards: Collection[int]) -> None:
        """Let go of all, as well as it goes: leases end by themselves."""

        async def one(shard_id: int) -> None:
            await self._client.whole.ask_shard(shard_id, ReleaseHold(shard_id, self._hold_id), timeout_s=1.0)

        await asyncio.gather(*(one(shard_id) for shard_id in shards), return_exceptions=True)


async def take_cut(
    client: AsyncClient,
    *,
    without: Collection[str] = (),
    lease_ms: int = LEASE_MS,
    tries: int = TRIES,
    tell: Callable[[str], None] | None = None,
) -> Cut:
    """Take one; see the module's text. `without`: topics and tables that are left out.

    Raises BackupError where no try succeeded, or for what cannot be in a cut.
    """
    metadata, backoff, tried_ms = Metadata(), BackOff(PAUSE_S, PAUSE_S_MAX), 0.0
    problem: AntiphonError = BackupError("no try was made")
    for number in range(1, tries + 1):
        one, began_ms = CutTry(client, metadata, lease_ms), system.wall_ms()
        shards: list[int] = []
        began_s = asyncio.get_running_loop().time()
        try:
            cluster = await one.cluster_end()
            topics = _topics_to_cut(metadata, without)
            await _check_seen(client, one.meta, metadata, topics)
            shards = [shard.shard_id for topic in topics for shard in topic.shards]
            began_s = asyncio.get_running_loop().time()
            await one.hold(shards)
            held_ms = await one.confirm(cluster)
        except FINAL:
            await one.release(shards)
            raise
        except AntiphonError as error:
            problem = error
            await one.release(shards)
            took_ms = (asyncio.get_running_loop().time() - began_s) * 1000 if one.held else 0.0
            tried_ms = max(tried_ms, min(took_ms, float(lease_ms)))
        else:
            one.held[CLUSTER_SHARD_ID] = cluster
            times = began_ms, system.wall_ms(), held_ms
            return Cut(one.held, metadata, topics, *times, number, tried_ms)
        if tell is not None:
            tell(f"try {number} for a cut failed ({problem.message}); trying again")
        await asyncio.sleep(backoff.next_s(system.rng().uniform))
    raise BackupError(
        f"no cut in {tries} tries; the last one failed because {problem.message}. `antiphon status` shows which shards have "
        "no leader; with many shards or slow disks a longer --lease helps"
    )


def _topics_to_cut(metadata: Metadata, without: Collection[str]) -> list[TopicMeta]:
    """What a cut is of. Raises BackupError for what it cannot hold, UnavailableError while a split is under way."""
    topics = [topic for topic in topics_of(metadata.state) if topic.name not in without]
    multi = [topic.name for topic in topics if is_multi(topic)]
    if multi:
        raise BackupError(
            f"every replica writes {', '.join(multi)} (writers=multi), so no leader can hold it for a cut: leave it out "
            f"with {' '.join(f'--without {name}' for name in multi)}",
            topics=",".join(multi),
        )
    split = being_split(metadata.state)
    if split:
        raise UnavailableError(
            f"shard {split[0].shard_id} is being split off another one; that ends by itself"
        )
    return topics


async def _check_seen(
    client: AsyncClient, meta: ClusterMeta | None, metadata: Metadata, topics: list[TopicMeta]
) -> None:
    """A node hides what a user may not describe. Raises AccessDeniedError; UnavailableError while nodes know less."""

    def hidden_in(found: ClusterMeta | None) -> list[str]:
        seen = {topic.topic_id for topic in found.topics} if found is not None else set()
        return [topic.name for topic in topics if topic.topic_id not in seen]

    if not hidden_in(meta):
        return
    meta = await client.whole.refresh()  # it may be newer than what was known
    hidden = hidden_in(meta)
    if not hidden:
        return
    if meta.version < metadata.offset:
        raise UnavailableError(f"no node knows {hidden[0]} yet")
    raise AccessDeniedError(
        f"this user may not see {', '.join(hidden[:5])}: a backup needs READ of all topics and tables"
    )


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all; at the first error the others are given up, and it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        for done in asyncio.as_completed(tasks):
            await done
    finally:
        await end_tasks(*tasks)


def _confirmed(shard_id: int, reply: Any) -> int:
    if not isinstance(reply, HoldConfirmed):
        raise UnavailableError(f"asked shard {shard_id} to confirm, got {type(reply).__name__}")
    return reply.held_us
