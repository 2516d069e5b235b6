"""The client against three real node processes: kills, pauses, elections; nothing lost, nothing twice."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

import antiphon
from antiphon.client.aio import AsyncClient, connect
from antiphon.errors import (
    KeyLockedError,
    KeyNotFoundError,
    OffsetMismatchError,
    TimedOutError,
    VersionMismatchError,
    WrongKindError,
)
from antiphon.records.changes import decode_changes
from tests.coroutines import on_a_loop
from tests.node.processes import Processes

pytestmark = pytest.mark.cluster

WRITERS = 30
T = TypeVar("T")
Fault = Callable[[Processes, int], None]


def kill(processes: Processes, leader: int) -> None:
    processes.kill(leader)


def pause(processes: Processes, leader: int) -> None:
    processes.pause(leader)


def bring_back(processes: Processes, node_id: int) -> None:
    if node_id in processes.alive():
        processes.resume(node_id)
    else:
        processes.start(node_id)
    deadline_s = time.monotonic() + 20
    while not all(node.alive for node in processes.metadata(node_id).nodes):
        assert time.monotonic() < deadline_s, "the cluster does not see the node again"
        time.sleep(0.05)


def test_surface(processes: Processes) -> None:
    with antiphon.connect(processes.servers) as db:
        flights = db.create_topic("flights", shards=4, replicas=3, profile="oxia")
        at = flights.append(b"...", key=b"N14228")
        flights.append(b"...", shard=at.shard, expected_offset=at.offset + 1)
        with pytest.raises(OffsetMismatchError) as caught:
            flights.append(b"...", shard=at.shard, expected_offset=at.offset)
        assert (caught.value.expected, caught.value.actual) == (at.offset, at.offset + 2)
        positions = flights.append_batch([b"...", (b"key", b"...")] * 50)
        assert len(positions) == 100
        found = [record for shard in range(4) for record in flights.read(shard, -2)]
        assert len(found) == 102
        assert flights.offsets(at.shard)[1] > at.offset + 1

        aircraft = db.create_table("aircraft", shards=4)
        with aircraft.watch() as changes:
            version = aircraft.put("N14228", b"...", expected_version=antiphon.ABSENT)
            assert next(changes).version == version
        assert aircraft.get("N14228").value == b"..."
        with pytest.raises(VersionMismatchError):
            aircraft.put("N14228", b"", expected_version=antiphon.ABSENT)
        aircraft.delete("N14228", expected_version=version.id)
        with pytest.raises(KeyNotFoundError):
            aircraft.get("N14228")
        aircraft.put_many({f"{i:04}": b"v" for i in range(3000)})
        assert [row.key for row in aircraft.scan("1000", "2000")] == [b"%04d" % i for i in range(1000, 2000)]
        aircraft.delete_range("0", "2999")
        assert aircraft.list() == [b"2999"]
        with pytest.raises(WrongKindError):
            db.topic("aircraft")
        assert {node.node_id for node in db.metadata().nodes} == {0, 1, 2}
        assert db.node_status(1).node.node_id == 1
        db.alter_topic("flights", shards=5)
        assert db.topic("flights").shards == 5
        db.delete_topic("flights")
        db.delete_table("aircraft")


class Goal:
    """Waits until a list has grown to a length."""

    def __init__(self, grows: Sequence[object]) -> None:
        self._grows = grows
        self._length: int | None = None
        self._reached = asyncio.Event()

    def look(self) -> None:
        if self._length is not None and len(self._grows) >= self._length:
            self._reached.set()

    async def reach(self, length: int) -> None:
        self._length = length
        async with asyncio.timeout(20):
            await self._reached.wait()


async def leader_of(db: AsyncClient, name: str) -> int:
    meta = await db.metadata()
    return next(topic for topic in meta.topics if topic.name == name).shards[0].leader


async def acknowledged_while(
    fault: Fault,
    processes: Processes,
    db: AsyncClient,
    name: str,
    write: Callable[[int, int], Awaitable[list[T]]],
) -> list[T]:
    """What writers were told that it was written, while the leader of a shard went and came back.

    `write`: one writer's next pieces, of which it has written so many before.
    """
    acknowledged: list[T] = []
    done, goal = asyncio.Event(), Goal(acknowledged)

    async def work(number: int) -> None:
        count = 0
        while not done.is_set():
            pieces = await write(number, count)
            acknowledged.extend(pieces)
            goal.look()
            count += len(pieces)

    writers = [asyncio.create_task(work(number)) for number in range(WRITERS)]
    await asyncio.sleep(0.3)
    leader = await leader_of(db, name)
    fault(processes, leader)
    try:
        await goal.reach(len(acknowledged) + 20 * WRITERS)
        done.set()
        await asyncio.gather(*writers)
    finally:
        bring_back(processes, leader)
    return acknowledged


@pytest.mark.parametrize("fault", [kill, pause])
@on_a_loop
async def test_no_put_is_lost_repeated_or_reordered_when_the_leader_goes(
    processes: Processes, fault: Fault
) -> None:
    name = f"puts-{fault.__name__}"
    async with connect(processes.servers, timeout_s=30) as db:
        table = await db.create_table(name, shards=1, replicas=3)

        async def write(number: int, count: int) -> list[tuple[bytes, bytes]]:
            rows = [(b"k%d" % (number % 7), b"%d-%d" % (number, count + i)) for i in range(3)]
            await asyncio.gather(*(table.put(key, value) for key, value in rows))
            return rows

        acknowledged = await acknowledged_while(fault, processes, db, name, write)
        log = db.topic(name, any_kind=True)
        meta = (await db.metadata()).topics
        shard_id = next(topic for topic in meta if topic.name == name).shards[0].shard_id
        _, end = await log.offsets()
        changes, at = [], 0
        while at < end:
            _, payload = await db.fetch(shard_id, at)
            changes += list(decode_changes([payload], at))
            at = changes[-1].offset + 1 if changes else end
            if not len(payload):
                break
        found = Counter((change.key, change.value) for change in changes)
        assert max(found.values()) == 1, [item for item, times in found.items() if times > 1]
        assert found.keys() == set(acknowledged)
        assert [change.version_id for change in changes] == list(range(len(changes)))
        for number in range(WRITERS):
            own = [c.value for c in changes if c.value is not None and c.value.startswith(b"%d-" % number)]
            assert own == [b"%d-%d" % (number, i) for i in range(len(own))]


@pytest.mark.parametrize("fault", [kill, pause])
@on_a_loop
async def test_no_append_is_lost_repeated_or_reordered_when_the_leader_goes(
    processes: Processes, fault: Fault
) -> None:
    name = f"appends-{fault.__name__}"
    async with connect(processes.servers, timeout_s=30) as db:
        topic = await db.create_topic(name, shards=1, replicas=3)

        async def write(number: int, count: int) -> list[bytes]:
            values = [b"%d-%d" % (number, count + i) for i in range(5)]
            await asyncio.gather(*(topic.append(value) for value in values))
            return values

        acknowledged = await acknowledged_while(fault, processes, db, name, write)
        found = [record.value async for record in topic.read()]
        assert sorted(v for v in found if v is not None) == sorted(acknowledged)
        for number in range(WRITERS):
            own = [v for v in found if v is not None and v.startswith(b"%d-" % number)]
            assert own == [b"%d-%d" % (number, i) for i in range(len(own))]


@on_a_loop
async def test_elections_by_hand_are_not_noticed(processes: Processes) -> None:
    async with connect(processes.servers, timeout_s=30) as db:
        table = await db.create_table("moving", shards=2, replicas=3)
        for round_ in range(6):
            shard = round_ % 2
            puts = [table.put(f"{round_}-{i}", b"") for i in range(100)]
            await db.elect_leader("moving", shard, node=round_ % 3)
            versions = await asyncio.gather(*puts)
            assert all(version.modifications == 0 for version in versions)
        assert len(await table.list()) == 600


def test_the_blocking_face_of_transactions_over_tables(processes: Processes) -> None:
    with antiphon.connect(processes.servers) as db, db.producer("blocking") as producer:
        table = db.create_table("blocking", shards=2)
        held = table.put("held", b"x")
        with producer.begin() as t:
            assert t.find("blocking", "a") is None
            assert t.get("blocking", "held").value == b"x"
            t.put("blocking", "b", b"1", expected_version=antiphon.ABSENT)
            t.check("blocking", "c", antiphon.ABSENT)
            t.delete("blocking", "held", expected_version=held.id)
        row = table.get("b")
        assert t.versions == [row.version, None, None]
        assert table.find("held") is None
        t = producer.begin()
        t.put("blocking", "a", b"2")
        t.put("blocking", "b", b"2", expected_version=99)
        with pytest.raises(VersionMismatchError) as caught:
            t.commit()
        assert (caught.value.details["operation"], caught.value.details["table"]) == (1, "blocking")
        assert table.list() == [b"b"]


@on_a_loop
async def test_transfers_between_shards_keep_the_sum_when_a_leader_is_killed(processes: Processes) -> None:
    """Each is all there, or not at all; what was acknowledged is there."""
    names, acknowledged, unknown = [f"account-{number}" for number in range(8)], set(), set()
    async with connect(processes.servers, timeout_s=20) as db:
        await db.create_table("bank", shards=4)
        await db.create_topic("bank-journal")
        for name in names:
            await db.table("bank").put(name, b"100")
        victim = db._cluster.topics["bank"].shards[0].leader

    async def work(number: int) -> None:
        async with connect(processes.servers, timeout_s=20) as db, db.producer(f"clerk-{number}") as producer:
            for serial in range(25):
                tag = f"{number}-{serial}"
                source, target = names[(number + serial) % 8], names[(number * 3 + serial * 5 + 1) % 8]
                try:
                    async with producer.begin() as t:
                        rows = [await t.get("bank", name) for name in dict.fromkeys((source, target))]
                        if len(rows) == 2:
                            await t.put("bank", source, b"%d" % (int(rows[0].value) - 1))
                            await t.put("bank", target, b"%d" % (int(rows[1].value) + 1))
                            await t.append("bank-journal", tag)
                except (KeyLockedError, VersionMismatchError):
                    continue
                except TimedOutError:
                    unknown.add(tag)
                else:
                    if len(rows) == 2:
                        acknowledged.add(tag)

    working = asyncio.gather(*(work(number) for number in range(4)))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(kill, processes, victim)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(bring_back, processes, victim)
    await working
    async with connect(processes.servers, timeout_s=60) as db, db.producer("auditor") as producer:
        async with producer.begin() as t:
            total = sum([int((await t.get("bank", name)).value) for name in names])
        journal = [
            (r.value or b"").decode()
            async for r in db.topic("bank-journal").read(0, 0, isolation="committed")
        ]
    assert total == 800
    assert len(acknowledged) > 20
    assert len(journal) == len(set(journal))
    assert acknowledged <= set(journal) <= acknowledged | unknown


EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize(
    "name",
    [
        "all_or_nothing",
        "append_and_read",
        "asynchronous",
        "leases",
        "log_backed_store",
        "optimistic_counter",
        "table",
        "transactions",
        "transfers",
    ],
)
def test_examples_run_without_a_warning(processes: Processes, name: str) -> None:
    with antiphon.connect(processes.servers) as db, contextlib.suppress(antiphon.TopicExistsError):
        db.create_table("default", shards=2)  # what `antiphon up` makes in a fresh cluster
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), processes.servers],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout
