"""The blocking client: its thread, its iterators, its end."""

import _thread
import asyncio
import gc
import logging
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import assert_type

import pyarrow as pa
import pytest

import antiphon
from antiphon.errors import (
    BadRecordError,
    InvalidRequestError,
    KeyNotFoundError,
    TimedOutError,
    UnavailableError,
    UnknownTopicError,
    UnreachableError,
)
from antiphon.model.requests import TableWrite
from tests.client.failing_nodes import DROP_AFTER, SILENT, FailingListeners
from tests.node.loop_in_thread import LoopInThread
from tests.node.real_nodes import Nodes


class RealNodes(FailingListeners, LoopInThread):
    """Three nodes on an event loop of their own, in another thread: what blocks needs a real loop to wait for."""

    def __init__(self, directory: Path) -> None:
        FailingListeners.__init__(self)
        LoopInThread.__init__(self)
        self.nodes = self.call(self._start(directory))
        self.servers = ",".join(member.native for member in self.nodes.members)

    async def _start(self, directory: Path) -> Nodes:
        nodes = Nodes(directory, 3, {})
        await nodes.start_all()
        return nodes

    async def _delete_topics(self) -> None:
        node = self.nodes.nodes[0]
        for topic in [topic for topic in node.gateway.metadata.topics if topic.name != "default"]:
            await node.gateway.delete_topic(topic.name)

    def forget(self) -> None:
        """Be as at the beginning, for the next test."""
        self.faults.clear()
        self.call(self._delete_topics())

    def stop(self) -> None:
        self.call(self.nodes.close())
        super().stop()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodes]:
    """Nodes for all tests of this file."""
    made = RealNodes(tmp_path_factory.mktemp("nodes"))
    with made.faulty():
        yield made
    made.stop()


@pytest.fixture
def cluster(nodes: RealNodes) -> Iterator[RealNodes]:
    """The nodes, without topics."""
    yield nodes
    nodes.forget()


def test_surface(cluster: RealNodes) -> None:
    """What the project's front page shows."""
    db = antiphon.connect(cluster.servers)
    db.create_topic("flights", shards=4, replicas=3, profile="oxia")
    flights = db.topic("flights")
    assert flights.shards == 4
    at = flights.append(b"...", key=b"N14228")
    assert (at.offset, type(at)) == (0, antiphon.Position)
    following = flights.append(b"...", shard=at.shard, expected_offset=at.offset + 1)
    assert following.offset == 1
    with pytest.raises(antiphon.OffsetMismatch) as caught:
        flights.append(b"...", shard=at.shard, expected_offset=7)
    assert (caught.value.expected, caught.value.actual) == (7, 2)
    assert len(flights.append_batch([b"...", (b"key", b"...")])) == 2
    assert len(list(flights.read(shard=at.shard, start=0, isolation="committed"))) >= 2
    assert flights.offsets(at.shard)[0] == 0
    assert flights.offset_at(0, at.shard) >= 0

    db.create_table("aircraft", shards=4)
    aircraft = db.table("aircraft")
    version = aircraft.put("N14228", b"...", expected_version=antiphon.ABSENT)
    assert aircraft.get("N14228").value == b"..."
    assert aircraft.get("N14228").version == version
    aircraft.delete("N14228", expected_version=version.id)
    assert "N14228" not in aircraft
    with pytest.raises(KeyNotFoundError):
        aircraft.get("N14228")
    with db.session(timeout_s=10) as session:
        aircraft.put("leader", b"me", session=session)
        assert aircraft.get("leader").session_id == session.id
        assert not session.is_lost
        with aircraft.transaction() as t:
            t.put("leader", b"still", session=session)
    assert "leader" not in aircraft
    db.close()


def test_tables(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        table = db.create_table("t", shards=3)
        assert table.shards == 3
        pairs = [(f"{i:04}", b"%d" % i) for i in range(1200)]
        assert len(table.put_many(pairs)) == 1200
        table.put_many({"x": b"", "y": b""})
        assert [row.value for row in table.scan("0500", "1100")] == [b"%d" % i for i in range(500, 1100)]
        first = table.scan()
        assert next(first).key == b"0000"
        first.close()
        assert len(table.list()) == 1202
        table.delete_range("0", "1")
        assert len(table.list()) == 202
        assert table.find("0500") is None
        assert [row and row.key for row in table.get_many(["x", "z"])] == [b"x", None]
        db.alter_topic  # noqa: B018 - there, and tested where a node answers it
        db.delete_table("t")
        with pytest.raises(UnknownTopicError):
            db.table("t")
        assert [topic.name for topic in db.metadata().topics] == ["default"]
        assert db.node_status(0).node.node_id == 0


def test_many_threads(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db, ThreadPoolExecutor(8) as pool:
        table = db.create_table("t", shards=2)
        topic = db.create_topic("log")

        def work(number: int) -> None:
            for i in range(20):
                table.put(f"{number}-{i}", b"")
                topic.append(b"%d-%d" % (number, i))

        for done in [pool.submit(work, number) for number in range(8)]:
            done.result(30)
        assert len(table.list()) == 160
        assert len({record.value for record in topic.read()}) == 160


def test_watch_begins_when_it_is_made(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        table = db.create_table("t", shards=2)
        table.put("before", b"")
        with table.watch() as changes:
            table.put("k", b"1")
            table.put("k", b"2")
            assert [next(changes).value, next(changes).value] == [b"1", b"2"]
            threading.Timer(0.05, changes.close).start()
            assert list(changes) == []


def test_follow_is_left_in_the_middle(cluster: RealNodes, caplog: pytest.LogCaptureFixture) -> None:
    with antiphon.connect(cluster.servers) as db:
        topic = db.create_topic("t")
        topic.append(b"1")
        following = topic.read(follow=True)
        assert next(following).value == b"1"
    following.close()  # after the client
    assert caplog.messages == []


def test_follow_is_closed_from_another_thread(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        topic = db.create_topic("t")
        topic.append(b"1")
        with topic.read(follow=True) as records:
            threading.Timer(0.05, records.close).start()
            assert [record.value for record in records] == [b"1"]
            assert list(records) == []
            with pytest.raises(StopIteration):
                next(records)
        records.close()


def test_follow_ends_with_the_loop_that_it_is_in(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        topic = db.create_topic("t")
        topic.append_batch([b"1", b"2"])
        for record in topic.read(follow=True):
            assert record.value == b"1"
            break

        async def at_work() -> int:
            return len(asyncio.all_tasks())

        others = db.run(at_work())
        for _ in topic.read(follow=True):
            break
        assert db.run(at_work()) == others, "nobody asks for more"

        def fails(records: Iterator[antiphon.Record]) -> None:
            for _ in records:
                raise ValueError("the program's own")

        with pytest.raises(ValueError, match="own"):
            fails(topic.read(follow=True))
        assert db.run(at_work()) == others


def test_errors_and_the_end(cluster: RealNodes) -> None:
    db = antiphon.connect(cluster.servers)
    table = db.create_table("t")
    cluster.fail(TableWrite, SILENT, DROP_AFTER)
    with pytest.raises(TimedOutError):
        table.put("k", b"", timeout_s=0.05)
    assert table.put("k", b"").id == 0

    async def from_the_loop() -> None:
        table.put("k", b"")

    with pytest.raises(InvalidRequestError, match="its own event loop"):
        db.run(from_the_loop())
    db.close()
    db.close()
    with pytest.raises(UnavailableError, match="closed"):
        table.put("k", b"")
    with pytest.raises(InvalidRequestError):
        antiphon.connect("nonsense")
    with pytest.raises(UnreachableError):
        antiphon.connect("127.0.0.1:1", connect_timeout_s=0.05)


def _client_threads() -> set[threading.Thread]:
    """Those of clients: other threads of this process come and go as they like."""
    return {thread for thread in threading.enumerate() if thread.name == "antiphon-client"}


def test_a_forgotten_client_is_closed(cluster: RealNodes) -> None:
    before = _client_threads()
    db = antiphon.connect(cluster.servers)
    db.create_topic("t").append(b"")
    (own,) = _client_threads() - before
    del db
    gc.collect()
    own.join(10)
    assert not own.is_alive()


def test_a_transaction_of_the_blocking_client(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        table = db.create_table("t", shards=1)
        with table.transaction() as t:
            t.put("a", "1")
            t.put("b", "2", expected_version=antiphon.ABSENT)
        assert [version.id for version in t.versions if version is not None] == [0, 1]
        with pytest.raises(antiphon.VersionMismatchError), table.transaction() as t:
            t.put("a", "3", expected_version=7)
        assert [row.value for row in table.scan()] == [b"1", b"2"]


def test_values_with_a_type(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        db.create_table("counts")
        counts = db.table("counts", type=int)
        assert_type(counts, antiphon.Table[int])
        with counts.watch() as changes:
            counts.put("a", 1)
            counts.put_many({"b": 2, "c": 3})
            with counts.transaction() as t:
                t.put("d", 4)
            assert [next(changes).value for _ in range(4)] == [1, 2, 3, 4]
        assert counts.get("a").value + 1 == 2
        assert [row.value for row in counts.scan()] == [1, 2, 3, 4]
        db.table("counts").put("e", b"five")
        with pytest.raises(BadRecordError, match="counts, key b'e': the value is no int"):
            counts.get("e")

        db.create_topic("words")
        words = db.topic("words", type=str)
        words.append("one")
        words.append_batch(["two", ("key", "three")])
        assert [record.value for record in words.read()] == ["one", "two", "three"]
        assert_type(next(words.read()).value, str | None)


PAGE = Path(__file__).parent.parent.parent / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_page(cluster: RealNodes, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("ANTIPHON_SERVERS", cluster.servers)
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))  # one of them sets logging up
    logger = logging.getLogger("antiphon.client")
    levels = logger.level, logging.root.level
    try:
        exec(BLOCKS[number], {"__name__": "page"})
    finally:
        logger.setLevel(levels[0])
        logging.root.setLevel(levels[1])


@pytest.fixture
def interrupts() -> Iterator[None]:
    """As in a program that a person has started: what a shell starts in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_that_wakes_nobody_is_noticed(cluster: RealNodes) -> None:
    """As one that comes when the thread is about to wait: Python has noted it, and the wait begins all the same."""
    with antiphon.connect(cluster.servers) as db:
        following = db.create_topic("t").read(follow=True)
        threading.Timer(0.1, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            next(following)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_a_read_that_waits(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        topic = db.create_topic("t")
        for _ in range(3):
            at = topic.append(b"1")
            following = topic.read(start=at.offset, follow=True)
            assert next(following).value == b"1"
            threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                next(following)
            assert list(following) == []
            following.close()


def test_arrow_in_and_out(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        topic, table = db.create_topic("t"), db.create_table("rows")
        assert topic.append_arrow(pa.table({"value": ["a", "b"]})) == 2
        assert topic.to_arrow(0, 1).column("value").to_pylist() == [b"b"]
        assert [batch.num_rows for batch in topic.to_arrow_batches()] == [2]
        assert list(topic.to_pandas(headers=True)["value"]) == [b"a", b"b"]
        assert table.put_arrow(pa.table({"key": ["k"], "value": ["v"]})) == 1
        assert table.to_arrow("a", "z").column("key").to_pylist() == [b"k"]
        assert [batch.num_rows for batch in table.to_arrow_batches()] == [1]
        assert list(table.to_pandas()["version"]) == [0]


def test_what_people_see(cluster: RealNodes) -> None:
    with antiphon.connect(cluster.servers) as db:
        assert repr(db) == f"<antiphon.Client of {cluster.servers}, open>"
        table = db.create_table("t", shards=2)
        assert (repr(table), repr(db.create_topic("u"))) == (
            "<antiphon.Table 't', 2 shards>",
            "<antiphon.Topic 'u', 1 shard>",
        )
        assert "<td>1</td>" in table._repr_html_()
        assert repr(db.table("t", type=int)) == "<antiphon.Table 't' of int, 2 shards>"
    assert repr(db).endswith("closed>")
