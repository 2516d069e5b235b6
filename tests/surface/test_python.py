"""The Python names, as a program of somebody else uses them."""

import inspect
import threading
import time
from importlib import resources

import pytest

import antiphon
import antiphon.testing
from tests.coroutines import on_a_loop
from tests.surface.conftest import Up

pytestmark = pytest.mark.cluster


def test_topics_and_tables(up: Up) -> None:
    with antiphon.connect(up.servers) as db:
        db.create_topic("py-flights", shards=4, replicas=3, profile="oxia")
        flights = db.topic("py-flights")
        at = flights.append(b"...", key=b"N14228")
        assert (at.shard >= 0, at.offset, at.term > 0) == (True, 0, True)
        first = flights.append(b"0", shard=at.shard)
        flights.append(b"1", shard=at.shard, expected_offset=first.offset + 1)
        with pytest.raises(antiphon.OffsetMismatch) as moved:
            flights.append(b"2", shard=at.shard, expected_offset=first.offset + 1)
        assert (moved.value.expected, moved.value.actual) == (first.offset + 1, first.offset + 2)
        assert len(flights.append_batch([b"...", (b"key", b"...")])) == 2
        records = list(flights.read(shard=at.shard, start=0, isolation="committed"))
        assert [record.value for record in records[:3]] == [b"...", b"0", b"1"]

        db.create_table("py-aircraft", shards=4)
        aircraft = db.table("py-aircraft")
        with aircraft.watch() as changes:
            version = aircraft.put("N14228", b"...", expected_version=antiphon.ABSENT)
            assert aircraft.get("N14228").value == b"..."
            assert next(iter(changes)).key == b"N14228"
        aircraft.delete("N14228", expected_version=version.id)
        with db.session(timeout_s=10) as session:
            aircraft.put("leader", b"me", session=session)
        with pytest.raises(antiphon.KeyNotFoundError):
            aircraft.get("leader")


def committed(topic: antiphon.Topic) -> list[bytes]:
    """All records of a topic that readers of what is committed see now."""
    read = (topic.read(shard, isolation="committed") for shard in range(topic.shards))
    return sorted(record.value or b"" for records in read for record in records)


def test_transactions(up: Up) -> None:
    with antiphon.connect(up.servers) as db:
        table, topic = db.create_table("py-accounts", shards=4), db.create_topic("py-journal", shards=2)
        version = table.put("alice", b"100")

        def move() -> None:
            with db.transaction() as t:
                t.put("py-accounts", "alice", b"95", expected_version=version.id)
                t.put(table, "bob", b"5", expected_version=antiphon.ABSENT)
                t.append(topic, b"5 from alice", key=b"alice")
                t.append("py-journal", b"5 to bob", key=b"bob")
                t.commit_offsets("py-group", {("py-journal", 0): 1})
                t.commit_offsets("py-group", {"py-journal": {1: 2}})

        move()
        assert [row and row.value for row in table.get_many(["alice", "bob"])] == [b"95", b"5"]
        offsets = db.group_offsets("py-group", [("py-journal", 0), ("py-journal", 1)])
        assert offsets == {("py-journal", 0): 1, ("py-journal", 1): 2}
        with pytest.raises(antiphon.VersionMismatchError) as refused:
            move()
        assert refused.value.details["operation"] == 0

        def fails() -> None:
            with db.transaction() as t:
                t.delete(table, "bob")
                assert t.get(table, "alice").value == b"95"
                t.append(topic, b"never")
                raise KeyError("on purpose")

        with pytest.raises(KeyError):
            fails()
        with db.transaction() as t:
            t.check(table, "bob", table.get("bob").version.id)
            t.put(table, "alice", b"90")
        with pytest.raises(antiphon.InvalidTxnStateError):
            t.put(table, "alice", b"0")

        def one(number: int) -> None:
            with db.transaction() as t:
                t.append(topic, b"%d" % number)
                t.put(table, f"thread-{number}", b"")

        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(table.list("thread-", "thread.")) == 4
        wanted = sorted([b"5 from alice", b"5 to bob", b"0", b"1", b"2", b"3"])
        deadline_s = time.monotonic() + 10  # readers of committed records see them within moments
        while (found := committed(topic)) != wanted:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.02)


@on_a_loop
async def test_the_same_awaitable(up: Up) -> None:
    db = await antiphon.aio.connect(up.servers)
    await db.create_topic("py-aio")
    topic = db.topic("py-aio")
    assert (await topic.append(b"x", key=b"k")).offset == 0
    table = await db.table("default")
    async with db.transaction() as t:
        await t.put(table, "py-aio", b"1", expected_version=antiphon.ABSENT)
        await t.append(topic, b"y")
        await t.commit_offsets("py-aio", {topic: {0: 2}})
    assert (await table.get("py-aio")).value == b"1"
    found = []
    async for record in topic.read(0, isolation="committed", follow=True):
        found.append(record.value)
        if len(found) == 2:
            break
    assert found == [b"x", b"y"]
    await table.delete("py-aio")
    await db.close()


def test_a_local_cluster() -> None:
    with antiphon.local() as db:
        assert db.create_topic("clicks").append(b"first").offset == 0


def test_names_and_types() -> None:
    assert resources.files("antiphon").joinpath("py.typed").is_file()
    for name in antiphon.__all__:
        assert getattr(antiphon, name) is not None
    connect = inspect.signature(antiphon.connect)
    connect.bind("127.0.0.1:7400", tls="authority.pem", user="alice", password="secret")
    inspect.signature(antiphon.aio.connect).bind("h:1", tls=True, user="alice", password="secret")
    from antiphon.spark.servers import SETTINGS

    assert {"tls", "user", "password"} <= set(SETTINGS.values()), "the same names as Spark options"
    cluster = antiphon.testing.cluster(nodes=3)  # not started
    inspect.signature(cluster.fail).bind(api="Produce", code="NOT_LEADER_OR_FOLLOWER", times=2)
    inspect.signature(cluster.delay).bind("topic", 50)
    for name in ("__enter__", "__aenter__"):
        assert callable(getattr(cluster, name))
    assert {"bootstrap_servers", "servers", "http"} <= set(dir(type(cluster)))
    assert {"kill", "pause", "resume", "start"} <= set(dir(antiphon.testing.Node))


def test_the_fixtures_are_there(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin("antiphon") or request.getfixturevalue("antiphon_topic")
