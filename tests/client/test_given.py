"""What programs give to the client: taken as they would expect, or refused in words before it travels."""

from typing import Any

import pytest

import antiphon
from antiphon.client.aio import AsyncClient
from antiphon.client.given import prefix_end
from antiphon.errors import (
    InvalidRequestError,
    TopicExistsError,
    VersionMismatchError,
    WrongKindError,
)
from antiphon.model.requests import CreateTopic, TableWrite
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, FailingNodes


@in_a_cluster
async def test_a_version_is_expected_as_a_row_has_it(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t")
    await table.put("k", b"1", expected_version=antiphon.ABSENT)
    first = (await table.get("k")).version
    second = await table.put("k", b"2", expected_version=first)
    with pytest.raises(VersionMismatchError) as caught:
        await table.put("k", b"3", expected_version=first)
    assert (caught.value.expected, caught.value.actual) == (first.id, second.id)
    async with table.transaction() as one:
        one.check("k", second)
        one.put("k", b"3", expected_version=second)
    async with db.transaction() as several:
        row = await several.get(table, "k")
        assert row is not None
        await several.check(table, "k", row.version)
        await several.put(table, "k", b"4", expected_version=row.version)
    version = (await table.get("k")).version
    async with db.transaction() as several:
        await several.delete(table, "k", expected_version=version)
    with pytest.raises(VersionMismatchError) as caught:
        await table.delete("k", expected_version=version)
    assert caught.value.actual == antiphon.ABSENT


@in_a_cluster
async def test_what_is_no_version_is_refused_in_words(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t")
    sent = cluster.count(TableWrite)
    wrong: Any
    for wrong in ("1", 1.0, True, b"1"):
        with pytest.raises(
            InvalidRequestError, match=r"expected_version is a version \(row\.version\), its id, or"
        ):
            await table.put("k", b"1", expected_version=wrong)
        with pytest.raises(InvalidRequestError, match=f"not {wrong!r}"):
            await table.delete("k", expected_version=wrong)
        with pytest.raises(InvalidRequestError, match="expected_version is"):
            table.transaction().check("k", wrong)
    wrong = None
    with pytest.raises(InvalidRequestError, match="not None"):
        table.transaction().check("k", wrong)
    assert cluster.count(TableWrite) == sent


@in_a_cluster
async def test_settings_are_numbers_and_booleans_too(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic(
        "t", config={"retention.ms": 1000, "expected.offset.header": True, "retention.bytes": "5"}
    )
    config = cluster.topic("t").config
    assert {name: config[name] for name in ("retention.ms", "expected.offset.header", "retention.bytes")} == {
        "retention.ms": "1000",
        "expected.offset.header": "true",
        "retention.bytes": "5",
    }
    await db.alter_topic("t", config={"retention.ms": 2000, "retention.bytes": None})
    await db.metadata()
    config = cluster.topic("t").config
    assert (config["retention.ms"], "retention.bytes" in config) == ("2000", False)


@in_a_cluster
async def test_wrong_types_never_travel(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=2)
    wrong: Any
    asked = cluster.count(CreateTopic)
    for wrong, said in (
        (
            {"config": {"retention.ms": None}},
            "config: retention.ms is a text, a number or a boolean, not None",
        ),
        ({"config": {1: "1"}}, "config: names are text, such as 'retention.ms', not 1"),
        ({"config": ["retention.ms=1"]}, "config is a mapping such as"),
        ({"shards": "4"}, "shards is a whole number, not '4'"),
        ({"replicas": 1.0}, "replicas is a whole number, not 1.0"),
        ({"profile": None}, "profile is a text, not None"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await db.create_topic("other", **wrong)
    wrong = b"other"
    with pytest.raises(InvalidRequestError, match="name is a text, not b'other'"):
        await db.create_topic(wrong)
    assert cluster.count(CreateTopic) == asked
    wrong = "2"
    for call in (
        lambda: topic.append(b"", shard=wrong),
        lambda: topic.append(b"", timestamp_ms=wrong),
        lambda: topic.append(b"", shard=0, expected_offset=wrong),
        lambda: topic.offsets(wrong),
        lambda: db.alter_topic("t", shards=wrong),
    ):
        with pytest.raises(InvalidRequestError, match="is a whole number, not '2'"):
            await call()
    assert (await topic.append(b"", shard=0)).offset == 0


@in_a_cluster
async def test_one_that_is_there_will_do(cluster: FailingNodes, db: AsyncClient) -> None:
    made = await db.create_topic("t", shards=2, replicas=3, config={"retention.ms": 1000}, exist_ok=True)
    await made.append(b"kept")
    same: Any
    for same in ({}, {"shards": 2}, {"replicas": 3, "config": {"retention.ms": "1000"}}):
        again = await db.create_topic("t", exist_ok=True, **same)
        assert len([record async for record in again.read()]) == 1
    differs: Any
    for differs, said in (
        ({"shards": 3}, "topic 't' is there, and its shards is 2, not 3"),
        ({"replicas": 1}, "its replicas is 3, not 1"),
        ({"profile": "fluvio"}, "its profile is .*, not fluvio"),
        ({"config": {"retention.ms": 2000}}, "its retention.ms is 1000, not 2000"),
        ({"config": {"retention.bytes": 5}}, "its retention.bytes is not set, not 5"),
    ):
        with pytest.raises(TopicExistsError, match=said):
            await db.create_topic("t", exist_ok=True, **differs)
    with pytest.raises(TopicExistsError):
        await db.create_topic("t")
    with pytest.raises(WrongKindError, match="'t' is there, and is a topic, not a table"):
        await db.create_table("t", exist_ok=True)
    cluster.fail(CreateTopic, DROP_AFTER)
    table = await db.create_table("table", shards=2, exist_ok=True)
    await table.put("k", b"v")
    assert (await (await db.create_table("table", exist_ok=True)).get("k")).value == b"v"


@in_a_cluster
async def test_names_of_topics_and_tables(cluster: FailingNodes, db: AsyncClient) -> None:
    for name in ("b", "a"):
        await db.create_topic(name)
    await db.create_table("rows")
    assert await db.list_topics() == ["a", "b"]
    assert {"rows"} <= set(await db.list_tables()) <= {"rows", "default"}
    async with db.producer("one"):
        pass  # which has a table of the cluster's own made
    assert "__transactions" not in await db.list_tables()
    assert "__transactions" in await db.list_tables(internal=True)
    assert set(await db.list_tables()) <= set(await db.list_tables(internal=True))


def test_where_a_prefix_ends() -> None:
    for prefix, end in ((b"a", b"b"), (b"a\xff", b"b"), (b"ab", b"ac"), (b"\xff\xff", b""), (b"", b"")):
        assert prefix_end(prefix) == end


@in_a_cluster
async def test_a_scan_of_a_prefix(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=3)
    keys = [b"a", b"ab", b"ab\xff", b"ab\xff\xff1", b"ac", b"b", b"\xff", b"\xff\xff1"]
    for key in keys:
        await table.put(key, key)
    for prefix in (b"ab", b"a", b"ab\xff", b"\xff", b"\xff\xff", b"zz", b""):
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert [row.key async for row in table.scan(prefix=prefix)] == expected
        assert await table.list(prefix=prefix) == expected
    with pytest.raises(InvalidRequestError, match="give prefix, or start and end"):
        await anext(table.scan("a", prefix="b"))
