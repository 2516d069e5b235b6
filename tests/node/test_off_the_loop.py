"""What blocks on the disk for long is done in threads: a node serves its other shards meanwhile.

A `Held` thread pool keeps what is to run in a thread until the test lets go. What ran on the event loop instead would be
over before, and was not held.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon.errors import NotLeaderError
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableWrite
from antiphon.node.node import Node
from antiphon.node.trimming import trim_replica
from antiphon.table.state import TableState
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

ROUNDS = 40


class Held:
    """Work for threads that waits to be begun."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def let_go(self) -> None:
        """Have it done, all of it."""
        held, self.waiting = self.waiting, []
        for begin in held:
            begin()


@contextmanager
def held(nodes: Nodes, wanted: Callable[[Any], bool]) -> Iterator[Held]:
    """From now on, work for threads that is `wanted` is kept."""
    loop, kept = nodes.loop, Held()
    at_once = loop.run_in_executor

    def run_in_executor(pool: Any, work: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        if not wanted(work):
            return at_once(pool, work, *args)
        future = loop.create_future()

        def begin() -> None:
            done = at_once(pool, work, *args)
            done.add_done_callback(lambda _: _hand_on(done, future))

        kept.waiting.append(begin)
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run_in_executor", run_in_executor)
        yield kept


def _hand_on(done: "asyncio.Future[Any]", to: "asyncio.Future[Any]") -> None:
    if to.done():
        return
    error = done.exception()
    if error is None:
        to.set_result(done.result())
    else:
        to.set_exception(error)


def is_flush(work: Any) -> bool:
    return getattr(work, "__func__", None) is TableState.flush


async def one_table(nodes: Nodes) -> int:
    """A table's shard whose log has much that need not be kept."""
    config = {"segment.bytes": "4096", "retention.bytes": "8192"}
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", kind=Kind.TABLE, config=config))
    shard_id = topic.shards[0].shard_id
    await nodes.leader(shard_id)
    for number in range(ROUNDS):
        await nodes.nodes[0].gateway.table_write(
            TableWrite(shard_id, (Put(b"k%d" % (number % 7), bytes(900)),))
        )
    return shard_id


async def other_shard(nodes: Nodes) -> int:
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("other", replicas=len(nodes.nodes)))
    await nodes.leader(topic.shards[0].shard_id)
    return topic.shards[0].shard_id


@in_virtual_time
async def test_retention_has_a_store_flushed_while_the_node_serves_and_trims_then() -> None:
    async with cluster_of(1) as nodes:
        shard_id, other = await one_table(nodes), await other_shard(nodes)
        node = nodes.nodes[0]
        host = node.hosts[shard_id]
        with held(nodes, is_flush) as flushes:
            node.shards.apply_retention()
            node.shards.apply_retention()
            assert len(flushes.waiting) == 1, "one at a time"
            await nodes.append(other, b"meanwhile")
            await node.gateway.table_write(TableWrite(shard_id, (Put(b"k0", b"meanwhile"),)))
            assert host.log.log_start == 0, "nothing goes that the store does not have on disk"
            flushes.let_go()
            await eventually(lambda: host.log.size_bytes < 17_000)
        assert host.log.log_start <= host.state.require_table().state.durable_offset


@pytest.mark.parametrize("ask", [True, False])
@in_virtual_time
async def test_a_replica_that_goes_while_its_store_is_flushed_takes_nothing_with_it(ask: bool) -> None:
    """Whoever asked for the trim is told; retention is silent. The node goes on."""
    async with cluster_of(1) as nodes:
        shard_id, other = await one_table(nodes), await other_shard(nodes)
        node = nodes.nodes[0]
        with held(nodes, is_flush) as flushes:
            asked = asyncio.create_task(trim_replica(node.replicas, shard_id, ROUNDS)) if ask else None
            if asked is None:
                node.shards.apply_retention()
            await eventually(lambda: bool(flushes.waiting))
            await node.gateway.delete_topic("t")
            await eventually(lambda: shard_id not in node.hosts)
            flushes.let_go()
            if asked is not None:
                with pytest.raises(NotLeaderError):
                    await asked
            await nodes.append(other, b"after")
        assert node.metrics.shard_failures == 0
        assert not wrong(node)


def wrong(node: Node) -> list[str]:
    return [one.what for one in node.status().findings if not one.mended_ms]
