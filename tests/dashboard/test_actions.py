"""Actions of the dashboard: a form, its plan, and the action; who may send one, and from where."""

import asyncio
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.http.api.routes import ROUTES
from antiphon.http.pages.action_table import ACTIONS
from antiphon.http.pages.forms import AGAIN, body_of, fields_of, secrets_of
from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Resource
from antiphon.model.metadata import Kind
from antiphon.model.node_settings import ALL_NODES
from antiphon.model.requests import AlterAcls, AlterUser, CreateTopic
from antiphon.security.passwords import credentials
from tests.dashboard.looking import HTTP_PORT, Page, page, send, served
from tests.dashboard.test_rights_and_rows import SECURE, basic
from tests.node.in_process import eventually, in_virtual_time

OWN = {"Origin": f"http://node-0:{HTTP_PORT}"}
_ROUTE = {route.name: route for route in ROUTES}


async def post(
    action: str,
    step: str,
    fields: Mapping[str, str] = MappingProxyType({}),
    headers: dict[str, str] | None = None,
) -> Page:
    """Send a form to a node, by default as a browser does that shows a page of it."""
    body = urlencode(dict(fields) | ({"step": step} if step else {})).encode()
    lines = {
        "Host": f"node-0:{HTTP_PORT}",
        "Connection": "close",
        "Content-Type": "application/x-www-form-urlencoded",
        "Content-Length": str(len(body)),
        **(OWN if headers is None else headers),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return await send(f"POST /ui/actions/{action} HTTP/1.1\r\n{head}\r\n".encode() + body)


def hidden(found: Page) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', found.text))


async def carried(action: str, **fields: str) -> Page:
    """The plan, and then what its page has the browser send."""
    planned = await post(action, "plan", fields)
    assert planned.status == 200, planned.text
    assert 'value="carry"' in planned.text
    return await post(action, "carry", hidden(planned))


@in_virtual_time
async def test_each_action_shows_its_plan_first_and_then_does_it() -> None:
    async with served(4) as nodes:
        gateway = nodes.nodes[0].gateway
        new = {
            "name": "planes",
            "kind": "table",
            "shards": "2",
            "replicas": "3",
            "config": "retention.ms = 9000",
        }
        form = await page("/ui/actions/create_topic")
        assert {"name", "kind", "shards", "replicas", "profile", "config"} == set(
            re.findall(r'<(?:input|select|textarea)[^>]* name="(\w+)"', form.text)
        )
        new |= {"kind": "topic"}
        planned = await post("create_topic", "plan", new)
        assert (
            planned.text.count("<td>made</td>") == planned.text.count("<td>elected when it is made</td>") == 2
        )
        assert "retention.ms=9000" in planned.text
        assert (await post("create_topic", "", new)).status == 200, (
            "a form that does not say more wants a plan"
        )
        assert "planes" not in {one.name for one in gateway.metadata.topics}, "a plan decides nothing"
        done = await post("create_topic", "carry", hidden(planned))
        assert (done.status, done.headers["location"]) == (303, "/ui/topics/planes?did=create_topic")
        assert gateway.topic("planes").config == {"retention.ms": "9000"}
        assert "Create topic: carried out" in (await page(done.headers["location"])).text

        done = await carried(
            "alter_topic", topic="planes", config="retention.ms=\nflush=interval", shards="3"
        )
        assert done.status == 303, done.text
        topic = gateway.topic("planes")
        assert (len(topic.shards), topic.config) == (3, {"flush": "interval"})

        shard = topic.shards[0]
        other = next(node for node in range(4) if node not in shard.ensemble)
        follower = next(node for node in shard.ensemble if node != shard.leader)
        offered = await page("/ui/actions/move_replica?topic=planes&shard=0")
        choices = re.findall(r'<select name="(\w+)">(.*?)</select>', offered.text, re.DOTALL)
        assert {name: set(map(int, re.findall(r'value="(\d+)"', rest))) for name, rest in choices} == {
            "from_node": set(shard.ensemble),
            "to_node": {other},
        }
        where = {"topic": "planes", "shard": "0"}
        done = await carried("move_replica", **where, from_node=str(follower), to_node=str(other))
        assert done.headers["location"] == "/ui/topics/planes?did=move_replica"
        await eventually(lambda: other in gateway.topic("planes").shards[0].ensemble)
        await eventually(lambda: not gateway.topic("planes").shards[0].goal)

        wanted = next(node for node in gateway.topic("planes").shards[0].ensemble if node != shard.leader)
        assert (await carried("elect_leader", **where, node=str(wanted))).status == 303
        await eventually(lambda: gateway.topic("planes").shards[0].leader == wanted)

        assert (await carried("drain_node", node="3")).headers["location"] == "/ui/nodes/3?did=drain_node"
        await eventually(lambda: gateway.metadata.nodes[3].draining)
        assert "Take the drain back" in (await page("/ui/nodes/3")).text
        assert (await carried("drain_node", node="3", cancel="true")).status == 303
        await eventually(lambda: not gateway.metadata.nodes[3].draining)
        assert (await carried("rebalance")).headers["location"] == "/?did=rebalance"

        planned = await post("delete_topic", "plan", {"topic": "planes"})
        assert planned.text.count("<td>removed</td>") == 3
        assert len(re.findall(r"<td>\d → none</td>", planned.text)) == 3
        assert "Carry out, for good" in planned.text
        assert (await post("delete_topic", "carry", {"topic": "planes"})).headers["location"] == (
            "/ui/topics?did=delete_topic"
        )
        assert "planes" not in {one.name for one in gateway.metadata.topics}


@in_virtual_time
async def test_the_navigation_shows_where_a_form_belongs() -> None:
    async with served(1):
        for path, place in (
            ("/ui/actions/add_user", "Security"),
            ("/ui/actions/create_topic", "Topics"),
            ("/ui/actions/put_subscription", "Client metrics"),
            ("/ui/actions/rebalance", "Overview"),
            ("/ui/nodes/0", "Overview"),
            ("/ui/sessions", "Sessions"),
        ):
            found = re.findall(r'aria-current="page">([^<]+)<', (await page(path)).text)
            assert found == [place], path


@in_virtual_time
async def test_a_table_is_split_and_placed_by_hand() -> None:
    async with served(4) as nodes:
        gateway = nodes.nodes[0].gateway
        table = await gateway.create_topic(CreateTopic("planes", Kind.TABLE, 1, 3))
        text = (await page("/ui/topics/planes")).text
        assert "/ui/actions/split_shard?topic=planes&amp;shard=0" in text
        nodes_now = [3, *table.shards[0].ensemble[:2]]
        where = {"topic": "planes", "shard": "0"}
        done = await carried("place_replicas", **where, nodes=", ".join(map(str, nodes_now)))
        assert done.status == 303, done.text
        await eventually(lambda: set(gateway.topic("planes").shards[0].ensemble) == set(nodes_now))
        await eventually(lambda: not gateway.topic("planes").shards[0].goal)
        done = await carried("split_shard", **where)
        assert done.headers["location"].startswith("/ui/topics/planes?did=split_shard")
        await eventually(lambda: len(gateway.topic("planes").shards) == 2)


@in_virtual_time
async def test_settings_of_nodes_are_shown_and_changed() -> None:
    async with served(3) as nodes:
        for node in (0, 1):  # the one that is asked, and another
            text = (await page(f"/ui/nodes/{node}")).text
            assert re.search(r"log_level</code></th><td><code>\w+</code></td>", text), node
        planned = await post(
            "alter_node_settings", "plan", {"node": "1", "settings": "cleaner.backoff_ms=777"}
        )
        assert "cleaner.backoff_ms=777" in planned.text
        assert nodes.nodes[0].gateway.settings.entries == {}
        done = await post("alter_node_settings", "carry", hidden(planned))
        assert done.headers["location"] == "/ui/nodes/1?did=alter_node_settings"
        await eventually(
            lambda: nodes.nodes[1].gateway.settings.values("cleaner.backoff_ms")[0].value == "777"
        )
        text = (await page("/ui/nodes/1")).text
        assert re.search(
            r"cleaner.backoff_ms</code></th><td><code>777</code></td><td>[^/]*set for this node", text
        )
        assert (await carried("alter_settings", settings="log.cleaner.backoff.ms=888")).status == 303
        entries = nodes.nodes[0].gateway.settings.entries
        assert entries[ALL_NODES].values == {"cleaner.backoff_ms": "888"}, "Kafka's name is one for it, too"
        assert (await carried("alter_node_settings", node="1", settings="cleaner.backoff_ms=")).status == 303
        assert 1 not in nodes.nodes[0].gateway.settings.entries
        await eventually(
            lambda: nodes.nodes[1].gateway.settings.values("cleaner.backoff_ms")[0].value == "888"
        )


@pytest.mark.parametrize(
    ("action", "fields", "status", "says"),
    [
        ("create_topic", {"name": "a b", "shards": "1"}, 400, "a-z"),
        ("create_topic", {"name": "x", "shards": "many"}, 400, "does not fit"),
        ("create_topic", {"name": "x", "config": "retention.ms"}, 400, "name=value"),
        ("create_topic", {"name": "x", "config": "a=1\na=2"}, 400, "named twice"),
        ("create_topic", {"name": "default"}, 409, "is there already"),
        ("alter_topic", {"topic": "nobody"}, 404, "nobody"),
        ("elect_leader", {"topic": "default", "shard": "99", "node": "-1"}, 404, "99"),
        ("remove_node", {"node": "0"}, 400, "drain"),
        ("alter_settings", {"settings": "log_level=loud"}, 400, "loud"),
        ("alter_settings", {"settings": ""}, 400, "does not fit"),
    ],
)
@in_virtual_time
async def test_what_is_refused_is_said_and_what_was_filled_in_stays(
    action: str, fields: dict[str, str], status: int, says: str
) -> None:
    async with served(1) as nodes:
        await asyncio.sleep(2)  # until the node's own tables have leaders
        version = nodes.nodes[0].gateway.metadata.version
        for step in ("plan", "carry"):
            found = await post(action, step, fields)
            assert (found.status, says in found.text) == (status, True), found.text
            assert 'role="alert"' in found.text
            assert all(value.split("\n")[0] in found.text for value in fields.values())
        assert nodes.nodes[0].gateway.metadata.version == version


@in_virtual_time
async def test_a_page_of_another_site_cannot_act() -> None:
    async with served(1) as nodes:
        fields = {"name": "taken"}
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://evil.example:{HTTP_PORT}", "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
            {},
            {"Host": f"evil.example:{HTTP_PORT}", "Origin": f"http://evil.example:{HTTP_PORT}"},
            {**OWN, "Content-Type": "text/plain"},
        ):
            found = await post("create_topic", "carry", fields, headers=headers)
            assert found.status in {400, 403}, headers
            assert "taken" not in {one.name for one in nodes.nodes[0].gateway.metadata.topics}
        assert (await page("/ui/actions/create_topic?name=taken&step=carry")).status == 200, (
            "a link does nothing"
        )
        assert "taken" not in {one.name for one in nodes.nodes[0].gateway.metadata.topics}
        assert (
            await post("create_topic", "carry", fields, headers={"Sec-Fetch-Site": "same-origin"})
        ).status == 303


@in_virtual_time
async def test_who_may_not_is_offered_nothing_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
    async with served(1, security=SECURE) as nodes:
        gateway = nodes.nodes[0].gateway
        for name in ("root", "ann"):
            await gateway.administer(AlterUser(name, credentials("secret")))
        await eventually(lambda: "ann" in gateway.access.users)
        await gateway.create_topic(CreateTopic("planes"))
        sees = Acl("User:ann", Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
        topics = Acl("User:ann", Resource.TOPIC, "planes", Operation.DESCRIBE)
        await gateway.administer(AlterAcls((sees, topics)))
        for path in ("/", "/ui/topics", "/ui/topics/planes", "/ui/nodes/0"):
            mine = await page(path, Authorization=basic("ann", "secret"))
            theirs = await page(path, Authorization=basic("root", "secret"))
            assert (mine.status, theirs.status) == (200, 200)
            assert "/ui/actions/" not in mine.text, path
            assert "/ui/actions/" in theirs.text, path
        login = {"Authorization": basic("ann", "secret"), **OWN}
        for action, fields in {
            "create_topic": {"name": "mine"},
            "delete_topic": {"topic": "planes"},
            "elect_leader": {"topic": "planes", "shard": "0", "node": "-1"},
            "drain_node": {"node": "0"},
            "alter_settings": {"settings": "log_level=debug"},
        }.items():
            for step in ("plan", "carry"):
                assert (await post(action, step, fields, headers=login)).status == 403, action
        assert (await post("create_topic", "carry", {"name": "mine"})).status == 401
        boss = {"Authorization": basic("root", "secret"), **OWN}
        assert (await post("create_topic", "carry", {"name": "mine"}, headers=boss)).status == 303


@in_virtual_time
async def test_names_are_escaped_in_forms_plans_and_where_they_lead() -> None:
    async with served(1):
        bad = '"><script>alert(1)</script>'
        for found in (
            await page(f"/ui/actions/alter_topic?{urlencode({'topic': bad})}"),
            await post("alter_topic", "plan", {"topic": bad}),
            await post("alter_settings", "plan", {"settings": f"{bad}=1"}),
            await page(f"/ui/topics?{urlencode({'did': bad})}"),
            await page(f"/ui/actions/{urlencode({bad: ''})}"),
        ):
            assert "<script>alert" not in found.text


@in_virtual_time
async def test_every_action_of_the_table_has_a_form_of_its_types() -> None:
    async with served(1) as nodes:
        meta: Any = nodes.nodes[0].gateway.metadata
        for name, action in ACTIONS.items():
            route = _ROUTE[action.operation or name]
            fields = [*fields_of(route, {}, meta, None), *secrets_of(route)]
            wanted = {*route.in_path, *(route.body.__struct_fields__ if route.body else ())}
            assert {one.name for one in fields if not one.name.endswith(AGAIN)} == wanted, name
            found = await page(f"/ui/actions/{name}")
            assert (found.status, 'value="plan"' in found.text) == (200, True), name
        assert (await page("/ui/actions/nothing")).status == 400


def test_more_lines_than_may_be_changed_at_once_are_refused() -> None:
    text = "\n".join(f"a{number}=1" for number in range(101))
    with pytest.raises(InvalidRequestError, match="101"):
        body_of(_ROUTE["alter_topic"], {"config": text})
