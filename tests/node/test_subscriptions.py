"""Subscriptions to clients' metrics: every node knows them, over restarts, and no older version passes them over."""

import pytest

from antiphon.coordination.cluster_records import SUBSCRIPTIONS_FORMAT
from antiphon.errors import InvalidRequestError
from antiphon.model.client_metrics import AlterSubscription, Subscription
from tests.node.in_process import cluster_of, eventually, in_virtual_time, take_for_earlier

SLOW = Subscription("slow", {"interval.ms": "5000", "metrics": "*"})


@in_virtual_time
async def test_it_holds_over_restarts_and_for_nodes_that_come_later() -> None:
    async with cluster_of(3) as nodes:
        await nodes.nodes[0].gateway.administer(
            AlterSubscription("slow", {**SLOW.values, "match": "client_id=a"})
        )
        await nodes.nodes[1].gateway.administer(AlterSubscription("slow", {"match": None}))
        await nodes.restart_all()
        known = [node.gateway.subscriptions for node in nodes.nodes.values()]
        await eventually(lambda: all(one == {"slow": SLOW} for one in known))
        nodes.kill(1)
        await nodes.nodes[0].gateway.administer(AlterSubscription("other", {"metrics": "a."}))
        late = await nodes.start(1)
        assert await late.joined(20)
        await eventually(lambda: late.gateway.subscriptions.keys() == {"slow", "other"})
        await late.gateway.administer(AlterSubscription("slow", dict.fromkeys(SLOW.values)))
        await eventually(lambda: nodes.nodes[2].gateway.subscriptions.keys() == {"other"})


@in_virtual_time
async def test_while_a_node_is_of_an_earlier_version_it_is_refused() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        take_for_earlier(node, SUBSCRIPTIONS_FORMAT - 1)
        for validate_only in (True, False):
            with pytest.raises(
                InvalidRequestError, match="nodes 0 are of a version that takes no metrics of clients"
            ):
                await node.gateway.administer(AlterSubscription("slow", {**SLOW.values}, validate_only))
        assert node.gateway.subscriptions == {}


@in_virtual_time
async def test_the_coordinator_checks_what_a_native_client_asks_for() -> None:
    async with cluster_of(1) as nodes:
        gateway = nodes.nodes[0].gateway
        cases: tuple[tuple[str, dict[str, str | None]], ...] = (
            ("", {"metrics": "*"}),
            ("s", {"push.ms": "1"}),
            ("s", {"interval.ms": "1"}),
            ("s", {"match": "client_id=("}),
        )
        for name, config in cases:
            with pytest.raises(InvalidRequestError):
                await gateway.administer(AlterSubscription(name, config))
        await gateway.administer(AlterSubscription("s", {"metrics": "*"}, validate_only=True))
        assert gateway.subscriptions == {}
