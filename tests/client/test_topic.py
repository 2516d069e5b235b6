"""The asynchronous topic client, against whole nodes whose listeners fail on request."""

import asyncio

import pytest

from antiphon.client import pipeline, topic_writer
from antiphon.client.aio import AsyncClient
from antiphon.client.cluster import Cluster
from antiphon.client.topic_writer import Position
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    TimedOutError,
    UnknownShardError,
    UnknownTopicError,
    WrongKindError,
)
from antiphon.model.requests import AppendBatch, Fetch, NewProducerId
from antiphon.model.topic_keys import murmur2, shard_of_topic_key
from antiphon.records.batch import read_header
from antiphon.records.decode import decode_records
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, SILENT, FailingNodes, Fault


def values(cluster: FailingNodes, name: str, shard: int = 0) -> list[bytes | None]:
    return [record.value for batch in cluster.batches(name, shard) for record in decode_records(batch)]


@pytest.mark.parametrize(
    ("key", "value"),
    # Of Kafka's own tests of its murmur2, as signed numbers there.
    [
        (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)  # fmt: skip
def test_keys_hash_as_in_kafka(key: bytes, value: int) -> None:
    assert murmur2(key) == value & 0xFFFF_FFFF


@in_a_cluster
async def test_append_and_read(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=2)
    at = await topic.append(b"v", key="k", headers=[("h", b"1"), ("n", None)], timestamp_ms=1234)
    assert at == Position(shard_of_topic_key(b"k", 2), 0, cluster.host("t", at.shard).state.term)
    found = [record async for record in topic.read(at.shard)]
    assert [tuple(record) for record in found] == [
        (0, 1234, b"k", b"v", (("h", b"1"), ("n", None)), at.shard)
    ]
    spread = await asyncio.gather(*(topic.append("x") for _ in range(4)))
    assert {position.shard for position in spread} == {0, 1}
    assert (await topic.append(None, key=b"tombstone", shard=1)).shard == 1
    assert await topic.offsets(at.shard) == (0, cluster.end("t", at.shard))
    assert await topic.offset_at(1 << 60) == cluster.end("t")


@in_a_cluster
async def test_batches_are_durable_batches(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=3)
    found = await topic.append_batch([b"a", ("k", b"b"), b"c", ("k", "d", [("h", b"")])])
    plain, keyed = found[0].shard, shard_of_topic_key(b"k", 3)
    assert [p.shard for p in found] == [plain, keyed, plain, keyed]
    assert values(cluster, "t", keyed)[-2:] == ([b"b", b"d"] if plain != keyed else [b"c", b"d"])
    assert len(cluster.batches("t", plain)) == 1
    assert await topic.append_batch([]) == []
    at = await topic.append_batch([b"x", b"y"], shard=2, expected_offset=cluster.end("t", 2))
    assert at[1].offset == at[0].offset + 1
    with pytest.raises(InvalidRequestError, match="a message is"):
        await topic.append_batch([(b"a", b"b", [], b"c")])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "faults",
    [
        [DROP_BEFORE],
        [DROP_AFTER],
        [DROP_AFTER, DROP_AFTER, DROP_BEFORE],
        [None, DROP_AFTER, None, DROP_AFTER],
        [NotLeaderError("moved", leader=None), DROP_AFTER],
        [NotReadyError("soon"), None, None, DROP_AFTER],
        [None, NotReadyError("soon"), None, None, DROP_AFTER, NotReadyError("soon")],
    ],
)
@in_a_cluster
async def test_a_retried_append_is_never_applied_twice(
    cluster: FailingNodes, db: AsyncClient, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor out of order, whatever was in flight together."""
    monkeypatch.setattr(topic_writer, "RECORDS_PER_BATCH", 3)
    topic = await db.create_topic("t")
    cluster.fail(AppendBatch, *faults)
    found = await asyncio.gather(*(topic.append(b"%d" % i) for i in range(40)))
    assert not cluster.faults[AppendBatch]
    assert [position.offset for position in found] == list(range(40))
    assert values(cluster, "t") == [b"%d" % i for i in range(40)]
    assert len({read_header(batch).producer_id for batch in cluster.batches("t")}) == 1


@in_a_cluster
async def test_conditional_appends_land_there_or_nowhere(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    at = await topic.append(b"0", shard=0, expected_offset=0)
    assert at.offset == 0
    with pytest.raises(OffsetMismatchError) as caught:
        await topic.append(b"1", shard=0, expected_offset=5)
    assert (caught.value.expected, caught.value.actual) == (5, 1)
    # Together with others: each alone, in order; lost answers do not make a second one of them.
    cluster.fail(AppendBatch, DROP_AFTER, None, DROP_AFTER, DROP_AFTER, DROP_BEFORE)
    outcomes = await asyncio.gather(
        topic.append(b"1", shard=0),
        topic.append(b"2", shard=0, expected_offset=2),
        topic.append(b"3", shard=0, expected_offset=2),
        topic.append(b"4", shard=0),
        topic.append(b"5", shard=0, expected_offset=4),
        return_exceptions=True,
    )
    assert [getattr(outcome, "offset", "refused") for outcome in outcomes] == [1, 2, "refused", 3, 4]
    assert values(cluster, "t") == [b"0", b"1", b"2", b"4", b"5"]
    with pytest.raises(InvalidRequestError, match="needs shard"):
        await topic.append(b"", expected_offset=1)
    with pytest.raises(InvalidRequestError, match="is an offset"):
        await topic.append(b"", shard=0, expected_offset=-1)


@in_a_cluster
async def test_a_refused_conditional_append_costs_no_new_producer(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await db.create_topic("t")
    for _ in range(3):
        with pytest.raises(OffsetMismatchError):
            await topic.append(b"", shard=0, expected_offset=9)
    await topic.append(b"")
    assert cluster.count(NewProducerId) == 1


@in_a_cluster
async def test_without_a_producer_id_and_without_callers_nothing_is_done(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only append gave up before there was an id for it: the client must not look for work in a circle."""
    flushes: list[None] = []
    flush = topic_writer.TopicWriter._flush

    def counted(writer: topic_writer.TopicWriter) -> None:
        flushes.append(None)
        flush(writer)

    async def no_id(_cluster: object) -> int:
        await asyncio.sleep(0.15)
        raise NotReadyError("no ids yet")

    monkeypatch.setattr(topic_writer.TopicWriter, "_flush", counted)
    topic = await db.create_topic("t")
    with monkeypatch.context() as without_ids:
        without_ids.setattr(Cluster, "_new_producer_id", no_id)
        with pytest.raises(TimedOutError):
            await topic.append(b"", timeout_s=0.05)
        await asyncio.sleep(0.3)
    assert len(flushes) < 10
    assert (await topic.append(b"then")).offset == 0


@in_a_cluster
async def test_after_a_batch_that_is_refused_for_good_the_rest_goes_on(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_writer, "RECORDS_PER_BATCH", 1)
    topic = await db.create_topic("t")
    await topic.append(b"first")
    cluster.fail(AppendBatch, None, BatchTooLargeError("too large"), None, DROP_BEFORE)
    outcomes = await asyncio.gather(*(topic.append(b"%d" % i) for i in range(8)), return_exceptions=True)
    assert isinstance(outcomes[1], BatchTooLargeError)
    assert values(cluster, "t") == [b"first"] + [b"%d" % i for i in range(8) if i != 1]


@pytest.mark.parametrize("tries", [1, 2])
@in_a_cluster
async def test_after_a_batch_of_unknown_outcome(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """Its caller was told so. What came behind it goes on under another producer id if no copy of it can be under way."""
    monkeypatch.setattr(topic_writer, "RECORDS_PER_BATCH", 1)
    topic = await db.create_topic("t")
    await topic.append(b"first")
    cluster.fail(AppendBatch, *[SILENT, None] * tries)
    lost = asyncio.ensure_future(topic.append(b"lost", timeout_s=0.2))
    behind = asyncio.ensure_future(topic.append(b"behind", timeout_s=5))
    for round_ in range(1, tries + 1):
        await cluster.until_seen(AppendBatch, 1 + 2 * round_)
        if round_ == tries:
            with pytest.raises(TimedOutError, match="not known"):
                await lost
        cluster.drop_clients(cluster.leader("t"))
    if tries == 1:
        assert (await behind).offset == 1
    else:
        with pytest.raises(TimedOutError, match="an append before this one"):
            await behind
    await topic.append(b"next")
    assert values(cluster, "t") == [b"first"] + [b"behind"] * (tries == 1) + [b"next"]


@in_a_cluster
async def test_a_shard_that_forgot_the_producer(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"1")
    cluster.fail(AppendBatch, OutOfOrderSequenceError("who are you", expected=0, actual=1))
    assert (await topic.append(b"2")).offset == 1
    cluster.fail(AppendBatch, DROP_AFTER, OutOfOrderSequenceError("who are you", expected=0, actual=1))
    with pytest.raises(OutOfOrderSequenceError):
        await topic.append(b"3")  # it may be there: only the caller can know what to do
    assert (await topic.append(b"4")).offset == 3


@in_a_cluster
async def test_read_bounds(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    for base in range(0, 100, 10):
        await topic.append_batch([b"%d" % i for i in range(base, base + 10)])
    offsets = [record.offset async for record in topic.read(0, 15, 37)]
    assert offsets == list(range(15, 37))
    assert len([r async for r in topic.read(isolation="uncommitted")]) == 100
    assert [r async for r in topic.read(start=-1)] == []
    assert len([r async for r in topic.read(start=-2)]) == 100
    chunks = [len(chunk) async for chunk in topic.read_chunks(0, 0, 100)]
    assert sum(chunks) == 100
    with pytest.raises(OffsetOutOfRangeError):
        _ = [r async for r in topic.read(start=101, end=102)]
    for wrong in (topic.read(start=-3), topic.read(isolation="dirty")):
        with pytest.raises(InvalidRequestError):
            await anext(wrong)
    with pytest.raises(UnknownShardError, match="has shards 0"):
        await anext(topic.read(3))


@in_a_cluster
async def test_read_survives_what_can_be_mended(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append_batch([b"%d" % i for i in range(10)])
    cluster.fail(
        Fetch, DROP_BEFORE, NotLeaderError("no", leader=None), DROP_AFTER, UnknownShardError("not yet")
    )
    assert len([r async for r in topic.read()]) == 10


@in_a_cluster
async def test_follow_waits_for_more(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    following = topic.read(follow=True, start=-1)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.02)
    await topic.append(b"1")
    await cluster.move_leader("t", 0, (cluster.leader("t") + 1) % 3)
    await topic.append(b"2")
    assert [(await first).value, (await anext(following)).value] == [b"1", b"2"]
    await following.aclose()


@in_a_cluster
async def test_compressed_batches(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("t")
    topic = db.topic("t", compression="lz4")
    await topic.append_batch([b"x" * 1000] * 50)
    assert len(cluster.batches("t")[0]) < 5000
    assert [len(r.value or b"") async for r in topic.read()] == [1000] * 50


@in_a_cluster
async def test_handles_of_one_topic_share_its_sequences(cluster: FailingNodes, db: AsyncClient) -> None:
    plain = await db.create_topic("t")
    small, other = db.topic("t", compression="gzip"), db.topic("t", any_kind=True)
    cluster.fail(AppendBatch, DROP_AFTER)
    await asyncio.gather(
        *(topic.append(b"x" * 100) for topic in (plain, small, other, small) for _ in range(5))
    )
    assert len(values(cluster, "t")) == 20
    assert {read_header(batch).codec for batch in cluster.batches("t")} == {0, 1}


@in_a_cluster
async def test_a_full_queue_makes_callers_wait_in_their_order(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "QUEUE_ITEMS_MAX", 10)
    topic = await db.create_topic("t", shards=1)
    appends: list[asyncio.Task[Position]] = []
    for number in range(300):
        appends.append(asyncio.create_task(topic.append(b"%d" % number)))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*appends)
    assert values(cluster, "t") == [b"%d" % number for number in range(300)]
    cluster.fail(AppendBatch, SILENT)
    stuck = [asyncio.create_task(topic.append(b"", timeout_s=0.1)) for _ in range(30)]
    outcomes = await asyncio.gather(*stuck, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {TimedOutError}
    assert any("no room" in str(outcome) for outcome in outcomes)


@in_a_cluster
async def test_wrong_names(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("table")
    with pytest.raises(UnknownTopicError, match="no topic 'none'"):
        await db.topic("none").append(b"")
    with pytest.raises(WrongKindError, match="is a table"):
        await db.topic("table")
    log = await db.topic("table", any_kind=True)
    assert [r async for r in log.read()] == []
    with pytest.raises(WrongKindError, match="by puts and deletes only"):
        await log.append(b"")
    with pytest.raises(InvalidRequestError, match="await the handle"):
        _ = db.topic("none").shards
    topic = await db.create_topic("t", shards=2)
    with pytest.raises(UnknownShardError):
        await topic.append(b"", shard=2)
    with pytest.raises(AntiphonError):
        await topic.append(b"", headers=[("h", "text")])  # type: ignore[list-item]
    assert (await topic.append(b"", shard=0)).offset == 0


@in_a_cluster
async def test_who_leaves_a_follow_asks_for_nothing_more(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"1")
    before = asyncio.all_tasks()
    async for record in topic.read(follow=True):
        assert record.value == b"1"
        break
    await asyncio.sleep(0.1)
    assert client_tasks(asyncio.all_tasks() - before) == []


def client_tasks(tasks: set[asyncio.Task[object]]) -> list[str]:
    """Questions of readers that are open."""
    return [name for task in tasks if "fetch" in (name := repr(task.get_coro()))]
