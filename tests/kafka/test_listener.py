"""The listener over a raw socket: order, bounds, hostile bytes, hints, epochs, groups."""

import asyncio
import random
import struct
from typing import Any
from unittest.mock import AsyncMock, patch

import msgspec
import pytest

from antiphon.errors import (
    ArchiveError,
    CorruptBatchError,
    NotReadyError,
    OverloadedError,
    PortInUseError,
    StorageFailedError,
    TimedOutError,
    UnavailableError,
)
from antiphon.kafka import error_codes as code
from antiphon.kafka.apis import APIS
from antiphon.kafka.framing import FRAME_BYTES_MAX
from antiphon.kafka.listener import KafkaListener
from antiphon.kafka.messages import admin, cluster, groups, offsets
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.schema import decode, encode
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableWrite
from antiphon.transactions.service import TransactionService
from tests.kafka.oracles import kio_bytes, kio_class, random_kio
from tests.kafka.raw import batch, fetch, fetch_body, listening, produce, produce_body
from tests.node.in_process import KAFKA_PORT, eventually, in_virtual_time


@in_virtual_time
async def test_answers_come_in_the_order_of_the_requests() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        served.nodes.slow_s[0] = 1.0
        began_s = asyncio.get_running_loop().time()

        def passed_s() -> float:
            return asyncio.get_running_loop().time() - began_s

        first = client.send(0, 10, produce_body("t", batch(b"a")))
        second = client.send(0, 10, produce_body("t", batch(b"b")))
        third = client.send(18, 0, b"")
        other = await connect()
        await other.receive(other.send(18, 0, b""))  # another connection is not held up
        assert passed_s() < 0.9
        for expected in (first, second, third):
            await client.receive(expected)
            assert passed_s() >= 1.0
        found = served.batches("t")
        assert [data.count(value) for data, value in zip(found, (b"a", b"b"), strict=True)] == [1, 1]


@in_virtual_time
async def test_many_pipelined_requests_are_all_answered() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        sent = [client.send(0, 10, produce_body("t", batch(b"x" * (n * 37 % 5000)))) for n in range(1500)]
        for correlation in sent:
            await client.receive(correlation)
        assert served.end("t") == 1500


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 30_000])
@in_virtual_time
async def test_torn_frames_are_put_together(size: int) -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        chunks: list[bytes] = []
        writer, client.writer = client.writer, _Collect(chunks)  # type: ignore[assignment]
        for value in (b"small", b"L" * (90_000 if size > 7 else 300), b"last"):
            client.send(0, 10, produce_body("t", batch(value)))
        client.writer = writer
        data = b"".join(chunks)
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        for correlation in (1, 2, 3):
            await client.receive(correlation)
        assert served.end("t") == 3


class _Collect:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def write(self, data: bytes) -> None:
        self._chunks.append(data)


HOSTILE = {
    "huge": struct.pack(">i", FRAME_BYTES_MAX + 1),
    "negative": struct.pack(">i", -5),
    "tiny": struct.pack(">i", 3) + b"abc",
    "unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unknown version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "cut body": struct.pack(">ihhih", 12, 3, 1, 1, -1) + b"\x00\x00",
    "huge array": struct.pack(">ihhih", 14, 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "client id not text": struct.pack(">ihhih", 12, 3, 1, 1, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("name", HOSTILE)
@in_virtual_time
async def test_hostile_bytes_close_their_connection_and_disturb_nobody(name: str) -> None:
    async with listening() as (_, connect):
        good, bad = await connect(), await connect()
        bad.writer.write(HOSTILE[name])
        assert await bad.is_closed()
        await good.receive(good.send(18, 0, b""))


@in_virtual_time
async def test_random_bytes_never_disturb_others() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        good, serving = await connect(), served.listener
        rng = random.Random(5)
        for n in range(150):
            api = rng.choice(list(APIS.values()))
            version = rng.randint(api.min_version, api.max_version)
            body = rng.randbytes(rng.randrange(60))
            if n % 2 and not (api.key == 0 and version < 3):
                message = random_kio(kio_class(api.name, version, "request"), rng)
                damaged = bytearray(kio_bytes(message))
                for _ in range(min(len(damaged), 3)):
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                body = bytes(damaged)
            bad = await connect()
            bad.send(api.key, version, body)
            bad.writer.close()
            await eventually(lambda: serving.connections == 1)
        assert (await good.ask(cluster.ApiVersionsRequest(), 18, 3)).error_code == 0
        assert serving.requests > 0


@in_virtual_time
async def test_a_client_that_does_not_read_is_not_served_without_end() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        await served.append("t", batch(bytes(900_000)))
        client, good, serving = await connect(), await connect(), served.listener
        for _ in range(400):
            client.send(1, 12, fetch_body("t", 0))
        await client.writer.drain()
        for _ in range(20):
            await good.receive(good.send(18, 0, b""))
        assert serving.requests < 350
        await good.receive(good.send(18, 0, b""))


@in_virtual_time
async def test_api_versions_of_the_future_is_answered_in_version_0() -> None:
    async with listening() as (_, connect):
        client = await connect()
        body = await client.receive(client.send(18, 77, b"whatever comes"))
        answer = decode(cluster.ApiVersionsResponse, memoryview(body), 0, flexible=False)
        assert answer.error_code == code.UNSUPPORTED_VERSION
        assert [(r.api_key, r.min_version, r.max_version) for r in answer.api_keys] == [(18, 0, 4)]
        modern = await client.ask(cluster.ApiVersionsRequest(client_software_name="x"), 18, 4)
        assert {r.api_key: (r.min_version, r.max_version) for r in modern.api_keys}[0] == (0, 12)
        assert "antiphon.conditional_append" in {f.name for f in modern.supported_features}


@in_virtual_time
async def test_hints_name_the_leader() -> None:
    """KIP-951: with error 6 come the leader, its epoch and its address."""
    async with listening(nodes=3) as (served, connect):
        await served.create("t")
        leader = 2 if served.leader("t") != 2 else 1
        await served.lead("t", leader)
        client, epoch = await connect(), served.host("t").state.term
        assert epoch > 1
        done, answer = await produce(client, "t", batch(b"a"))
        assert int(done.error_code) == code.NOT_LEADER_OR_FOLLOWER
        assert (done.current_leader.leader_id, done.current_leader.leader_epoch) == (leader, epoch)
        assert [(n.node_id, n.host, n.port) for n in answer.node_endpoints] == [
            (leader, f"node-{leader}", KAFKA_PORT)
        ]
        read = await fetch(client, "t", 0)
        assert int(read.error_code) == code.NOT_LEADER_OR_FOLLOWER
        assert (read.current_leader.leader_id, read.current_leader.leader_epoch) == (leader, epoch)


@in_virtual_time
async def test_leader_epochs_are_compared() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        await served.append("t", batch(b"a"))
        client, term = await connect(), served.host("t").state.term
        for epoch, error in (
            (-1, 0),
            (term, 0),
            (term - 1, code.FENCED_LEADER_EPOCH),
            (term + 1, code.UNKNOWN_LEADER_EPOCH),
        ):
            assert int((await fetch(client, "t", 0, epoch=epoch)).error_code) == error
            asked = offsets.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=-1)
            topic = offsets.ListOffsetsTopic(name="t", partitions=[asked])
            listed = await client.ask(offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 2, 7)
            assert listed.topics[0].partitions[0].error_code == error
            assert listed.topics[0].partitions[0].offset == (-1 if error else 1)


@pytest.mark.parametrize(
    ("asked", "current", "expected"),
    [
        (3, -1, (0, 3, 1)),
        (3, 3, (0, 3, 1)),
        (2, -1, (0, 2, 0)),
        (4, -1, (0, -1, -1)),
        (-1, -1, (0, -1, -1)),
        (3, 2, (code.FENCED_LEADER_EPOCH, -1, -1)),
        (3, 4, (code.UNKNOWN_LEADER_EPOCH, -1, -1)),
    ],
)
@pytest.mark.parametrize("version", [2, 3, 4])
@in_virtual_time
async def test_ends_of_epochs(asked: int, current: int, expected: tuple[int, int, int], version: int) -> None:
    async with listening(nodes=3) as (served, connect):
        await served.create("t")
        while served.host("t").state.term < 3:
            await served.lead("t", (served.leader("t") + 1) % 3)
        await served.append("t", batch(b"a"))
        client = await connect(served.leader("t"))
        partition = offsets.EpochPartition(partition=0, current_leader_epoch=current, leader_epoch=asked)
        topic = offsets.EpochTopic(topic="t", partitions=[partition])
        answer = await client.ask(offsets.OffsetForLeaderEpochRequest(topics=[topic]), 23, version)
        found = answer.topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == expected


@in_virtual_time
async def test_each_node_tells_what_its_replicas_take_on_its_disk() -> None:
    def wanted(*partitions: tuple[str, int]) -> admin.DescribeLogDirsRequest:
        topics = [PartitionsOfTopic(name=name, partitions=[index]) for name, index in partitions]
        return admin.DescribeLogDirsRequest(topics=topics or None)

    async with listening(2) as (served, connect):
        await served.create("pair", 2, replicas=2)
        await served.create("one", replicas=1)
        home = served.leader("one")
        await produce(await connect(home), "one", batch(b"x" * 500))
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        found = {}
        for node in (0, 1):
            client = await connect(node)
            for version in range(1, 5):
                answer = await client.ask(wanted(), 35, version)
                assert answer.error_code == code.NONE
                (directory,) = answer.results
                assert (directory.error_code, directory.log_dir) == (code.NONE, f"node-{node}")
                assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
                found[node] = {topic.name: topic.partitions for topic in directory.topics}
            some = await client.ask(wanted(("pair", 1), ("pair", 7), ("none", 0)), 35, 4)
            (topic,) = some.results[0].topics
            assert (topic.name, [part.partition_index for part in topic.partitions]) == ("pair", [1])
            assert all(len(found[node][name]) == count for name, count in (("pair", 2), ("__groups", 1)))
        (part,) = found[home]["one"]
        assert 500 < part.partition_size < 700
        assert (part.offset_lag, part.is_future_key) == (0, False)
        assert "one" not in found[1 - home]


@in_virtual_time
async def test_a_node_that_knows_no_names_yet_tells_of_no_disk() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        not_ready = NotReadyError("this node was just started")
        with patch.object(type(served.first.gateway), "shard", side_effect=not_ready):
            answer = await client.ask(admin.DescribeLogDirsRequest(topics=None), 35, 3)
        assert answer.error_code == answer.results[0].error_code == code.LEADER_NOT_AVAILABLE
        assert answer.results[0].topics == []


@in_virtual_time
async def test_partitions_are_given_back_to_their_preferred_leaders() -> None:
    async with listening(2) as (served, connect):
        await served.create("t", 3, replicas=2)
        first = [shard.ensemble[0] for shard in served.first.gateway.topic("t").shards]
        client = await connect()

        async def elect(partitions: list[int] | None, version: int = 2, kind: int = 0) -> Any:
            topics = [PartitionsOfTopic(name="t", partitions=partitions or [])]
            request = admin.ElectLeadersRequest(
                election_type=kind, topic_partitions=topics if partitions else None, timeout_ms=5000
            )
            answer = await client.ask(request, 43, version)
            assert answer.error_code == code.NONE
            return {
                (topic.name, one.partition_id): one.error_code
                for topic in answer.replica_election_results
                for one in topic.partition_result
            }

        await served.lead("t", 0)
        moved = [index for index in range(3) if first[index] == 1]
        assert 0 < len(moved) < 3
        kept = next(index for index in range(3) if index not in moved)
        assert await elect([kept, moved[0], 9]) == {
            ("t", kept): code.ELECTION_NOT_NEEDED,
            ("t", moved[0]): code.NONE,
            ("t", 9): code.UNKNOWN_TOPIC_OR_PARTITION,
        }
        await served.lead("t", 1)
        for version in (0, 1):
            found = await elect(None, version)
            back = {("t", index) for index in range(3) if first[index] == 0}
            assert {at for at, error in found.items() if at[0] == "t"} == (back if version == 0 else set())
        await eventually(lambda: [s.leader for s in served.first.gateway.topic("t").shards] == first)
        assert await elect([0], kind=1) == {("t", 0): code.ELECTION_NOT_NEEDED}
        unknown = admin.ElectLeadersRequest(election_type=7, topic_partitions=None, timeout_ms=1)
        assert (await client.ask(unknown, 43, 2)).error_code == code.INVALID_REQUEST


@in_virtual_time
async def test_a_preferred_leader_that_is_gone_is_not_elected() -> None:
    async with listening(3) as (served, connect):
        await served.create("t", replicas=3)
        (shard,) = served.first.gateway.topic("t").shards
        gone = shard.ensemble[0]
        asked = next(node for node in range(3) if node != gone)
        client = await connect(asked)
        await served.nodes.stop(gone)
        node = served.nodes.nodes[asked]
        await eventually(lambda: node.gateway.topic("t").shards[0].leader not in {gone, -1})
        for kind, error in ((0, code.PREFERRED_LEADER_NOT_AVAILABLE), (1, code.ELECTION_NOT_NEEDED)):
            wanted = [PartitionsOfTopic(name="t", partitions=[0])]
            request = admin.ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=5000)
            answer = await client.ask(request, 43, 2)
            (one,) = answer.replica_election_results[0].partition_result
            assert one.error_code == error


@in_virtual_time
async def test_a_leader_that_is_not_ready_gives_no_offsets() -> None:
    """KIP-207: its high watermark may be behind what consumers have seen."""
    async with listening() as (served, connect):
        await served.create("t")

        def not_ready(*_: Any) -> Any:
            raise NotReadyError("soon")

        served.first.gateway.list_offset = not_ready  # type: ignore[assignment]  # a fault
        client = await connect()
        partition = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = offsets.ListOffsetsRequest(
            replica_id=-1, topics=[offsets.ListOffsetsTopic(name="t", partitions=[partition])]
        )
        for version, error in ((7, code.OFFSET_NOT_AVAILABLE), (4, code.LEADER_NOT_AVAILABLE)):
            answer = await client.ask(request, 2, version)
            assert answer.topics[0].partitions[0].error_code == error


@in_virtual_time
async def test_a_fetch_that_can_be_repeated_is_refused_with_a_code_after_which_consumers_repeat_it() -> None:
    """Java's consumer throws at any code but these of a fetch, LEADER_NOT_AVAILABLE and REQUEST_TIMED_OUT among them."""
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        for error, expected in (
            (NotReadyError("soon"), code.NOT_LEADER_OR_FOLLOWER),
            (OverloadedError("later"), code.NOT_LEADER_OR_FOLLOWER),
            (TimedOutError("late"), code.NOT_LEADER_OR_FOLLOWER),
            (UnavailableError("gone"), code.NOT_LEADER_OR_FOLLOWER),
            (StorageFailedError("broken"), code.KAFKA_STORAGE_ERROR),
            (ArchiveError("damaged"), code.KAFKA_STORAGE_ERROR),
            (CorruptBatchError("damaged"), code.CORRUPT_MESSAGE),
        ):
            served.first.gateway.fetch = AsyncMock(side_effect=error)  # type: ignore[method-assign]  # a fault
            assert (await fetch(client, "t", 0)).error_code == expected


@in_virtual_time
async def test_a_waiting_fetch_ends_when_its_client_leaves() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        client.send(1, 12, fetch_body("t", 0, wait_ms=200_000))
        other = await connect()
        await other.receive(other.send(18, 0, b""))
        client.writer.transport.abort()
        fetches = [task for task in asyncio.all_tasks() if task.get_name() == "kafka Fetch"]
        assert len(fetches) == 1
        await asyncio.wait(fetches)
        assert served.listener.connections == 1


@in_virtual_time
async def test_metadata_forms() -> None:
    async with listening(nodes=3, auto_create_topics=False) as (served, connect):
        topic = await served.create("t", shards=2, replicas=1)
        client = await connect()

        async def names(topics: list[cluster.MetadataRequestTopic] | None, version: int) -> list[Any]:
            answer = await client.ask(cluster.MetadataRequest(topics=topics), 3, version)
            found = [t for t in answer.topics if t.name != "default"]  # the table of every cluster
            return [(t.name, t.error_code, len(t.partitions)) for t in found]

        asked = cluster.MetadataRequestTopic
        assert await names([], 0) == [("t", 0, 2)]
        assert await names([], 1) == []
        assert await names(None, 1) == [("t", 0, 2)]
        assert await names(None, 13) == [("t", 0, 2)]
        assert await names([asked(name=None, topic_id=topic.topic_id)], 12) == [("t", 0, 2)]
        unknown = [asked(name=None, topic_id=b"u" * 16)]
        assert await names(unknown, 12) == [(None, code.UNKNOWN_TOPIC_ID, 0)]
        assert await names([asked(name="u")], 13) == [("u", code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        assert await names([asked(name="u u")], 13) == [("u u", code.INVALID_TOPIC_EXCEPTION, 0)]
        other = [asked(name="__consumer_offsets")]  # tools look whether Kafka's own is there
        assert await names(other, 13) == [("__consumer_offsets", code.UNKNOWN_TOPIC_OR_PARTITION, 0)]
        index = next(index for index in (0, 1) if served.leader("t", index) != 0)
        victim = served.leader("t", index)
        served.nodes.kill(victim)  # who had the only replica
        await eventually(lambda: not served.first.gateway.metadata.nodes[victim].alive)
        answer = await client.ask(cluster.MetadataRequest(topics=[asked(name="t")]), 3, 13)
        lost = next(part for part in answer.topics[0].partitions if part.partition_index == index)
        assert (lost.error_code, lost.leader_id) == (code.LEADER_NOT_AVAILABLE, -1)


@in_virtual_time
async def test_a_group_waits_at_its_coordinator_and_is_sent_on_when_that_changes() -> None:
    async with listening(nodes=3) as (served, connect):
        client = await connect()
        request = cluster.FindCoordinatorRequest(coordinator_keys=["g"])
        await client.ask(request, 10, 6)  # makes the table, too
        assert served.first.gateway.topic("__groups").internal
        await served.lead("__groups", 0)
        found = await client.ask(request, 10, 6)
        assert (found.coordinators[0].error_code, found.coordinators[0].node_id) == (0, 0)
        join = groups.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[groups.JoinProtocol(name="range", metadata=b"")],
        )
        joined = await client.ask(join, 11, 3)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        waiting = client.send(11, 3, encode(join, 3, flexible=False))  # waits for the first member to rejoin
        other = await connect()
        await other.receive(other.send(18, 0, b""))
        await served.lead("__groups", 2)
        body = await client.receive(waiting)
        answer = decode(groups.JoinGroupResponse, memoryview(body), 3, flexible=False)
        assert answer.error_code == code.NOT_COORDINATOR
        heartbeat = groups.HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        assert (await client.ask(heartbeat, 12, 4)).error_code == code.NOT_COORDINATOR
        commit = groups.OffsetFetchRequest(group_id="g", topics=[])
        assert (await client.ask(commit, 9, 5)).error_code == code.NOT_COORDINATOR
        found = await client.ask(request, 10, 6)
        assert (found.coordinators[0].node_id, found.coordinators[0].host) == (2, "node-2")


@in_virtual_time
async def test_the_number_of_connections_is_bounded() -> None:
    async with listening(connections_max=2) as (_, connect):
        first, _second = await connect(), await connect()
        await first.receive(first.send(18, 0, b""))
        assert await (await connect()).is_closed()
        await first.receive(first.send(18, 0, b""))


@in_virtual_time
async def test_a_taken_port_is_told() -> None:
    async with listening() as (served, _):
        second = KafkaListener(
            served.first.gateway, "node-0", KAFKA_PORT, TransactionService(served.first.gateway)
        )
        with pytest.raises(PortInUseError, match=str(KAFKA_PORT)):
            await served.nodes.processes[0].run(second.start())


def committed(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


@in_virtual_time
async def test_rows_that_are_no_offsets_are_passed_over() -> None:
    """Whoever wrote them into the groups' table: each answer is whole, and no connection ends."""
    async with listening() as (served, connect):
        topic = await served.create("t")
        client = await connect()
        await client.ask(cluster.FindCoordinatorRequest(coordinator_keys=["g"]), 10, 6)
        good = committed(7, -1, "m", 1, topic.topic_id)
        for shard in served.first.gateway.topic("__groups").shards:
            bad = {
                b"offset/x": b"",
                b"offset/": good,
                b"offset/\xff/t/0": good,
                b"offset/a%41/t/0": good,  # goes back in the order of keys where it is taken for a group's
                b"offset/g/t/00": good,
                b"offset/g/t/" + b"9" * 5000: good,
                b"offset/g/t/4294967296": good,
                b"offset/g/t/-1": good,
                b"offset/g/t/1": b"garbage",
                b"offset/g/t/2": committed(2**64 - 1, -1, "", 1, topic.topic_id),
                b"offset/g/t/3": committed(1, 2**40, "", 1, topic.topic_id),
                b"offset/g/t/4": committed(1, 1, "m" * 40_000, 1, topic.topic_id),
                b"offset/g/t/5": committed("1", 1, "", 1, topic.topic_id),
                b"offset/zz/t/0": good,
                b"offset/g/t/0": good,
            }
            puts = tuple(Put(key, value) for key, value in bad.items())
            await served.first.gateway.table_write(TableWrite(shard.shard_id, puts))
        for _ in range(2):
            listed = await client.ask(groups.ListGroupsRequest(), 16, 4)
            assert (listed.error_code, [group.group_id for group in listed.groups]) == (0, ["g", "zz"])
        everything = await client.ask(groups.OffsetFetchRequest(group_id="g", topics=None), 9, 5)
        found = {part.partition_index: part.committed_offset for part in everything.topics[0].partitions}
        assert found == {0: 7}
        asked = PartitionsOfTopic(name="t", partitions=list(range(6)))
        some = await client.ask(groups.OffsetFetchRequest(group_id="g", topics=[asked]), 9, 5)
        assert [part.committed_offset for part in some.topics[0].partitions] == [7, *[-1] * 5]
        described = await client.ask(groups.DescribeGroupsRequest(groups=["g"]), 15, 5)
        assert described.groups[0].error_code == 0
