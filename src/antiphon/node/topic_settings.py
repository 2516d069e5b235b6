"""A topic's settings as the parts of a replica want them: read once for each change of the topic, not for each shard."""

from dataclasses import dataclass
from typing import Final

from antiphon.coordination.compression_settings import CODECS, LEVELS, PRODUCER, QUICK_LEVELS
from antiphon.coordination.profiles import Replication, replication_of
from antiphon.coordination.topic_rules import LOG_APPEND_TIME
from antiphon.errors import WrongKindError
from antiphon.log.config import Compaction, LogConfig
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta, cleanup_policies
from antiphon.node.config import NodeConfig
from antiphon.partition.mode import EARLY, MANY_WRITERS, UNCLEAN
from antiphon.partition.settings import PartitionSettings
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX
from antiphon.records.intake import BATCH_RECORDS_MAX, IntakeRules
from antiphon.replication.config import ReplicaConfig

# Of the cluster's own tables: what is older than that is in their stores, on disk, and a replica that is further behind gets
# a snapshot.
INTERNAL_LOG_BYTES: Final = 64 * 1024 * 1024
INTERNAL_SEGMENT_BYTES: Final = 16 * 1024 * 1024
SEGMENTS_KEPT: Final = 4  # of a table whose log has the node's bound: that much of it goes at a time
SEGMENT_BYTES_LEAST: Final = 1024 * 1024
MAX_MESSAGE_BYTES: Final = 1_048_588  # Kafka's default of max.message.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(PartitionSettings):
    """What the profile and the settings of a topic come to on this node.

    Attributes:
        replication: the options C1-C14.
        bulk_bytes_per_s: what each shard takes of bulk writes at most; None: no limit.
    """

    replication: Replication
    bulk_bytes_per_s: int | None


class SettingsBook:
    """Settings by topic, kept until a topic's profile or configuration changes."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._known: dict[bytes, tuple[str, dict[str, str], TopicSettings]] = {}

    def of(self, topic: TopicMeta) -> TopicSettings:
        """The settings of a topic; raises InvalidRequestError for a value that means nothing to this version."""
        known = self._known.get(topic.topic_id)
        if known is not None and known[0] == topic.profile and known[1] is topic.config:
            return known[2]
        settings = read_settings(topic, self._config)
        self._known[topic.topic_id] = (topic.profile, topic.config, settings)
        return settings

    def read_again(self) -> None:
        """The node's own settings have changed, which topics have where they say nothing."""
        self._known.clear()

    def forget(self, topics: set[bytes]) -> None:
        """Keep only what is known of these topics."""
        for topic_id in [known for known in self._known if known not in topics]:
            del self._known[topic_id]


def read_settings(topic: TopicMeta, config: NodeConfig) -> TopicSettings:
    """See SettingsBook.of."""
    replication = replication_of(topic.profile, topic.config)
    return TopicSettings(
        log=_log_config(topic, config),
        replication=replication,
        replica=ReplicaConfig(
            term_start_on_empty=False,
            commit=replication.commit,
            min_live=replication.min_live,
            live_lag_entries_max=replication.live_lag_max,
            live_lag_ticks=max(1, replication.live_lag_ms // config.timings.tick),
            commit_marker=replication.commit_marker == "record",
            ack_every=replication.ack_every,
            unclean=replication.unclean,
            lease_ms=replication.lease_ms,
        ),
        max_message_bytes=_setting(topic, "max.message.bytes", MAX_MESSAGE_BYTES),
        isolation=replication.isolation,
        max_in_flight=replication.max_in_flight,
        conflict=replication.conflict,
        bulk_bytes_per_s=bulk if (bulk := _setting(topic, "bulk.bytes.per.second", -1)) >= 0 else None,
        append_time=topic.config.get("message.timestamp.type") == LOG_APPEND_TIME,
        intake=_intake(topic, config),
        internal=topic.name if is_internal(topic) else "",
    )


def _intake(topic: TopicMeta, config: NodeConfig) -> IntakeRules:
    rules = IntakeRules(
        topic.config.get("record.validation", config.record_validation),
        _setting(topic, "max.batch.records", BATCH_RECORDS_MAX),
        _setting(topic, "max.decompressed.bytes", DECOMPRESSED_BYTES_MAX),
        topic.is_compacted,
        expects=topic.config.get("expected.offset.header") == "true",
    )
    wanted = topic.config.get("compression.type", PRODUCER)
    if wanted not in CODECS:
        return rules
    default = LEVELS.get(wanted)
    if default is None:
        return rules._replace(codec=CODECS[wanted])
    level = _setting(topic, f"compression.{wanted}.level", default)
    return rules._replace(codec=CODECS[wanted], level=level, packs_quickly=level in QUICK_LEVELS[wanted])


def check_takes_transactions(topic: TopicMeta, shard: ShardMeta, *, tables: bool = False) -> None:
    """Raise WrongKindError, with the reason, where a shard takes no parts of transactions. What each append is told, too.

    `tables`: are changes of tables meant, too? They are prepared, not appended.
    """
    replication = replication_of(topic.profile, topic.config)
    is_table = topic.kind is Kind.TABLE
    reason = ""
    if is_internal(topic):
        reason = "it belongs to the cluster"
    elif is_table and not tables:
        reason = "records are appended to topics; Python clients change rows in transactions"
    elif replication.is_multi:
        reason = MANY_WRITERS
    elif is_table and replication.unclean:
        reason = UNCLEAN
    elif replication.commit.may_lose(len(shard.ensemble)):
        reason = EARLY
    if reason:
        raise WrongKindError(f"{topic.name} takes no transactions: {reason}")


def _log_config(topic: TopicMeta, config: NodeConfig) -> LogConfig:
    default, cleanup = LogConfig(), cleanup_policies(topic.config)
    if is_internal(topic) and topic.kind is Kind.TABLE:
        default = default._replace(segment_bytes=INTERNAL_SEGMENT_BYTES, retention_bytes=INTERNAL_LOG_BYTES)
    elif topic.kind is Kind.TABLE and config.table_log_bytes >= 0:
        default = default._replace(
            segment_bytes=max(config.table_log_bytes // SEGMENTS_KEPT, SEGMENT_BYTES_LEAST),
            retention_bytes=config.table_log_bytes,
        )
    compaction = _compaction(topic) if "compact" in cleanup else None
    segment_ms = _setting(topic, "segment.ms", default.segment_ms)
    deletes = "delete" in cleanup
    return LogConfig(
        segment_bytes=_setting(topic, "segment.bytes", default.segment_bytes),
        segment_ms=segment_ms if compaction is None else min(segment_ms, compaction.max_lag_ms),
        retention_ms=_setting(topic, "retention.ms", default.retention_ms) if deletes else -1,
        retention_bytes=_setting(topic, "retention.bytes", default.retention_bytes) if deletes else -1,
        compaction=compaction,
        flush=topic.config.get("flush", config.flush),
        flush_interval_ms=_setting(topic, "flush.ms", config.flush_interval_ms),
    )


def _compaction(topic: TopicMeta) -> Compaction:
    default, ratio = Compaction(), topic.config.get("min.cleanable.dirty.ratio")
    return Compaction(
        min_lag_ms=_setting(topic, "min.compaction.lag.ms", default.min_lag_ms),
        max_lag_ms=_setting(topic, "max.compaction.lag.ms", default.max_lag_ms),
        delete_retention_ms=_setting(topic, "delete.retention.ms", default.delete_retention_ms),
        dirty_ratio=default.dirty_ratio if ratio is None else float(ratio),
    )


def _setting(topic: TopicMeta, name: str, default: int) -> int:
    """An integer setting of a topic; one that is no number counts as not set (the coordinator refuses those)."""
    try:
        return int(topic.config.get(name, default))
    except ValueError:
        return default
