"""Pages of the dashboard, asked for over whole nodes in virtual time."""

import json
import re
from typing import Any

import pytest

from antiphon.errors import InternalError, TimedOutError
from antiphon.http.board import Board
from antiphon.http.bridge import ANSWER_BYTES_MAX, WebRequest, run
from antiphon.model.requests import CreateTopic
from antiphon.records.builder import build_batch
from tests.dashboard.looking import page, send, served
from tests.node.in_process import eventually, in_virtual_time

HOSTILE = b"<script>alert(1)</script>\xe2\x80\xae\x07"


def batch(*records: tuple[bytes | None, bytes | None]) -> bytes:
    return bytes(build_batch([(key, value, (), 1_700_000_000_000) for key, value in records]))


@in_virtual_time
async def test_overview_tells_of_a_node_that_is_down_and_of_the_fail_over() -> None:
    async with served() as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("flights", shards=3))
        found = await page("/")
        assert (found.status, found.headers["cache-control"]) == (200, "no-store")
        assert "Healthy" in found.text
        assert found.text.count('class="cell leader"') == 8, (
            "each shard, those of the table `default` too, and the legend"
        )
        leader = next(shard.leader for shard in topic.shards if shard.leader != 0)
        nodes.kill(leader)
        await eventually(lambda: not nodes.nodes[0].gateway.metadata.nodes[leader].alive)
        await eventually(
            lambda: all(s.leader not in {leader, -1} for s in nodes.nodes[0].gateway.topic("flights").shards)
        )
        text = (await page("/")).text
        assert f"Node {leader} is down" in text
        assert "Needs attention" in text
        assert f"<b>node {leader}</b> is not heard of any more" in text
        assert re.search(rf"<b>flights/\d</b> (went from node {leader} to node|is led by node)", text)


@in_virtual_time
async def test_every_answer_forbids_what_pages_do_not_need() -> None:
    async with served(1):
        for path in (
            "/",
            "/ui/topics",
            "/ui/topics/none",
            "/ui/static/dashboard.js",
            "/ui/sample",
            "/ui/nope",
        ):
            found = await page(path)
            policy = found.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert found.headers["x-content-type-options"] == "nosniff"
            if found.text.startswith("<!doctype"):
                assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|<style", found.text), path
                assert not re.search(r"(src|href)=[\"']?(https?:)?//(?!node-)", found.text), path


@in_virtual_time
async def test_a_host_that_is_none_is_refused_and_hurts_no_page() -> None:
    async with served(1):
        for host in ("c'\x5d\x1d U*", "[::1", "a/b", "a:123456", "[::1]x", "[::::]", "\u00fcber"):
            found = await send(
                f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin-1")
            )
            assert found.status == 400, host
            assert "Host" in found.text
        for host in ("my_node.local:7480", "127.0.0.1", "[::1]:7480", "[fe80::1]", "a:", "a:70000"):
            found = await send(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert found.status == 200, host
        assert (await send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")).status == 200


@in_virtual_time
async def test_lists_are_paged_and_filtered_by_the_node() -> None:
    async with served(1) as nodes:
        for number in range(60):
            await nodes.nodes[0].gateway.create_topic(CreateTopic(f"topic-{number:02}"))
        first = (await page("/ui/topics")).text
        assert first.count('scope="row"') == 50
        assert "50 of 61" in first
        second = (await page("/ui/topics?start=50")).text
        assert second.count('scope="row"') == 11
        assert (await page("/ui/topics?q=TOPIC-3")).text.count('scope="row"') == 10
        assert "No name has" in (await page("/ui/topics?q=%3Cb%3E")).text
        for odd in ("start=-5", "start=99999999999999999999999", "start=x", "start=900", "q=" + "x" * 5000):
            assert (await page(f"/ui/topics?{odd}")).status == 200
        assert (await page("/")).text.count('<td class="n">1</td>') == 30


@in_virtual_time
async def test_records_are_found_whoever_leads_and_shown_so_that_they_do_nothing() -> None:
    async with served() as nodes:
        gateway = nodes.nodes[0].gateway
        made = await gateway.create_topic(CreateTopic("orders", shards=1))
        shard = made.shards[0]
        leader = nodes.nodes[shard.leader]
        records = [(HOSTILE, b'{"a": [1]}'), (None, bytes(range(256))), (b"k", HOSTILE)]
        await nodes.processes[shard.leader].run(leader.gateway.append(shard.shard_id, batch(*records)))
        for number in range(120):
            done = leader.gateway.append(shard.shard_id, batch((b"n", b"value %d" % number)))
            await nodes.processes[shard.leader].run(done)
        for node in nodes.nodes:
            text = (await page("/ui/topics/orders/records?offset=oldest", node)).text
            assert "<script>alert" not in text
            assert f"as node {shard.leader} has it" in text
            assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x07" in text
            assert "000010  10 11 12" in text, "what is no text is shown in hexadecimal"
            assert text.count("/record?shard=0") == 50
        newest = (await page("/ui/topics/orders/records")).text
        assert "value 119" in newest
        assert "value 60<" not in newest
        assert "value 77<" in (await page("/ui/topics/orders/records?q=value+77")).text
        assert "None of 123 records" in (await page("/ui/topics/orders/records?q=nowhere&offset=0")).text
        late = await page("/ui/topics/orders/records?at=2001-01-01T00:00")
        assert (late.status, late.headers["location"]) == (303, "/ui/topics/orders/records?offset=0")
        assert (await page("/ui/topics/orders/records?at=x")).status == 400
        one = (await page("/ui/topics/orders/record?shard=0&offset=0&as=hex")).text
        assert "000000  3c 73 63 72" in one
        assert "no record at this offset" in (await page("/ui/topics/orders/record?offset=999")).text
        assert (await page("/ui/topics/orders/records?shard=7")).status == 400
        assert (await page("/ui/topics/none/records")).status == 404


@in_virtual_time
async def test_without_a_leader_records_come_from_the_replica_here_and_the_page_says_so() -> None:
    async with served() as nodes:
        shard = (await nodes.nodes[0].gateway.create_topic(CreateTopic("orders"))).shards[0]
        work = nodes.nodes[shard.leader].gateway.append(shard.shard_id, batch((b"k", b"still here")))
        await nodes.processes[shard.leader].run(work)
        left = next(node for node in nodes.nodes if node != shard.leader)
        here = nodes.nodes[left].gateway
        await eventually(lambda: here.status((shard.shard_id,)).replicas[0].high_watermark == 1)
        for node in [*nodes.nodes]:
            if node != left:
                nodes.kill(node)
        found = await page("/ui/topics/orders/records", left)
        assert found.status == 200
        assert "still here" in found.text
        assert "does not answer" in found.text


@in_virtual_time
async def test_samples_add_up_what_nodes_counted() -> None:
    async with served() as nodes:
        made = await nodes.nodes[0].gateway.create_topic(CreateTopic("orders"))
        shard = made.shards[0]
        work = nodes.nodes[shard.leader].gateway.append(shard.shard_id, batch((b"k", b"v"), (b"k", b"w")))
        await nodes.processes[shard.leader].run(work)
        told = json.loads((await page("/ui/sample")).text)["nodes"]
        assert set(told) == {"0", "1", "2"}
        assert told[str(shard.leader)]["append_records"] == 2
        assert sum(told[str(shard.leader)]["commit_counts"]) == 1


@in_virtual_time
async def test_one_connection_has_one_page_at_a_time_and_gets_all() -> None:
    async with served(1):
        ask = b"GET /ui/topics HTTP/1.1\r\nHost: a\r\n"
        found = await send((ask + b"\r\n") * 4 + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert found.text.count("HTTP/1.1 200 OK") == 4
        assert found.text.rstrip().endswith("}")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"POST /ui/topics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\nConnection: close\r\n\r\n", 413),
        (b"HEAD /ui/topics HTTP/1.0\r\n\r\n", 200),
        (b"GET /ui/../../etc/passwd HTTP/1.0\r\n\r\n", 404),
        (b"GET /ui/static/..%2f..%2fpage.py HTTP/1.0\r\n\r\n", 404),
        (b"GET /ui/topics/%00%ff%0d%0aX:1 HTTP/1.0\r\n\r\n", 404),
        (b"GET /ui/topics?q=%ff%00%0d%0a HTTP/1.0\r\n\r\n", 200),
    ],
)
@in_virtual_time
async def test_odd_requests(request_: bytes, status: int) -> None:
    async with served(1):
        found = await send(request_.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n"))
    assert found.status == status
    assert "x" not in found.headers


@in_virtual_time
async def test_without_its_libraries_the_plain_page_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(_board: Board) -> Any:
        raise ImportError("no starlette")

    monkeypatch.setattr(Board, "_load", missing)
    async with served(1):
        assert "pip install &#x27;antiphon[dashboard]&#x27;" in (await page("/")).text
        assert (await page("/ui/topics")).status == 503


@in_virtual_time
async def test_an_application_is_bounded_in_bytes_and_time() -> None:
    import asyncio

    async def too_much(_scope: Any, _receive: Any, send_: Any) -> None:
        await send_({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send_({"type": "http.response.body", "body": bytes(2**16), "more_body": True})

    async def too_long(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.sleep(100)

    request = WebRequest("GET", "/", ())
    with pytest.raises(InternalError, match=str(ANSWER_BYTES_MAX)):
        await run(too_much, request, 5.0)
    with pytest.raises(TimedOutError):
        await run(too_long, request, 5.0)
