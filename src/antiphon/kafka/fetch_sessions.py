"""Fetch sessions (KIP-227): what a consumer follows is kept here, and it is sent what changed.

A session belongs to the connection that opened it and ends with it: Kafka's clients open a new one after a disconnect
anyway. What it keeps is counted in the connection's account (`gateway.budget`); where there is no room, and while all
places of the node are taken by sessions that are in use, a client gets no session, and fetches in full as before.

A partition that is read to its end is followed (`Gateway.follow`) and not looked at again before something arrives, so that
a fetch costs what changed and not what is followed. What no follower hears of (a trimmed log, rights) is seen by a look at
all of them every `LOOK_S`.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.fetch_codec import (
    NOWHERE,
    FetchRequest,
    PartitionFetched,
    PartitionWanted,
    TopicFetched,
    TopicWanted,
)
from antiphon.model.results import COMMITTED, FOLLOWER_COMMITTED

if TYPE_CHECKING:
    from antiphon.kafka.connection import Answer, Connection

INITIAL: Final = 0  # the epoch of a request that wants a session
FINAL: Final = -1  # and of one that wants none
EPOCH_MAX: Final = (1 << 31) - 1
SESSIONS_MAX: Final = 1_000  # of a node
OF_CONNECTION_MAX: Final = 4
EVICT_S: Final = 120.0  # unused for so long, a session gives its place to a new one
LOOK_S: Final = 10.0
PARTITION_COSTS_BYTES: Final = 1024  # of a session, about
PIECE: Final = 256  # partitions that are changed in one turn of the event loop

OF_COMMITTED: Final = (COMMITTED, FOLLOWER_COMMITTED)

TopicKey = str | bytes
Place = tuple[TopicKey, int]


class _Followed:
    """One partition of a session. `told_*` is what the client knows; `waits_at` is where the log is followed, or -1."""

    __slots__ = ("key", "sent_end", "sent_start", "shard_id", "waits_at", "wanted")

    def __init__(self, wanted: PartitionWanted, key: int) -> None:
        self.wanted = wanted
        self.key = key
        self.shard_id = -1
        self.waits_at = -1
        self.sent_end, self.sent_start = (-1, -1), -1

    def sent(self, fetched: PartitionFetched) -> None:
        """The client hears this. An error is forgotten, so that its end is news."""
        self.sent_end = (-1, -1) if fetched.error_code else (fetched.high_watermark, fetched.stable_end)
        self.sent_start = fetched.log_start_offset

    def is_news(self, fetched: PartitionFetched) -> bool:
        """Does this differ from what the client knows?"""
        if fetched.error_code or fetched.size_bytes or fetched.read_at != NOWHERE:
            return True
        ends = fetched.high_watermark, fetched.stable_end
        return ends != self.sent_end or fetched.log_start_offset != self.sent_start


class FetchSession:
    """What one consumer follows. `busy` while a request of it is under way: there is one at a time."""

    def __init__(self, gateway: Gateway, session_id: int, connection: "Connection", *, by_id: bool) -> None:
        self._gateway = gateway
        self.session_id = session_id
        self.connection = connection
        self.by_id = by_id
        self.epoch = 1
        self.busy = False
        self.used_s = self._looked_s = asyncio.get_running_loop().time()
        self.costs_bytes = 0
        self._partitions: dict[Place, _Followed] = {}
        self._due: dict[Place, None] = {}  # to be read, the longest unserved first
        self._found: dict[Place, PartitionFetched] = {}  # for the answer under way
        self._arrived = asyncio.Event()
        self._isolation = ""  # of what is followed

    def __len__(self) -> int:
        return len(self._partitions)

    def want(self, topic: TopicWanted, wanted: PartitionWanted) -> None:
        """Follow a partition, or follow it from elsewhere."""
        place = (_key(topic), wanted.partition)
        known = self._partitions.get(place)
        if known is None:
            self._partitions[place] = _Followed(wanted, self._gateway.next_follow_key())
            self._count()
        else:
            known.wanted = wanted
        self._due[place] = None

    def forget(self, place: Place) -> None:
        """Follow a partition no more; harmless where it is not followed."""
        known = self._partitions.pop(place, None)
        self._due.pop(place, None)
        if known is not None:
            self._unfollow(known)
            self._count()

    def close(self) -> None:
        """Follow nothing any more."""
        for known in self._partitions.values():
            self._unfollow(known)
        self._partitions.clear()
        self._due.clear()
        self._count()

    def sent_in_full(self, topic: TopicFetched, fetched: PartitionFetched) -> None:
        """The full answer with which the session begins has this."""
        known = self._partitions.get((_key(topic), fetched.partition))
        if known is not None:
            known.sent(fetched)

    def due(self, isolation: str) -> list[TopicWanted]:
        """What has to be read, because something may have changed: all, where the client reads to another end now."""
        if isolation != self._isolation:
            self._isolation = isolation
            self._looked_s = -LOOK_S
            for known in self._partitions.values():
                self._unfollow(known)
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._due = {**self._due, **dict.fromkeys(self._partitions)}
        self._arrived.clear()
        topics: dict[TopicKey, list[PartitionWanted]] = {}
        for place in self._due:
            topics.setdefault(place[0], []).append(self._partitions[place].wanted)
        return [
            TopicWanted(None, key, partitions)
            if isinstance(key, bytes)
            else TopicWanted(key, None, partitions)
            for key, partitions in topics.items()
        ]

    def read(self, topic: TopicWanted, fetched: PartitionFetched, shard_id: int, isolation: str) -> None:
        """This was found; `shard_id` is -1 where the partition cannot be read."""
        place = (_key(topic), fetched.partition)
        known = self._partitions.get(place)
        if known is None:  # the session was closed meanwhile
            return
        self._found[place] = fetched
        if fetched.error_code or fetched.read_at != NOWHERE:
            self._unfollow(known)
            return
        end = fetched.stable_end if isolation in OF_COMMITTED else fetched.high_watermark
        if known.waits_at != end or known.shard_id != shard_id:
            self._unfollow(known)
            known.shard_id = shard_id
            known.waits_at = end if self._follow(place, known, end, isolation) else -1
        if known.waits_at < 0:
            self._arrived.set()
        elif known.wanted.offset >= end:
            self._due.pop(place, None)

    async def wait(self, timeout_s: float) -> None:
        """Return when something arrived since `due` was called, or after `timeout_s`."""
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        except TimeoutError:
            return

    def news(self) -> list[TopicFetched]:
        """Of what was found, what the client has to be sent. Who gets records is served last the next time."""
        topics: dict[TopicKey, TopicFetched] = {}
        for place, fetched in self._found.items():
            known = self._partitions.get(place)
            if known is None or not known.is_news(fetched):
                continue
            known.sent(fetched)
            if fetched.size_bytes and place in self._due:
                del self._due[place]
                self._due[place] = None
            key = place[0]
            if key not in topics:
                by_id = isinstance(key, bytes)
                topics[key] = TopicFetched(None if by_id else key, key if by_id else None, [])  # type: ignore[arg-type]
            topics[key].partitions.append(fetched)
        self._found.clear()
        return list(topics.values())

    def _follow(self, place: Place, known: _Followed, end: int, isolation: str) -> bool:
        try:
            return self._gateway.follow(
                known.key, known.shard_id, end, isolation, partial(self._something_at, place)
            )
        except AntiphonError:  # it has just been closed here: the next read says what is
            return False

    def _something_at(self, place: Place) -> None:
        known = self._partitions.get(place)
        if known is not None:
            known.waits_at = -1
            self._due[place] = None
            self._arrived.set()

    def _unfollow(self, known: _Followed) -> None:
        if known.waits_at >= 0:
            self._gateway.unfollow(known.shard_id, known.key)
            known.waits_at = -1

    def _count(self) -> None:
        costs_bytes = len(self._partitions) * PARTITION_COSTS_BYTES
        self.connection.account.add(costs_bytes - self.costs_bytes)
        self.costs_bytes = costs_bytes


class FetchSessions:
    """The sessions of a node's listener. While they are not `served`, every request has to be a full one."""

    def __init__(self, gateway: Gateway, sessions_max: int = SESSIONS_MAX) -> None:
        self._gateway = gateway
        self._max = sessions_max
        self.served = True
        self._sessions: dict[int, FetchSession] = {}  # the longest unused first
        self._of: dict[Connection, dict[int, FetchSession]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._sessions)

    async def changed(
        self, request: FetchRequest, answer: "Answer", *, by_id: bool
    ) -> FetchSession | int | None:
        """The session of an incremental request, as the request wants it; or the code of an error.

        None: the request is a full one. A session that it names ends.
        """
        session = self._sessions.get(request.session_id) if request.session_id else None
        if session is not None and session.connection is not answer.connection:
            session = None
        if request.session_epoch in {INITIAL, FINAL}:
            if session is not None:
                self._close(session)
            return None
        if session is None or not self.served:
            return code.FETCH_SESSION_ID_NOT_FOUND
        if session.by_id != by_id:
            return code.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != request.session_epoch or session.busy:
            return code.INVALID_FETCH_SESSION_EPOCH
        session.busy = True
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_s = asyncio.get_running_loop().time()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        await self._change(session, request, answer)
        if not len(session):
            self._close(session)
            return None
        if request.topics and not answer.connection.account.has_room:
            self._close(session)
            return code.FETCH_SESSION_ID_NOT_FOUND
        return session

    async def _change(self, session: FetchSession, request: FetchRequest, answer: "Answer") -> None:
        count = 0
        for topic in request.topics:
            for wanted in topic.partitions:
                session.want(topic, wanted)
                count += 1
                if not count % PIECE:
                    await answer.next_turn()
        for key, partitions in request.forgotten:
            for index in partitions:
                session.forget((key, index))
                count += 1
                if not count % PIECE:
                    await answer.next_turn()

    async def opened(
        self, request: FetchRequest, fetched: list[TopicFetched], answer: "Answer", *, by_id: bool
    ) -> int:
        """The id of a new session for a full request that wants one and is answered with `fetched`; 0: there is none."""
        count = sum(len(topic.partitions) for topic in request.topics)
        connection = answer.connection
        costs_bytes = count * PARTITION_COSTS_BYTES
        if request.session_epoch != INITIAL or not count or connection.account.room_bytes < costs_bytes:
            return 0
        if not self.served or not self._has_place(connection):
            return 0
        self._last_id = 1 if self._last_id == EPOCH_MAX else self._last_id + 1
        session = FetchSession(self._gateway, self._last_id, connection, by_id=by_id)
        session.busy = True
        self._sessions[session.session_id] = session
        self._of.setdefault(connection, {})[session.session_id] = session
        await self._change(session, request, answer)
        for topic in fetched:
            for place, partition in enumerate(topic.partitions, 1):
                session.sent_in_full(topic, partition)
                if not place % PIECE:
                    await answer.next_turn()
        session.busy = False
        return session.session_id

    def ended(self, connection: "Connection") -> None:
        """The connection is gone, and its sessions with it."""
        for session in list(self._of.get(connection, {}).values()):
            self._close(session)

    def _has_place(self, connection: "Connection") -> bool:
        """Is there a place for one more, or one that can be made free?"""
        own = self._of.get(connection, {})
        if len(own) >= OF_CONNECTION_MAX:
            self._close(next(iter(own.values())))
        if len(self._sessions) < self._max:
            return True
        now_s = asyncio.get_running_loop().time()
        oldest = next(iter(self._sessions.values()))
        if oldest.busy or now_s - oldest.used_s < EVICT_S:
            return False
        self._close(oldest)
        return True

    def _close(self, session: FetchSession) -> None:
        if self._sessions.pop(session.session_id, None) is None:
            return
        session.close()
        own = self._of[session.connection]
        del own[session.session_id]
        if not own:
            del self._of[session.connection]


def _key(topic: TopicWanted | TopicFetched) -> TopicKey:
    return topic.name if topic.name is not None else topic.topic_id or bytes(16)
