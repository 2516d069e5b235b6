"""Mutants of what bounds single clients: quotas of time and of connections, logins that end, connections of a listener, and
topics that are made on demand.
"""

from typing import Any, Final

from antiphon.gateway.addresses import Addresses
from antiphon.gateway.quotas import Quotas
from antiphon.http.connection import HttpConnection
from antiphon.http.listener import HttpListener
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.handlers.metadata import MetadataHandler
from antiphon.kafka.listener import KafkaListener
from antiphon.native import listener as native_listener
from antiphon.native.listener import NativeListener
from antiphon.oxia.calls import OxiaCalls
from antiphon.oxia.connection import OxiaConnection
from antiphon.oxia.listener import OxiaListener
from antiphon.security.authenticator import Authenticator
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_TENANTS: Final[dict[str, Any]] = {**CALM, **only(appenders=1, putters=1, tenants=1, fault_ms=4_000)}

_CROWDS: Final[dict[str, Any]] = {**CALM, **only(appenders=1, putters=1, crowds=1, fault_ms=4_000)}

TENANT_MUTANTS: Final = (
    ClusterMutant(
        "tenant-takes-all-the-time",
        "whoever has used up his share of a node's time does not have to wait",
        Edit(Quotas, "charge", "REQUEST_WAIT_S_MAX if use is Use.REQUEST", "0.0 if use is Use.REQUEST"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-is-only-told",
        "a client of Kafka's that has to wait is told so, and served at once all the same",
        Edit(Answer, "throttle", "self.connection.mute(wait_s)", "pass"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-waits-for-another",
        "which limit counts is decided once for all users of the same program, by whoever asks first",
        Edit(
            Quotas,
            "_limit",
            "question = (use, *payer)",
            'question = (use, "" if use is Use.REQUEST else payer.user, payer.client_id)',
        ),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-has-one-connection-more",
        "a user gets one connection more than the quota says",
        Edit(Quotas, "occupy", "count < limit.rate", "count <= limit.rate"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-keeps-places",
        "a connection of Kafka's listener that ends leaves its place among those of its user taken",
        Edit(Connection, "connection_lost", "self._place.leave()", "pass"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-places-are-not-of-http",
        "the HTTP listener counts the connections of a user, and refuses none of them",
        Edit(HttpConnection, "_answer_as", "if crowd is not None:", "if False:"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-keeps-places-of-http",
        "a connection of the HTTP listener that ends leaves its place among those of its user taken",
        Edit(HttpConnection, "connection_lost", "self._place.leave()", "pass"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-is-not-told-why-by-http",
        "the HTTP listener does not say why a connection of a user who has too many is refused",
        Edit(HttpConnection, "_answer_as", 'f"{crowd.message}\\n".encode()', 'b"try again later\\n"'),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-places-are-not-of-oxia",
        "Oxia's listener counts the connections of a user, and refuses none of them",
        Edit(OxiaCalls, "_rights", "if crowd is not None:", "if False:"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-keeps-places-of-oxia",
        "a connection of Oxia's listener that ends leaves its place among those of its user taken",
        Edit(OxiaConnection, "_drop_all", "self.place.leave()", "pass"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-stays-when-removed",
        "who has logged in goes on after he was removed",
        Edit(
            Authenticator,
            "holds",
            "user is not None and user.credential(proof.mechanism) == proof",
            "user is None or user.credential(proof.mechanism) == proof",
        ),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-stays-with-old-password",
        "who has logged in goes on when his password is another one",
        Edit(
            Authenticator,
            "holds",
            "user is not None and user.credential(proof.mechanism) == proof",
            "user is not None",
        ),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-native-looks-at-nobody",
        "the native listener does not look whether those who have logged in are still users",
        Edit(native_listener, "_why_hang_up", "if not client.holds:", "if False:"),
        options=_TENANTS,
    ),
    ClusterMutant(
        "tenant-old-password-logs-in",
        "a node looks a user up once, and goes on with the password that he had then",
        Edit(
            Authenticator,
            "credential",
            "user = self._book.users.get(name)",
            'user = vars(self).setdefault("looked_up", {}).setdefault(name, self._book.users.get(name))',
        ),
        options=_TENANTS,
    ),
    ClusterMutant(
        "crowd-has-all-places",
        "one address may have all connections that a listener takes",
        Edit(Addresses, "enter", "or self._held[host] <= self.most", "or True"),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-beyond-the-listener",
        "Kafka's listener takes more connections than it may have",
        Edit(KafkaListener, "connected", "len(self._connections) >= config.connections_max", "False"),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-beyond-http",
        "the HTTP listener takes more connections than it may have",
        Edit(HttpListener, "opened", "and len(self.open_connections) <= self.connections_max", ""),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-beyond-oxia",
        "Oxia's listener takes more connections than it may have",
        Edit(
            OxiaListener,
            "opened",
            "len(self.open_connections) > self.config.connections_max or not fits",
            "not fits",
        ),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-has-http-for-itself",
        "one address may have all connections that the HTTP listener takes",
        Edit(
            HttpListener,
            "opened",
            "self.addresses.enter(connection.host) and",
            "(self.addresses.enter(connection.host) or True) and",
        ),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-of-oxia-is-never-gone",
        "connections of Oxia's that have ended stay counted as those of their address",
        Edit(OxiaListener, "closed", "self._addresses.leave(connection.host)", "pass"),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-counts-who-has-left",
        "connections that have ended stay counted as those of their address",
        Edit(Addresses, "leave", "self._held[host] -= 1", "pass"),
        options=_CROWDS,
    ),
    ClusterMutant(
        "crowd-shuts-nodes-out",
        "a node is turned away like a client where a listener is full",
        (
            Edit(NativeListener, "opened", "elif beyond > PEER_ROOM:", "elif beyond > 0:"),
            Edit(NativeListener, "opened", "elif not fits and (", "elif not fits or ("),
        ),
        options={**_CROWDS, "peer_key": False},
    ),
    ClusterMutant(
        "crowd-is-not-told-of",
        "Kafka's listener turns connections away, and its log says nothing of it",
        Edit(KafkaListener, "_refused", "if now_s >= self._tell_refusals_s:", "if False:"),
        options=_CROWDS,
    ),
    ClusterMutant(
        "demand-knows-no-bound",
        "topics are made on demand however many there are",
        Edit(
            MetadataHandler,
            "_start_creating",
            "len(self._gateway.metadata.topics) + len(self._creating) >= self._defaults.topics_max",
            "False",
        ),
        options=_CROWDS,
    ),
    ClusterMutant(
        "demand-is-never-over",
        "a topic that was made on demand counts as being made for good",
        Edit(MetadataHandler, "_start_creating", "self._creating.pop(name, None)", "None"),
        options=_CROWDS,
    ),
)
