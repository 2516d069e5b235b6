"""What an operator may choose for the listener of Kafka's clients."""

from typing import NamedTuple

from antiphon.gateway.quotas import FREE, Quotas
from antiphon.kafka.archived.reader import ARCHIVE_BYTES
from antiphon.kafka.fetch_sessions import SESSIONS_MAX
from antiphon.kafka.groups.types import DEFAULT_GROUP_CONFIG, GroupConfig
from antiphon.kafka.topic_config import TOPICS_ON_DEMAND
from antiphon.security.authenticator import Authenticator
from antiphon.transactions.service import GROUP_SHARDS


class KafkaListenerConfig(NamedTuple):
    """What an operator may choose."""

    auto_create_topics: bool = True  # a client that asks for a missing topic's metadata creates it
    shards_default: int = 1  # partitions of a topic that is created without a number
    topics_on_demand: int = TOPICS_ON_DEMAND  # that there may be before none is created so any more
    group_table_shards: int = GROUP_SHARDS
    groups: GroupConfig = DEFAULT_GROUP_CONFIG
    connections_max: int = 2_000
    fetch_sessions_max: int = SESSIONS_MAX
    handshakes_max: int = 512  # of TLS at once
    address_connections_max: int = 1 << 30  # of one address, this machine aside
    idle_s: float = 600.0  # a connection without a request for so long is closed
    first_request_s: float = 30.0  # and so is one that has not sent its first one by then
    authenticator: Authenticator | None = None  # None: everybody may do everything
    quotas: Quotas = FREE
    archive_bytes: int = ARCHIVE_BYTES  # of archived records in memory; 0: none are served
