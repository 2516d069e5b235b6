"""The settings that topics and tables may have, with their defaults, for everybody who describes them.

Which values and combinations are allowed is said by `profiles` and `topic_rules`.
"""

from typing import Final, NamedTuple

from antiphon.coordination.compression_settings import TYPES
from antiphon.coordination.profiles import COMMIT_RULES

BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7


class TopicSetting(NamedTuple):
    """One setting: its default, Kafka's number for its type, and a sentence for tools that show it."""

    name: str
    default: str
    kafka_type: int
    documentation: str

    def problem(self, value: str) -> str | None:
        """Why `value` can be nobody's value for this setting, or None."""
        if self.kafka_type in {INT, LONG}:
            try:
                int(value)
            except ValueError:
                return f"{self.name}={value!r} is not a whole number"
        return None


_SETTINGS: Final = (
    TopicSetting("accept.split.brain", "false", BOOLEAN, "Take a commit rule of fewer than a majority, and its losses."),
    TopicSetting("ack.every", "1", INT, "Entries after which a follower acknowledges."),
    TopicSetting("bulk.bytes.per.second", "-1", LONG, "Bytes of bulk writes that a shard takes a second; -1: no limit."),
    TopicSetting("cleanup.policy", "delete", LIST, "delete: by retention; compact: newest of each key; or both."),
    TopicSetting("commit", "quorum", STRING, f"When an append is acknowledged: {COMMIT_RULES}."),
    TopicSetting("commit.marker", "piggyback", STRING, "record: a commit is a record of the log as well."),
    TopicSetting("compression.gzip.level", "-1", INT, "With compression.type=gzip: 1 to 9; -1: the library's own."),
    TopicSetting("compression.lz4.level", "9", INT, "With compression.type=lz4: 1 to 17; 9 is the fastest."),
    TopicSetting("compression.type", "producer", STRING, f"Codec of what is stored: {', '.join(TYPES)} (as sent)."),
    TopicSetting("compression.zstd.level", "3", INT, "With compression.type=zstd: -131072 to 22."),
    TopicSetting("conflict", "last-writer-wins", STRING, "How tables with several writers are merged."),
    TopicSetting("delete.retention.ms", "86400000", LONG, "Milliseconds that a tombstone stays in a clean log."),
    TopicSetting("election", "coordinator", STRING, "Who chooses leaders: coordinator, raft or manual. Fixed at creation."),
    TopicSetting("expected.offset.header", "false", BOOLEAN, "A header of records may make an append conditional."),
    TopicSetting("flush", "always", STRING, "When an append is synced: always, before it is acknowledged; interval; os."),
    TopicSetting("flush.ms", "100", LONG, "Milliseconds between syncs with flush=interval; a node may have another."),
    TopicSetting("isolation", "committed", STRING, "Of reads that do not say: committed or uncommitted."),
    TopicSetting("key.sorting", "natural", STRING, "Of tables for Oxia: natural or hierarchical. Fixed at creation."),
    TopicSetting("live.lag.max", "10000", LONG, "Records behind the leader that cost a place in the live set."),
    TopicSetting("live.lag.ms", "3000", LONG, "Milliseconds a replica may lag before it is no longer live."),
    TopicSetting("max.batch.records", "1000000", INT, "Records of the largest compressed batch that is accepted."),
    TopicSetting("max.compaction.lag.ms", "9223372036854775807", LONG, "Age at which closed segments are compacted."),
    TopicSetting("max.decompressed.bytes", "67108864", INT, "Bytes that the records of a batch may unpack to."),
    TopicSetting("max.in.flight", "0", INT, "Appends that may wait for their commit; 0: bounded by bytes only."),
    TopicSetting("max.message.bytes", "1048588", INT, "Bytes of the largest record batch that is accepted."),
    TopicSetting("message.timestamp.type", "CreateTime", STRING, "CreateTime: the producer's; LogAppendTime."),
    TopicSetting("min.cleanable.dirty.ratio", "0.5", DOUBLE, "Part of a log that is not clean, to compact it."),
    TopicSetting("min.compaction.lag.ms", "0", LONG, "Milliseconds that a record is not compacted."),
    TopicSetting("min.insync.replicas", "1", INT, "At most what the commit rule waits for, which is what counts."),
    TopicSetting("min.live", "1", INT, "Fewest live replicas with which commit=live acknowledges."),
    TopicSetting("on.not.leader", "reject", STRING, "What a replica does with clients unless it leads: reject or forward."),
    TopicSetting("read.lease.ms", "0", INT, "Of tables: ms that leaders serve linearizable reads alone, 10 to 200; 0: off."),
    TopicSetting("record.validation", "uncompressed", STRING, "full, uncompressed or shallow; a node may have another."),
    TopicSetting("retention.bytes", "-1", LONG, "Bytes that a partition may keep; -1: no limit."),
    TopicSetting("retention.ms", "-1", LONG, "Milliseconds, by records' timestamps, that segments are kept; -1: for ever."),
    TopicSetting("segment.bytes", "268435456", INT, "Bytes after which a new segment is begun."),
    TopicSetting("segment.ms", "604800000", LONG, "Milliseconds after which a new segment is begun."),
    TopicSetting("unclean.leader.election.enable", "false", BOOLEAN, "Elect any replica when no live one is left."),
    TopicSetting("writers", "single", STRING, "single: one leader a shard; multi: each replica. Fixed at creation."),
)  # fmt: skip
TOPIC_SETTINGS: Final[dict[str, TopicSetting]] = {setting.name: setting for setting in _SETTINGS}
