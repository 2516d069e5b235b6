"""The writes of one client to one key are carried out in the order in which it made them, each once, whatever goes wrong."""

import asyncio
import os
import random

import pytest

from antiphon.client import cluster as cluster_module
from antiphon.client import table_writer
from antiphon.client.table import AsyncTable
from antiphon.errors import InvalidRequestError, VersionMismatchError
from antiphon.node.write_order import WriteOrder
from antiphon.wire.requests import Put, TableWrite, Version
from tests.client.writer_model import POISON, ModelCluster

SEEDS = int(os.environ.get("SCHEDULES", "100"))
KEYS = 6
PUTS = 300


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Put numbers in rising order into few keys without waiting; see what the shards' logs say. Returns what happened."""
    monkeypatch.setattr(cluster_module, "PAUSE_S_MIN", 0.0)
    monkeypatch.setattr(cluster_module, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(table_writer, "OPS_PER_REQUEST", 4)
    cluster = ModelCluster(seed)

    async def main() -> None:
        table = AsyncTable(cluster, "t", 3600.0)
        draw = random.Random(seed)
        made: list[tuple[bytes, int, asyncio.Future[Version]]] = []
        refused: list[tuple[type[Exception], asyncio.Future[Version]]] = []
        while len(made) < PUTS or not all(put.done() for _, _, put in made):
            cluster.step()
            if len(made) < PUTS and draw.random() < 0.4:
                for _ in range(draw.choice([1, 2, 6])):
                    key = b"k%d" % draw.randrange(KEYS)
                    made.append((key, len(made), table.put(key, b"%d" % len(made))))
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
        logs = [entry for _, shard in sorted(cluster.shards.items()) for entry in shard.log]
        for key in {key for key, _, _ in made}:
            found = [int(value) for log_key, value in logs if log_key == key]
            expected = [
                number
                for put_key, number, put in made
                if put_key == key and (number in found or not put.cancelled())
            ]
            assert found == expected, f"seed {seed}, {key!r}"
        await table.close()

    asyncio.run(main())
    return cluster.happened


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


def test_requests_without_effect_are_remembered_of_so_many_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.node.write_order.WRITERS_MAX", 2)
    order = WriteOrder()
    for producer in (1, 2, 3):
        order.left_no_trace(TableWrite(1, (Put(b"k", b"v"),), producer, 0, 5))
    assert set(order._without_trace) == {2, 3}
