"""One client's puts of a key, and its appends to a shard, are carried out in its order, each once, whatever goes wrong."""

import asyncio
import os
import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from antiphon.client import table_writer, topic_writer
from antiphon.client.routing import tries as tries_module
from antiphon.client.table import AsyncTable
from antiphon.client.topic import AsyncTopic
from antiphon.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    OffsetMismatchError,
    TimedOutError,
    VersionMismatchError,
)
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableWrite
from antiphon.partition.write_order import WriteOrder
from tests.client.writer_model import POISON, ModelCluster

if TYPE_CHECKING:
    from antiphon.model.rows import Version

SEEDS = int(os.environ.get("SCHEDULES", "100"))
KEYS = 6
PUTS = 300


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Put numbers in rising order into few keys without waiting; see what the shards' logs say. Returns what happened."""
    monkeypatch.setattr(tries_module, "PAUSE_S_MIN", 0.0)
    monkeypatch.setattr(tries_module, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(table_writer, "OPS_PER_REQUEST", 4)
    cluster = ModelCluster(seed, Kind.TABLE)

    async def main() -> None:
        table = AsyncTable(cluster, "t", 3600.0)
        draw = random.Random(seed)
        made: list[tuple[bytes, int, asyncio.Future[Any]]] = []
        refused: list[tuple[type[Exception], asyncio.Future[Version]]] = []
        while len(made) < PUTS or not all(put.done() for _, _, put in made):
            cluster.step()
            if len(made) < PUTS and draw.random() < 0.4:
                for _ in range(draw.choice([1, 2, 6])):
                    key = b"k%d" % draw.randrange(KEYS)
                    made.append((key, len(made), table.put(key, b"%d" % len(made))))
                if draw.random() < 0.1:
                    two = [Put(key, b"%d" % number) for number in range(len(made), len(made) + 2)]
                    both = asyncio.create_task(table.write(two))
                    made += [(key, len(made), both), (key, len(made) + 1, both)]
                    await asyncio.sleep(0)  # it begins
                if draw.random() < 0.1:
                    made[-1][2].cancel()  # its caller gives up: it may be carried out or not
                if draw.random() < 0.1:
                    refused.append((VersionMismatchError, table.put(b"k0", b"no", expected_version=99)))
                if draw.random() < 0.03:
                    refused.append((InvalidRequestError, table.put(b"k1", POISON)))
            await asyncio.sleep(0)
        await asyncio.gather(*(put for _, _, put in made if not put.cancelled()))
        for kind, put in refused:
            while not put.done():
                cluster.step()
                await asyncio.sleep(0)
            with pytest.raises(kind):
                put.result()
        check_logs(cluster, made)
        await table.close()

    asyncio.run(main())
    return cluster.happened


def check_logs(cluster: ModelCluster, made: list[tuple[bytes, int, asyncio.Future[Any]]]) -> None:
    """What was made and not given up stands there once and in order; a transaction's two rows stand together."""
    logs = [entry for _, shard in sorted(cluster.shards.items()) for entry in shard.log]
    for key in {key for key, _, _ in made}:
        found = [int(value) for log_key, value in logs if log_key == key]
        expected = [
            number
            for put_key, number, put in made
            if put_key == key and (number in found or not put.cancelled())
        ]
        assert found == expected, f"seed {cluster.seed}, {key!r}"
        for number, following in pairwise([*found, -1]):
            together = number + 1 < len(made) and made[number][2] is made[number + 1][2]
            assert not together or following == number + 1, f"seed {cluster.seed}: half a transaction"


def test_no_write_overtakes_another_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: dict[str, int] = {}
    for seed in range(SEEDS):
        for what, times in play(seed, monkeypatch).items():
            happened[what] = happened.get(what, 0) + times
    assert {"split", "wrong_shard", "not_ready", "not_leader", "invalid_request"} <= set(happened)


def test_the_model_sees_writes_that_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shard's look at what went before, some seed shows it."""
    monkeypatch.setattr(WriteOrder, "check", lambda *_: None)
    found = 0
    for seed in range(10):
        try:
            play(seed, monkeypatch)
        except AssertionError as error:
            found += str(error).startswith("seed")
    assert found


async def append_to(topic: AsyncTopic, value: int | bytes, expected: int | None = None) -> int:
    """The offset of a number, or of a batch of its own."""
    if isinstance(value, bytes):
        return (await topic.append_batch([value], shard=0))[0].offset
    return (await topic.append(b"%d" % value, shard=0, expected_offset=expected)).offset


def play_appends(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Append numbers in rising order without waiting; see what the log says. Returns the outcomes."""
    monkeypatch.setattr(tries_module, "PAUSE_S_MIN", 0.0)
    monkeypatch.setattr(tries_module, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(topic_writer, "RECORDS_PER_BATCH", 3)
    cluster = ModelCluster(seed, Kind.TOPIC)
    shard = cluster.shards[1]
    outcomes: Counter[str] = Counter()

    async def main() -> None:
        writers: dict[int, topic_writer.TopicWriter] = {}
        topic = AsyncTopic(cluster, "t", 3600.0, writers)
        draw = random.Random(seed)
        made: list[tuple[int, asyncio.Task[int]]] = []
        poisons: list[asyncio.Task[int]] = []
        number = 0
        while number < PUTS or not all(append.done() for _, append in made):
            cluster.step()
            if number < PUTS and draw.random() < 0.4:
                for _ in range(draw.choice([1, 2, 6])):
                    expected = len(shard.log) + draw.choice([0, 1]) if draw.random() < 0.1 else None
                    made.append((number, asyncio.create_task(append_to(topic, number, expected))))
                    number += 1
                if draw.random() < 0.05:
                    for _, append in made[-draw.randrange(1, 12) :]:
                        append.cancel()  # its caller gives up: it may be carried out or not
                if draw.random() < 0.03:
                    poisons.append(asyncio.create_task(append_to(topic, POISON)))
            await asyncio.sleep(0)
        while not all(poison.done() for poison in poisons):
            cluster.step()
            await asyncio.sleep(0)
        assert all(isinstance(poison.exception(), BatchTooLargeError) for poison in poisons)
        shard.commit()
        found = [int(value) for _, value in shard.log]
        assert len(found) == len(set(found)), f"seed {seed}"
        known = {value for value, append in made if not append.cancelled() and append.exception() is None}
        in_order = [value for value in found if value in known]  # the others may land late
        assert in_order == sorted(known), f"seed {seed}"
        for value, append in made:
            if append.cancelled():
                outcomes["cancelled"] += 1
            elif (problem := append.exception()) is None:
                outcomes["done"] += 1
                assert found[append.result()] == value, f"seed {seed}"
            else:
                outcomes[type(problem).__name__] += 1
                assert isinstance(problem, OffsetMismatchError | TimedOutError), f"seed {seed}: {problem!r}"
                assert isinstance(problem, TimedOutError) or value not in found, f"seed {seed}, {value}"
        await writers[1].close()

    asyncio.run(main())
    return outcomes


def test_no_append_overtakes_another_of_its_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcomes += play_appends(seed, monkeypatch)
    assert outcomes["done"] > PUTS * SEEDS * 0.8
    assert outcomes["OffsetMismatchError"] > 0
    assert outcomes["TimedOutError"] < outcomes["done"] / 20, "outcomes that are not known are to be rare"


def test_requests_without_effect_are_remembered_of_so_many_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.partition.write_order.WRITERS_MAX", 2)
    order = WriteOrder()
    for producer in (1, 2, 3):
        order.left_no_trace(TableWrite(1, (Put(b"k", b"v"),), producer, 0, 5))
    assert set(order._without_trace) == {2, 3}
