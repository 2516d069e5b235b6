"""Subscriptions to metrics of Kafka's clients over the API and on the dashboard: told by any node, put, deleted, refused."""

import re
from typing import Any
from urllib.parse import urlencode

from antiphon.model.client_metrics import SUBSCRIPTIONS_MAX, AlterSubscription
from tests.api.asking import call
from tests.dashboard.looking import page, served
from tests.dashboard.test_actions import carried, hidden, post
from tests.node.in_process import eventually, in_virtual_time

PATH = "/api/client-metrics"
SLOW = {"name": "slow", "metrics": "org.apache.kafka.producer.", "interval_ms": 300_000, "match": ""}


@in_virtual_time
async def test_subscriptions_are_put_told_by_any_node_and_deleted() -> None:
    async with served(3) as nodes:
        known = nodes.nodes[2].gateway.subscriptions
        assert (await call(PATH)).json["items"] == []
        body: dict[str, Any] = {"metrics": SLOW["metrics"], "match": "client_id=a.*", "interval_ms": 5000}
        dry = (await call(f"{PATH}/slow", body, dry_run="true")).json
        assert (dry["done"], dry["plan"]["changed"]) == (False, 0)
        settings = {"interval.ms": "5000", "match": "client_id=a.*", "metrics": SLOW["metrics"]}
        assert dry["plan"]["settings"] == settings
        assert not known
        assert (await call(f"{PATH}/slow", body, at=1)).json == {"done": True, "dry_run": False, "plan": None}
        await eventually(lambda: "slow" in known)
        (told,) = (await call(PATH, at=2)).json["items"]
        assert told == {**SLOW, "interval_ms": 5000, "match": "client_id=a.*"}
        assert (await call(f"{PATH}/slow", {"metrics": SLOW["metrics"]}, at=2)).json["done"]
        assert (await call(PATH, at=2, q="LOW")).json["items"] == [SLOW], "what is not said is as by default"
        assert (await call(PATH, at=2, q="other")).json["items"] == []
        dry = (await call(f"{PATH}/slow/delete", {}, at=2, dry_run="true")).json
        assert (dry["done"], dry["plan"]["settings"], "slow" in known) == (False, {}, True)
        assert (await call(f"{PATH}/slow/delete", {}, at=2)).json["done"]
        assert (await call(PATH, at=2)).json["total"] == 0


@in_virtual_time
async def test_what_cannot_be_subscribed_to_is_refused_before_and_after_the_plan() -> None:
    async with served(1) as nodes:
        gateway = nodes.nodes[0].gateway
        for number in range(SUBSCRIPTIONS_MAX):
            await gateway.administer(AlterSubscription(f"s{number}", {"metrics": "*"}))
        for path, body, says in (
            (f"{PATH}/one-more", {"metrics": "*"}, f"there are {SUBSCRIPTIONS_MAX} subscriptions"),
            (f"{PATH}/s0", {"metrics": "a.,a."}, "each once"),
            (f"{PATH}/s0", {"metrics": "*", "match": "colour=red"}, "is no ATTRIBUTE=REGEX"),
            (f"{PATH}/s0", {"metrics": "*", "match": "client_id=("}, "not a regular expression"),
            (f"{PATH}/s0", {"metrics": "*", "interval_ms": 99}, "interval_ms"),
            (f"{PATH}/s0", {"metrics": ""}, "metrics"),
            (f"{PATH}/s0", {}, "metrics"),
            (f"{PATH}/none/delete", {}, "there is no subscription 'none'"),
        ):
            for dry_run in ("true", "false"):
                said = await call(path, body, dry_run=dry_run)
                assert (said.status, says in said.json["detail"]) == (400, True), (path, body, said)
        assert all(one.values == {"metrics": "*"} for one in gateway.subscriptions.values())


@in_virtual_time
async def test_the_dashboard_lists_them_and_has_a_form_for_each() -> None:
    async with served(1) as nodes:
        known = nodes.nodes[0].gateway.subscriptions
        empty = (await page("/ui/client-metrics")).text
        assert "Nothing is asked of clients" in empty
        assert '<a href="/ui/client-metrics" data-key="m" aria-current="page">' in empty
        fields = {"subscription": "slow", "metrics": "a.,b.", "interval_ms": "60000", "match": ""}
        planned = await post("put_subscription", "plan", fields)
        for words in ("metrics=a.,b.", "interval.ms=60000"):
            assert words in planned.text
        assert not known
        done = await post("put_subscription", "carry", hidden(planned))
        assert done.headers["location"] == "/ui/client-metrics?did=put_subscription"
        text = (await page(done.headers["location"])).text
        assert "Put subscription: carried out" in text
        assert re.search(
            r"slow</th><td><code>a\.,b\.</code></td><td>[^/]*every client</span></td><td class=\"n\">60.000 ms",
            text,
        )
        asked = urlencode({"subscription": "slow", "metrics": "a.,b.", "interval_ms": 60000, "match": ""})
        (change,) = re.findall(r'href="(/ui/actions/put_subscription\?[^"]*)"', text)
        assert change.replace("&amp;", "&") == f"/ui/actions/put_subscription?{asked}"
        form = (await page(change.replace("&amp;", "&"))).text
        assert 'name="metrics" value="a.,b."' in form
        assert "No name has “fast” in it" in (await page("/ui/client-metrics?q=fast")).text
        refused = await post("put_subscription", "plan", {**fields, "match": "colour=red"})
        assert (refused.status, "colour=red" in refused.text) == (400, True)
        assert (
            "Delete subscription slow"
            in (await page("/ui/actions/delete_subscription?subscription=slow")).text
        )
        assert (await carried("delete_subscription", subscription="slow")).status == 303
        assert not known
