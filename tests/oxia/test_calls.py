"""Oxia's methods at simulated nodes, whoever leads: what is answered, and what is refused in which words."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.coordination.cluster_records import ORDER_FORMAT
from antiphon.errors import InvalidRequestError
from antiphon.gateway.protobuf import decode
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.metadata import Kind, key_hash
from antiphon.model.requests import AlterTopic, CreateTopic, Put, SplitShard, TableGet, TableScan, TableWrite
from antiphon.node.config import Ports
from antiphon.oxia import messages as m
from antiphon.oxia import status
from antiphon.oxia.call import MESSAGE_BYTES_MAX
from antiphon.security.session import Session
from antiphon.simulation.cluster.oxia_client import SERVICES, CallError, OxiaClient
from tests.node.in_process import NATIVE_PORT, Nodes, cluster_of, eventually, in_virtual_time

OXIA_PORT = 6648


@asynccontextmanager
async def nodes_with(shards: int = 1, count: int = 3, **config: Any) -> AsyncIterator[Nodes]:
    """Nodes with a table `t`."""
    async with cluster_of(count, ports=Ports(NATIVE_PORT, -1, OXIA_PORT, -1), **config) as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("t", Kind.TABLE, shards))
        yield nodes


def client(node_id: int, agent: str = "grpc-go/1") -> OxiaClient:
    return OxiaClient([(f"node-{node_id}", OXIA_PORT)], Random(1), agent, SERVICES[node_id % 2])


def shards_of(nodes: Nodes) -> list[int]:
    return [shard.shard_id for shard in nodes.nodes[0].gateway.topic("t").shards]


async def write(at: OxiaClient, shard_id: int, **parts: Any) -> m.WriteResponse:
    return await at.call("Write", m.WriteRequest(shard=shard_id, **parts), m.WriteResponse)


async def get(at: OxiaClient, shard_id: int, key: bytes, **how: Any) -> m.GetResponse:
    wanted = m.GetRequest(key=key, include_value=True, **how)
    found = await at.call("Read", m.ReadRequest(shard=shard_id, gets=[wanted]), m.ReadResponse)
    one: m.GetResponse = found.gets[0]
    return one


async def keys(
    at: OxiaClient, shard_id: int, start: bytes = b"", end: bytes = b"", **how: Any
) -> list[bytes]:
    wanted = m.RangeRequest(shard=shard_id, start_inclusive=start, end_exclusive=end, **how)
    return [key for one in await at.calls("List", wanted, m.ListResponse) for key in one.keys]


@in_virtual_time
async def test_any_node_answers_for_any_shard() -> None:
    async with nodes_with(3) as nodes:
        for node_id in range(3):
            at = client(node_id)
            connection, stream_id, stream = await at.begin(
                "GetShardAssignments", m.ShardAssignmentsRequest(namespace="t")
            )
            told = decode(m.ShardAssignments, await stream.next(5) or b"").namespaces[0]
            connection.give_up(stream_id)
            assert told.key == "t"
            assert [one.shard for one in told.value.assignments] == shards_of(nodes)
            assert {one.leader for one in told.value.assignments} == {f"node-{node_id}:{OXIA_PORT}"}
            assert told.value.assignments[0].hashes.first == 0
            assert told.value.assignments[-1].hashes.last == (1 << 32) - 1
            for shard_id in shards_of(nodes):
                put = m.PutRequest(key=b"k", value=b"%d" % node_id)
                found = (await write(at, shard_id, puts=[put])).puts[0]
                assert (found.status, found.version.modifications_count) == (0, node_id)
                assert (await get(at, shard_id, b"k")).value == b"%d" % node_id


@in_virtual_time
async def test_operations_of_a_request_see_each_other_and_are_judged_alone() -> None:
    async with nodes_with(count=1) as nodes:
        at, (shard_id,) = client(0), shards_of(nodes)
        found = await write(
            at,
            shard_id,
            puts=[
                m.PutRequest(key=b"a", value=b"1", expected_version_id=-1),
                m.PutRequest(key=b"a", value=b"2", expected_version_id=-1),
                m.PutRequest(key=b"b", value=b"3", expected_version_id=-7),
                m.PutRequest(key=b"c", value=b"4"),
                m.PutRequest(key=b"d", value=b"5", session_id=77),
            ],
            deletes=[m.DeleteRequest(key=b"c"), m.DeleteRequest(key=b"x")],
            delete_ranges=[m.DeleteRangeRequest(start_inclusive=b"a", end_exclusive=b"b")],
        )
        refused, no_session = m.Status.UNEXPECTED_VERSION_ID, m.Status.SESSION_DOES_NOT_EXIST
        assert [one.status for one in found.puts] == [0, refused, refused, 0, no_session]
        assert [one.status for one in found.deletes] == [0, m.Status.KEY_NOT_FOUND]
        assert [one.status for one in found.delete_ranges] == [0]
        assert found.puts[1].version is None
        assert await keys(at, shard_id) == []


@in_virtual_time
async def test_searches_ranges_and_what_is_not_told() -> None:
    async with nodes_with(count=1) as nodes:
        at, (shard_id,) = client(0), shards_of(nodes)
        await write(at, shard_id, puts=[m.PutRequest(key=key, value=key * 2) for key in (b"b", b"d", b"f")])
        found = {}
        for comparison, key in ((1, b"d"), (1, b"e"), (2, b"e"), (3, b"d"), (4, b"d"), (3, b"b"), (4, b"f")):
            one = await get(at, shard_id, key, comparison_type=comparison)
            found[comparison, key] = None if one.status else (one.key, one.value)
        assert found == {
            (1, b"d"): (b"d", b"dd"),
            (1, b"e"): (b"d", b"dd"),
            (2, b"e"): (b"f", b"ff"),
            (3, b"d"): (b"b", b"bb"),
            (4, b"d"): (b"f", b"ff"),
            (3, b"b"): None,
            (4, b"f"): None,
        }
        bare = m.ReadRequest(shard=shard_id, gets=[m.GetRequest(key=b"b")])
        (one,) = (await at.call("Read", bare, m.ReadResponse)).gets
        assert (one.value, one.key, one.version.session_id, one.version.client_identity) == (None,) * 4
        assert await keys(at, shard_id, b"c", b"f") == [b"d"]
        assert await keys(at, shard_id, b"f", b"c") == []
        scan = m.RangeRequest(shard=shard_id, start_inclusive=b"d")
        rows = [
            (row.key, row.value)
            for page in await at.calls("RangeScan", scan, m.RangeScanResponse)
            for row in page.records
        ]
        assert rows == [(b"d", b"dd"), (b"f", b"ff")]


@in_virtual_time
async def test_rows_of_other_clients_are_seen_where_they_can_be_read() -> None:
    async with nodes_with(count=1) as nodes:
        at, (shard_id,) = client(0), shards_of(nodes)
        gateway = nodes.nodes[0].gateway
        await gateway.table_write(TableWrite(shard_id, (Put(b"native", b"1"), Put(b"\xff\xfe", b"2"))))
        assert await keys(at, shard_id) == [b"native"]
        assert (await get(at, shard_id, b"native")).value == b"1"
        put = m.PutRequest(key=b"oxia", value=b"3", client_identity="me", partition_key=b"p")
        await write(at, shard_id, puts=[put])
        (row,) = (await gateway.table_get(TableGet(shard_id, (b"oxia",)))).rows
        assert row is not None
        assert (row.key, row.value) == (b"oxia", b"3")


@in_virtual_time
async def test_python_clients_hash_otherwise_and_see_what_others_have_put() -> None:
    async with nodes_with(4, count=1) as nodes:
        python, go = client(0, "grpc-python/1.85"), client(0)
        gateway = nodes.nodes[0].gateway
        key = next(
            b"key-%d" % n
            for n in range(99)
            if _shard(nodes, b"key-%d" % n)[0] != _shard(nodes, b"key-%d" % n)[1]
        )
        natural, theirs = _shard(nodes, key)
        await gateway.table_write(TableWrite(natural, (Put(key, b"1"),)))
        assert (await get(python, theirs, key)).value == b"1"
        assert (await get(go, theirs, key)).status == m.Status.KEY_NOT_FOUND
        found = await write(python, theirs, deletes=[m.DeleteRequest(key=key)])
        assert found.deletes[0].status == 0
        assert (await get(go, natural, key)).status == m.Status.KEY_NOT_FOUND


def _shard(nodes: Nodes, key: bytes) -> tuple[int, int]:
    """The shard of a key, and the one that Python's client takes for it."""
    from xxhash import xxh64_intdigest

    ids = shards_of(nodes)
    return ids[key_hash(key) >> 30], ids[(xxh64_intdigest(key) & 0xFFFFFFFF) >> 30]


@in_virtual_time
async def test_a_split_takes_rows_by_their_place() -> None:
    async with nodes_with(1, count=1) as nodes:
        at, (parent,) = client(0), shards_of(nodes)
        parts = [b"part %d" % number for number in range(20)]
        for part in parts:
            put = m.PutRequest(key=b"row of " + part, value=part, partition_key=part, sequence_key_delta=[1])
            await write(at, parent, puts=[put])
        split = asyncio.ensure_future(nodes.nodes[0].gateway.administer(SplitShard(parent)))
        await eventually(lambda: len(shards_of(nodes)) == 2)
        await split
        child = next(one for one in shards_of(nodes) if one != parent)
        await eventually(lambda: not nodes.nodes[0].hosts[parent].state.require_table().state.owned.purging)
        for part in parts:
            home, other = (child, parent) if key_hash(part) >> 31 else (parent, child)
            row = b"row of " + part + b"-%020d" % 1
            assert (await get(at, home, row)).value == part
            assert row not in await keys(at, other)
            more = await write(
                at,
                home,
                puts=[
                    m.PutRequest(key=b"row of " + part, value=b"", partition_key=part, sequence_key_delta=[2])
                ],
            )
            assert more.puts[0].key == b"row of " + part + b"-%020d" % 3
        lost = next(part for part in parts if key_hash(part) >> 31)
        with pytest.raises(CallError) as error:
            await write(at, parent, puts=[m.PutRequest(key=lost, value=b"")])
        assert error.value.reason == "SHARD_NOT_FOUND"


@in_virtual_time
async def test_sessions_and_their_words() -> None:
    async with nodes_with() as nodes:
        one, other, (shard_id,) = client(0), client(1), shards_of(nodes)
        wanted = m.CreateSessionRequest(shard=shard_id, session_timeout_ms=2_000)
        session_id = (await one.call("CreateSession", wanted, m.CreateSessionResponse)).session_id
        put = m.PutRequest(key=b"e", value=b"1", session_id=session_id, client_identity="a")
        version = (await write(one, shard_id, puts=[put])).puts[0].version
        assert (version.session_id, version.client_identity) == (session_id, "a")
        beat = m.SessionRequest(shard=shard_id, session_id=session_id)
        for _ in range(6):
            await asyncio.sleep(1)
            await other.call("KeepAlive", beat, m.Empty)
        assert (await get(other, shard_id, b"e")).version.session_id == session_id
        await asyncio.sleep(4)
        assert (await get(other, shard_id, b"e")).status == m.Status.KEY_NOT_FOUND
        for method in ("KeepAlive", "CloseSession"):
            with pytest.raises(CallError) as error:
                await one.call(method, beat, m.Empty)
            assert (error.value.code, error.value.reason) == (status.NOT_FOUND, "SESSION_NOT_FOUND")
        for timeout_ms in (1_999, 300_001, 0):
            short = m.CreateSessionRequest(shard=shard_id, session_timeout_ms=timeout_ms)
            with pytest.raises(CallError) as error:
                await one.call("CreateSession", short, m.CreateSessionResponse)
            assert error.value.reason == "INVALID_SESSION_TIMEOUT"


@in_virtual_time
async def test_one_client_leaves_sessions_for_others() -> None:
    async with nodes_with(count=1) as nodes:
        nodes.nodes[0].session_bounds.per_shard = 4
        wanted = m.CreateSessionRequest(shard=shards_of(nodes)[0], session_timeout_ms=60_000)
        opened = []
        for name in ("greedy", "greedy", "greedy", "other"):
            with patch.object(Session, "client", lambda *_, name=name: name), contextlib.suppress(CallError):
                await client(0).call("CreateSession", wanted, m.CreateSessionResponse)
                opened.append(name)
        assert opened == ["greedy", "greedy", "other"]


@in_virtual_time
async def test_notifications_go_on_at_another_node() -> None:
    async with nodes_with() as nodes:
        one, (shard_id,) = client(0), shards_of(nodes)
        await write(one, shard_id, puts=[m.PutRequest(key=b"before", value=b"")])
        connection, stream_id, stream = await one.begin(
            "GetNotifications", m.NotificationsRequest(shard=shard_id)
        )
        first = decode(m.NotificationBatch, await stream.next(5) or b"")
        assert not first.notifications
        await write(
            one, shard_id, puts=[m.PutRequest(key=b"a", value=b"1"), m.PutRequest(key=b"a", value=b"2")]
        )
        seen = [decode(m.NotificationBatch, await stream.next(5) or b"") for _ in range(2)]
        assert [(one.key, one.value.type) for batch in seen for one in batch.notifications] == [
            (b"a", m.NotificationType.CREATED),
            (b"a", m.NotificationType.MODIFIED),
        ]
        connection.give_up(stream_id)
        await write(one, shard_id, deletes=[m.DeleteRequest(key=b"a")])
        _, _, again = await client(2).begin(
            "GetNotifications",
            m.NotificationsRequest(shard=shard_id, start_offset_exclusive=seen[0].offset),
        )
        told = [decode(m.NotificationBatch, await again.next(5) or b"") for _ in range(3)]
        assert told[0].offset == seen[0].offset
        assert [
            (one.key, one.value.type, one.value.version_id) for batch in told for one in batch.notifications
        ] == [
            (b"a", m.NotificationType.MODIFIED, 2),
            (b"a", m.NotificationType.DELETED, None),
        ]


@in_virtual_time
async def test_a_request_without_a_shard_is_for_the_only_one_of_the_default_namespace() -> None:
    """Go's client 0.14.0 names no shard where it follows a sequence."""
    async with nodes_with() as nodes:
        at = client(1)
        with pytest.raises(CallError) as refused:
            await get(at, 0, b"a")  # a fresh cluster's has four
        assert refused.value.reason == "SHARD_NOT_FOUND"
        await nodes.nodes[0].gateway.delete_topic("default")
        await nodes.nodes[0].gateway.create_topic(CreateTopic("default", Kind.TABLE, 1))
        (shard,) = nodes.nodes[0].gateway.topic("default").shards
        await write(at, shard.shard_id, puts=[m.PutRequest(key=b"a", value=b"1")])
        assert (await get(at, 0, b"a")).value == b"1"


@in_virtual_time
async def test_sequences_and_their_updates() -> None:
    async with nodes_with() as nodes:
        at, (shard_id,) = client(0), shards_of(nodes)

        async def numbered(*deltas: int, key: bytes = b"s") -> bytes:
            put = m.PutRequest(key=key, value=b"", partition_key=b"p", sequence_key_delta=list(deltas))
            return (await write(at, shard_id, puts=[put])).puts[0].key or b""

        assert await numbered(1) == b"s-%020d" % 1
        await write(at, shard_id, puts=[m.PutRequest(key=b"s-5foreign", value=b"")])
        _, _, stream = await client(1).begin(
            "GetSequenceUpdates", m.GetSequenceUpdatesRequest(shard=shard_id, key=b"s")
        )
        response = m.GetSequenceUpdatesResponse
        assert decode(response, await stream.next(5) or b"").highest_sequence_key == b"s-%020d" % 1
        assert await numbered(4, 7) == b"s-%020d-%020d" % (5, 7)
        assert decode(response, await stream.next(5) or b"").highest_sequence_key == b"s-%020d-%020d" % (5, 7)
        wrong = (((1,), "have 2 numbers"), ((0, 1), "above 0"), (((1 << 64) - 1, 0), "at its end"))
        for deltas, why in wrong:
            with pytest.raises(CallError, match=why) as error:
                await numbered(*deltas)
            assert error.value.code == status.INVALID_ARGUMENT
        bare = m.PutRequest(key=b"s", value=b"", sequence_key_delta=[1])
        with pytest.raises(CallError, match="partition key"):
            await write(at, shard_id, puts=[bare])
        assert await numbered(1, 1) == b"s-%020d-%020d" % (6, 8)


@in_virtual_time
async def test_indexes_follow_their_rows() -> None:
    async with nodes_with() as nodes:
        at, (shard_id,) = client(0), shards_of(nodes)

        async def put(key: bytes, *secondary: str) -> None:
            indexes = [m.SecondaryIndex(index_name="i", secondary_key=one) for one in secondary]
            await write(at, shard_id, puts=[m.PutRequest(key=key, value=key, secondary_indexes=indexes)])

        async def by(**bounds: bytes) -> list[bytes]:
            return await keys(at, shard_id, secondary_index_name="i", **bounds)

        async def find(secondary: bytes, comparison: int) -> Any:
            one = await get(at, shard_id, secondary, comparison_type=comparison, secondary_index_name="i")
            return None if one.status else (one.key, one.secondary_index_key)

        await put(b"k1", "b")
        await put(b"k2", "a", "c")
        await put(b"k3", "b")
        assert await by() == [b"k2", b"k1", b"k3", b"k2"]
        assert await by(start=b"b", end=b"c") == [b"k1", b"k3"]
        assert [await find(b"b", one) for one in range(5)] == [
            (b"k1", "b"),
            (b"k1", "b"),
            (b"k1", "b"),
            (b"k2", "a"),
            (b"k2", "c"),
        ]
        await put(b"k1", "z")
        await put(b"k3")
        assert await by() == [b"k2", b"k2", b"k1"]
        await write(at, shard_id, deletes=[m.DeleteRequest(key=b"k2")])
        assert await by() == [b"k1"]
        assert await find(b"b", 1) is None
        await write(at, shard_id, delete_ranges=[m.DeleteRangeRequest()])
        assert await by() == []


@in_virtual_time
async def test_a_write_survives_its_leader() -> None:
    async with nodes_with() as nodes:
        (shard_id,) = shards_of(nodes)
        leader = (await nodes.leader(shard_id)).services.node_id
        at = client((leader + 1) % 3)
        await write(at, shard_id, puts=[m.PutRequest(key=b"k", value=b"0")])
        nodes.kill(leader)
        found = (await write(at, shard_id, puts=[m.PutRequest(key=b"k", value=b"1")])).puts[0]
        assert (found.status, found.version.modifications_count) == (0, 1)
        assert (await get(at, shard_id, b"k")).value == b"1"


@in_virtual_time
async def test_streams_of_writes_are_answered_in_order() -> None:
    async with nodes_with() as nodes:
        (shard_id,) = shards_of(nodes)
        connection = await client(0).connection()
        stream_id, stream = connection.begin(
            SERVICES[0] + "WriteStream", {"namespace": "t", "shard-id": str(shard_id)}
        )
        for number in range(50):
            puts = [m.PutRequest(key=b"k", value=b"%d" % number)] * (1 + number % 3)
            connection.say(stream_id, m.WriteRequest(puts=puts), last=number == 49)
        counts = []
        while (data := await stream.next(10)) is not None:
            counts.append(len(decode(m.WriteResponse, data).puts))
        assert counts == [1 + number % 3 for number in range(50)]
        assert (await get(client(1), shard_id, b"k")).value == b"49"
        stream_id, stream = connection.begin(SERVICES[0] + "WriteStream", {"namespace": "t"})
        connection.say(stream_id, m.WriteRequest(), last=True)
        with pytest.raises(CallError, match="shard-id"):
            await stream.next(5)


@in_virtual_time
async def test_what_is_refused_as_a_whole_ends_its_stream_and_takes_nothing_before_it_along() -> None:
    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        connection = await client(0).connection()
        stream_id, stream = connection.begin(SERVICES[0] + "WriteStream", {"shard-id": str(shard_id)})
        for number in range(20):
            wrong = m.PutRequest(key=b"s", value=b"", partition_key=b"p", sequence_key_delta=[0])
            put = wrong if number == 10 else m.PutRequest(key=b"k", value=b"%d" % number)
            connection.say(stream_id, m.WriteRequest(puts=[put]), last=number == 19)
        for _ in range(10):
            assert await stream.next(10) is not None
        with pytest.raises(CallError, match="above 0"):
            await stream.next(10)
        assert (await get(client(0), shard_id, b"k")).value == b"9"


NOT_FOUND, INVALID = status.NOT_FOUND, status.INVALID_ARGUMENT
REFUSED = {
    "namespace": (
        "GetShardAssignments",
        m.ShardAssignmentsRequest(namespace="none"),
        NOT_FOUND,
        "NAMESPACE_NOT_FOUND",
    ),
    "no shard": ("Write", m.WriteRequest(puts=[m.PutRequest(key=b"k")]), INVALID, ""),
    "shard": ("Read", m.ReadRequest(shard=99), NOT_FOUND, "SHARD_NOT_FOUND"),
    "the cluster's": (
        "Write",
        m.WriteRequest(shard=0, puts=[m.PutRequest(key=b"k")]),
        NOT_FOUND,
        "SHARD_NOT_FOUND",
    ),
    "method": ("Nonsense", m.Empty(), status.UNIMPLEMENTED, ""),
    "other message": ("Read", m.Int32HashRange(first=1, last=2), INVALID, ""),
}


@pytest.mark.parametrize(("method", "request_", "code", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(method: str, request_: Any, code: int, reason: str) -> None:
    @in_virtual_time
    async def test() -> None:
        async with nodes_with(count=1):
            with pytest.raises(CallError) as error:
                await client(0).call(method, request_, m.Empty)
            assert (error.value.code, error.value.reason) == (code, reason)

    test()


@in_virtual_time
async def test_versions_cannot_be_given_and_messages_are_bounded() -> None:
    async with nodes_with(count=1) as nodes:
        at, (shard_id,) = client(0), shards_of(nodes)
        with pytest.raises(CallError, match="override_version_id") as error:
            await write(at, shard_id, puts=[m.PutRequest(key=b"k", override_version_id=3)])
        assert error.value.code == status.UNIMPLEMENTED
        connection = await at.connection()
        stream_id, stream = connection.begin(SERVICES[0] + "Write", {})
        connection._write(
            b"\x00\x00\x05\x00\x00"
            + stream_id.to_bytes(4, "big")
            + b"\x00"
            + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")
        )
        with pytest.raises(CallError, match="bytes at most") as error:
            await stream.next(5)
        assert error.value.code == status.RESOURCE_EXHAUSTED
        assert await keys(at, shard_id) == []


@in_virtual_time
async def test_everybody_may_ask_for_health() -> None:
    async with nodes_with(count=1):
        at = OxiaClient([("node-0", OXIA_PORT)], Random(1), "x", "/grpc.health.v1.Health/")
        found = await at.call("Check", m.HealthCheckRequest(), m.HealthCheckResponse)
        assert found.status == 1
        with pytest.raises(CallError):
            await at.call("Check", m.HealthCheckRequest(service="nobody"), m.HealthCheckResponse)


ORDERED = {"key.sorting": "hierarchical"}
TREE = (b"a", b"/", b"/a", b"/b", b"/a/", b"/a/x", b"/a/y", b"/a//", b"/b/x", b"/a/x/1")
"""In the hierarchical order."""


async def scanned(at: OxiaClient, shard_id: int, start: bytes = b"", end: bytes = b"") -> list[bytes]:
    wanted = m.RangeRequest(shard=shard_id, start_inclusive=start, end_exclusive=end)
    pages = await at.calls("RangeScan", wanted, m.RangeScanResponse)
    assert all(one.value == b"v" + one.key for page in pages for one in page.records)
    return [one.key for page in pages for one in page.records]


@in_virtual_time
async def test_the_order_that_a_table_was_made_with() -> None:
    async with nodes_with(count=1) as nodes:
        gateway = nodes.nodes[0].gateway
        ordered = (
            (await gateway.create_topic(CreateTopic("o", Kind.TABLE, 1, config=ORDERED))).shards[0].shard_id
        )
        plain = shards_of(nodes)[0]
        at = client(0)
        for shard_id, order in ((ordered, TREE), (plain, sorted(TREE))):
            for key in sorted(TREE):
                await gateway.table_write(TableWrite(shard_id, (Put(key, b"v" + key), Put(b"\xff", b""))))
            for page in (1_000, 3):
                reads = nodes.servers[0].oxia.calls.reads  # type: ignore[union-attr]
                reads.page_rows = reads.list_keys = page
                assert await keys(at, shard_id) == await scanned(at, shard_id) == list(order)
            children = [b"/a/", b"/a/x", b"/a/y"] if shard_id == ordered else [b"/a/"]
            assert (
                await keys(at, shard_id, b"/a/", b"/a//")
                == await scanned(at, shard_id, b"/a/", b"/a//")
                == children
            )
            assert await keys(at, shard_id, b"/a//", b"/a/") == []
            middle = order[4]
            for comparison, expected in ((1, order[4]), (2, order[4]), (3, order[3]), (4, order[5])):
                assert (await get(at, shard_id, middle, comparison_type=comparison)).key == expected
            assert (await get(at, shard_id, order[0], comparison_type=3)).status == m.Status.KEY_NOT_FOUND
            wanted = m.DeleteRangeRequest(start_inclusive=b"/a/", end_exclusive=b"/a//")
            await write(at, shard_id, delete_ranges=[wanted])
            assert await keys(at, shard_id) == [key for key in order if key not in children]
            scan = await gateway.table_scan(TableScan(shard_id, b"", b""))  # others see the order of bytes
            left = [row.key for row in scan.rows if row is not None]
            assert left == sorted({*TREE, b"\xff"} - set(children))


@in_virtual_time
async def test_the_order_is_fixed_and_the_first_table_has_that_of_oxia() -> None:
    async with nodes_with(count=1) as nodes:
        gateway = nodes.nodes[0].gateway
        assert gateway.topic("default").config == ORDERED
        assert gateway.topic("t").config == {}
        for name, changed, said in (
            ("default", "natural", "has key.sorting=hierarchical, which cannot become natural"),
            ("default", None, "has key.sorting=hierarchical, which cannot become natural"),
            ("t", "hierarchical", "has key.sorting=natural, which cannot become hierarchical"),
        ):
            with pytest.raises(InvalidRequestError, match=said):
                await gateway.administer(AlterTopic(name, {"key.sorting": changed}))
        await gateway.administer(AlterTopic("t", {"key.sorting": "natural"}))
        for request, said in (
            (CreateTopic("x", Kind.TOPIC, config=ORDERED), "a setting of tables"),
            (CreateTopic("x", Kind.TABLE, config={**ORDERED, "writers": "multi"}), "one writer"),
            (CreateTopic("x", Kind.TABLE, config={"key.sorting": "random"}), "natural or hierarchical"),
        ):
            with pytest.raises(InvalidRequestError, match=said):
                await gateway.create_topic(request)
        await gateway.create_topic(CreateTopic("m", Kind.TABLE, config={"writers": "multi"}))
        shard_id = shards_of(nodes)[0]
        for body in (OrderedScan(shard_id, b"", b""), OrderedFind(shard_id, (b"k",), 1)):
            with pytest.raises(InvalidRequestError, match="order of their bytes only"):
                gateway.submit_table_read(body, lambda _: None)


@in_virtual_time
async def test_nodes_of_an_older_version_get_no_such_table() -> None:
    nodes = Nodes(1, ports=Ports(NATIVE_PORT, -1, OXIA_PORT, -1))
    nodes.told_reads[0] = ORDER_FORMAT - 1
    try:
        await nodes.start_all()
        gateway = nodes.nodes[0].gateway
        assert gateway.topic("default").config == {}
        with pytest.raises(InvalidRequestError, match=r"hierarchical takes nodes .* node 0 reads up to 5\."):
            await gateway.create_topic(CreateTopic("o", Kind.TABLE, config=ORDERED))
    finally:
        await nodes.close()


@in_virtual_time
async def test_a_shard_that_is_split_keeps_the_order() -> None:
    async with nodes_with(count=1) as nodes:
        gateway = nodes.nodes[0].gateway
        shard_id = (
            (await gateway.create_topic(CreateTopic("o", Kind.TABLE, 1, config=ORDERED))).shards[0].shard_id
        )
        at = client(0)
        puts = [m.PutRequest(key=key, value=b"v" + key) for key in TREE]
        await write(at, shard_id, puts=puts)
        await gateway.administer(SplitShard(shard_id))
        await eventually(lambda: len(gateway.topic("o").shards) == 2)
        parts = [await scanned(at, shard.shard_id) for shard in gateway.topic("o").shards]
        assert all(parts)
        assert sorted(parts[0] + parts[1]) == sorted(TREE)
        for part, shard in zip(parts, gateway.topic("o").shards, strict=True):
            assert part == [key for key in TREE if key in part] == await keys(at, shard.shard_id)
