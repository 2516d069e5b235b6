"""Subscriptions to metrics of Kafka clients (KIP-714): which metrics are wanted, of which clients, and how often.

`__cluster` has each of them by its name, with values as text. Kafka's tools see them as settings of resources of type
CLIENT_METRICS. What they may say is checked where they are recorded (`coordination.client_metrics`).
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body

METRICS: Final = "metrics"
INTERVAL_MS: Final = "interval.ms"
MATCH: Final = "match"
DEFAULTS: Final = {METRICS: "", INTERVAL_MS: "300000", MATCH: ""}
"""Every setting of a subscription, with what it is where nobody says anything."""

CLIENT_ATTRIBUTES: Final = (
    "client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address",
    "client_source_port",
)  # fmt: skip
"""What `match` may look at."""

SUBSCRIPTIONS_MAX: Final = 100


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """What `__cluster` has of one subscription: values as text, by the settings' names. Without values there is none."""

    name: str
    values: dict[str, str]


class AlterSubscription(Body, frozen=True, array_like=True, tag=True):
    """Set values of a subscription (None: take one away); the others stay. It is gone when no value is left.

    `validate_only`: all is checked, and nothing changed. Answered when the asked node goes by it.
    """

    name: str
    config: Annotated[dict[str, str | None], Meta(max_length=len(DEFAULTS))] = {}
    validate_only: bool = False


class GetSubscriptions(Body, frozen=True, array_like=True, tag=True):
    """Ask a node for all subscriptions that it knows of. Answered by `SubscriptionsReply`."""


class SubscriptionsReply(Body, frozen=True, array_like=True, tag=True):
    """The subscriptions, in the order of names."""

    subscriptions: tuple[Subscription, ...] = ()


def replaced(name: str, metrics: str, interval_ms: int | None, match: str) -> AlterSubscription:
    """The request after which a subscription says this, and nothing of what it said before."""
    values = {METRICS: metrics, INTERVAL_MS: "" if interval_ms is None else str(interval_ms), MATCH: match}
    return AlterSubscription(name, {setting: value or None for setting, value in values.items()})


def removal(name: str) -> AlterSubscription:
    """The request after which there is no such subscription."""
    return AlterSubscription(name, dict.fromkeys(DEFAULTS))


def changed(before: Subscription, changes: dict[str, str | None]) -> Subscription:
    """What a subscription says after some changes, in the order of names."""
    after = {**before.values, **changes}
    kept = {name: value for name in sorted(after) if (value := after[name]) is not None}
    return Subscription(before.name, kept)


def put_subscription(book: dict[str, Subscription], entry: Subscription) -> bool:
    """Take over what a subscription says now; without values it is gone. False: it was so already."""
    before = book.get(entry.name)
    if not entry.values:
        return book.pop(entry.name, None) is not None
    book[entry.name] = entry
    return before != entry
