"""Fetch: read every partition that was asked for, wait for data where there is too little, answer with the log's own bytes.

Consumers see what is committed, up to the high watermark, whatever a topic's default isolation is for reads that name none
(C7): to Kafka's clients "uncommitted" means parts of open transactions, never records that a fail-over may take back. Who
asks for `read_committed` sees what is before the last stable offset, and is told which transactions were aborted. A
response is limited by the request's byte limits, except that
the first batch of the first partition that has any is always sent, however large (KIP-74): a consumer always gets on.

What is read is counted in the connection's account before it is read (`gateway.budget`). Where there is little room, the
answer has fewer bytes; where there is none, the request waits, as it does for data. A first batch that is larger than the
room comes when there is room for it, or when it is the one of the node that needs none.

A client that says where it stands (KIP-392) is told by the leader which replica is nearer to it. A node that stands there
serves it what its replica knows to be committed.

Records that left the log come from the archive, where there is one (`kafka.archived`).

Whose quota is used up gets an empty answer at once, which tells how long to wait. No answer is larger than what a quota
holds.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import Quotas, Use, payer_of
from antiphon.kafka import error_codes as code
from antiphon.kafka.archived.reader import WAIT_S, ArchiveReader
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.fetch_codec import (
    FIRST_TOPIC_IDS,
    NOWHERE,
    FetchRequest,
    PartitionFetched,
    PartitionWanted,
    TopicFetched,
    TopicWanted,
    encode_fetch,
    gathered,
)
from antiphon.kafka.fetch_sessions import OF_COMMITTED, FetchSession, FetchSessions
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.handlers.rights import may
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation
from antiphon.model.metadata import ShardMeta, TopicMeta
from antiphon.model.results import COMMITTED, FOLLOWER, FOLLOWER_COMMITTED, FetchResult

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
WAIT_MS_MAX: Final = 300_000
PIECE: Final = 256  # partitions and topics that are read in one turn of the event loop
BATCH_BYTES: Final = (
    1024 * 1024
)  # counted at least for what is read: the first batch comes however large it is
FOLLOWER_ISOLATIONS: Final = {0: FOLLOWER, 1: FOLLOWER_COMMITTED}
TRIMS_MAX: Final = 3  # of a log while records are read that left it
GATHER_S: Final = 0.005  # between looks, while a client wants more bytes than there are
# Java's consumer asks again after these, of what can be tried again; at any other code it throws, and its application ends.
FETCHED_AGAIN: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.NOT_LEADER_OR_FOLLOWER, code.KAFKA_STORAGE_ERROR, code.OFFSET_NOT_AVAILABLE,
})  # fmt: skip
ISOLATIONS: Final = {0: "read_uncommitted", 1: COMMITTED}


class FetchHandler:
    """Carries out Fetch requests."""

    def __init__(
        self,
        gateway: Gateway,
        cache: MetadataCache,
        quotas: Quotas,
        sessions_max: int,
        archive: ArchiveReader,
    ) -> None:
        self.sessions = FetchSessions(gateway, sessions_max)
        self.gateway = gateway
        self.archive = archive
        self.cache = cache
        self._quotas = quotas

    async def run(self, header: RequestHeader, request: FetchRequest, answer: Answer) -> None:
        """Read, wait if there is less than asked for, read again, answer."""
        answer.connection.go_on(answer)  # no order is promised between fetches
        by_id = header.version >= FIRST_TOPIC_IDS
        session = await self.sessions.changed(request, answer, by_id=by_id)
        if isinstance(session, int):
            answer.send(*encode_fetch(header, session, [], []))
            return
        try:
            await self._run(header, request, answer, session)
        finally:
            if session is not None:
                session.busy = False

    async def _run(
        self, header: RequestHeader, request: FetchRequest, answer: Answer, session: FetchSession | None
    ) -> None:
        session_id = session.session_id if session is not None else 0
        payer = None
        if self._quotas.all:
            payer = payer_of(answer.connection.session.rights.principal, header.client_id)
        most = self._quotas.at_once(Use.FETCH, payer)
        if most is not None:
            if self._quotas.refuses(Use.FETCH, payer, answer):
                how = {"throttle_ms": answer.throttle_ms, "session_id": session_id}
                answer.send(*encode_fetch(header, 0, [], [], **how))
                return
            most = max(1, int(most))
            request = request._replace(
                max_bytes=min(request.max_bytes, most), min_bytes=min(request.min_bytes, most)
            )
        sweep = await self._read(request, answer, session)
        if session is not None:
            topics = session.news()
        else:
            topics = sweep.topics
            by_id = header.version >= FIRST_TOPIC_IDS
            session_id = await self.sessions.opened(request, topics, answer, by_id=by_id)
        hints = [p.leader for topic in topics for p in topic.partitions if p.leader is not None]
        endpoints = self.cache.endpoints_of(hints) if hints else []
        self._quotas.charge(Use.FETCH, payer, sweep.found_bytes, answer)
        how = {
            "isolation": request.isolation,
            "throttle_ms": answer.throttle_ms,
            "session_id": session_id,
        }
        encode = functools.partial(encode_fetch, header, 0, topics, endpoints, **how)
        if sum(len(topic.partitions) + 1 for topic in topics) <= PIECE:
            answer.send(*encode())
        else:
            loop = asyncio.get_running_loop()
            answer.send(*await loop.run_in_executor(None, lambda: gathered(encode())))

    async def _read(self, request: FetchRequest, answer: Answer, session: FetchSession | None) -> "_Sweep":
        """Read until there is as much as was asked for, or the time is over; the last pass."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        sweep = await self._sweep(request, answer, deadline_s, session)
        while sweep.must_wait and (left_s := deadline_s - loop.time()) > 0:
            answer.reserve(-sweep.found_bytes)
            if sweep.lacks_room:
                await self._more_room(answer, sweep.bound_bytes, deadline_s)
            elif session is not None:
                await session.wait(left_s)
            else:
                await self.gateway.wait_for_data(list(sweep.ends.items()), sweep.isolation, left_s)
            sweep = await self._sweep(request, answer, deadline_s, session)
            if sweep.must_wait and sweep.found_bytes:
                await asyncio.sleep(min(GATHER_S, max(0.0, deadline_s - loop.time())))
        return sweep

    async def _more_room(self, answer: Answer, tried_bytes: int, deadline_s: float) -> None:
        """Return when a first batch may fit that did not with so many bytes; a try costs all who wait a look at theirs."""
        loop = asyncio.get_running_loop()
        while (left_s := deadline_s - loop.time()) > 0:
            if answer.may_begin(BATCH_BYTES) or answer.room_bytes >= 2 * max(1, tried_bytes):
                return
            await answer.connection.wait_for_room(left_s)

    async def _sweep(
        self, request: FetchRequest, answer: Answer, deadline_s: float, session: FetchSession | None
    ) -> "_Sweep":
        loop = asyncio.get_running_loop()
        while (room := answer.room_bytes) <= 0 and (left_s := deadline_s - loop.time()) > 0:
            await answer.connection.wait_for_room(left_s)
        bound = max(0, min(request.max_bytes, RESPONSE_BYTES_MAX, room))
        is_whole = bound > 0 and answer.may_begin(max(bound, BATCH_BYTES))
        reserved = max(bound, BATCH_BYTES) if is_whole else bound
        answer.reserve(reserved)
        sweep = _Sweep(self, request, bound, answer.connection, session, is_whole=is_whole)
        try:
            await sweep.read(answer.next_turn)
        finally:
            answer.reserve(sweep.found_bytes - reserved)
        return sweep


class _Sweep:
    """One pass over the partitions of a request."""

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        bound_bytes: int,
        connection: Connection,
        session: FetchSession | None,
        *,
        is_whole: bool,
    ) -> None:
        gateway, cache = self._gateway, self._cache = handler.gateway, handler.cache
        self._archive = handler.archive
        self._archive_until_s = 0.0  # how long all of its files are waited for, from the first one on
        self._is_whole = is_whole  # is there room for a first batch, however large it is?
        self.lacks_room = False  # was there one without room for it?
        self._request = request
        # Who stands where this node does reads from its replicas, whoever leads.
        self._is_near = bool(request.rack) and request.rack == gateway.rack
        isolations = FOLLOWER_ISOLATIONS if self._is_near else ISOLATIONS
        self.isolation = isolations[1 if request.isolation else 0]
        self._nearer = cache.in_rack(request.rack) if request.rack and not self._is_near else frozenset()
        self._session = session
        self._rights, self._client = connection.session.rights, connection.client
        self.bound_bytes = self._bytes_left = bound_bytes
        self._ends_wait = False  # does the client have to know at once what was found?
        self.found_bytes = 0
        self.topics: list[TopicFetched] = []
        self.ends: dict[int, int] = {}  # shard id -> where what was read ended: where to wait for more

    @property
    def must_wait(self) -> bool:
        """Less was found than the client wants at least, and nothing that it should know at once."""
        if self.lacks_room and not self.found_bytes and not self._ends_wait:
            return True
        if self.found_bytes >= self._request.min_bytes or self._ends_wait:
            return False
        return bool(self.ends) or self._session is not None

    async def read(self, next_turn: Callable[[], Awaitable[None]]) -> None:
        places = count(1)
        topics = self._request.topics if self._session is None else self._session.due(self.isolation)
        for wanted in topics:
            fetched = TopicFetched(wanted.name, wanted.topic_id, [])
            self.topics.append(fetched)
            topic, missing = self._topic_of(wanted)
            if not next(places) % PIECE:
                await next_turn()
            for partition in wanted.partitions:
                if not next(places) % PIECE:
                    await next_turn()
                if topic is None:
                    self._ends_wait = True
                    found, shard_id = PartitionFetched(partition.partition, missing), -1
                else:
                    found, shard_id = await self._read_partition(topic, partition)
                fetched.partitions.append(found)
                if self._session is not None:
                    self._session.read(wanted, found, shard_id, self.isolation)

    def _topic_of(self, wanted: TopicWanted) -> tuple[TopicMeta | None, int]:
        gateway, name = self._gateway, wanted.name
        try:
            if name is None:
                name = gateway.topic_by_id(wanted.topic_id or bytes(16)).name
            if not may(gateway, self._rights, Operation.READ, name):
                return None, code.TOPIC_AUTHORIZATION_FAILED
            topic = gateway.topic(name)
            if not self._request.reads_zstd and topic.config.get("compression.type") == "zstd":
                return None, code.UNSUPPORTED_COMPRESSION_TYPE
            return topic, 0
        except UnknownTopicError:
            by_name = wanted.name is not None
            return None, code.UNKNOWN_TOPIC_OR_PARTITION if by_name else code.UNKNOWN_TOPIC_ID

    async def _read_partition(
        self, topic: TopicMeta, wanted: PartitionWanted
    ) -> tuple[PartitionFetched, int]:
        """What was found, and the shard's id, or -1 where it cannot be read."""
        shard = self._cache.shard_at(topic, wanted.partition)
        if shard is None:
            self._ends_wait = True
            return PartitionFetched(wanted.partition, code.UNKNOWN_TOPIC_OR_PARTITION), -1
        read_at = self._nearer_replica(shard.shard_id, wanted.offset) if self._nearer else NOWHERE
        try:
            if self._is_near:
                self._check_led(shard)
            found = await self._fetch(topic, shard, wanted, is_read=read_at == NOWHERE)
        except AntiphonError as error:
            self._ends_wait = True
            hint = (
                self._cache.hint(topic.name, wanted.partition) if isinstance(error, NotLeaderError) else None
            )
            return PartitionFetched(wanted.partition, self._code_of(error, wanted.offset), leader=hint), -1
        mismatch = epoch_mismatch(wanted.leader_epoch, found.term)
        if mismatch:
            self._ends_wait = True
            return PartitionFetched(wanted.partition, mismatch), -1
        self._bytes_left -= found.size_bytes
        self.found_bytes += found.size_bytes
        self._ends_wait |= read_at != NOWHERE
        self.ends[shard.shard_id] = (
            found.stable_end if self.isolation in OF_COMMITTED else found.high_watermark
        )
        read = PartitionFetched(
            wanted.partition,
            0,
            found.high_watermark,
            found.log_start,
            found.batches,
            found.size_bytes,
            stable_end=found.stable_end,
            aborted=found.aborted,
            read_at=read_at,
        )
        return read, shard.shard_id

    async def _fetch(
        self, topic: TopicMeta, shard: ShardMeta, wanted: PartitionWanted, *, is_read: bool
    ) -> FetchResult:
        """What there is, or no more than where it ends."""
        bound = max(0, min(wanted.max_bytes, self._bytes_left)) if is_read else 0
        is_first = self.found_bytes == 0
        at_least_one = is_first and self._is_whole
        try:
            found = await self._gateway.fetch(
                shard.shard_id, wanted.offset, bound, self.isolation, at_least_one=at_least_one
            )
        except OffsetOutOfRangeError as error:
            found = await self._archived(topic, shard, wanted, bound, error)
        if is_first and not self._is_whole and bound and not found.batches:
            end = found.stable_end if self.isolation in OF_COMMITTED else found.high_watermark
            self.lacks_room |= wanted.offset < end
        return found

    async def _archived(
        self,
        topic: TopicMeta,
        shard: ShardMeta,
        wanted: PartitionWanted,
        bound: int,
        error: OffsetOutOfRangeError,
    ) -> FetchResult:
        """What the archive has of records that left the log; raises the error of the log where it has none."""
        start, offset = int(error.details["start"]), wanted.offset
        if not int(error.details["deleted"]) <= offset < start or not self._archive.serves():
            raise error
        at_least_one = self.found_bytes == 0 and self._is_whole
        now_s = asyncio.get_running_loop().time()
        self._archive_until_s = self._archive_until_s or now_s + WAIT_S
        wait_s = max(0.0, self._archive_until_s - now_s)
        piece = await self._archive.read(
            topic, shard.index, offset, bound, at_least_one=at_least_one, wait_s=wait_s, client=self._client
        )
        if piece is None:
            raise error
        self._ends_wait |= not piece.lacks_room
        log = await self._log_from(shard.shard_id, start)
        first = self._archive.known_start(topic, shard.index, offset)
        return log._replace(log_start=first, batches=piece.batches, size_bytes=piece.size_bytes)

    async def _log_from(self, shard_id: int, start: int) -> FetchResult:
        """Where the log ends that began at `start`, and may begin later by now."""
        for _ in range(TRIMS_MAX):
            try:
                return await self._gateway.fetch(shard_id, start, 0, self.isolation, at_least_one=False)
            except OffsetOutOfRangeError as error:
                start = int(error.details["start"])
        raise NotReadyError(f"the log of shard {shard_id} is being trimmed; ask again")

    def _nearer_replica(self, shard_id: int, offset: int) -> int:
        """The node in the client's rack whose replica has everything up to there, and the most (KIP-392)."""
        found = self._gateway.followers_with(shard_id, offset)
        return next((node for node in found if node in self._nearer), NOWHERE)

    def _check_led(self, shard: ShardMeta) -> None:
        """Raise NotLeaderError for a replica that hears of no commits, so that its reader asks the cluster anew."""
        if self._gateway.term_led(shard.shard_id) is None and self._cache.may_change(shard):
            raise NotLeaderError(
                f"node {self._gateway.node_id} has no contact with the leader of shard {shard.shard_id}",
                leader=None,
                shard_id=shard.shard_id,
            )

    def _code_of(self, error: AntiphonError, offset: int) -> int:
        """Kafka's code. What a follower does not have yet, its leader may have."""
        if self._is_near and isinstance(error, OffsetOutOfRangeError) and offset > int(error.details["end"]):
            return code.OFFSET_NOT_AVAILABLE
        found = code.code_of(error)
        return code.NOT_LEADER_OR_FOLLOWER if error.retriable and found not in FETCHED_AGAIN else found


def epoch_mismatch(asked: int, current: int) -> int:
    """The error for a client that knows an older (74) or newer (75) leader epoch than this leader's; 0: it matches."""
    if asked < 0 or asked == current:
        return code.NONE
    return code.FENCED_LEADER_EPOCH if asked < current else code.UNKNOWN_LEADER_EPOCH
