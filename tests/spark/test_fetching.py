"""Ranges of offsets, fetched an answer at a time."""

from collections.abc import Sequence

import pytest

from antiphon.client.blocking import ShardCall
from antiphon.client.blocking_link import Answer
from antiphon.errors import CorruptBatchError, TimedOutError
from antiphon.model.requests import Fetched
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch
from antiphon.spark.read.fetching import FetchPlan, fetch_range

BATCHES = [
    bytes(build_batch([(None, bytes(offset), (), 0)] * 2, base_offset=offset)) for offset in (0, 2, 4, 6, 8)
]


class Scripted:
    """Answers with the next of the given payloads, the last one again and again; remembers what was asked."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = list(payloads)
        self.asked: list[int] = []

    def call(self, call: ShardCall) -> Answer:
        self.asked.append(call.body.offset)
        payload = self.payloads.pop(0) if len(self.payloads) > 1 else self.payloads[0]
        return Answer(Fetched(10, 0, 10, 1), memoryview(payload))


def fetched(scripted: Scripted, start: int, end: int, timeout_ms: int = 1000) -> list[list[int]]:
    """Base offsets of the batches of each answer."""
    plan = FetchPlan(1, start, end, 1 << 20, "committed", log_start_moves=False)
    return [
        [header.base_offset for piece in pieces for header, _ in iter_batches(piece)]
        for pieces in fetch_range(scripted, plan, timeout_ms)
    ]


def test_a_range_ends_with_the_batch_that_holds_its_end() -> None:
    scripted = Scripted([b"".join(BATCHES[:2]), b"".join(BATCHES[2:])])
    assert fetched(scripted, 1, 7) == [[0, 2], [4, 6]]
    assert scripted.asked == [1, 4]
    assert fetched(Scripted([BATCHES[0]]), 0, 2) == [[0]]
    assert fetched(Scripted([b"", BATCHES[1]]), 2, 4) == [[2]]


@pytest.mark.parametrize("cut", [1, 30, 60, len(BATCHES[1]) - 1])
def test_what_is_not_whole_batches_is_refused(cut: int) -> None:
    with pytest.raises(CorruptBatchError):
        fetched(Scripted([BATCHES[0] + BATCHES[1][:cut]]), 0, 4)
    wrong = bytearray(BATCHES[1])
    wrong[8:12] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptBatchError):
        fetched(Scripted([BATCHES[0] + wrong]), 0, 4)


def test_answers_that_lead_nowhere_end() -> None:
    with pytest.raises(CorruptBatchError, match="asked from offset 4 on, got batches up to 2"):
        fetched(Scripted([BATCHES[0]]), 4, 10)
    with pytest.raises(TimedOutError, match="gave nothing from offset 0"):
        fetched(Scripted([b""]), 0, 10, timeout_ms=1)
