"""Settings of nodes over the API: those of each node, what is set in the cluster, and changes with their plans."""

from functools import partial

import pytest

from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Resource
from antiphon.model.node_settings import NODE_SETTINGS
from antiphon.model.requests import AlterAcls, AlterUser
from antiphon.security.passwords import credentials
from tests.api.asking import call
from tests.dashboard.looking import served
from tests.dashboard.test_rights_and_rows import SECURE, basic
from tests.node.in_process import eventually, in_virtual_time


@in_virtual_time
async def test_settings_are_told_with_their_sources_by_any_node_and_changed_for_one_or_all() -> None:
    async with served(3) as nodes:
        told = (await call("/api/nodes/2/settings", at=1)).json
        assert [one["name"] for one in told["items"]] == list(NODE_SETTINGS)
        first = {one["name"]: one for one in told["items"]}
        backoff = first["cleaner.backoff_ms"]
        assert (backoff["kafka_name"], backoff["value"]) == ("log.cleaner.backoff.ms", "15000")
        assert backoff["source"] == "default"
        assert (await call("/api/settings")).json["items"] == []

        wanted = {"settings": {"cleaner.backoff_ms": "700", "log.flush.interval.ms": "9"}}
        plan = (await call("/api/settings", wanted, dry_run="true")).json["plan"]
        assert plan["settings"] == {"cleaner.backoff_ms": "700", "flush_interval_ms": "9"}
        assert (plan["changed"], (await call("/api/settings")).json["total"]) == (0, 0)
        assert (await call("/api/settings", wanted)).json["done"]
        own = {"settings": {"cleaner.backoff_ms": "800"}}
        assert (await call("/api/nodes/2/settings", own, at=2)).json["done"]
        assert (await call("/api/settings", at=2)).json["items"] == [
            {"node": None, "name": "cleaner.backoff_ms", "value": "700"},
            {"node": None, "name": "flush_interval_ms", "value": "9"},
            {"node": 2, "name": "cleaner.backoff_ms", "value": "800"},
        ]
        assert [one["node"] for one in (await call("/api/settings", at=2, q="CLEANER")).json["items"]] == [
            None,
            2,
        ]
        await eventually(lambda: len(nodes.nodes[0].gateway.settings.entries) == 2)
        told = (await call("/api/nodes/2/settings")).json["items"]
        assert next(one["values"] for one in told if one["name"] == "cleaner.backoff_ms") == [
            {"value": "800", "source": "node"},
            {"value": "700", "source": "all"},
            {"value": "15000", "source": "default"},
        ]
        assert (await call("/api/nodes/2/settings", {"settings": {"cleaner.backoff_ms": None}})).json["done"]
        assert (await call("/api/settings")).json["total"] == 2


@in_virtual_time
async def test_settings_that_cannot_be_are_refused_by_name() -> None:
    async with served(1) as nodes:
        for path in ("/api/settings", "/api/nodes/0/settings"):
            for settings, says in (
                ({"log_level": "loud"}, "loud"),
                ({"data_dir": "/"}, "restart"),
                ({"cleaner.backoff_ms": "1", "log.cleaner.backoff.ms": "2"}, "named twice"),
            ):
                for dry_run in ("true", "false"):
                    said = await call(path, {"settings": settings}, dry_run=dry_run)
                    assert (said.status, said.json["code"]) == (400, "invalid_request")
                    assert says in said.json["detail"]
            assert (await call(path, {"settings": {}})).status == 400
        assert (await call("/api/nodes/7/settings")).status == 404
        for dry_run in ("true", "false"):
            refused = await call(
                "/api/nodes/7/settings", {"settings": {"log_level": "info"}}, dry_run=dry_run
            )
            assert (refused.status, "7" in refused.json["detail"]) == (400, True)
        assert nodes.nodes[0].gateway.settings.entries == {}


@in_virtual_time
async def test_settings_take_the_rights_on_configs_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
    async with served(1, security=SECURE) as nodes:
        gateway = nodes.nodes[0].gateway
        await gateway.administer(AlterUser("ann", credentials("secret")))
        await eventually(lambda: "ann" in gateway.access.users)
        login = {"Authorization": basic("ann", "secret")}
        change = {"settings": {"log_level": "debug"}}

        async def statuses() -> list[int]:
            return [
                (await call("/api/settings", headers=login)).status,
                (await call("/api/nodes/0/settings", headers=login)).status,
                (await call("/api/settings", change, headers=login, dry_run="true")).status,
                (await call("/api/nodes/0/settings", change, headers=login)).status,
            ]

        def has(count: int) -> bool:
            return len(gateway.access.acls) == count

        for count, operation, expected in (
            (1, Operation.DESCRIBE, [403, 403, 403, 403]),
            (2, Operation.DESCRIBE_CONFIGS, [200, 200, 403, 403]),
            (3, Operation.ALTER_CONFIGS, [200, 200, 200, 200]),
        ):
            acl = Acl("User:ann", Resource.CLUSTER, CLUSTER_NAME, operation)
            await gateway.administer(AlterAcls((acl,)))
            await eventually(partial(has, count))
            assert await statuses() == expected, operation
