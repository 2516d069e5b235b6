"""Rows, groups, transactions, nodes and people on the dashboard, and who sees what of it."""

import base64
import re
from typing import Any

import pytest

from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.internal import GROUPS_TABLE
from antiphon.model.metadata import KeyRanges, Kind
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, CreateTopic, Put, TableWrite
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from antiphon.transactions.group_offsets import Committed, GroupOffsets, OffsetAt, shard_of_group
from tests.dashboard.looking import page, served
from tests.dashboard.test_pages import HOSTILE, batch
from tests.node.in_process import Nodes, eventually, in_virtual_time

EVIL = "<b>evil/%2F</b>"


async def at_leader(nodes: Nodes, shard_id: int, work: Any) -> Any:
    """Have the shard's leader do it: `work` is called with its gateway."""
    leader = nodes.nodes[0].gateway.shard(shard_id)[1].leader
    return await nodes.processes[leader].run(work(nodes.nodes[leader].gateway))


@in_virtual_time
async def test_rows_come_in_the_order_of_keys_whichever_shard_has_them() -> None:
    async with served() as nodes:
        gateway = nodes.nodes[0].gateway
        table = await gateway.create_topic(CreateTopic("carts", Kind.TABLE, shards=4))
        keys = [b"key-%03d" % number for number in range(120)] + [HOSTILE, b"\xff\xff"]
        for key in keys:
            shard_id = KeyRanges(table.shards).shard_of(key).shard_id
            write = TableWrite(shard_id, (Put(key, b"of " + key),))
            await at_leader(nodes, shard_id, lambda there, one=write: there.table_write(one))
        seen: list[str] = []
        path = "/ui/tables/carts?q=key-"
        for _ in range(3):
            text = (await page(path)).text
            seen += re.findall(r"<pre class=\"data text\">(key-\d+)</pre>", text)
            following = re.search(r'rel="next" href="([^"]+)"', text)
            if following is None:
                break
            path = following[1].replace("&amp;", "&")
        assert seen == [f"key-{number:03}" for number in range(120)]
        whole = (await page("/ui/tables/carts?shard=0")).text
        assert "key-" in whole
        text = (await page("/ui/tables/carts?q=%3Cscript", 1)).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text
        assert "There is this very key" in (await page("/ui/tables/carts?q=key-007")).text
        assert "No key begins with" in (await page("/ui/tables/carts?q=nothing")).text
        for odd in ("after=zz", "after=" + "ff" * 6000, "shard=-1", "as=nothing"):
            assert (await page(f"/ui/tables/carts?{odd}")).status in {200, 400, 431}
        await gateway.create_topic(CreateTopic("plain"))
        assert "look at its records" in (await page("/ui/tables/plain")).text


@in_virtual_time
async def test_groups_with_their_lag_whichever_node_is_asked() -> None:
    async with served() as nodes:
        gateway = nodes.nodes[0].gateway
        topic = await gateway.create_topic(CreateTopic("orders", shards=2))
        await gateway.create_topic(CreateTopic(GROUPS_TABLE, Kind.TABLE, shards=4, internal=True))
        values = batch(*[(None, b"v")] * 10)
        for shard in topic.shards:
            await at_leader(nodes, shard.shard_id, lambda there, s=shard: there.append(s.shard_id, values))
        for name in ("billing", EVIL):
            shard_id = shard_of_group(gateway, name).shard_id
            rows = [
                OffsetAt("orders", i, Committed(4 + i, 1, HOSTILE.decode(), 5, topic.topic_id))
                for i in (0, 1)
            ]
            await at_leader(nodes, shard_id, lambda there, n=name, r=rows: GroupOffsets(there).commit(n, r))
        for node in nodes.nodes:
            listed = (await page("/ui/groups", node)).text
            assert "/ui/groups/billing" in listed
            assert "<b>evil" not in listed
            assert "&lt;b&gt;evil/%2F&lt;/b&gt;" in listed
            one = (await page("/ui/groups/billing", node)).text
            assert "<dd>11</dd>" in one, "of ten records each, the lag is 6 and 5"
            assert "<script>alert" not in one
        link = re.search(r'href="(/ui/groups/%3Cb[^"]+)"', listed)
        assert link is not None
        assert "<dd>11</dd>" in (await page(link[1])).text
        assert "committed no offset" in (await page("/ui/groups/nobody")).text
        assert "No name has" in (await page("/ui/groups?q=nobody")).text


@in_virtual_time
async def test_nodes_transactions_and_jobs_have_pages() -> None:
    async with served() as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("orders", shards=2))
        found = (await page("/ui/nodes/1")).text
        assert found.count("/ui/topics/orders") == 2
        assert "Nothing is wrong" in found
        assert (await page("/ui/nodes/7")).status == 400
        assert (await page("/ui/nodes/x")).status == 404
        assert "There are no transactional ids" in (await page("/ui/transactions")).text
        assert "No job has left a note" in (await page("/ui/jobs")).text
        nodes.kill(1)
        await eventually(lambda: not nodes.nodes[0].gateway.metadata.nodes[1].alive)
        down = await page("/ui/nodes/1")
        assert (down.status, "antiphon node start" in down.text) == (200, True)


SECURE = Security(authentication=True, super_users=["User:root"])
OPEN_TO_EVE = (
    "/ui/topics",
    "/ui/groups",
    "/ui/topics/hers",
    "/ui/topics/hers/records",
    "/ui/static/dashboard.css",
)
CLOSED_TO_EVE = (
    "/",
    "/ui/sample",
    "/ui/topics/secret",
    "/ui/topics/secret/records",
    "/ui/topics/secret/record",
    "/ui/topics/none",
    "/ui/topics/__groups/records",
    "/ui/tables/default",
    "/ui/groups/others",
    "/ui/transactions",
    "/ui/jobs",
    "/ui/queries",
    "/ui/security",
    "/ui/client-metrics",
    "/ui/nodes/0",
)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@in_virtual_time
async def test_everybody_sees_what_the_lists_allow_and_nobody_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
    async with served(1, security=SECURE) as nodes:
        gateway = nodes.nodes[0].gateway
        for user in ("root", "eve"):
            await gateway.administer(AlterUser(user, credentials(f"of {user}")))
        await eventually(lambda: "eve" in gateway.access.users)
        for name in ("hers", "secret"):
            await gateway.create_topic(CreateTopic(name))
        await gateway.administer(AlterAcls((Acl("User:eve", Resource.TOPIC, "hers", Operation.READ),)))
        await gateway.administer(AlterQuota(Quota("eve", request_percentage=150.0)))
        for path in (*OPEN_TO_EVE, *CLOSED_TO_EVE):
            assert (await page(path)).status == 401, f"{path} to who has not logged in"
        eve = basic("eve", "of eve")
        for path in OPEN_TO_EVE:
            assert (await page(path, authorization=eve)).status == 200, path
        for path in CLOSED_TO_EVE:
            answer = await page(path, authorization=eve)
            assert answer.status == 403, path
            assert "shard-rows" not in answer.text
        assert "secret" not in (await page("/ui/topics", authorization=eve)).text
        root = basic("root", "of root")
        for path in (*OPEN_TO_EVE, *CLOSED_TO_EVE):
            if "none" not in path and "__groups" not in path:
                assert (await page(path, authorization=root)).status == 200, path
        told = (await page("/ui/security", authorization=root)).text
        assert "SCRAM-SHA-" in told
        assert "User:eve" in told
        key = gateway.access.users["eve"].credentials[0]
        for kept in (key.salt, key.stored_key, key.server_key):
            assert base64.b64encode(kept).decode() not in told
            assert kept.hex() not in told
        assert (await page("/ui/topics", authorization=basic("eve", "guess"))).status == 401
