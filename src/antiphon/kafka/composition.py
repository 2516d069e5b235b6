"""Puts together the objects that carry out the requests of Kafka's clients."""

from antiphon.gateway.interface import Gateway
from antiphon.kafka.apis import APIS, Handlers
from antiphon.kafka.archived.reader import ArchiveReader
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.share_partitions import SharePartitions
from antiphon.kafka.handlers.access import AccessHandler
from antiphon.kafka.handlers.configs import ConfigHandler
from antiphon.kafka.handlers.consumer_groups import ConsumerGroupHandler
from antiphon.kafka.handlers.elections import ElectionHandler
from antiphon.kafka.handlers.fetch import FetchHandler
from antiphon.kafka.handlers.group_admin import GroupAdminHandler
from antiphon.kafka.handlers.group_offsets import GroupOffsetsHandler
from antiphon.kafka.handlers.group_settings import GroupSettings
from antiphon.kafka.handlers.groups import GroupHandler
from antiphon.kafka.handlers.log_offsets import LogOffsetsHandler
from antiphon.kafka.handlers.logins import LoginHandler
from antiphon.kafka.handlers.markers import MarkersHandler
from antiphon.kafka.handlers.metadata import MetadataHandler
from antiphon.kafka.handlers.partitions import TopicPartitionsHandler
from antiphon.kafka.handlers.produce import ProduceHandler
from antiphon.kafka.handlers.producers import ProducersHandler
from antiphon.kafka.handlers.quorum import QuorumHandler
from antiphon.kafka.handlers.quotas import QuotaHandler
from antiphon.kafka.handlers.reassignments import ReassignmentHandler
from antiphon.kafka.handlers.share_fetch import ShareFetchHandler
from antiphon.kafka.handlers.share_groups import ShareGroupHandler
from antiphon.kafka.handlers.share_offsets import ShareOffsetsHandler
from antiphon.kafka.handlers.telemetry import TelemetryHandler
from antiphon.kafka.handlers.topics import TopicHandler
from antiphon.kafka.handlers.transaction_offsets import TransactionOffsetsHandler
from antiphon.kafka.handlers.transactions import TransactionHandler
from antiphon.kafka.listener_config import KafkaListenerConfig
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.one_thread import OneThread
from antiphon.kafka.topic_config import TopicDefaults
from antiphon.transactions.service import TransactionService


def handlers_of(
    gateway: Gateway,
    config: KafkaListenerConfig,
    coordinator: GroupCoordinator,
    service: TransactionService,
    aside: OneThread,
    shares: SharePartitions,
    defaults: TopicDefaults,
    archive: ArchiveReader,
) -> Handlers:
    """The handlers of one node's listener."""
    groups = config.groups
    cache = MetadataCache(gateway)
    offsets, pending, asker = service.offsets, service.pending, service.asker
    group_offsets = GroupOffsetsHandler(gateway, coordinator, offsets, pending)
    return Handlers(
        produce=ProduceHandler(gateway, cache, config.quotas, asker),
        fetch=FetchHandler(gateway, cache, config.quotas, config.fetch_sessions_max, archive),
        metadata=MetadataHandler(gateway, cache, APIS.values(), defaults, config.quotas, aside),
        log_offsets=LogOffsetsHandler(gateway, cache, archive),
        producers=ProducersHandler(gateway, cache),
        markers=MarkersHandler(gateway, cache),
        groups=GroupHandler(gateway, cache, coordinator, service.coordinator),
        transactions=TransactionHandler(gateway, cache, service.coordinator, coordinator),
        transaction_offsets=TransactionOffsetsHandler(coordinator, pending, group_offsets, asker),
        group_offsets=group_offsets,
        group_admin=GroupAdminHandler(coordinator, offsets, pending),
        consumer_groups=ConsumerGroupHandler(gateway, coordinator, groups.metadata_bytes_max),
        share_groups=ShareGroupHandler(gateway, coordinator, groups.metadata_bytes_max),
        share_fetch=ShareFetchHandler(gateway, cache, config.quotas, shares),
        share_offsets=ShareOffsetsHandler(gateway, coordinator, service.share_states),
        topics=TopicHandler(gateway, cache, defaults, config.quotas),
        configs=ConfigHandler(gateway, cache, GroupSettings(gateway, coordinator, service.share_asker)),
        elections=ElectionHandler(gateway, cache),
        reassignments=ReassignmentHandler(gateway, cache),
        topic_partitions=TopicPartitionsHandler(gateway, cache),
        quorum=QuorumHandler(gateway, cache),
        telemetry=TelemetryHandler(gateway, aside),
        logins=LoginHandler(),
        access=AccessHandler(gateway),
        quotas=QuotaHandler(gateway),
    )
