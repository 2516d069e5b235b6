"""The share-partitions that this node holds: those of partitions that it leads, in the term in which it does.

A share-partition is read from its group's row (`share_states`) when somebody first fetches from it, and written anew at
once, under this node's name: from then on whoever led the partition before can store nothing, and is told so.

What changes is in memory first. `settle` returns when it is stored as it was then. One question to a group's coordinator
carries what changed meanwhile of all its share-partitions here. For a share-partition of which nothing has to be stored, it
asks whether the row is still the one that this node wrote. So what a member is given, and what it is told of its
acknowledgements, never comes from a leader that another one has followed. After a question without an answer the row is
read before anything else: what this node wrote is its own, by the row's owner.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from antiphon import system
from antiphon.coordination.share_partition import SharePartition
from antiphon.coordination.share_settings import EARLIEST, ShareSettings, duration_ms, settings_from
from antiphon.coordination.share_terms import UNSET, ShareCounts, ShareRow
from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.types import ShareConfig
from antiphon.model.cluster import AskShareStates, PutShareState, ShareStates
from antiphon.transactions.share_rows import encoded, state_of
from antiphon.transactions.share_states import ABSENT, ShareStateAsker

ASKED_MAX: Final = 32  # share-partitions of one question
SPANS_MAX: Final = 200_000  # of all share-partitions of a node
AGAIN_S: Final = 1.0  # until what could not be stored is tried again, where nobody waits for it
WAITING_MAX: Final = 1_000  # requests that wait for one share-partition
UNKNOWN: Final = -2  # a revision that nothing has: what is stored is not known


class Place(NamedTuple):
    """A partition of a topic, as a group reads it."""

    group: str
    topic_id: bytes
    partition: int


class Share:
    """One share-partition here. `stored`: the revision that is known to be stored; `version`: of its row."""

    def __init__(self, place: Place, shard_id: int, term: int) -> None:
        self.place = place
        self.shard_id = shard_id
        self.term = term
        self.owner = system.new_uuid().bytes
        self.made_at = 0
        self.machine = SharePartition(0)
        self.own_settings: Mapping[str, str] = {}  # as an operator set them for the group
        self.settings = ShareSettings()
        self.version = ABSENT
        self.stored = UNKNOWN
        self.in_doubt = False
        self.counted = 0  # spans, among those of the node
        self.used_s = 0.0
        self.looked_s = 0.0  # when it was last certain that nobody else has it
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []  # with the revision that has to be stored
        self.wakes: set[asyncio.Event] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.gone: AntiphonError | None = None

    def row(self) -> ShareRow:
        """As it is to be stored now."""
        machine = self.machine
        return ShareRow(
            self.owner, self.term, machine.revision, self.made_at, machine.start, machine.stored()
        )


class SharePartitions:
    """See the module's text. Methods raise NotLeaderError where another node leads the partition, UnknownTopicError where
    there is no such group, and what is to be tried again. `counts`: of all records of all of them, since the start.
    """

    def __init__(self, gateway: Gateway, asker: ShareStateAsker, config: ShareConfig) -> None:
        self._gateway = gateway
        self._asker = asker
        self.config = config
        self._shares: dict[Place, Share] = {}
        self._loading: dict[Place, asyncio.Task[Share]] = {}
        self._due: dict[str, dict[Share, None]] = {}  # by group: to be stored, or asked about
        self._work: dict[str, asyncio.Task[None]] = {}
        self._spans = 0
        self._stopping = False
        self.counts = ShareCounts()

    def __iter__(self) -> Iterator[Share]:
        return iter(list(self._shares.values()))

    def __len__(self) -> int:
        return len(self._shares)

    def ends(self) -> Iterator[tuple[Share, int]]:
        """Each share-partition here with its partition's high watermark."""
        for share in self:
            try:
                yield share, self._gateway.list_offset(share.shard_id, -1).high_watermark
            except AntiphonError:
                continue  # it is led elsewhere by now

    @property
    def has_room(self) -> bool:
        """May more records be in flight on this node?"""
        return self._spans < SPANS_MAX

    def take(self, config: ShareConfig) -> None:
        """The bounds are these from now on, where a group has none of its own."""
        self.config = config
        for share in self:
            self._bound(share)

    async def stop(self) -> None:
        """Hold nothing any more."""
        self._stopping = True
        for share in self:
            self._drop(share, NotLeaderError("this node stops", leader=None))
        tasks: list[asyncio.Task[Share] | asyncio.Task[None]] = [
            *self._loading.values(),
            *self._work.values(),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- finding ----------------------------------------------------------------------------------------------------

    async def at(self, place: Place, shard_id: int) -> Share:
        """The share-partition, read in this term."""
        found = self.find(place)
        if found is not None:
            return found
        self.check_led(shard_id)
        task = self._loading.get(place)
        if task is None:
            self._make_room()
            work = self._load(place, shard_id)
            task = asyncio.get_running_loop().create_task(work, name="read share-partition")
            self._loading[place] = task
            task.add_done_callback(lambda done: self._loaded(place, done))
        return await asyncio.shield(task)

    def find(self, place: Place) -> Share | None:
        """The share-partition, where it is here and this node still leads its partition in the same term."""
        share = self._shares.get(place)
        if share is not None and self._gateway.term_led(share.shard_id) != share.term:
            self._drop(share, self._not_led(share.shard_id))
            return None
        if share is not None:
            share.used_s = asyncio.get_running_loop().time()
        return share

    def check_led(self, shard_id: int) -> int:
        """The term in which this node leads a partition; raises NotLeaderError."""
        term = self._gateway.term_led(shard_id)
        if term is None or self._stopping:
            raise self._not_led(shard_id)
        return term

    def _not_led(self, shard_id: int) -> NotLeaderError:
        return NotLeaderError(f"node {self._gateway.node_id} does not lead shard {shard_id}", leader=None)

    def _make_room(self) -> None:
        if len(self._shares) + len(self._loading) < self.config.partitions_max:
            return
        idle = [
            share
            for share in self
            if not share.wakes and not share.waiting and share.stored == share.machine.revision
            and share.machine.deadline_ms() is None
        ]  # fmt: skip
        if not idle:
            raise OverloadedError(f"this node holds {len(self._shares)} share-partitions that are in use")
        self._drop(
            min(idle, key=lambda share: share.used_s), NotReadyError("it made room for others; ask again")
        )

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _load(self, place: Place, shard_id: int) -> Share:
        share = Share(place, shard_id, self.check_led(shard_id))
        asked = AskShareStates(place.group, reads=((place.topic_id, place.partition),))
        told = await self._asker.ask(asked)
        if told.group_version == ABSENT:
            raise UnknownTopicError(f"there is no share group {place.group!r}: a member has to join it first")
        share.version, value = told.rows[0]
        self._take_settings(share, told)
        start, spans, share.made_at = UNSET, (), self._gateway.metadata.version
        if share.version != ABSENT:
            try:
                row = state_of(value)
                if row.term > share.term:
                    raise self._not_led(shard_id)
                share.machine = SharePartition.restored(
                    share.settings.bounds, row.start, row.spans, self.counts
                )
            except ValueError as error:
                structlog.get_logger().error("share_partition_not_readable", place=place, reason=str(error))
                raise UnavailableError(
                    f"what is stored of {place.group!r} cannot be read: {error}"
                ) from error
            start, share.made_at = row.start, row.made_at
        if start == UNSET:
            start = self._first_offset(share)
            share.machine = SharePartition.restored(share.settings.bounds, start, spans, self.counts)
        put = self._put_of(share, told.group_version)
        share.version = (await self._asker.ask(AskShareStates(place.group, (put,)))).versions[0]
        if share.version == ABSENT or self._gateway.term_led(shard_id) != share.term:
            raise NotReadyError("the share-partition was changed by somebody else just now; ask again")
        share.stored = share.machine.revision
        return share

    def _loaded(self, place: Place, done: "asyncio.Task[Share]") -> None:
        self._loading.pop(place, None)
        if done.cancelled() or done.exception() is not None:
            return
        share = done.result()
        share.used_s = asyncio.get_running_loop().time()
        self._shares[place] = share
        self.changed(share)

    def _first_offset(self, share: Share) -> int:
        """Where a group begins that has read nothing of the partition yet."""
        reset = share.settings.reset
        ago_ms = duration_ms(reset)
        found = self._gateway.list_offset(share.shard_id, -2 if reset == EARLIEST else -1, "read_uncommitted")
        if reset == EARLIEST:
            return found.log_start
        if ago_ms is None:
            return found.high_watermark
        at = self._gateway.list_offset(share.shard_id, system.wall_ns() // 1_000_000 - ago_ms)
        return found.high_watermark if at.offset < 0 else at.offset

    def _take_settings(self, share: Share, told: ShareStates) -> None:
        share.own_settings = told.settings
        self._bound(share)

    def _bound(self, share: Share) -> None:
        share.settings = settings_from(self.config.records, share.own_settings)
        share.machine.bounds = share.settings.bounds

    def _put_of(self, share: Share, group_version: int = ABSENT) -> PutShareState:
        place = share.place
        value = encoded(share.row())
        return PutShareState(place.topic_id, place.partition, value, share.version, group_version)

    # -- storing ----------------------------------------------------------------------------------------------------

    async def settle(self, share: Share) -> None:
        """Return when the share-partition is stored as it is now, and nobody else has it."""
        if share.gone is not None:
            raise share.gone
        if len(share.waiting) >= WAITING_MAX:
            raise OverloadedError(f"{WAITING_MAX} requests wait for this share-partition already")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append((share.machine.revision, answer))
        self._is_due(share)
        await answer

    def changed(self, share: Share) -> None:
        """After the state machine changed: wake up whoever waits for records, and when the next lock ends."""
        self._spans += len(share.machine.spans) - share.counted
        share.counted = len(share.machine.spans)
        for wake in share.wakes:
            wake.set()
        if share.stored != share.machine.revision:
            self._is_due(share)
        if share.timer is not None:
            share.timer.cancel()
            share.timer = None
        deadline_ms = share.machine.deadline_ms()
        if deadline_ms is not None and share.gone is None:
            delay_s = max(0, deadline_ms - now_ms()) / 1000
            share.timer = asyncio.get_running_loop().call_later(delay_s, self._tick, share)

    def _tick(self, share: Share) -> None:
        share.timer = None
        if self.find(share.place) is share:
            share.machine.tick(now_ms())
            self.changed(share)

    def _is_due(self, share: Share) -> None:
        group = share.place.group
        self._due.setdefault(group, {})[share] = None
        if group not in self._work and not self._stopping:
            self._work[group] = asyncio.get_running_loop().create_task(
                self._store(group), name="store share-partitions"
            )

    async def _store(self, group: str) -> None:
        due = self._due[group]
        try:
            while due:
                some = list(due)[:ASKED_MAX]
                for share in some:
                    del due[share]
                await self._store_some(group, [share for share in some if share.gone is None])
        finally:
            del self._work[group]
            if not due:
                del self._due[group]

    async def _store_some(self, group: str, shares: list[Share]) -> None:
        written = [s for s in shares if not s.in_doubt and s.stored != s.machine.revision]
        asked = [s for s in shares if s not in written]
        revisions = {share: share.machine.revision for share in shares}
        waiting = {share: share.waiting for share in shares}
        for share in shares:
            share.waiting = []
        puts = tuple(self._put_of(share) for share in written)
        reads = tuple((share.place.topic_id, share.place.partition) for share in asked)
        try:
            told = await self._asker.ask(AskShareStates(group, puts, reads))
        except AntiphonError as error:
            for share in shares:
                self._in_doubt(share, waiting[share], error)
            return
        except BaseException:  # a fault of ours, or the end of the node
            for share in shares:
                self._in_doubt(share, waiting[share], UnavailableError("the node failed; ask again"))
            raise
        for share, version in zip(written, told.versions, strict=True):
            if version == ABSENT:
                share.in_doubt = True
            else:
                share.version, share.stored = version, revisions[share]
        for share, (version, value) in zip(asked, told.rows, strict=True):
            self._look(share, version, value)
            if share.gone is None:
                self._take_settings(share, told)
        now_s = asyncio.get_running_loop().time()
        for share in shares:
            share.looked_s = share.looked_s if share.in_doubt else now_s
            self._answer(share, waiting[share])

    def _look(self, share: Share, version: int, value: bytes) -> None:
        """This is what is stored of it: is that this node's, and how old?"""
        if version != share.version:
            try:
                row = state_of(value)
            except ValueError:
                row = None
            if row is None or row.owner != share.owner:
                self._drop(share, NotLeaderError("another node has the share-partition by now", leader=None))
                return
            share.version, share.stored = version, row.revision
        share.in_doubt = False

    def _answer(self, share: Share, waiting: list[tuple[int, "asyncio.Future[None]"]]) -> None:
        left = []
        for revision, answer in waiting:
            if share.gone is not None:
                _fail(answer, share.gone)
            elif share.in_doubt or share.stored < revision:
                left.append((revision, answer))
            elif not answer.done():
                answer.set_result(None)
        share.waiting = left + share.waiting
        if share.gone is None and (share.waiting or share.in_doubt or share.stored != share.machine.revision):
            self._due.setdefault(share.place.group, {})[share] = None

    def _in_doubt(
        self, share: Share, waiting: list[tuple[int, "asyncio.Future[None]"]], error: AntiphonError
    ) -> None:
        """Nobody knows what is stored now: whoever waits is told so, and the row is read soon."""
        share.in_doubt = True
        for _, answer in waiting:
            _fail(answer, error)
        structlog.get_logger().warning(
            "share_partition_not_stored", group=share.place.group, reason=error.message
        )
        asyncio.get_running_loop().call_later(AGAIN_S, self._again, share)

    def _again(self, share: Share) -> None:
        if self.find(share.place) is share:
            self._is_due(share)

    def _drop(self, share: Share, error: AntiphonError) -> None:
        if self._shares.get(share.place) is share:
            del self._shares[share.place]
            self._spans -= share.counted
        share.gone = error
        if share.timer is not None:
            share.timer.cancel()
        for _, answer in share.waiting:
            _fail(answer, error)
        share.waiting.clear()
        for wake in share.wakes:
            wake.set()


def _fail(answer: "asyncio.Future[None]", error: AntiphonError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # it is no fault where nobody waits any more


def now_ms() -> int:
    """Of the clock that locks go by."""
    return int(asyncio.get_running_loop().time() * 1000)
