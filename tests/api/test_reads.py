"""What the API shows: every answer is as the document says, whichever node is asked."""

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from antiphon.client.aio import AsyncClient
from antiphon.http.api import document, routes
from antiphon.http.api.asked import Listed
from antiphon.http.api.call import data, page
from antiphon.http.board import Board
from antiphon.model.client_metrics import AlterSubscription
from antiphon.model.internal import EPOCHS_TABLE, GROUPS_TABLE
from antiphon.model.metadata import ClusterMeta, Kind, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.node_settings import AlterNodeSettings
from antiphon.model.requests import CreateTopic, Put, TableWrite
from antiphon.node.node_gateway import NodeGateway
from antiphon.spark.staging.epochs import HEAD, Epoch, key_of
from antiphon.transactions.group_offsets import Committed, GroupOffsets, OffsetAt, shard_of_group
from tests.api.asking import call
from tests.dashboard.looking import page as get_page
from tests.dashboard.looking import served
from tests.dashboard.test_rights_and_rows import at_leader
from tests.node.in_process import NATIVE_PORT, Nodes, in_virtual_time


def shard_at(shard_id: int) -> ShardMeta:
    return ShardMeta(shard_id, 0, (0,), leader=0, status=ShardStatus.ONLINE, live=(0,))


READS = [route for route in routes.ROUTES if route.method == "GET"]


def client(nodes: Nodes) -> AsyncClient:
    return AsyncClient(",".join(f"node-{one}:{NATIVE_PORT}" for one in nodes.nodes))


async def filled(nodes: Nodes, db: AsyncClient) -> None:
    """Something of everything that there is to read."""
    gateway = nodes.nodes[0].gateway
    await gateway.administer(AlterNodeSettings(0, {"scrub.interval_s": "99"}))
    await gateway.administer(AlterSubscription("slow", {"metrics": "*"}))
    flights = await db.create_topic("flights", shards=2, config={"retention.ms": "5000"})
    await flights.append(b'{"a": 1}', key="k", shard=0)
    await flights.append(bytes(range(256)), shard=0, headers=[("h", b"\xff"), ("n", None)])
    table = await db.create_table("aircraft", shards=2)
    for number in range(20):
        await table.put(f"k{number:02}", b"of %d" % number)
    await table.put("held", b"x", session=db.session(timeout_s=30))
    await gateway.create_topic(CreateTopic(GROUPS_TABLE, Kind.TABLE, shards=4, internal=True))
    topic = gateway.topic("flights")
    rows = [OffsetAt("flights", 0, Committed(1, 1, "note", 5, topic.topic_id))]
    shard_id = shard_of_group(gateway, "billing").shard_id
    await at_leader(nodes, shard_id, lambda there: GroupOffsets(there).commit("billing", rows))
    epochs = await gateway.create_topic(CreateTopic(EPOCHS_TABLE, Kind.TABLE, internal=True))
    for query, applied in (("done", 7), ("waits", 0)):
        epoch = Epoch(query, 3, "flights", topic.topic_id, False, b"", 9, 5, applied, {}, ())
        put = Put(key_of(HEAD, topic.topic_id, query), msgspec.msgpack.encode(epoch))
        write = TableWrite(epochs.shards[0].shard_id, (put,), internal=True)
        await at_leader(nodes, write.shard_id, lambda there, w=write: there.table_write(w))


@in_virtual_time
async def test_every_read_of_the_document_answers_as_it_says_on_every_node() -> None:
    paths = {"topic": "flights", "table": "aircraft", "node": "1", "group": "billing"}
    async with served() as nodes, client(nodes) as db:
        await filled(nodes, db)
        for route in READS:
            path = route.path
            for name in route.in_path:
                path = path.replace("{" + name + "}", paths[name])
            for node in nodes.nodes:
                said = await call(path, at=node)
                assert said.status == 200, (path, said)
                assert said.json.get("items", ["no list"]) or route.name in {
                    "list_transactions", "list_jobs", "list_users", "list_acls", "list_quotas", "list_findings",
                }, f"{path} shows nothing, so nothing was held against the document"  # fmt: skip
            assert (await call(path, method="HEAD")).status == 200
        cluster = (await call("/api/cluster", at=2)).json
        assert (cluster["health"], cluster["counts"]["up"], cluster["node"]) == ("healthy", 3, 2)
        nodes.kill(1)
        down = (await call("/api/nodes/1")).json
        assert (down["answers"], down["version"]) == (False, None)


@in_virtual_time
async def test_records_by_offset_time_and_text_in_bounded_pieces() -> None:
    async with served(1) as nodes, client(nodes) as db:
        await filled(nodes, db)
        path = "/api/topics/flights/records"
        one, two = (await call(path, shard=0)).json["items"]
        assert (one["key"]["text"], one["value"]["text"]) == ("k", '{"a": 1}')
        assert base64.b64decode(two["value"]["base64"]) == bytes(range(256))
        assert [header["name"] for header in two["headers"]] == ["h", "n"]
        first = (await call(path, offset=0, limit=1)).json
        assert ([item["offset"] for item in first["items"]], first["next"]) == ([0], 1)
        assert (await call(path, offset=1)).json["next"] is None
        short = (await call(path, offset=1, max_bytes=3)).json["items"][0]["value"]
        assert (short["size_bytes"], short["is_cut"], short["text"]) == (256, True, "\0\1\2")
        assert [item["offset"] for item in (await call(path, q='"a"')).json["items"]] == [0]
        assert len((await call(path, timestamp_ms=0)).json["items"]) == 2
        large = await db.create_topic("large")
        for _ in range(12):
            await large.append(bytes(200_000))
        some = (await call("/api/topics/large/records", offset=0, max_bytes=262_144)).json
        assert 1 <= len(some["items"]) < 12
        assert some["next"] == some["items"][-1]["offset"] + 1
        found = (await call("/api/topics/large/records", offset=0, max_bytes=262_144, q="\0")).json
        told = sum(item["value"]["size_bytes"] for item in found["items"])
        assert 0 < told <= 524_288, "what is looked for is found in more than one answer may tell"
        assert found["next"] == found["items"][-1]["offset"] + 1
        wide = await db.create_topic("wide")
        await wide.append(b"\0" * 300_000, headers=[("h" * 2_000, b"\0" * 2_000)] * 150)
        (record,) = (await call("/api/topics/wide/records", max_bytes=262_144)).json["items"]
        assert (len(record["headers"]), len(record["headers"][0]["name"])) == (100, 1_024)


@in_virtual_time
async def test_rows_by_key_prefix_version_and_as_of() -> None:
    async with served() as nodes, client(nodes) as db:
        await filled(nodes, db)
        path, seen, after = "/api/tables/aircraft/rows", list[str](), ""
        while True:
            said = (await call(path, prefix="k", limit=7, after=after)).json
            seen += [row["key"]["text"] for row in said["items"]]
            if said["after"] is None:
                break
            after = said["after"]
        assert seen == [f"k{number:02}" for number in range(20)]
        (row,) = (await call(path, key_hex=b"k03".hex())).json["items"]
        assert row["value"]["text"] == "of 3"
        assert (await call(path, key="none")).json["items"] == []
        assert (await call(path, key="held")).json["items"][0]["session"].isdigit()
        one = await db.create_table("one")
        await one.put("a", b"first")
        end = (await one.offsets())[1]
        await one.put("a", b"second")
        await one.put("b", b"later")
        path = "/api/tables/one/rows"
        old = (await call(path, key="a", as_of=end)).json["items"]
        assert [item["value"]["text"] for item in old] == ["first"]
        assert [item["key"]["text"] for item in (await call(path, as_of=end)).json["items"]] == ["a"]
        version = old[0]["version"]
        assert (await call(path, key="a", version=version)).json["items"][0]["value"]["text"] == "first"
        assert (await call(path, key="a", version=999)).status == 404
        beyond = await call(path, key="a", as_of=10_000)
        assert (beyond.status, beyond.json["code"]) == (416, "offset_out_of_range")
        assert (await call("/api/tables/aircraft/rows", as_of=1)).json["parameter"] == "shard"
        shown = (await call("/api/tables/aircraft/rows", shard=1, as_of=0)).json
        assert shown["items"] == []


@in_virtual_time
async def test_a_thousand_topics_are_paged_and_filtered_by_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(1) as nodes:
        more = tuple(
            TopicMeta(f"t-{number:04}", b"%16d" % number, Kind.TOPIC, 1, "oxia", (shard_at(100 + number),))
            for number in range(1_000)
        )
        view = nodes.nodes[0].gateway.cluster.view

        def metadata(_gateway: NodeGateway) -> ClusterMeta:
            now = view.cluster()
            return msgspec.structs.replace(now, topics=(*reversed(more), *now.topics))

        monkeypatch.setattr(NodeGateway, "metadata", property(metadata))
        seen: list[str] = []
        start: int | None = 0
        while start is not None:
            said = (await call("/api/topics", start=start, limit=300)).json
            seen += [one["name"] for one in said["items"]]
            assert said["total"] == 1_001, "with the table that a cluster begins with"
            start = said["next"]
        assert seen == sorted(["default", *(f"t-{number:04}" for number in range(1_000))])
        assert (await call("/api/topics", start=5_000)).json["items"] == []
        assert (await call("/api/topics", q="T-09", limit=1)).json["total"] == 100
        assert (await call("/api/topics", kind="table")).json["total"] == 1
        shards = (await call("/api/shards", topic="t-0007")).json
        assert [one["topic"] for one in shards["items"]] == ["t-0007"]
        assert (await call("/api/shards", state="offline")).json["total"] == 0
        assert (await call("/api/shards", node=0, limit=1_000)).json["total"] == 1_004
        assert (await call("/api/shards", node=9)).json["total"] == 0


@in_virtual_time
async def test_the_document_and_its_page_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(1) as nodes:
        found = await get_page("/api/openapi.json")
        told = json.loads(found.text)
        assert (found.status, told["openapi"]) == (200, "3.1.0")
        assert told == document.document()
        for schema in told["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
        named = set()
        for path, operations in told["paths"].items():
            for operation in operations.values():
                named.add(operation["operationId"])
                assert {one["name"] for one in operation["parameters"] if one["in"] == "path"} == {
                    part[1:-1] for part in path.split("/") if part.startswith("{")
                }
        assert len(named) == len(routes.ROUTES), "names of operations are one each"
        text = (await get_page("/api")).text
        for route in routes.ROUTES:
            assert f'id="{route.name}"' in text
            assert re.split("['`]", route.summary)[0] in text
        assert text.count("curl") >= len(routes.ROUTES)
        assert "<script>" not in text
        assert 'aria-current="page"' in text
        references = [one.split('"')[0] for one in text.split('href="#')[1:]]
        assert not [one for one in references if f'id="{one}"' not in text and one != "main"]
        assert "Sessions" in (await get_page("/ui/sessions")).text
        del nodes


@in_virtual_time
async def test_sessions_have_a_page_and_are_read_in_pieces() -> None:
    async with served() as nodes, client(nodes) as db:
        table = await db.create_table("leases", shards=3)
        for number in range(12):
            await table.put(f"k{number}", b"x", session=db.session(timeout_s=30 + number))
        seen, after = list[str](), ""
        while True:
            said = (await call("/api/sessions", limit=5, after=after, at=1)).json
            seen += [one["session"] for one in said["items"]]
            for one in said["items"]:
                assert 0 < one["left_ms"] <= one["timeout_ms"]
                assert (one["table"], one["keys"]) == ("leases", 1)
            if said["after"] is None:
                break
            after = said["after"]
        assert len(seen) == len(set(seen)) == 12
        assert (await call("/api/sessions", table="default")).json["items"] == []
        text = (await get_page("/ui/sessions", 2)).text
        assert text.count('<th scope="row"') == 12
        assert "30.0" in text
        assert "There are none here" in (await get_page("/ui/sessions?table=none")).text
        assert (await get_page("/ui/sessions?after=x")).status == 200


@in_virtual_time
async def test_the_api_needs_no_library_that_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_board: Board) -> Any:
        raise ImportError("no starlette")

    monkeypatch.setattr(Board, "_load", missing)
    async with served(1):
        assert (await call("/api/topics")).status == 200
        assert (await get_page("/api")).status == 503


def test_pieces_of_lists_and_of_bytes() -> None:
    assert page([1, 2, 3], Listed(start=1, limit=1), str).next == 2
    assert page([1, 2, 3], Listed(start=1, limit=2), str).next is None
    assert page([1], Listed(start=7, limit=2), str).items == []
    assert data("über".encode(), 1).text == "", "a letter that the cut goes through is left out"
    assert data(b"\xff\xfe", 9).base64 == b"\xff\xfe"
