"""Bulk writes into a table whose replicas vote, while replicas move: all replicas keep the same log, byte for byte."""

import asyncio
import itertools
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.model.metadata import Kind
from antiphon.model.requests import MoveReplica, Put, TableWrite, TableWritten
from antiphon.partition.partition import Partition
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

WRITERS = 8
MOVES = 4


class Writers:
    """Write through the bulk gate of whoever leads, for as long as they may; what was acknowledged is noted."""

    def __init__(self, nodes: Nodes, shard_id: int) -> None:
        self.acknowledged: dict[bytes, bytes] = {}
        self.stopping = False
        self._nodes, self._shard_id = nodes, shard_id
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(WRITERS)]

    async def stop(self) -> None:
        self.stopping = True
        await asyncio.gather(*self._tasks)

    async def _write(self, writer: int) -> None:
        for number in itertools.count():
            if self.stopping:
                return
            puts = tuple(Put(b"%d-%d" % (writer, n % 50), b"%d" % n) for n in range(number, number + 20))
            if isinstance(await self._ask(puts), TableWritten):
                self.acknowledged.update((put.key, put.value) for put in puts)
            else:
                await asyncio.sleep(0.005)

    async def _ask(self, puts: tuple[Put, ...]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        host = await self._nodes.leader(self._shard_id)
        gate = self._nodes.nodes[host.services.node_id].bulk
        try:
            gate.take(TableWrite(self._shard_id, puts, bulk=True), lambda result: _settle(answer, result))
        except AntiphonError as error:
            return error
        return await answer


def _settle(answer: "asyncio.Future[Any]", result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _log_of(host: Partition) -> list[bytes]:
    return [bytes(batch) for _, batch in host.log.reader.batches_from(0)]


def _rows_of(host: Partition) -> Any:
    rows, more = host.state.require_table().state.scan(b"", b"", 100_000)
    assert not more
    return rows


async def _move_a_follower(nodes: Nodes, shard_id: int) -> None:
    leader = (await nodes.leader(shard_id)).services.node_id
    with_replica = {node_id for node_id, node in nodes.nodes.items() if shard_id in node.hosts}
    (free,) = set(nodes.nodes) - with_replica
    await nodes.nodes[leader].gateway.administer(MoveReplica(shard_id, max(with_replica - {leader}), free))
    hosts = [node.hosts for node in nodes.nodes.values()]
    await eventually(
        lambda: sum(shard_id in one for one in hosts) == 3 and shard_id in nodes.nodes[free].hosts
    )


@in_virtual_time
async def test_replicas_stay_the_same_while_they_move_under_bulk_writes() -> None:
    async with cluster_of(4) as nodes:
        shard_id = await nodes.new_shard(kind=Kind.TABLE, profile="tarantool", replicas=3)
        writers = Writers(nodes, shard_id)
        for _ in range(MOVES):
            await _move_a_follower(nodes, shard_id)
            await asyncio.sleep(0.1)
        await writers.stop()
        assert [node.metrics.shard_failures for node in nodes.nodes.values()] == [0] * 4
        hosts = [node.hosts[shard_id] for node in nodes.nodes.values() if shard_id in node.hosts]
        await eventually(lambda: len({(h.log.log_end, h.state.high_watermark) for h in hosts}) == 1)
        logs = [_log_of(host) for host in hosts]
        assert logs[0] == logs[1] == logs[2]
        rows = [_rows_of(host) for host in hosts]
        assert rows[0] == rows[1] == rows[2]
        assert len(writers.acknowledged) > 100
        assert set(writers.acknowledged) <= {row.key for row in rows[0]}
