"""What S4 says of transactions, on nodes that run for real in this process.

A transaction is a batch: the records of one `append_batch` to a shard, or the operations of one `table.transaction()`. It is
one entry of the shard's log, so it is logged, replicated, committed and cut off as a whole.
"""

import asyncio

import pytest

import antiphon.aio
from antiphon.errors import InvalidRequestError, KeyNotFoundError, VersionMismatchError
from antiphon.partition.partition import Partition
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.replication.messages import AnyMessage, Append
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

pytestmark = pytest.mark.cluster


def entries(host: Partition) -> list[tuple[int, int, int]]:
    """(offset, term, records) of each entry of the log."""
    headers = [read_header(batch) for batch in host.log.read(0, 1 << 30, host.log.log_end)]
    return [(header.base_offset, header.leader_epoch, header.record_count) for header in headers]


def batch_of(*values: bytes) -> bytearray:
    return build_batch([(None, value, [], 1) for value in values])


async def topic_of(nodes: Nodes, db: antiphon.aio.AsyncClient) -> Partition:
    await db.create_topic("t", shards=1, replicas=3)
    return await nodes.leader(nodes.nodes[0].gateway.topic("t").shards[0].shard_id)


@in_virtual_time
async def test_s4_6_one_call_carries_a_bundle_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        host = await topic_of(nodes, db)
        await db.topic("t").append("first")
        carried: list[int] = []
        send = host.services.send_message

        def spy(to: int, message: AnyMessage) -> None:
            if isinstance(message, Append) and message.entries:
                carried.append(len(message.entries))
            send(to, message)

        monkeypatch.setattr(host.services, "send_message", spy)
        node = nodes.nodes[host.services.node_id]
        await asyncio.gather(
            *(node.gateway.append(host.shard_id, batch_of(b"a", b"b", b"c")) for _ in range(20))
        )
        assert max(carried) > 1  # several in one message
        assert len(carried) < 2 * 20
        assert [records for *_, records in entries(host)[-20:]] == [3] * 20


@in_virtual_time
async def test_s4_7_at_quorum_transactions_commit_together_and_the_rest_get_them_later() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        host = await topic_of(nodes, db)
        laggard = (host.services.node_id + 1) % 3
        await nodes.stop(laggard)
        node = nodes.nodes[(await nodes.leader(host.shard_id)).services.node_id]
        made = await asyncio.gather(
            *(node.gateway.append(host.shard_id, batch_of(b"a", b"b")) for _ in range(5))
        )
        end = max(result.next_offset for result in made)  # committed by two of three
        await nodes.start(laggard)
        hosts = nodes.nodes[laggard].hosts
        await eventually(
            lambda: host.shard_id in hosts and hosts[host.shard_id].state.high_watermark >= end
        )  # with the commit mark, without a message of its own


@in_virtual_time
async def test_s4_8_a_transaction_is_logged_while_earlier_ones_are_not_committed() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        host = await topic_of(nodes, db)
        leader = host.services.node_id
        others = [number for number in range(3) if number != leader]
        mark = host.state.high_watermark
        for number in others:
            for peer in list(nodes.nodes[number].hosts.values()):
                peer.driver.fail(RuntimeError("a test"))  # no acknowledgements come any more
        node = nodes.nodes[leader]
        pending = [
            node.spawn(node.gateway.append(host.shard_id, batch_of(b"one", b"two"), timeout_s=20))
            for _ in range(3)
        ]
        await eventually(lambda: host.log.log_end >= mark + 6)  # all three, none waits for the one before
        assert host.state.high_watermark == mark  # two cursors: the end of the log, the last committed
        assert not any(task.done() for task in pending)
        for task in pending:
            task.cancel()


@in_virtual_time
async def test_s4_9_an_entry_is_a_change_with_its_index_and_term() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        host = await topic_of(nodes, db)
        topic = db.topic("t")
        await topic.append_batch(["a", "b", "c"], shard=0)
        await db.elect_leader("t", 0)
        positions = await topic.append_batch(["d", "e"], shard=0)
        found = entries(await nodes.leader(host.shard_id))
        terms = [term for _, term, _ in found]
        assert terms == sorted(terms)
        assert terms[-1] == positions[0].term > terms[0]
        assert found[-1] == (positions[0].offset, positions[0].term, 2)
        assert positions[1].offset == positions[0].offset + 1


@in_virtual_time
async def test_s4_a_table_s_transaction_is_carried_out_whole_or_not_at_all() -> None:
    """Transfers between accounts, with conditions, by several writers: readers of the log never see half of one."""
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table("accounts", shards=1, replicas=3)
        await asyncio.gather(*(table.put(f"a{number}", "100") for number in range(4)))
        refused: set[object] = set()

        async def transfer(number: int) -> None:
            source, target = f"a{number % 4}", f"a{(number * 7 + 1) % 4}"
            while source != target:
                one, other = await table.get(source), await table.get(target)
                try:
                    async with table.transaction() as t:
                        t.put(source, b"%d" % (int(one.value or b"") - 5), expected_version=one.version.id)
                        t.put(
                            target,
                            b"%d" % (int(other.value or b"") + 5),
                            expected_version=other.version.id,
                        )
                except VersionMismatchError as error:
                    refused.add(error.details["operation"])
                    continue
                assert t.versions[0] is not None
                return

        await asyncio.gather(*(transfer(number) for number in range(40)))
        rows = [row async for row in table.scan()]
        assert sum(int(row.value or b"") for row in rows) == 400
        assert refused <= {0, 1}
        assert refused
        leader = await nodes.leader(nodes.nodes[0].gateway.topic("accounts").shards[0].shard_id)
        assert {records for *_, records in entries(leader)[-20:]} == {2}


@in_virtual_time
async def test_s4_a_transaction_is_of_one_shard_and_says_what_was_refused() -> None:
    async with cluster_of(1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table("t", shards=4)
        t = table.transaction()
        for number in range(8):
            t.put(f"k{number}", "v")
        with pytest.raises(InvalidRequestError, match="belong to one shard"):
            await t.commit()
        assert await table.list() == []
        one = await db.create_table("one", shards=1)

        async def leave_the_block(error: Exception | None) -> None:
            async with one.transaction() as t:
                t.put("a", "1")
                if error is not None:
                    raise error
                t.delete("b")

        with pytest.raises(KeyNotFoundError) as refused:
            await leave_the_block(None)
        assert refused.value.details["operation"] == 1
        with pytest.raises(ZeroDivisionError):
            await leave_the_block(ZeroDivisionError())
        assert await one.list() == []
        with pytest.raises(InvalidRequestError, match="at least one operation"):
            await one.transaction().commit()
