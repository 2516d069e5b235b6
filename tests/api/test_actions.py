"""Actions, their plans, who may do what, and requests that nobody should send."""

import json
from typing import Any

import pytest

from antiphon.coordination.coordinator import CoordinatorConfig
from antiphon.coordination.rehearsal import rehearse
from antiphon.errors import InvalidRequestError, TopicExistsError, UnknownShardError
from antiphon.http.api import routes
from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Pattern, Resource
from antiphon.model.metadata import Kind
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, CreateTopic, DrainNode, ElectLeader
from antiphon.security.passwords import credentials, proves
from antiphon.security.settings import Security
from tests.api.asking import call
from tests.dashboard.looking import page, send, served
from tests.dashboard.test_rights_and_rows import basic
from tests.node.in_process import Nodes, eventually, in_virtual_time


def metadata(nodes: Nodes) -> Any:
    return nodes.nodes[0].gateway.metadata


@in_virtual_time
async def test_each_action_does_what_its_plan_says_and_a_dry_run_nothing() -> None:
    async with served(4) as nodes:
        gateway = nodes.nodes[0].gateway
        new = {"name": "flights", "shards": 2, "replicas": 3, "config": {"retention.ms": "9000"}}
        plan = (await call("/api/topics", new, dry_run="true")).json["plan"]
        assert [(one["what"], one["topic"], len(one["to_nodes"])) for one in plan["shards"]] == [
            ("made", "flights", 3)
        ] * 2
        assert (plan["settings"], plan["changed"]) == ({"retention.ms": "9000"}, 2)
        assert "flights" not in {one.name for one in metadata(nodes).topics}, "a dry run decides nothing"
        assert (await call("/api/topics", new)).json == {"done": True, "dry_run": False, "plan": None}
        made = gateway.topic("flights")
        assert [list(shard.ensemble) for shard in made.shards] == [one["to_nodes"] for one in plan["shards"]]
        again = await call("/api/topics", new, dry_run="true")
        assert (again.status, again.json["code"]) == (409, "topic_exists")

        path = "/api/topics/flights"
        change = {"config": {"retention.ms": None}, "shards": 3}
        plan = (await call(f"{path}/alter", change, dry_run="true")).json["plan"]
        assert ([one["shard"] for one in plan["shards"]], plan["settings"]) == ([2], {})
        assert (await call(f"{path}/alter", change)).json["done"]
        assert (len(gateway.topic("flights").shards), gateway.topic("flights").config) == (3, {})

        shard = gateway.topic("flights").shards[0]
        other = next(node for node in range(4) if node not in shard.ensemble)
        follower = next(node for node in shard.ensemble if node != shard.leader)
        move = {"from_node": follower, "to_node": other}
        (planned,) = (await call(f"{path}/shards/0/move", move, dry_run="true")).json["plan"]["shards"]
        assert planned["what"] == "moved"
        assert (await call(f"{path}/shards/0/move", move)).json["done"]
        await eventually(lambda: set(gateway.topic("flights").shards[0].ensemble) == set(planned["to_nodes"]))
        await eventually(lambda: not gateway.topic("flights").shards[0].goal)

        wanted = next(
            node for node in planned["to_nodes"] if node != gateway.topic("flights").shards[0].leader
        )
        elect = f"{path}/shards/0/elect"
        (planned,) = (await call(elect, {"node": wanted}, dry_run="true")).json["plan"]["shards"]
        assert planned["what"] == "elected"
        assert (await call(elect, {"node": wanted}, at=2)).json["done"]
        await eventually(lambda: gateway.topic("flights").shards[0].leader == wanted)

        drained = (await call("/api/nodes/3/drain", {}, dry_run="true")).json["plan"]
        assert drained["changed"] > 0
        assert all(3 in one["nodes"] and 3 not in one["to_nodes"] for one in drained["shards"])
        assert not metadata(nodes).nodes[3].draining
        assert (await call("/api/nodes/3/drain", {})).json["done"]
        await eventually(lambda: metadata(nodes).nodes[3].draining)
        assert (await call("/api/nodes/3/drain", {"cancel": True})).json["done"]
        assert (await call("/api/rebalance", {}, dry_run="true")).status == 200
        assert (await call("/api/rebalance", {"leaders_only": True})).json["done"]
        refused = await call("/api/nodes/0/remove", {})
        assert (refused.status, "votes in" in refused.json["detail"]) == (400, True)
        assert (await call("/api/nodes/1/scrub", {})).json["done"]
        place = {"nodes": list(gateway.topic("flights").shards[1].ensemble)}
        assert (await call(f"{path}/shards/1/place", place, dry_run="true")).json["plan"]["changed"] == 0

        assert (await call(f"{path}/delete", {}, dry_run="true")).json["plan"]["changed"] == 3
        assert (await call(f"{path}/delete", {})).json["done"]
        await eventually(lambda: "flights" not in {one.name for one in metadata(nodes).topics})


@in_virtual_time
async def test_a_split_is_planned_and_carried_out() -> None:
    async with served(1) as nodes:
        await call("/api/topics", {"name": "t", "kind": "table"})
        path = "/api/topics/t/shards/0/split"
        (planned,) = (await call(path, {}, dry_run="true")).json["plan"]["shards"]
        assert (planned["what"], planned["shard"], planned["shard_id"]) == ("made", 1, -1)
        assert len(nodes.nodes[0].gateway.topic("t").shards) == 1
        assert (await call(path, {})).json["done"]
        assert len(nodes.nodes[0].gateway.topic("t").shards) == 2


@in_virtual_time
async def test_a_rehearsal_is_refused_as_the_coordinator_would() -> None:
    async with served(3) as nodes:
        gateway = nodes.nodes[0].gateway
        await gateway.create_topic(CreateTopic("t"))
        config = CoordinatorConfig("test")
        for request, error in (
            (CreateTopic("t"), TopicExistsError),
            (ElectLeader(999), UnknownShardError),
            (DrainNode(9), InvalidRequestError),
        ):
            with pytest.raises(error):
                rehearse(config, gateway.metadata, request)
        assert rehearse(config, gateway.metadata, CreateTopic("u", Kind.TABLE, 2, profile="")).changed == 2


SECURE = Security(authentication=True, super_users=["User:root"])
PATHS = {
    "topic": "secret",
    "table": "tabled",
    "node": "0",
    "group": "others",
    "shard": "0",
    "user": "root",
    "subscription": "s",
}
SHOWS_LESS = {"list_topics", "list_tables", "list_shards", "list_sessions", "list_groups"}


def path_of(route: routes.Route) -> str:
    path = route.path
    for name in route.in_path:
        path = path.replace("{" + name + "}", PATHS[name])
    return path


BODIES: dict[str, Any] = {
    "create_topic": {"name": "hers-not"},
    "move_replica": {"from_node": 0, "to_node": 1},
    "place_replicas": {"nodes": [0]},
    "alter_node_settings": {"settings": {"log_level": "debug"}},
    "alter_settings": {"settings": {"log_level": "debug"}},
    "put_subscription": {"metrics": "*"},
    "set_password": {"password": "another"},
    "alter_acls": {"add": [{"principal": "User:eve", "operation": "all", "name": "*"}]},
    "alter_quota": {"user": "eve", "limits": {"producer_byte_rate": 1e9}},
}


@in_virtual_time
async def test_every_operation_asks_for_the_rights_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
    hashed: list[str] = []  # which takes milliseconds: not for who may not
    monkeypatch.setattr("antiphon.http.api.actions.credential", lambda name, _: hashed.append(name))
    async with served(1, security=SECURE) as nodes:
        gateway = nodes.nodes[0].gateway
        for user in ("root", "eve"):
            await gateway.administer(AlterUser(user, credentials(f"of {user}")))
        await gateway.administer(AlterAcls((Acl("User:eve", Resource.TOPIC, "hers", Operation.READ),)))
        for name, kind in (("hers", Kind.TOPIC), ("secret", Kind.TOPIC), ("tabled", Kind.TABLE)):
            await gateway.create_topic(CreateTopic(name, kind))
        await eventually(lambda: "eve" in gateway.access.users)
        eve, root = ({"Authorization": basic(user, f"of {user}")} for user in ("eve", "root"))
        before = gateway.metadata
        for route in routes.ROUTES:
            body = None if route.method == "GET" else BODIES.get(route.name, {})
            assert (await call(path_of(route), body)).status == 401, route
            wrong = {"Authorization": basic("eve", "guess")}
            assert (await call(path_of(route), body, headers=wrong)).status == 401
            said = await call(path_of(route), body, headers=eve)
            assert said.status == (200 if route.name in SHOWS_LESS else 403), (route, said)
            query: dict[str, Any] = {} if body is None else {"dry_run": "true"}
            dry = await call(path_of(route), body, headers=eve, **query)
            assert dry.status == said.status, "a plan tells what the action would change"
            if route.name in SHOWS_LESS:
                assert {one.get("name", one.get("topic")) for one in said.json["items"]} <= {"hers"}
            if route.method == "GET":
                assert (await call(path_of(route), headers=root)).status == 200
        assert gateway.metadata.topics == before.topics, "nothing of it happened"
        assert not hashed
        assert (await call("/api/topics/none", headers=eve)).status == 403, (
            "nor is she told what there is not"
        )
        assert (await call("/api/topics/hers/records", headers=eve)).status == 200
        assert (await page("/api/openapi.json")).status == 401
        for mine in ("/api/openapi.json", "/api"):
            assert (await page(mine, Authorization=eve["Authorization"])).status == 200
        users = (await call("/api/users", headers=root)).json
        assert users["items"][0] == {"name": "eve", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}


@in_virtual_time
async def test_users_lists_and_quotas_are_changed_and_a_dry_run_says_what_is_wrong() -> None:
    async with served(2) as nodes:
        access = nodes.nodes[1].gateway.access

        async def tried(path: str, body: dict[str, Any], of: Any) -> None:
            before = of()
            dry = await call(path, body, dry_run="true")
            assert dry.json == {"done": False, "dry_run": True, "plan": None}, dry
            assert of() == before
            assert (await call(path, body)).json == {"done": True, "dry_run": False, "plan": None}
            await eventually(lambda: of() != before)

        await tried("/api/users/ann/password", {"password": "s3cret"}, lambda: dict(access.users))
        assert proves(access.users["ann"].credentials[0], "s3cret")
        narrow = {"password": "an0ther", "mechanisms": ["SCRAM-SHA-512"]}
        await tried("/api/users/ann/password", narrow, lambda: dict(access.users))
        (kept,) = access.users["ann"].credentials
        assert (kept.mechanism, proves(kept, "an0ther")) == ("SCRAM-SHA-512", True), (
            "the old one is good nowhere"
        )
        entry = {"principal": "User:ann", "operation": "read", "name": "t", "pattern": "prefixed"}
        of_cluster = {"principal": "User:ann", "operation": "describe", "resource": "cluster"}
        await tried("/api/acls", {"add": [entry, of_cluster]}, lambda: set(access.acls))
        assert set(access.acls.values()) == {
            Acl("User:ann", Resource.TOPIC, "t", Operation.READ, Pattern.PREFIXED),
            Acl("User:ann", Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE),
        }
        await tried("/api/acls", {"remove": [entry]}, lambda: set(access.acls))
        assert len(access.acls) == 1
        limits: dict[str, Any] = {"producer_byte_rate": 1000, "connections": 3}
        await tried("/api/quotas", {"user": "ann", "limits": limits}, lambda: dict(access.quotas))
        limits = {"producer_byte_rate": None, "consumer_byte_rate": 7}
        await tried("/api/quotas", {"user": "ann", "limits": limits}, lambda: dict(access.quotas))
        assert list(access.quotas.values()) == [Quota("ann", consumer_byte_rate=7, connections=3)]
        of_address = {"ip": "::ffff:10.0.0.1", "limits": {"connection_creation_rate": 5}}
        await tried("/api/quotas", of_address, lambda: dict(access.quotas))
        assert (await call("/api/quotas")).json["items"][1]["ip"] == "10.0.0.1"
        await tried("/api/users/ann/remove", {}, lambda: dict(access.users))

        for path, body, words in (
            ("/api/users/ann/remove", {}, "no user 'ann'"),
            ("/api/users/__ann/password", {"password": "x"}, "do not begin with"),
            ("/api/users/ann/password", {"password": "x", "mechanisms": ["PLAIN"]}, "mechanisms"),
            ("/api/acls", {"add": [{**entry, "principal": "ann"}]}, "no principal"),
            ("/api/acls", {"add": [{**entry, "name": ""}]}, "the name of a resource"),
            ("/api/quotas", {"user": "ann", "limits": {"speed": 1}}, "producer_byte_rate"),
            ("/api/quotas", {"ip": "10.0.0.1", "limits": {"connections": 1}}, "connections"),
            ("/api/quotas", {"limits": {"connections": 1}}, ""),
        ):
            for refused in (await call(path, body), await call(path, body, dry_run="true")):
                assert refused.status in {400, 404, 422}, (path, body, refused)
                assert words in refused.json["detail"], refused
        wrong = await call("/api/acls", {"add": [{**entry, "operation": "fly"}]})
        assert (wrong.status, "operation" in wrong.json["detail"]) == (400, True), wrong


WRONG_QUERIES = [
    ("/api/topics", "limit=5000", "limit"),
    ("/api/topics", "limit=0", "limit"),
    ("/api/topics", "limit=x", "limit"),
    ("/api/topics", "start=-1", "start"),
    ("/api/topics", "start=99999999999999999999999999", "start"),
    ("/api/topics", "start=1&start=2", "start"),
    ("/api/topics", "kind=queue", "kind"),
    ("/api/topics", "internal=perhaps", "internal"),
    ("/api/topics", "colour=red", "colour"),
    ("/api/topics", "q=" + "x" * 1_025, "q"),
    ("/api/topics", "q=%ff%00", None),
    ("/api/topics", "&".join(f"a{n}=1" for n in range(60)), None),
    ("/api/nodes/x", "", "node"),
    ("/api/nodes/-1", "", "node"),
    ("/api/topics/t/records", "offset=1&timestamp_ms=1", "timestamp_ms"),
    ("/api/topics/t/records", "max_bytes=99999999", "max_bytes"),
    ("/api/tables/default/rows", "key=a&key_hex=61", "key_hex"),
    ("/api/tables/default/rows", "after=zz", "after"),
    ("/api/tables/default/rows", "version=1", "version"),
    ("/api/tables/default/rows", "key=a&version=1&as_of=1", "version"),
    ("/api/sessions", "after=..", "after"),
]


@in_virtual_time
async def test_wrong_parameters_say_what_was_asked_and_what_is_taken() -> None:
    async with served(1) as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("t"))
        for path, query, parameter in WRONG_QUERIES:
            found = await page(f"{path}?{query}")
            told = json.loads(found.text)
            assert (found.status, told["parameter"]) == (400, parameter), (path, query, told)
            assert found.headers["content-type"] == "application/problem+json"
            assert len(told["detail"]) > 20
            assert len(found.text) < 2_000, "what was asked is not repeated at any length"
        for path, status in (
            ("/api/none", 404),
            ("/api/topics/none", 404),
            ("/api/nodes/77", 404),
            ("/api/topics/t/records?shard=7", 404),
            ("/api/tables/t/rows", 400),
            ("/api/topics/%ff", 400),
            ("/api/topics/a%2Fb%00", 404),
            ("/api/topics/t/", 404),
        ):
            assert (await page(path)).status == status, path


BAD_BODIES: list[tuple[bytes, str, int]] = [
    (b"{", "application/json", 400),
    (b'{"name": 5}', "application/json", 400),
    (b'{"name": "x", "colour": 1}', "application/json", 400),
    (b'{"name": "x", "shards": 1000000}', "application/json", 400),
    (b'{"name": "__groups"}', "application/json", 400),
    (b'{"name": "no/name"}', "application/json", 400),
    (b"[" * 5_000, "application/json", 400),
    (b'{"name": "\xff"}', "application/json", 400),
    (b'{"name": "x"}', "text/plain", 415),
    (b"name=x", "application/x-www-form-urlencoded", 415),
    (b'{"name": "x"}', "", 415),
]


@in_virtual_time
async def test_what_other_sites_and_broken_programs_send_changes_nothing() -> None:
    async with served(1) as nodes:
        before = metadata(nodes).topics
        for content, kind, status in BAD_BODIES:
            head = f"POST /api/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            found = await send(head.encode() + content)
            assert (found.status, json.loads(found.text)["status"]) == (status, status), (content, found)
        body = {"name": "x"}
        chunks = b"POST /api/topics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        chunks += b"Content-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        for headers, status in (
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "evil.example:7480"}, 403),
        ):
            said = await call("/api/topics", body, headers=headers)
            assert said.status == status, headers
        assert (await send(chunks)).status in {403, 411}
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "POST"):
            said = await call("/api/cluster", method=method)
            assert (said.status, said.headers["allow"]) == (405, "GET, HEAD")
        assert [one.name for one in metadata(nodes).topics] == [one.name for one in before]
        same = {"Origin": "http://node-0:7480"}
        assert (await call("/api/topics", body, headers=same)).json["done"]


@in_virtual_time
async def test_quotas_count_what_actions_make_and_say_so_as_a_problem() -> None:
    async with served(1) as nodes:
        gateway = nodes.nodes[0].gateway
        await gateway.administer(AlterQuota(Quota("ANONYMOUS", controller_mutation_rate=1.0)))
        await eventually(lambda: bool(gateway.access.quotas))
        assert (await call("/api/topics", {"name": "t", "shards": 60})).json["done"]
        said = await call("/api/topics")
        assert (said.status, said.json["code"], int(said.headers["retry-after"]) > 0) == (
            429,
            "throttled",
            True,
        )
