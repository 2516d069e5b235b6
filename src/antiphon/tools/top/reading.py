"""What `antiphon top` asks: one status of each node for each refresh; metadata when it is newer than what is known.

Where groups are stands in a table: committed offsets, and share-partitions of share groups. They are
read apart from the rest, seldom, and only so many of them.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from antiphon.client.aio import AsyncClient
from antiphon.client.tasks import end_tasks
from antiphon.errors import AccessDeniedError, AntiphonError, UnknownTopicError
from antiphon.model.internal import GROUPS_TABLE
from antiphon.model.requests import GetStatus, StatusReply
from antiphon.model.rows import Row
from antiphon.tools.top.rates import NodeRates, ShardBook, node_rates
from antiphon.tools.top.view import (
    CONSUMERS,
    SHARES,
    SORTS,
    Census,
    Reached,
    View,
    busiest,
    group_rows,
    merged_events,
    node_rows,
)
from antiphon.transactions.group_offsets import committed_of, place_of
from antiphon.transactions.share_rows import group_of_key, place_of_key, state_of
from antiphon.transactions.told_groups import reached

ANSWER_S: Final = 1.5  # that a node may take
NODES_MAX: Final = 64  # that one refresh asks
EVENTS: Final = 50
METADATA_EVERY_S: Final = 15.0  # at least, for nodes that do not tell its version
GROUPS_EVERY_S: Final = 10.0
GROUP_ROWS_MAX: Final = 5_000
GROUPS_S: Final = 8.0  # that one reading of them may take


class Reader:
    """Asks a cluster again and again. Nothing here fails because nodes do: what is shown then says so."""

    def __init__(self, db: AsyncClient, topic: str = "", book: ShardBook | None = None) -> None:
        self._db = db
        self._topic = topic
        self._book = book or ShardBook()
        self._census: Census | None = None
        self._metadata_s = 0.0
        self._answers: dict[int, StatusReply] = {}  # of the last refresh
        self._before: dict[int, StatusReply] = {}  # the last answer of each node
        self._rates: dict[int, NodeRates | None] = {}
        self._asked = 0
        self._offsets: list[Reached] = []
        self._groups_note = ""
        self._groups_task: asyncio.Task[None] | None = None
        self._groups_s = -GROUPS_EVERY_S
        self._problem = ""

    async def start(self) -> None:
        """Learn the metadata. Raises AntiphonError where no node tells it, and UnknownTopicError."""
        self._census = Census(await self._db.metadata(), self._topic)
        self._metadata_s = time.monotonic()
        if not self._census.has_topic:
            raise UnknownTopicError(f"there is no topic or table {self._topic!r}", name=self._topic)

    async def read(self) -> None:
        """Ask everybody once."""
        census = self._known()
        nodes = sorted(node.node_id for node in census.meta.nodes)[:NODES_MAX]
        first = {census.by_name.get((one.topic, one.shard), -1) for one in self._offsets}
        pages = {node: self._book.next_page(node, census.led.get(node, ()), first) for node in nodes}
        self._asked = sum(map(len, pages.values()))
        found = await asyncio.gather(*(self._ask(node, pages[node]) for node in nodes))
        self._answers = {node: one for node, one in zip(nodes, found, strict=True) if one is not None}
        for node, answer in self._answers.items():
            self._rates[node] = node_rates(self._before.get(node), answer)
            self._before[node] = answer
        await self._learn()
        self._book.keep(self._known().shards, time.monotonic())
        self._read_groups()

    async def _ask(self, node: int, shards: Sequence[int]) -> StatusReply | None:
        try:
            answer = await self._db.node_status(node, GetStatus(tuple(shards), EVENTS), timeout_s=ANSWER_S)
        except AccessDeniedError:
            raise  # it will be refused the next time, too
        except (AntiphonError, OSError):
            return None
        self._book.take(node, time.monotonic(), set(shards), answer.replicas)
        return answer

    async def _learn(self) -> None:
        """Newer metadata, where a node has it."""
        known, now_s = self._known(), time.monotonic()
        told = max((one.metadata_version for one in self._answers.values()), default=-1)
        self._problem = "" if self._answers else "no node answers; what is below is old"
        if told <= known.meta.version and self._answers and now_s - self._metadata_s < METADATA_EVERY_S:
            return
        try:
            async with asyncio.timeout(2 * ANSWER_S):  # wait_for of Python 3.11 can swallow a cancellation
                meta = await self._db.metadata()
        except (AntiphonError, TimeoutError, OSError):
            self._problem = self._problem or "no node tells the metadata now; what is below of leaders is old"
            return
        self._metadata_s = now_s
        if meta.version != known.meta.version or meta != known.meta:
            self._census = Census(meta, self._topic)
            if not self._census.has_topic:
                self._problem = f"{self._topic} was deleted"

    def _known(self) -> Census:
        if self._census is None:
            raise RuntimeError("start() comes first")
        return self._census

    def _read_groups(self) -> None:
        task, now_s = self._groups_task, time.monotonic()
        if (task is not None and not task.done()) or now_s - self._groups_s < GROUPS_EVERY_S:
            return
        self._groups_s = now_s
        self._groups_task = asyncio.create_task(self._committed())

    async def _committed(self) -> None:
        found: list[Reached] = []
        note = ""
        try:
            async with asyncio.timeout(GROUPS_S):
                for first, end in ((b"offset/", b"offset0"), (b"share/", b"share0")):
                    rows = self._db.table(GROUPS_TABLE).scan(first, end, consistency="leader")
                    async for row in rows:
                        one = self._reached(row)
                        if one is not None:
                            found.append(one)
                        if len(found) >= GROUP_ROWS_MAX:
                            note = f"groups: the first {GROUP_ROWS_MAX} offsets only"
                            break
        except UnknownTopicError:
            note = "no group has read anything yet"
        except AccessDeniedError:
            note = "groups are not shown: this user may not read their table (CLUSTER_ACTION)"
        except (AntiphonError, TimeoutError) as error:
            note = f"groups could not be read: {error}" if str(error) else "groups could not be read in time"
            found = self._offsets
        self._offsets, self._groups_note = found, note

    def _reached(self, row: Row) -> Reached | None:
        """Where a group is, as a row says it; None for a bad one, and what is not shown."""
        if row.key.startswith(b"offset/"):
            place, committed = place_of(row.key), committed_of(row.value)
            if place is None or committed is None or not self._is_shown(place[1:], committed.topic_id):
                return None
            return Reached(*place, committed.offset, CONSUMERS)
        try:
            topic_id, shard = place_of_key(row.key)
            start, done = reached(state_of(row.value or b""))
            name = self._known().names.get(topic_id)
            if start < 0 or name is None or not self._is_shown((name, shard), topic_id):
                return None
            return Reached(group_of_key(row.key), name, shard, start + done, SHARES)
        except ValueError:
            return None

    def _is_shown(self, place: tuple[str, int], topic_id: bytes) -> bool:
        """Is it of the topic that is looked at, and of this one, not of one before that had its name?"""
        census = self._known()
        shard_id = census.by_name.get(place)
        return (
            self._topic in {"", place[0]}
            and shard_id is not None
            and census.shards[shard_id][0].topic_id == topic_id
        )

    def view(self, sort: str = SORTS[0]) -> View:
        """What is known now, in this order."""
        census = self._known()
        return View(
            time.time(),
            census.meta.cluster_id,
            census.meta.version,
            census.meta.controller,
            census.topics,
            census.tables,
            len(census.shards),
            census.without_leader,
            census.under_replicated,
            self._asked,
            self._topic,
            sort,
            node_rows(census, self._answers, self._rates),
            busiest(census, self._book, self._topic, sort),
            group_rows(census, self._book, self._offsets),
            self._groups_note,
            merged_events(self._answers.values(), EVENTS),
            self._problem,
        )

    async def close(self) -> None:
        """End what is under way."""
        await end_tasks(self._groups_task)
