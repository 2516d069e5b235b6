"""A node with its listeners, and the thread that finishes what Spark's drivers leave undone: all that one server runs.

Everybody who runs a node makes one of these: the process of `antiphon up`, tests, the simulator. They differ in the disk,
the WAL and the store that they hand in.
"""

import socket
from functools import partial
from typing import TYPE_CHECKING

from antiphon.gateway.password_thread import PasswordThread
from antiphon.gateway.quotas import Quotas
from antiphon.log.wal_thread import WalThread
from antiphon.node.node import Node
from antiphon.security.authenticator import Authenticator
from antiphon.server.client_memory import (
    add_capacity_gauges,
    add_connection_gauges,
    add_memory_gauges,
    add_quota_gauges,
    add_transaction_gauges,
    memory_for_clients,
)
from antiphon.server.epoch_finisher import start_epoch_finisher
from antiphon.server.first_user import make_first_user
from antiphon.server.followed_settings import KeptSettings, transaction_config
from antiphon.server.group_lag import add_group_lag
from antiphon.server.kafka_gauges import add_kafka_gauges
from antiphon.server.listeners import Guards, clients_tls, start_http, start_kafka, start_oxia
from antiphon.server.native_listeners import clients_listener, nodes_listener, nodes_tls
from antiphon.server.secrets import settings_of, shared_secret
from antiphon.transactions.service import TransactionService

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.http.listener import HttpListener
    from antiphon.kafka.listener import KafkaListener
    from antiphon.log.disk import Disk
    from antiphon.log.wal import Wal
    from antiphon.native.listener import NativeListener
    from antiphon.node.config import NodeConfig
    from antiphon.node.injected_faults import InjectedFaults
    from antiphon.oxia.listener import OxiaListener
    from antiphon.security.tokens import KeySource
    from antiphon.table.store import StoreEngine

Sockets = dict[str, socket.socket]
"""Sockets that listen already, by listener: `native`, `kafka`, `http`, `oxia`, `peer`."""


class Server:
    """See the module's text. `start()`, then `stop()`, on the event loop that it is made on.

    Args:
        config: what the node is told.
        sockets: used in place of the config's ports.
        disk: where all files of the node are; the real one by default.
        faults: what a test does to this node.
        make_wal, stores: what writes the logs, and what keeps tables.
        token_keys: where the keys are that tokens are checked with; by default the file that the config names.
        finishes_epochs: run the thread that finishes staged epochs of Spark's writes; not where there are no threads.

    Attributes:
        node: the node.
        authenticator: who its clients are, and what they may do.
        memory: what clients hold of the node's memory.
        quotas: what they have used of what they may.
        transactions: this node's part in transactions, whichever listeners it has.
        native, kafka, http, oxia: its listeners; the last three are None where the config wants none, and before `start()`.
        peers: its listener for other nodes, where they prove that they are nodes.
    """

    def __init__(
        self,
        config: "NodeConfig",
        sockets: Sockets | None = None,
        disk: "Disk | None" = None,
        faults: "InjectedFaults | None" = None,
        make_wal: "Callable[..., Wal]" = WalThread,
        stores: "StoreEngine | None" = None,
        *,
        token_keys: "KeySource | None" = None,
        finishes_epochs: bool = True,
    ) -> None:
        node = self.node = Node(config, disk, faults, make_wal, stores)
        config = node.config  # its own: some settings change while it runs
        self.authenticator = Authenticator(
            settings_of(config) if token_keys is None else config.security,
            node.gateway.access,
            node.metrics,
            shared_secret(config, node.disk),
            token_keys,
        )
        self.authenticator.aside = PasswordThread()
        self.memory = memory_for_clients(config.limits, node.turn.pieces)
        node.back_pressure.intakes.append(self.memory)
        add_memory_gauges(node.metrics.gauges, self.memory)
        add_capacity_gauges(node.metrics.gauges, config.limits, node.view)
        self.quotas = Quotas(node.gateway.access)
        add_quota_gauges(node.metrics.gauges, self.quotas)
        self.native = clients_listener(node, self.memory.pools["native"])
        self.native.authenticator = self.authenticator
        self.native.quotas = self.quotas
        self.transactions = TransactionService(node.gateway, transaction_config(config))
        add_transaction_gauges(node.metrics.gauges, self.transactions.coordinator)
        self.peers = nodes_listener(node, self.memory.pools["native"])
        for native in self._natives:
            native.asker = self.transactions.asker
            native.request_times = node.metrics.request_times.native
        self.kafka: KafkaListener | None = None
        self.http: HttpListener | None = None
        self.oxia: OxiaListener | None = None
        self._config = config
        self._faults = faults
        self._sockets = dict(sockets or {})
        self._finishes_epochs = finishes_epochs
        self._stop_finisher: Callable[[], None] | None = None
        KeptSettings(node, self.native, self.transactions.coordinator, lambda: self.kafka)

    async def start(self) -> None:
        """Bind, recover, join. Returns when the node serves, which may be before it is part of the cluster.

        Raises PortInUseError, ForeignDirectoryError, DirectoryInUseError, NewerFormatError.
        """
        config, node, ports = self._config, self.node, self._config.ports
        tls = clients_tls(config, node.metrics)
        node.open()
        self.transactions.start()
        native = self.native
        node.metrics.gauges["antiphon_connections"] = ("Native connections", lambda: len(native.sessions))
        addresses = {
            "native": await native.start(
                config.listen_host, ports.native, self._sockets.get("native"), config.public_host, tls
            )
        }
        if self.peers is not None:
            addresses["peer"] = await self.peers.start(
                config.listen_host, ports.peer, self._sockets.get("peer"), config.public_host, nodes_tls(node)
            )
        if ports.kafka >= 0:
            self.kafka, addresses["kafka"] = await start_kafka(
                node.gateway,
                config,
                self._sockets.get("kafka"),
                tls,
                self.memory.pools["kafka"],
                Guards(self.authenticator, self.quotas),
                self.transactions,
                self._faults,
            )
            self.kafka.request_times = node.metrics.request_times.kafka
            add_kafka_gauges(node.metrics, self.kafka)
            add_group_lag(node.metrics, self.transactions.told_groups, node.spawn)
        if ports.http >= 0:
            self.http, addresses["http"] = await start_http(
                node.gateway,
                config,
                self._sockets.get("http"),
                tls,
                node.metrics.render,
                self.memory.pools["http"],
                Guards(self.authenticator, self.quotas),
            )
        if ports.oxia >= 0:
            self.oxia, addresses["oxia"] = await start_oxia(
                node.gateway,
                config,
                self._sockets.get("oxia"),
                clients_tls(config, node.metrics, "h2"),
                self.memory.pools["oxia"],
                Guards(self.authenticator, self.quotas),
            )
            self.oxia.request_times = node.metrics.request_times.oxia
        self._show_connections()
        node.join(addresses)
        if config.security.authentication and config.security.first_user:
            node.spawn(make_first_user(node.gateway, config.dir / config.security.first_user))
        if self._finishes_epochs:
            self._stop_finisher = start_epoch_finisher(
                config, addresses["native"], self.authenticator.own_account
            )

    def _show_connections(self) -> None:
        gauges = self.node.metrics.gauges
        for name, native in zip(("native", "peer"), self._natives, strict=False):
            sessions = native.sessions
            add_connection_gauges(gauges, name, partial(len, sessions), partial(_limit_of, native))
        kafka, http, oxia = self.kafka, self.http, self.oxia
        if oxia is not None:
            connections = oxia.open_connections
            most = oxia.config.connections_max
            add_connection_gauges(gauges, "oxia", partial(len, connections), lambda: most)
        if kafka is not None:
            add_connection_gauges(gauges, "kafka", lambda: kafka.connections, lambda: kafka.connections_max)
        if http is not None:
            add_connection_gauges(
                gauges, "http", partial(len, http.open_connections), lambda: http.connections_max
            )

    @property
    def _natives(self) -> "list[NativeListener]":
        return [self.native] if self.peers is None else [self.native, self.peers]

    async def stop(self) -> None:
        """Stop serving, bring everything to disk, let go of the directory. A second stop does nothing."""
        node = self.node
        if node.stopping:
            return
        if self._stop_finisher is not None:
            self._stop_finisher()
        await node.leave()
        natives = self._natives
        for native in natives:
            native.close()
        for listener in (self.kafka, self.http, self.oxia):
            if listener is not None:
                await listener.stop()
        await self.transactions.stop()
        node.close_shards()
        for native in natives:
            await native.hang_up()
        await node.close()


def _limit_of(native: "NativeListener") -> int:
    return native.limits.connections
