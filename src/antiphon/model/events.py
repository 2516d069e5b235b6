"""What happened to a cluster, as one node heard of it: for people who ask what went on."""

from enum import StrEnum
from typing import Final, NamedTuple

TOLD_MAX: Final = 100  # of the last ones, by one status of a node


class EventKind(StrEnum):
    """What an event is about."""

    NODE_DOWN = "node down"
    NODE_UP = "node up"
    NODE_DRAINS = "node drains"
    NODE_GONE = "node removed"
    COORDINATOR = "coordinator"
    LEADER = "leader"
    NO_LEADER = "no leader"
    RECOVERED = "recovered"
    MEMBERS = "members"
    TOPIC_MADE = "created"
    TOPIC_CHANGED = "altered"
    TOPIC_GONE = "deleted"


class Event(NamedTuple):
    """One thing that happened, or many alike at once. `at_ms` is ms since 1970 by the node's clock when it heard of it.

    `what` is a sentence without a name in front; `subject` is a node, a topic or a shard (`topic/index`), or how many.
    """

    at_ms: int
    kind: EventKind
    subject: str
    what: str
