"""Subscriptions to metrics of Kafka's clients: which there are."""

from antiphon.http.api.answers import Page, SubscriptionInfo
from antiphon.http.api.asked import Filtered
from antiphon.http.api.call import Call, page
from antiphon.model.access import Operation, Resource
from antiphon.model.client_metrics import DEFAULTS, INTERVAL_MS, MATCH, METRICS, Subscription


async def list_subscriptions(call: Call, asked: Filtered) -> Page[SubscriptionInfo]:
    """Subscriptions to metrics of Kafka's clients, by name."""
    call.rights.require(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
    wanted = asked.q.lower()
    found = [one for name, one in sorted(call.gateway.subscriptions.items()) if wanted in name.lower()]
    return page(found, asked, info_of)


def info_of(one: Subscription) -> SubscriptionInfo:
    """What a subscription says, with what it does not say as by default."""
    values = {**DEFAULTS, **one.values}
    return SubscriptionInfo(
        name=one.name,
        metrics=values[METRICS],
        interval_ms=int(values[INTERVAL_MS]),
        match=values[MATCH],
    )
