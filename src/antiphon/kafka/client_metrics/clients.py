"""The clients that ask this node which metrics are wanted, and what they pushed last.

Everything is bounded: clients, figures of one of them, figures of all. A client that has been silent for three of its
intervals is forgotten. Where there are too many, the one goes that has been silent for longest of the address that has
most: who makes up clients drives out its own.

A client's subscription follows from what the cluster's subscriptions say and from what the client says of itself. It has the
same id on every node, so a client may ask one node and push to another, also after a restart.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import structlog
from crc32c import crc32c

from antiphon.coordination.client_metrics import ALL_METRICS, Wanted, read
from antiphon.errors import InvalidRequestError
from antiphon.kafka import error_codes as code
from antiphon.kafka.client_metrics.exposition import NOTHING, Kept, Room, rendered
from antiphon.model.client_metrics import DEFAULTS, INTERVAL_MS, Subscription

CLIENTS_MAX: Final = 1_000
POINTS_MAX: Final = 20_000  # of all clients
CLIENT_POINTS_MAX: Final = 1_000
KEPT_BYTES_MAX: Final = (
    8 * 1024 * 1024
)  # of the lines of all clients' figures; one that Kafka's client pushes has 150
CLIENT_BYTES_MAX: Final = 1024 * 1024
SILENT_INTERVALS: Final = 3
LOOK_S: Final = 1.0  # between two looks for clients that are silent
DEFAULT_INTERVAL_MS: Final = int(DEFAULTS[INTERVAL_MS])
ASKS_AGAIN: Final = (code.UNKNOWN_SUBSCRIPTION_ID, code.UNSUPPORTED_COMPRESSION_TYPE)


class Subscribed(NamedTuple):
    """What is wanted of one client: prefixes of names in order, milliseconds between two pushes, and the id of that."""

    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int

    def wants(self, name: str) -> bool:
        """Is a metric of this name wanted?"""
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)


class Client:
    """One instance of a client. Times are of the monotonic clock, in seconds."""

    __slots__ = (
        "asked_s", "attributes", "error", "heard_s", "host", "instance", "is_terminating", "kept", "pushed_s", "subscribed",
        "version",
    )  # fmt: skip

    def __init__(self, instance: str, host: str, attributes: Mapping[str, str], now_s: float) -> None:
        self.instance = instance
        self.host = host
        self.attributes = dict(attributes)
        self.heard_s = now_s
        self.asked_s = self.pushed_s = float("-inf")
        self.is_terminating = False
        self.error = code.NONE  # of its last request
        self.kept = NOTHING  # of what it pushed last
        self.version = -1  # of the subscriptions from which `subscribed` follows
        self.subscribed = Subscribed((), DEFAULT_INTERVAL_MS, 0)

    @property
    def interval_s(self) -> float:
        """Between two pushes."""
        return self.subscribed.interval_ms / 1000

    def may_ask(self, now_s: float) -> bool:
        """May it ask for its subscription? Once an interval, and whenever it was told to."""
        if now_s - max(self.asked_s, self.pushed_s) < self.interval_s and self.error not in ASKS_AGAIN:
            return False
        self.asked_s = now_s
        return True

    def may_push(self, now_s: float) -> bool:
        """May it push? The first time after it asked, and once an interval."""
        if self.asked_s <= self.pushed_s and now_s - self.pushed_s < self.interval_s:
            return False
        self.pushed_s = now_s
        return True


class Clients:
    """See the module's text. `subscriptions`: those of the cluster, as this node knows them."""

    def __init__(self, subscriptions: Callable[[], Mapping[str, Subscription]]) -> None:
        self._subscriptions = subscriptions
        self._known: dict[str, Subscription] = {}
        self._wanted: list[Wanted] = []
        self._version = 0
        self._clients: dict[str, Client] = {}
        self._looked_s = float("-inf")
        self.point_count = self.kept_bytes = 0
        self.pushes = 0  # that were taken, since the start
        self.refusals = 0
        self.left_out = 0  # figures for which there was no room

    def __len__(self) -> int:
        return len(self._clients)

    def all(self, now_s: float) -> Iterable[Client]:
        """Those that are not silent."""
        self._look(now_s)
        return self._clients.values()

    def rendered(self, now_s: float) -> bytes:
        """What they pushed last, for Prometheus."""
        return rendered(client.kept.families for client in self.all(now_s))

    def client(self, instance: str, host: str, attributes: Mapping[str, str], now_s: float) -> Client:
        """A client that asks or pushes now, with its subscription as of now; one that is not known is from here on."""
        self._follow()
        if now_s - self._looked_s >= LOOK_S:
            self._look(now_s)
        found = self._clients.get(instance)
        if found is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._drop(self._most_superfluous())
            found = self._clients[instance] = Client(instance, host, attributes, now_s)
        found.heard_s = now_s
        if found.version != self._version:
            self._subscribe(found)
        return found

    def keep(self, client: Client, kept: Kept) -> None:
        """This is what a client pushed last. It is left out where others took the room while it was read."""
        room = self.room(client)
        if kept.points > room.points or kept.size_bytes > room.size_bytes:
            kept = Kept(0, 0, {}, kept.left_out + kept.points)
        self.left_out += kept.left_out
        if self._clients.get(client.instance) is not client:
            return  # forgotten meanwhile
        self.point_count += kept.points - client.kept.points
        self.kept_bytes += kept.size_bytes - client.kept.size_bytes
        client.kept = kept

    def forget(self, client: Client) -> None:
        """Keep nothing of what a client pushed."""
        self.keep(client, NOTHING)

    def room(self, client: Client) -> Room:
        """How much of a client may be kept: no more than half of that for which there is room."""
        points = POINTS_MAX - self.point_count + client.kept.points
        size_bytes = KEPT_BYTES_MAX - self.kept_bytes + client.kept.size_bytes
        return Room(min(CLIENT_POINTS_MAX, points // 2), min(CLIENT_BYTES_MAX, size_bytes // 2))

    def _follow(self) -> None:
        """The cluster's subscriptions are these now."""
        now = self._subscriptions()
        if now == self._known:
            return
        self._known = dict(now)
        self._version += 1
        self._wanted = []
        for subscription in self._known.values():
            try:
                self._wanted.append(read(subscription))
            except InvalidRequestError as error:  # a later version wrote it
                structlog.get_logger().warning(
                    "subscription_not_known", subscription=subscription.name, reason=error.message
                )

    def _subscribe(self, client: Client) -> None:
        wanted = [one for one in self._wanted if one.is_for(client.attributes)]
        names = {name for one in wanted for name in one.metrics}
        metrics = (ALL_METRICS,) if ALL_METRICS in names else tuple(sorted(names))
        interval_ms = min([DEFAULT_INTERVAL_MS, *(one.interval_ms for one in wanted)])
        subscribed = Subscribed(metrics, interval_ms, _id_of(metrics, interval_ms, client.instance))
        client.version = self._version
        if client.subscribed != subscribed:
            client.subscribed = subscribed
            client.asked_s = client.pushed_s = float("-inf")  # it may ask at once
        if not metrics:
            self.forget(client)

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        for client in list(self._clients.values()):
            if now_s - client.heard_s > SILENT_INTERVALS * client.interval_s:
                self._drop(client)

    def _drop(self, client: Client) -> None:
        self.forget(client)
        del self._clients[client.instance]

    def _most_superfluous(self) -> Client:
        host, _ = Counter(client.host for client in self._clients.values()).most_common(1)[0]
        of_host = (client for client in self._clients.values() if client.host == host)
        return min(of_host, key=lambda client: client.heard_s)


def _id_of(metrics: tuple[str, ...], interval_ms: int, instance: str) -> int:
    """An int32 that is the same wherever the same is wanted of the same client."""
    told = "\0".join((*metrics, str(interval_ms), instance)).encode()
    return int.from_bytes(crc32c(told).to_bytes(4, "big"), "big", signed=True)
