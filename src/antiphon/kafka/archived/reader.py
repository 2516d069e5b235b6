"""Serves records that left their logs for the archive to Kafka's consumers.

A fetch below the start of a log is answered from the file that the catalog names for its offset. One row group of it is read
at a time, in a thread of its own, and is kept for the fetches that follow. A fetch waits for files for `WAIT_S`; then it is
answered without records, and the next one finds what was read meanwhile. Batches are made beside the event loop for each
fetch, no more than it asks for. Clients have a file read in turn each, and a share each of what is looked for and of what
is kept, so none waits for all that another one asks for.

Whoever may write a topic may write its rows of the catalog, and a row says what is opened. Libraries for files do not
stand a file that was made to hurt: a small one can take gigabytes, or end the process. So where clients log in, a node
opens files in the directories only that its operator has named (`archive.places`). Without any it serves nothing archived.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog

from antiphon import system
from antiphon.archive import batches, places
from antiphon.archive.format import ArchivedFile
from antiphon.errors import AntiphonError, ArchiveError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.archived.catalog import ArchiveRows
from antiphon.kafka.archived.memory import RowGroups
from antiphon.kafka.one_thread import OneThread, pause
from antiphon.model.metadata import TopicMeta
from antiphon.records.batch import Buffer

if TYPE_CHECKING:
    from antiphon.archive.files import OpenFile, RowGroup

WAIT_S: Final = 0.5
LOOKING_MAX: Final = 1_024  # offsets that are looked for at a time
CLIENT_LOOKING_MAX: Final = 16  # of these for one client
KNOWN_MAX: Final = 1_000  # shards of which is kept what was found last
TELL_EVERY_S: Final = 5.0
LISTED_S: Final = 30.0  # that a search by time may take
ARCHIVE_BYTES: Final = 64 * 1024 * 1024
HAS_LIBRARIES: Final = all(find_spec(name) is not None for name in ("pyarrow", "fsspec"))

ShardKey = tuple[bytes, int]
_Look = tuple[object, ShardKey, int]  # for a client, of a shard, from an offset on
_Result = TypeVar("_Result")


class Piece(NamedTuple):
    """Batches from the archive. Without any, the file is still being read; or there was no room, where `lacks_room`."""

    batches: list[Buffer]
    size_bytes: int
    lacks_room: bool = False


class _Found(NamedTuple):
    file: ArchivedFile
    group: "RowGroup"


class _NoRoomError(Exception):
    """What waits for the client's readers leaves no room when it is his turn; the next fetch tries again."""


class ArchiveReader:
    """See the module's text. `memory_bytes`: of row groups that are kept; 0: nothing archived is served.

    `guarded`: clients log in.

    All calls raise ArchiveError where a file is missing or damaged, or the catalog cannot be read now.
    """

    def __init__(
        self, gateway: Gateway, memory_bytes: int, aside: OneThread, *, guarded: bool = False
    ) -> None:
        self._rows = ArchiveRows(gateway)
        self._groups = RowGroups(memory_bytes)
        self._aside = aside
        self._files_thread = OneThread()
        self._is_on = memory_bytes > 0 and HAS_LIBRARIES
        self._guarded = guarded
        self._looking: dict[_Look, asyncio.Task[_Found | None]] = {}
        self._looks = Counter[object]()  # by client
        self._known: dict[ShardKey, ArchivedFile] = {}  # the least recently used first
        self._runs: dict[ShardKey, tuple[int, int]] = {}  # what files hold without a gap, up to a log
        self._tell_s = 0.0
        self.fetched_bytes = 0  # since the start, for metrics
        self.failures = 0

    @property
    def held_bytes(self) -> int:
        """Of row groups in memory."""
        return self._groups.held_bytes

    @property
    def limit_bytes(self) -> int:
        """What they may take."""
        return self._groups.limit_bytes

    def serves(self) -> bool:
        """Is anything archived, and may this node read it?"""
        if not self._is_on or not self._rows.exists:
            return False
        lacks_places = self._guarded and not places.are_named()
        if lacks_places:
            self._log_error(
                f"clients log in, and {places.LOCATIONS_VARIABLE} names no directories of archives"
            )
        return not lacks_places

    async def read(
        self,
        topic: TopicMeta,
        shard: int,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        wait_s: float = WAIT_S,
        client: object = None,
    ) -> Piece | None:
        """Batches of a shard from an offset on that is no more in its log; None: the archive does not have it, either.

        A file that is still being read is waited for `wait_s`. `client`: who has files read and batches made in turn.
        """
        found = self._at_hand(topic, shard, offset)
        if found is None:
            if not max_bytes:
                return Piece([], 0)
            task = self._look(topic, shard, offset, client)
            if task is None or not (await asyncio.wait({task}, timeout=wait_s))[0]:
                return Piece([], 0)
            try:
                found = task.result()
            except _NoRoomError:
                return Piece([], 0)
            if found is None:
                self._runs.pop((topic.topic_id, shard), None)
                return None
        make = partial(batches.batches_of, at_least_one=at_least_one)
        made = await self._aside.run(make, found.group, offset, max_bytes, pause, client=client)
        self.fetched_bytes += made.size_bytes
        return Piece(list(made.batches), made.size_bytes, lacks_room=not made.batches)

    async def start(self, topic: TopicMeta, shard: int, log_start: int, deleted_before: int) -> int:
        """Where the records of a shard begin, whose log begins at `log_start`: there, or in the archive.

        `deleted_before`: records before it were deleted on request, and are read from no file any more.
        """
        key = topic.topic_id, shard
        start, end = self._runs.get(key, (log_start, log_start))
        if not start < log_start <= end:
            start, _ = self._runs[key] = await self._with_errors_logged(
                self._rows.run(topic, shard, log_start)
            )
            while len(self._runs) > KNOWN_MAX:
                del self._runs[next(iter(self._runs))]
        return max(start, min(deleted_before, log_start))

    def known_start(self, topic: TopicMeta, shard: int, offset: int) -> int:
        """What `start` found last, or an offset that is archived where it was not asked."""
        return min(self._runs.get((topic.topic_id, shard), (offset, offset))[0], offset)

    async def last_offset(self, topic: TopicMeta, shard: int) -> int:
        """The highest archived offset of a shard; -1 without any."""
        file = await self._with_errors_logged(self._rows.last(topic, shard))
        return -1 if file is None else file.end - 1

    async def offset_at(
        self,
        topic: TopicMeta,
        shard: int,
        timestamp_ms: int,
        start: int,
        log_start: int,
        *,
        client: object = None,
    ) -> tuple[int, int] | None:
        """(offset, time in ms) of the first record with start <= offset < log_start that is that late; None without one.

        `client`: who has files read in turn with the others.
        """
        try:
            async with asyncio.timeout(LISTED_S):
                return await self._with_errors_logged(
                    self._first_since(topic, shard, timestamp_ms, (start, log_start), client)
                )
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise ArchiveError(
                f"{topic.name} shard {shard}: its archive was not read within {LISTED_S:.0f} s"
            ) from None

    async def stop(self) -> None:
        """Give up what is being looked for."""
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    # -- finding ----------------------------------------------------------------------------------------------------

    def _at_hand(self, topic: TopicMeta, shard: int, offset: int) -> _Found | None:
        """What needs no look at the catalog, nor at a file."""
        file = self._known.get((topic.topic_id, shard))
        if file is None or not file.start <= offset < file.end:
            return None
        group = self._groups.find(file, offset)
        return None if group is None else _Found(file, group)

    def _look(
        self, topic: TopicMeta, shard: int, offset: int, client: object
    ) -> "asyncio.Task[_Found | None] | None":
        """The look for an offset, which a client's other fetches may wait for too; None while he has no place for one.

        What two clients look for is read once, by whoever's turn comes first (`_at_hand` of the other one).
        """
        look: _Look = client, (topic.topic_id, shard), offset
        task = self._looking.get(look)
        if task is None:
            loop = asyncio.get_running_loop()
            is_full = len(self._looking) >= LOOKING_MAX or self._looks[client] >= CLIENT_LOOKING_MAX
            if is_full or not self._groups.has_room(loop.time(), client):
                return None
            looking = self._with_errors_logged(self._find(topic, shard, offset, client))
            task = self._looking[look] = loop.create_task(looking, name="archived records")
            self._looks[client] += 1
            task.add_done_callback(partial(self._looked, look))
        return task

    def _looked(self, look: _Look, task: "asyncio.Task[_Found | None]") -> None:
        del self._looking[look]
        client = look[0]
        self._looks[client] -= 1
        if not self._looks[client]:
            del self._looks[client]
        if not task.cancelled():
            task.exception()  # who waits no more does not ask for it

    async def _find(self, topic: TopicMeta, shard: int, offset: int, client: object) -> _Found | None:
        key = topic.topic_id, shard
        file = self._known.pop(key, None)
        if file is None or not file.start <= offset < file.end:
            file = await self._rows.holder(topic, shard, offset)
            if file is None:
                return None
        group = self._groups.find(file, offset)
        if group is None:
            group = await self._read_group(file, offset, client)
        self._known[key] = file  # not before: what cannot be read is looked up anew
        while len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return _Found(file, group)

    async def _read_group(self, file: ArchivedFile, offset: int, client: object) -> "RowGroup":
        """A row group, when it is the client's turn: it may be here by then, or there may be no room for it."""
        loop = asyncio.get_running_loop()
        read: list[RowGroup] = []

        def at_hand() -> "RowGroup | None":
            found = self._groups.find(file, offset)
            if found is None and not self._groups.has_room(loop.time(), client):
                raise _NoRoomError
            return found

        def read_now() -> "RowGroup":
            read.append(_group_at(file, offset))
            return read[0]

        group = await self._files_thread.run(read_now, client=client, unless=at_hand)
        if read:
            self._groups.add(file, group, loop.time(), client)
        return group

    async def _first_since(
        self, topic: TopicMeta, shard: int, timestamp_ms: int, among: tuple[int, int], client: object
    ) -> tuple[int, int] | None:
        start, log_start = among
        async for file in self._rows.files(topic, shard):
            if file.start >= log_start:
                return None
            if file.end > start and file.latest_ms >= timestamp_ms:
                found = await self._files_thread.run(_first_since, file, timestamp_ms, start, client=client)
                if found is not None:
                    return found if found[0] < log_start else None
        return None

    async def _with_errors_logged(self, work: Awaitable[_Result]) -> _Result:
        """What the work returns; what goes wrong is told to the operator, too."""
        try:
            return await work
        except AntiphonError as error:
            self.failures += 1
            self._log_error(error.message)
            raise

    def _log_error(self, reason: str) -> None:
        now_s = system.monotonic_s()
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_EVERY_S
            structlog.get_logger().warning(
                "archived records not served", reason=reason, failures=self.failures
            )


def _group_at(file: ArchivedFile, offset: int) -> "RowGroup":
    return _looked_at(file, lambda opened: opened.group_at(offset))


def _first_since(file: ArchivedFile, timestamp_ms: int, start: int) -> tuple[int, int] | None:
    return _looked_at(file, lambda opened: opened.first_since(timestamp_ms, start))


def _looked_at(file: ArchivedFile, look: "Callable[[OpenFile], _Result]") -> _Result:
    from antiphon.archive.files import OpenFile

    try:
        with OpenFile(file) as opened:
            return look(opened)
    except AntiphonError:
        raise
    except Exception as error:  # of any library for any kind of store
        raise ArchiveError(f"archived file {file.name} cannot be read: {error!r}", uri=file.uri) from error
