"""Transactions of native clients, on nodes without a Kafka listener that fail on request."""

import asyncio

import pytest

from antiphon.client.aio import AsyncClient
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    InvalidTxnStateError,
    NotReadyError,
    OffsetMismatchError,
    ProducerFencedError,
    TimedOutError,
    UnknownShardError,
    UnknownTopicError,
    WrongKindError,
)
from antiphon.model.requests import AppendBatch
from antiphon.model.transactions import FinishTransaction, InitProducer, JoinTransaction, SendOffsets
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, FailingNodes, Fault

HERE = ("in", 0)


async def committed(db: AsyncClient, name: str, shard: int = 0) -> list[bytes | None]:
    """What readers of committed records see once nothing is under way."""
    for _ in range(200):
        low, end = await db.topic(name).offsets(shard)
        reply = await db.list_offset(db._cluster.topics[name].shards[shard].shard_id, -1)
        if reply.stable_end == reply.high_watermark:
            return [r.value async for r in db.topic(name).read(shard, low, isolation="committed")]
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name}/{shard} ends at {end}, and something is under way")


def written(cluster: FailingNodes, name: str, shard: int = 0) -> list[bytes | None]:
    """All records that are in the log, whatever came of their transactions."""
    batches = [batch for batch in cluster.batches(name, shard) if not read_header(batch).is_control]
    return [record.value for batch in batches for record in decode_records(batch)]


@in_a_cluster
async def test_a_transaction_spans_topics_and_offsets(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("in")
    await db.create_topic("out", shards=2)
    async with db.producer("mover") as producer:
        async with producer.begin() as t:
            await t.append("out", b"a", shard=0)
            await t.append("out", b"b", shard=1)
            await t.append("in", b"c", headers=[("h", b"1")])
            await t.append("out", b"d", shard=0)
            await t.send_offsets("g", {HERE: 7})
            with pytest.raises(InvalidTxnStateError, match="open"):
                producer.begin()
            with pytest.raises(InvalidTxnStateError, match="open"):
                _ = t.positions
        assert [(at.shard, at.offset) for at in t.positions] == [(0, 0), (1, 0), (0, 0), (0, 1)]
        assert await db.group_offsets("g", [HERE, ("out", 0)]) == {HERE: 7}
        assert [await committed(db, "out", n) for n in (0, 1)] == [[b"a", b"d"], [b"b"]]
        with pytest.raises(InvalidTxnStateError, match="committed"):
            await t.append("in", b"late")
        async with producer.begin():
            pass  # nothing is asked for nothing


@in_a_cluster
async def test_what_is_aborted_is_nowhere(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("in")
    async with db.producer("mover") as producer:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
            async with producer.begin() as t:
                await t.append("in", b"x")
                await t.flush()
                await t.send_offsets("g", {HERE: 7})
                _ = 1 // 0
        assert written(cluster, "in") == [b"x"]
        t = producer.begin()
        await t.append("in", b"y")
        await t.abort()
        await t.abort()
        async with producer.begin() as t:
            await t.append("in", b"z")
        assert await committed(db, "in") == [b"z"]
        assert await db.group_offsets("g", [HERE]) == {}
        assert cluster.count(InitProducer) == 1, "nothing was in doubt"


STEPS = (InitProducer, JoinTransaction, AppendBatch, SendOffsets, FinishTransaction)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "faults", [[DROP_BEFORE], [DROP_AFTER], [NotReadyError("soon"), DROP_AFTER, DROP_AFTER]]
)
@in_a_cluster
async def test_each_step_that_is_asked_for_again_is_carried_out_once(
    cluster: FailingNodes, db: AsyncClient, step: type, faults: list[Fault]
) -> None:
    await db.create_topic("in")
    cluster.fail(step, *faults)
    async with db.producer("mover") as producer:
        for number in range(2):
            async with producer.begin() as t:
                await t.append("in", b"%d" % number)
                await t.send_offsets("g", {HERE: number})
    assert await committed(db, "in") == written(cluster, "in") == [b"0", b"1"]
    assert await db.group_offsets("g", [HERE]) == {HERE: 1}


@in_a_cluster
async def test_who_gets_the_id_fences_who_had_it(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("in")
    async with db.producer("mover") as old:
        t = old.begin()
        await t.append("in", b"old")
        await t.flush()
        async with db.producer("mover") as new:
            with pytest.raises(ProducerFencedError, match="another producer has the id"):
                await t.append("in", b"more", expected_offset=1, shard=0)
            with pytest.raises(ProducerFencedError):
                await t.commit()
            with pytest.raises(ProducerFencedError, match="another"):
                old.begin()
            async with new.begin() as t:
                await t.append("in", b"new")
    assert await committed(db, "in") == [b"new"]


@in_a_cluster
async def test_a_transaction_that_lasts_too_long_is_aborted_and_says_so(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_topic("in")
    async with db.producer("mover", transaction_timeout_s=2.0) as producer:
        t = producer.begin()
        await t.append("in", b"x")
        await t.flush()
        await asyncio.sleep(5)
        with pytest.raises(ProducerFencedError, match=r"longer than its time-out of 2 s and was aborted"):
            await t.commit()
    assert await committed(db, "in") == []
    with pytest.raises(InvalidRequestError, match="time-out"):
        await db.producer("other", transaction_timeout_s=1e6).start()


@in_a_cluster
async def test_a_commit_without_an_answer_can_be_asked_for_again(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_topic("in")
    async with db.producer("mover", timeout_s=2.0) as producer:
        t = producer.begin()
        await t.append("in", b"x")
        cluster.fail(FinishTransaction, *[DROP_AFTER] * 40)
        with pytest.raises(
            TimedOutError, match="whether the transaction of 'mover' was committed is not known"
        ):
            await t.commit()
        with pytest.raises(InvalidTxnStateError, match="call commit again"):
            await t.abort()
        cluster.faults.clear()
        await t.commit()
        assert t.positions[0].offset == 0
        async with producer.begin() as t:
            await t.append("in", b"y")
    assert await committed(db, "in") == [b"x", b"y"]


@in_a_cluster
async def test_a_conditional_append_in_a_transaction(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("in")
    at = await topic.append(b"0")
    async with db.producer("mover") as producer:
        async with producer.begin() as t:
            await t.append("in", b"1", shard=0, expected_offset=at.offset + 1)
            await t.append("in", b"2", shard=0)
        with pytest.raises(OffsetMismatchError) as refused:  # noqa: PT012 - the same
            async with producer.begin() as t:
                await t.append("in", b"3", shard=0)
                await t.append("in", b"4", shard=0, expected_offset=2)
        assert (refused.value.details["expected"], refused.value.details["actual"]) == (2, 5)
        with pytest.raises(InvalidRequestError, match="needs shard"):
            async with producer.begin() as t:
                await t.append("in", b"5", expected_offset=2)
        async with producer.begin() as t:
            await t.append("in", b"6", shard=0)
    assert await committed(db, "in") == [b"0", b"1", b"2", b"6"]


@pytest.mark.parametrize(
    ("topic", "shard", "error"),
    [("none", 0, UnknownTopicError), ("in", 3, UnknownShardError), ("kv", 0, WrongKindError)],
)
@in_a_cluster
async def test_what_cannot_be_part_is_refused(
    cluster: FailingNodes, db: AsyncClient, topic: str, shard: int, error: type[AntiphonError]
) -> None:
    await db.create_topic("in")
    await db.create_table("kv")
    async with db.producer("mover") as producer:
        with pytest.raises(error):  # noqa: PT012 - the same
            async with producer.begin() as t:
                await t.append("in", b"x")
                await t.append(topic, b"y", shard=shard)
        if error is not WrongKindError:
            with pytest.raises(error):  # noqa: PT012 - the same
                async with producer.begin() as t:
                    await t.append("in", b"z")
                    await t.send_offsets("g", {(topic, shard): 1})
    assert await committed(db, "in") == []


@in_a_cluster
async def test_a_client_is_not_believed_about_what_takes_part(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("in", shards=2)
    assert topic.shards == 2
    shard_id = db._cluster.topics["in"].shards[1].shard_id
    async with db.producer("mover") as producer:
        identity = await producer.identity()
        t = producer.begin()
        await t.append("in", b"x", shard=0)
        await t.flush()
        part = build_batch(
            [(None, b"y", (), 1)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        for name, error in (
            ("mover", InvalidTxnStateError),
            ("other", InvalidTxnStateError),
            ("", InvalidRequestError),
        ):
            body = AppendBatch(shard_id, transactional_id=name)
            with pytest.raises(error):
                await db._cluster.call_shard(shard_id, body, (part,), timeout_s=3)
        plain = build_batch([(None, b"y", (), 1)])
        body = AppendBatch(shard_id, transactional_id="mover")
        with pytest.raises(InvalidRequestError, match="transactional bit"):
            await db._cluster.call_shard(shard_id, body, (plain,), timeout_s=3)
        await t.commit()
    assert written(cluster, "in", 1) == []


@in_a_cluster
async def test_many_records_go_in_batches(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("in", shards=3)
    value = b"v" * 50_000
    async with db.producer("mover") as producer, producer.begin() as t:
        for number in range(60):
            await t.append("in", value + b"%d" % number, key=b"%d" % number)
    assert len(t.positions) == 60
    found = [await committed(db, "in", shard) for shard in range(3)]
    assert sorted(one for part in found for one in part if one) == sorted(
        value + b"%d" % n for n in range(60)
    )
    for shard in range(3):
        assert all(len(batch) < 300_000 for batch in cluster.batches("in", shard))


@pytest.mark.parametrize(
    "later", [UnknownTopicError("no such table"), InvalidRequestError("not now"), DROP_BEFORE]
)
@in_a_cluster
async def test_a_commit_of_unknown_outcome_stays_unknown_whatever_the_next_try_meets(
    cluster: FailingNodes, db: AsyncClient, later: Fault
) -> None:
    """It may be committed: only the coordinator's word on this transaction says that it is not."""
    await db.create_topic("in")
    async with db.producer("mover", timeout_s=0.5) as producer:
        transaction = producer.begin()
        await transaction.append("in", b"a")
        await transaction.flush()
        cluster.fail(FinishTransaction, DROP_AFTER, *[DROP_BEFORE] * 200)
        with pytest.raises(TimedOutError) as unknown:
            await transaction.commit()
        assert unknown.value.details["earlier_try"]
        cluster.faults.clear()
        cluster.fail(FinishTransaction, *[later] * 200)
        with pytest.raises(TimedOutError) as unknown:
            await transaction.commit()
        assert unknown.value.details["earlier_try"]
        assert transaction.is_open
        cluster.faults.clear()
        await transaction.commit()
    assert await committed(db, "in") == [b"a"]
