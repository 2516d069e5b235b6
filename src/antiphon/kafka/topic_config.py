"""Names and settings of topics as Kafka's tools see them.

What is allowed is the coordinator's to say. The listener knows the names, to describe settings and to give an unknown one
its proper code, and Kafka's rules for a topic's name, so that a client is told of a bad name without asking the coordinator.
"""

import re
from dataclasses import dataclass
from typing import Final

from antiphon.model import internal

GROUPS_TABLE: Final = internal.GROUPS_TABLE
TRANSACTIONS_TABLE: Final = internal.TRANSACTIONS_TABLE
NAME_LENGTH_MAX: Final = 249
TOPICS_ON_DEMAND: Final = 2_000
SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_ALL: Final = 3
SOURCE_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(slots=True)
class TopicDefaults:
    """Are topics made that a client asks for the metadata of, and with how many partitions where nobody says? That may
    change while the listener runs.

    `topics_max`: that there may be before none is made any more because somebody asked for it.
    """

    auto_create: bool = True
    shards: int = 1
    topics_max: int = TOPICS_ON_DEMAND

    def become(self, other: "TopicDefaults") -> None:
        """What is so from now on, for whoever was given these."""
        self.auto_create, self.shards, self.topics_max = other.auto_create, other.shards, other.topics_max


# What a broker says of a setting that its topics may have, by the broker's name for it: the default, which is no node's.
BROKER_DEFAULTS: Final[dict[str, str]] = {
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}


def name_problem(name: str) -> str | None:
    """Why a client cannot have a topic of that name made, or None."""
    if name.startswith(internal.PREFIX):
        return f"{name!r} would be the cluster's own: names of topics do not begin with {internal.PREFIX!r}"
    if not is_name(name):
        return f"{name!r} is not a topic's name: 1 to {NAME_LENGTH_MAX} of a-z, A-Z, 0-9, '.', '_' and '-'"
    return None


def is_name(name: str) -> bool:
    """May any topic have that name, one of the cluster's own among them?"""
    return len(name) <= NAME_LENGTH_MAX and name not in {".", ".."} and _NAME.fullmatch(name) is not None
