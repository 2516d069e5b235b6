"""Takes the settings that change while a node runs to those parts of its server that keep them."""

from typing import TYPE_CHECKING

from antiphon.server.native_listeners import bound_connections
from antiphon.transactions.coordinator import TransactionConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.kafka.groups.types import GroupConfig
    from antiphon.kafka.listener import KafkaListener
    from antiphon.kafka.topic_config import TopicDefaults
    from antiphon.native.listener import NativeListener
    from antiphon.node.config import NodeConfig
    from antiphon.node.node import Node
    from antiphon.transactions.coordinator import TransactionCoordinator


def topic_defaults(config: "NodeConfig") -> "TopicDefaults":
    """What the node's settings say of topics that Kafka's clients make without a word on it."""
    from antiphon.kafka.topic_config import TopicDefaults

    return TopicDefaults(config.auto_create_topics, config.num_partitions, config.limits.topics_on_demand)


def group_config(config: "NodeConfig", others: "GroupConfig") -> "GroupConfig":
    """What they say of consumer groups and share groups, with `others` that no operator chooses."""
    chosen, shared = config.consumer_groups, config.share_groups
    return others.bounded(
        (chosen.heartbeat_interval_ms, chosen.session_timeout_ms, chosen.max_size),
        (shared.heartbeat_interval_ms, shared.session_timeout_ms, shared.max_size),
        (shared.record_lock_duration_ms, shared.delivery_count_limit, shared.partition_max_record_locks),
        (chosen.offsets_retention_ms, chosen.offsets_retention_check_interval_ms),
        chosen.migration_policy,
    )


def transaction_config(config: "NodeConfig") -> TransactionConfig:
    """What they say of transactions."""
    chosen = config.transactions
    return TransactionConfig.bounded(chosen.timeout_max_ms, chosen.id_expiration_s * 1000)


class KeptSettings:
    """Has the native listener, the coordinator of transactions and Kafka's listener go by changed settings; `kafka`: once
    there is one.
    """

    def __init__(
        self,
        node: "Node",
        native: "NativeListener",
        transactions: "TransactionCoordinator",
        kafka: "Callable[[], KafkaListener | None]",
    ) -> None:
        self._config = node.config
        self._native = native
        self._transactions = transactions
        self._kafka = kafka
        node.settings.follow(self.changed)

    def changed(self) -> None:
        """The node's settings have changed."""
        config, listener = self._config, self._kafka()
        self._transactions.bounds = transaction_config(config).bounds
        bound_connections(self._native, config)
        if listener is not None:
            listener.settings_changed(topic_defaults(config), group_config(config, listener.groups))
