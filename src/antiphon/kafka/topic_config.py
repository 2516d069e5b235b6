"""Names and settings of topics as Kafka's tools see them. What is allowed is the coordinator's to say (`topic_rules`)."""

from typing import Final, NamedTuple

from antiphon.coordination import topic_rules
from antiphon.errors import InvalidRequestError
from antiphon.log.config import LogConfig

GROUPS_TABLE: Final = "__groups"  # committed offsets of consumer groups
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
LIST: Final = 7

_LOG: Final = LogConfig()


class TopicSetting(NamedTuple):
    """One setting: its default, Kafka's number for its type, and a sentence for tools that show it."""

    name: str
    default: str
    kafka_type: int
    documentation: str

    def problem(self, value: str) -> str | None:
        """Why `value` cannot be set, or None."""
        try:
            topic_rules.SETTINGS[self.name](self.name, value)
        except InvalidRequestError as error:
            return error.message
        return None


_SETTINGS: Final = (
    TopicSetting(
        "cleanup.policy", "delete", LIST, "What becomes of old segments: they are deleted by retention."
    ),
    TopicSetting("compression.type", "producer", STRING, "Batches are kept as they were sent."),
    TopicSetting(
        "flush",
        _LOG.flush,
        STRING,
        "When an append is synced: always (before it is acknowledged), interval, os.",
    ),
    TopicSetting(
        "flush.ms", str(_LOG.flush_interval_ms), LONG, "Milliseconds between syncs with flush=interval."
    ),
    TopicSetting("max.message.bytes", "1048588", INT, "Bytes of the largest record batch that is accepted."),
    TopicSetting("message.timestamp.type", "CreateTime", STRING, "Timestamps are the producer's."),
    TopicSetting(
        "min.insync.replicas",
        "1",
        INT,
        "At most a majority; appends always wait for a majority of the replicas.",
    ),
    TopicSetting(
        "retention.bytes", str(_LOG.retention_bytes), LONG, "Bytes that a partition may keep; -1: no limit."
    ),
    TopicSetting(
        "retention.ms",
        str(_LOG.retention_ms),
        LONG,
        "Milliseconds that closed segments are kept; -1: for ever.",
    ),
    TopicSetting("segment.bytes", str(_LOG.segment_bytes), INT, "Bytes after which a new segment is begun."),
    TopicSetting(
        "segment.ms", str(_LOG.segment_ms), LONG, "Milliseconds after which a new segment is begun."
    ),
)
TOPIC_SETTINGS: Final[dict[str, TopicSetting]] = {setting.name: setting for setting in _SETTINGS}


def name_problem(name: str) -> str | None:
    """Why a client cannot have a topic of that name, or None."""
    if name == GROUPS_TABLE:
        return f"{name!r} is the cluster's own"
    try:
        topic_rules.check_name(name)
    except InvalidRequestError as error:
        return error.message
    return None
