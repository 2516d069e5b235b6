"""Jobs (Spark's sink) that write to a table and write the same again, to whoever leads by then."""

import pytest

from antiphon.errors import ProducerFencedError, ReplayConflictError
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    Delete,
    DeleteRange,
    OpStatus,
    Put,
    TableOp,
    TableWrite,
    TableWritten,
)
from tests.node.in_process import cluster_of, in_virtual_time

JOB = 3 << 61 | 5


@in_virtual_time
async def test_a_job_that_repeats_its_epoch_gets_its_answers_again() -> None:
    """Requests with more and with fewer effects than operations, repeated before and after a fail-over."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(kind=Kind.TABLE)
        asked: list[tuple[TableOp, ...]] = [
            tuple(Put(b"key%d" % number, b"x") for number in range(5)),
            (DeleteRange(b"key0", b"key4"),),  # four effects of one operation
            (Delete(b"none"), Put(b"key4", b"y"), Put(b"key4", b"z", expected_version=77)),
            (Put(b"key9", b"z"),),
        ]

        async def send(number: int, ops: tuple[TableOp, ...], content: int, epoch: int = 6) -> TableWritten:
            leader = await nodes.leader(shard_id)
            request = TableWrite(shard_id, ops, JOB, epoch, number << 16 | content)
            return await nodes.nodes[leader.services.node_id].gateway.table_write(request)

        first = [await send(number, ops, 9) for number, ops in enumerate(asked)]
        statuses = [result.status for result in first[2].results]
        assert statuses == [OpStatus.KEY_NOT_FOUND, OpStatus.OK, OpStatus.UNEXPECTED_VERSION]
        for _ in range(2):
            leader = await nodes.leader(shard_id)
            end = leader.log.log_end
            assert [await send(number, ops, 9) for number, ops in enumerate(asked)] == first
            for content in (8, 10):
                with pytest.raises(ReplayConflictError):
                    await send(3, asked[0], content)
            with pytest.raises(ProducerFencedError):
                await send(4, asked[0], 9, epoch=5)
            assert leader.log.log_end == end
            node_id = leader.services.node_id
            await nodes.nodes[node_id].gateway.elect_leader(shard_id, (node_id + 1) % 3)
        assert (await send(0, asked[0], 9, epoch=7)).offset >= 0
