"""The soak's clients of Oxia's protocol: puts, gets, scans, followers of notifications, and short visits."""

import asyncio
import random
import time
from collections import defaultdict
from typing import Any, Final

from antiphon import aio
from antiphon.gateway.protobuf import decode
from antiphon.model.metadata import KeyRanges
from antiphon.oxia import messages as m
from antiphon.simulation.cluster.oxia_client import SERVICES, OxiaClient
from tests.soak.ledger import parse, value_of
from tests.soak.load import OXIA, PERIOD_S, SCAN_PERIOD_S, TIMEOUT_S, Pace, Work
from tests.soak.visitors import host_port

KEYS: Final = 200
PUTTERS: Final = 2
GETTERS: Final = 2
SCAN_KEYS: Final = 40
VISIT_PERIOD_S: Final = 1.0


def key_of(number: int) -> bytes:
    """A key of the table."""
    return b"o%05d" % number


class Notified:
    """The versions of each key that were acknowledged, and those that a follower was told: once each, rising."""

    def __init__(self, problem: Any) -> None:
        self._problem = problem
        self._put: defaultdict[bytes, list[int]] = defaultdict(list)  # and not told yet
        self._early: defaultdict[bytes, set[int]] = defaultdict(set)  # told, and not acknowledged yet
        self._told: defaultdict[bytes, int] = defaultdict(lambda: -1)
        self.changes = 0

    def put(self, key: bytes, version_id: int) -> None:
        """A put was acknowledged, as this version. The follower may have been told of it before."""
        if version_id in self._early[key]:
            self._early[key].remove(version_id)
        else:
            self._put[key].append(version_id)

    def take(self, key: bytes, version_id: int) -> None:
        """The follower was told this; what was acknowledged before it and was not told is lost."""
        self.changes += 1
        if version_id <= self._told[key]:
            self._problem(f"a follower was told version {version_id} of {key!r} behind {self._told[key]}")
        self._told[key] = version_id
        waiting = self._put[key]
        if version_id in waiting:
            waiting.remove(version_id)
        else:
            self._early[key].add(version_id)
        if waiting and waiting[0] < version_id:
            self._problem(f"a follower was not told version {waiting.pop(0)} of {key!r}, and {version_id}")

    def missing(self) -> int:
        """Acknowledged versions of which nobody was told yet."""
        return sum(map(len, self._put.values()))


class OxiaLoad:
    """Clients that stay connected, and some that do not. `addresses`: Oxia's ports of the nodes."""

    def __init__(self, addresses: str, servers: str, pace: Pace) -> None:
        self._nodes = [host_port(one) for one in addresses.split(",")]
        self._servers = servers
        self._pace = pace
        self._ledger = pace.ledger
        self.notified = Notified(pace.ledger.problem)
        self._ranges: KeyRanges | None = None
        self._follows = asyncio.Semaphore(0)
        self._staying: list[OxiaClient] = []

    def _client(self, name: str) -> OxiaClient:
        return OxiaClient(self._nodes, random.Random(name), "grpc-go/soak", SERVICES[len(name) % 2])

    async def run(self) -> None:
        """Load until the pace is told to stop."""
        async with aio.connect(self._servers) as db:
            topics = (await db.metadata()).topics
            self._ranges = KeyRanges(next(topic for topic in topics if topic.name == OXIA).shards)
            shards = [shard.shard_id for topic in topics if topic.name == OXIA for shard in topic.shards]
        every = self._pace.every
        followers = [asyncio.create_task(self._follow(shard)) for shard in shards]
        async with asyncio.timeout(TIMEOUT_S):  # what is put from now on they are told
            for _ in shards:
                await self._follows.acquire()
        async with asyncio.TaskGroup() as tasks:
            for which in range(PUTTERS):
                tasks.create_task(every(PERIOD_S, "oxia put", self._putter(which)))
            for which in range(GETTERS):
                tasks.create_task(every(PERIOD_S, "oxia get", self._getter(which)))
            tasks.create_task(every(SCAN_PERIOD_S, "oxia scan", self._scanner(shards)))
            tasks.create_task(every(VISIT_PERIOD_S, "oxia visit", self._visit))
        await self._let_followers_end()
        for task in followers:
            task.cancel()
        for ended in await asyncio.gather(*followers, return_exceptions=True):
            if isinstance(ended, Exception):
                self._ledger.failed("oxia notifications", ended)
        for at in self._staying:
            at.hang_up()
        await asyncio.sleep(0.1)

    async def _let_followers_end(self) -> None:
        """Once nobody puts any more, all notifications come soon."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while missing := self.notified.missing():
            if time.monotonic() > deadline_s:
                self._ledger.problem(f"followers were not told {missing} acknowledged versions")
                return
            await asyncio.sleep(0.1)

    def _stays(self, name: str) -> OxiaClient:
        """A client for the whole run."""
        self._staying.append(self._client(name))
        return self._staying[-1]

    def _shard_of(self, key: bytes) -> int:
        assert self._ranges is not None
        return self._ranges.shard_of(key).shard_id

    async def _follow(self, shard: int) -> None:
        at = self._stays(f"follower {shard}")
        _, _, stream = await at.begin("GetNotifications", m.NotificationsRequest(shard=shard))
        while (data := await stream.next(3600.0)) is not None:
            batch = decode(m.NotificationBatch, data)
            if not batch.notifications:  # the first one says from where on
                self._follows.release()
            for one in batch.notifications:
                self.notified.take(one.key, one.value.version_id)
        raise ConnectionError("the notifications ended")

    def _putter(self, which: int) -> Work:
        at = self._stays(f"putter {which}")

        async def put(number: int) -> None:
            await self._put(at, key_of((number * PUTTERS + which) % KEYS), f"oxia-{which}")

        return put

    async def _put(self, at: OxiaClient, key: bytes, writer: str) -> None:
        told = self._ledger.rows[key]
        told.sent += 1
        number = told.sent
        request = m.WriteRequest(
            shard=self._shard_of(key), puts=[m.PutRequest(key=key, value=value_of(writer, number))]
        )
        try:
            found = (await at.call("Write", request, m.WriteResponse, TIMEOUT_S)).puts[0]
        except Exception:
            told.unknown.add(number)
            raise
        told.acknowledged = number
        self.notified.put(key, found.version.version_id)
        if found.status or (not told.unknown and found.version.modifications_count != number):
            self._ledger.problem(f"put {number} of {key!r} was answered with {found!r}")

    def _getter(self, which: int) -> Work:
        at, draw = self._stays(f"getter {which}"), random.Random(which)

        async def get(_: int) -> None:
            await self._get(at, key_of(draw.randrange(KEYS)))

        return get

    async def _get(self, at: OxiaClient, key: bytes) -> None:
        floor = self._ledger.rows[key].acknowledged
        wanted = m.ReadRequest(shard=self._shard_of(key), gets=[m.GetRequest(key=key, include_value=True)])
        (found,) = (await at.call("Read", wanted, m.ReadResponse, TIMEOUT_S)).gets
        self._is_fresh(key, found.value if found.status == 0 else None, floor)

    def _scanner(self, shards: list[int]) -> Work:
        at, draw = self._stays("scanner"), random.Random("oxia scan")

        async def scan(_: int) -> None:
            first = draw.randrange(KEYS - SCAN_KEYS)
            wanted = {key_of(number) for number in range(first, first + SCAN_KEYS)}
            floors = {key: self._ledger.rows[key].acknowledged for key in wanted}
            found: dict[bytes, bytes] = {}
            for shard in shards:
                request = m.RangeRequest(
                    shard=shard, start_inclusive=key_of(first), end_exclusive=key_of(first + SCAN_KEYS)
                )
                for answer in await at.calls("RangeScan", request, m.ReadResponse, TIMEOUT_S):
                    found |= {row.key: row.value for row in answer.gets}
            for key, floor in floors.items():
                self._is_fresh(key, found.get(key), floor)

        return scan

    def _is_fresh(self, key: bytes, value: bytes | None, floor: int) -> None:
        number = -1 if value is None else parse(value)[1]
        if not floor <= number <= self._ledger.rows[key].sent:
            self._ledger.problem(f"Oxia's client read {number} of {key!r}, {floor} was acknowledged before")

    async def _visit(self, number: int) -> None:
        """A client of its own: a put and a get, and a call that is left in the middle."""
        at, key = self._client(f"visit {number}"), b"ovisit%03d" % (number % 100)
        try:
            await self._put(at, key, "oxia-visit")
            await self._get(at, key)
            await at.begin("GetNotifications", m.NotificationsRequest(shard=self._shard_of(key)))
        finally:
            at.hang_up()
