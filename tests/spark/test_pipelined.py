"""Several requests of a shard on their way, while connections break and leaders deny."""

import random
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from antiphon.client.blocking import ShardCall
from antiphon.client.routing.tries import Question
from antiphon.errors import InvalidRequestError, OffsetMismatchError, TimedOutError
from antiphon.model.requests import AppendBatch
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.spark.job import Job
from antiphon.spark.pipelined import Pipeline
from antiphon.spark.write.options import parse_write
from antiphon.spark.write.task import Task, write_rows
from tests.spark.native_server import NativeServer

if TYPE_CHECKING:
    from antiphon.client.blocking_link import Answer

SHARDS = 3
ROWS = 450


@pytest.mark.parametrize("seed", range(4))
def test_batches_land_once_and_in_order_whatever_breaks(server: NativeServer, seed: int) -> None:
    shards = server.create("out", SHARDS)
    chance = random.Random(seed)
    options = parse_write(
        {
            "servers": server.address,
            "topic": "out",
            "timeoutMs": "10000",
            "batchRows": "3",
            "protocol": "direct",
        },
        streaming=True,
    )
    done = threading.Event()

    def disturb() -> None:
        while not done.wait(chance.random() * 0.1):
            server.faults.drop_after_append = chance.randint(0, 1)
            server.faults.deny_leadership = chance.randint(0, 2)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    values = [b"%d" % n for n in range(ROWS)]
    batches = [
        pa.record_batch({"value": pa.array(values[at : at + 50], pa.binary())}) for at in range(0, 600, 50)
    ]
    try:
        for _ in range(2):
            result = write_rows(Task(options, Job("q", 1, 0), 5), iter(batches))
    finally:
        done.set()
        disturber.join()
    assert (result.rows, result.batches, result.duplicates) == (ROWS, ROWS // 3, ROWS // 3)
    for number, shard in enumerate(shards):
        found = [record.value for _, batch in shard.batches[1:] for record in decode_records(batch)]
        assert found == values[number::SHARDS]


@pytest.fixture
def pipeline(server: NativeServer) -> Pipeline:
    host, _, port = server.address.rpartition(":")
    return Pipeline([(host, int(port))], 400)


def append(shard_id: int, value: bytes, expected: int | None = None) -> ShardCall:
    return ShardCall(shard_id, AppendBatch(shard_id, expected), [build_batch([(None, value, (), 5)])])


def test_errors_that_stay_go_to_who_asked(server: NativeServer, pipeline: Pipeline) -> None:
    (shard,) = server.create("out")
    answers: list[Answer] = []
    errors: list[Exception] = []
    with pipeline:
        pipeline.submit(append(1, b"a"), answers.append)
        pipeline.submit(append(1, b"b", 77), answers.append, errors.append)
        pipeline.submit(append(1, b"c"), answers.append)
        pipeline.drain()
        assert [type(error) for error in errors] == [OffsetMismatchError]
        assert len(answers) == 2
        pipeline.submit(append(1, b"d", 78), answers.append)
        with pytest.raises(OffsetMismatchError):
            pipeline.drain()
    assert shard.end == 3


def test_a_node_that_does_not_know_the_shard_yet(server: NativeServer, pipeline: Pipeline) -> None:
    (shard,) = server.create("out")
    server.faults.unknown = 2
    answers: list[Answer] = []
    with pipeline:
        pipeline.submit(append(1, b"a"), answers.append)
        pipeline.drain()
    assert (len(answers), shard.end) == (1, 2)


def test_what_a_shard_has_told_is_not_forgotten_over_the_answer_of_another(server: NativeServer) -> None:
    """One shard is answered and the other is not: the next step is to ask for newer metadata all the same."""
    server.create("out", 2)
    host, _, port = server.address.rpartition(":")
    with Pipeline([(host, int(port))], 2_000) as pipeline:
        pipeline.submit(append(1, b"a"), lambda _: None)
        server.faults.deny_leadership = 1
        pipeline.submit(append(2, b"b"), lambda _: None)
        asked: list[Question | None] = []
        refresh = pipeline._refresh

        def refreshed(deadline_s: float, question: Question | None = None) -> str | None:
            asked.append(question)
            return refresh(deadline_s, question)

        pipeline._refresh = refreshed  # type: ignore[method-assign]
        pipeline.drain()
    assert [question is not None for question in asked] == [True]


def test_it_gives_up_after_its_time(server: NativeServer, pipeline: Pipeline) -> None:
    server.create("out")
    server.faults.deny_leadership = 1 << 30
    with pipeline:
        for _ in range(2):
            pipeline.submit(append(1, b"a"), lambda _: None)
        with pytest.raises(
            TimedOutError, match="2 requests had no answer in time, lastly because of not_leader"
        ):
            pipeline.drain()


def test_a_shard_that_is_gone(server: NativeServer, pipeline: Pipeline) -> None:
    server.create("out")
    with pipeline, pytest.raises(Exception, match="topic was deleted") as caught:
        pipeline.submit(append(9, b"a"), lambda _: None)
    assert not isinstance(caught.value, InvalidRequestError)


def test_little_is_held_while_nothing_is_answered(server: NativeServer) -> None:
    server.create("out", 2)
    host, _, port = server.address.rpartition(":")
    held: list[int] = []
    with Pipeline([(host, int(port))], 2_000, window=2, bytes_max=5_000) as pipeline:
        for number in range(40):
            pipeline.submit(append(1 + number % 2, bytes(1_000)), lambda _: None)
            held.append(pipeline._bytes)
        pipeline.drain()
        assert pipeline._bytes == 0
    assert max(held) <= 5_000
