"""Bounded appends in flight (C8: S0.14, S2.8) and requests passed on to the leader (C12, S4.2), on nodes in this process."""

import asyncio

import pytest

from antiphon.client.connection import Connection
from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    OffsetMismatchError,
    OutOfOrderSequenceError,
    TimedOutError,
)
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    AppendBatch,
    Appended,
    Fetch,
    Fetched,
    ListOffset,
    OffsetReply,
    Put,
    TableGet,
    TableRows,
    TableWrite,
    TableWritten,
)
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.builder import build_batch
from tests.node.in_process import cluster_of, connected, in_virtual_time


def batch(value: bytes, sequence: int = -1) -> bytes:
    """One record, of a producer if it has a sequence."""
    if sequence < 0:
        return bytes(build_batch([(None, value, [], 1)]))
    return bytes(build_batch([(None, value, [], 1)], producer_id=7, producer_epoch=0, base_sequence=sequence))


def watch_heads(host: Partition) -> list[int]:
    """How far beyond the commit the log's end stands whenever something is appended."""
    seen: list[int] = []
    stage = host.driver.stage

    def watched(data: bytearray, records: int) -> None:
        stage(data, records)
        seen.append(host.log.log_end - host.state.high_watermark)

    host.driver.stage = watched  # type: ignore[method-assign,assignment]  # to look at every append
    return seen


@in_virtual_time
async def test_s0_14_s2_8_c8_with_one_in_flight_the_head_is_at_most_one_beyond_the_commit() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(config={"max.in.flight": "1"})
        host = await nodes.leader(shard_id)
        seen = watch_heads(host)
        node = nodes.nodes[host.services.node_id]
        results = await asyncio.gather(*(node.gateway.append(shard_id, batch(b"%d" % i)) for i in range(50)))
        assert [result.base_offset for result in results] == list(range(50)), "in the order of arrival"
        assert seen == [1] * 50


@in_virtual_time
async def test_s2_13_a_chain_of_conditional_appends_keeps_its_order_while_it_waits() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(config={"max.in.flight": "1"})
        host = await nodes.leader(shard_id)
        node = nodes.nodes[host.services.node_id]
        chain = [node.gateway.append(shard_id, batch(b"%d" % i, i), expected_offset=i) for i in range(10)]
        broken = node.gateway.append(shard_id, batch(b"no"), expected_offset=3)
        after = [node.gateway.append(shard_id, batch(b"%d" % i, i), expected_offset=i) for i in range(10, 20)]
        found = await asyncio.gather(*chain, broken, *after, return_exceptions=True)
        refused = found.pop(10)
        assert isinstance(refused, OffsetMismatchError)
        assert [getattr(result, "base_offset", result) for result in found] == list(range(20))


@in_virtual_time
async def test_what_waits_for_its_turn_is_certainly_not_appended_when_its_time_is_over() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(config={"max.in.flight": "1"})
        host = await nodes.leader(shard_id)
        node = nodes.nodes[host.services.node_id]
        for other in [one for one in list(nodes.nodes) if one != node.node_id]:
            node.link(other).send_replica_message = lambda *_: None  # type: ignore[method-assign]  # cut off
        first = asyncio.ensure_future(node.gateway.append(shard_id, batch(b"head"), timeout_s=5))
        second = asyncio.ensure_future(node.gateway.append(shard_id, batch(b"waits"), timeout_s=0.2))
        with pytest.raises(TimedOutError, match="nothing was appended"):
            await second
        assert host.log.log_end == host.state.high_watermark + 1
        assert node.back_pressure.in_flight_bytes == len(batch(b"head"))
        host.clients.fail_all(host.state.not_leader())
        with pytest.raises(NotLeaderError):
            await first
        assert node.back_pressure.in_flight_bytes == 0


@in_virtual_time
@pytest.mark.parametrize("left_s", [(0.2, 5.0, 5.0), (0.2, 0.2, 5.0), (5.0, 0.2, 5.0)])
async def test_what_waits_behind_a_batch_whose_time_is_over_does_not_land_without_it(
    left_s: tuple[float, ...],
) -> None:
    """The log knows nothing of the producer, and would take any first sequence."""
    async with cluster_of(1) as nodes:
        shard_id = await nodes.new_shard()
        host = await nodes.leader(shard_id)
        gateway = nodes.nodes[0].gateway
        assert isinstance(host, SingleWriterPartition)
        host.clients.queue.holds += 1  # as a backup does
        sent = [
            asyncio.ensure_future(gateway.append(shard_id, batch(b"%d" % i, i), timeout_s=one))
            for i, one in enumerate(left_s)
        ]
        await asyncio.sleep(1)
        late = left_s.index(0.2)
        assert isinstance(sent[late].exception(), TimedOutError)
        host.clients.let_go()
        found = await asyncio.gather(*sent, return_exceptions=True)
        assert [getattr(one, "base_offset", None) for one in found[:late]] == list(range(late))
        assert all(isinstance(one, TimedOutError | OutOfOrderSequenceError) for one in found[late:])
        for i in range(3):
            done = await gateway.append(shard_id, batch(b"%d" % i, i))
            assert (done.base_offset, done.duplicate) == (i, i < late)


@in_virtual_time
async def test_a_tables_writes_wait_in_the_same_line() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard("t", Kind.TABLE, config={"max.in.flight": "1"})
        host = await nodes.leader(shard_id)
        seen = watch_heads(host)
        node = nodes.nodes[host.services.node_id]
        writes = [TableWrite(shard_id, (Put(b"k", b"%d" % i),)) for i in range(20)]
        done = await asyncio.gather(*(node.gateway.table_write(write) for write in writes))
        assert [one.results[0].version.modifications for one in done if one.results[0].version] == list(
            range(20)
        )
        assert max(seen) == 1
        rows = (await node.gateway.table_get(TableGet(shard_id, (b"k",)))).rows
        assert rows[0] is not None
        assert rows[0].value == b"19"


async def ask(client: Connection, body: object, payload: bytes = b"") -> object:
    """The reply to a request over a client's connection."""
    return (await client.request(body, [payload] if payload else ()))[0]


@pytest.mark.parametrize("mode", ["forward", "reject"])
@in_virtual_time
async def test_s4_2_a_replica_passes_requests_on_to_the_leader_or_names_it(mode: str) -> None:
    async with cluster_of(3) as nodes:
        config = {"on.not.leader": mode}
        topic, table = (
            await nodes.new_shard(config=config),
            await nodes.new_shard("k", Kind.TABLE, config=config),
        )
        leader = (await nodes.leader(topic)).services.node_id
        table_leader = (await nodes.leader(table)).services.node_id
        other = next(one for one in nodes.nodes if one not in {leader, table_leader})
        async with connected(nodes.members[other].native) as client:
            if mode == "reject":
                with pytest.raises(NotLeaderError) as caught:
                    await ask(client, AppendBatch(topic), batch(b"x"))
                assert caught.value.details["leader"] == leader, "with a hint"
                return
            appended = await ask(client, AppendBatch(topic), batch(b"x"))
            assert isinstance(appended, Appended)
            fetched, payload = await client.request(Fetch(topic, appended.base_offset))
            assert isinstance(fetched, Fetched)
            assert b"x" in bytes(payload)
            listed = await ask(client, ListOffset(topic, -1))
            assert isinstance(listed, OffsetReply)
            assert listed.offset == appended.next_offset
            written = await ask(client, TableWrite(table, (Put(b"a", b"1"),)))
            assert isinstance(written, TableWritten)
            rows = await ask(client, TableGet(table, (b"a",)))
            assert isinstance(rows, TableRows)
            assert rows.rows[0] is not None
            assert rows.rows[0].value == b"1"
            assert nodes.nodes[other].metrics.forwarded == 5
            with pytest.raises(OffsetMismatchError):
                await ask(client, AppendBatch(topic, expected_offset=77), batch(b"y"))


@in_virtual_time
async def test_c12_a_request_is_passed_on_once_only() -> None:
    """Two nodes that take each other for the leader: the client hears of it, and nothing goes round."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(config={"on.not.leader": "forward"})
        leader = (await nodes.leader(shard_id)).services.node_id
        first, second = (one for one in nodes.nodes if one != leader)
        wrong = NotLeaderError("ask the other", leader=second)
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        node = nodes.nodes[first]
        assert node.forwarder.forward(
            AppendBatch(shard_id), memoryview(batch(b"x")), wrong, lambda reply, _: done.set_result(reply)
        )
        reply = await done
        assert isinstance(reply, NotLeaderError)
        assert nodes.nodes[second].metrics.forwarded == 0
        assert node.forwarder.underway == 0


@in_virtual_time
async def test_c12_the_connection_to_the_leader_breaks_while_a_request_is_passed_on() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(config={"on.not.leader": "forward"})
        leader = (await nodes.leader(shard_id)).services.node_id
        first = next(one for one in nodes.nodes if one != leader)
        node = nodes.nodes[first]
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        hint = NotLeaderError("ask the leader", leader=leader)
        body = Fetch(shard_id, 0, wait_ms=30_000)
        assert node.forwarder.forward(body, memoryview(b""), hint, lambda reply, _: done.set_result(reply))
        await asyncio.sleep(0.05)
        await nodes.stop(leader)
        reply = await done
        assert isinstance(reply, AntiphonError | Fetched)
        assert node.forwarder.underway == 0
