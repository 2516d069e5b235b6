"""What a topic's profile and settings come to for one replica of a shard."""

from dataclasses import dataclass

from antiphon.log.config import LogConfig
from antiphon.records.intake import DEFAULT_RULES, IntakeRules
from antiphon.replication.config import ReplicaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """See the module's text.

    Attributes:
        log: of the log on the disk.
        replica: of the replica's state machine, whose time counts in the node's ticks.
        max_message_bytes: of the largest batch that is taken.
        isolation: of reads that name none (C7).
        max_in_flight: appends that may wait for their commit at a time; 0: any number (C8).
        conflict: the rule that merges concurrent changes, by name; empty where one replica writes.
        append_time: records get the time at which they are appended.
        intake: what a client's batch must be.
        internal: the topic's name where it belongs to the cluster, else empty.
    """

    log: LogConfig
    replica: ReplicaConfig
    max_message_bytes: int
    isolation: str
    max_in_flight: int
    conflict: str
    append_time: bool = False
    intake: IntakeRules = DEFAULT_RULES
    internal: str = ""
