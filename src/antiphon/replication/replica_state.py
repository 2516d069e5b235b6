"""The four states of a replica and the eleven edges between them, as a table (S0.4).

Every role change passes through FENCED: there is no edge from FOLLOWER to LEADER nor back. A Raft vote, a coordinator's
NewTerm and a manual promotion all take the NEW_TERM edge; winning an election takes BECOME_LEADER.
"""

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """State of one replica of one shard on one node."""

    NOT_MEMBER = "not_member"  # S0.5: not in the shard's ensemble
    FENCED = "fenced"  # S0.6: being synchronised; serves no client
    FOLLOWER = "follower"  # S0.7: accepts the feed of the leader of its term
    LEADER = "leader"  # S0.8: serves reads and writes


class Event(StrEnum):
    """What can happen to a replica's role."""

    NEW_TERM = "NewTerm"
    REPLICATE = "Replicate"
    TRUNCATE = "Truncate"
    SNAPSHOT = "Snapshot"
    BECOME_LEADER = "BecomeLeader"
    ADD_FOLLOWER = "AddFollower"


class LogCondition(StrEnum):
    """Is what a replica's disk gave back whole? Only a sound log makes a voter and a candidate."""

    SOUND = "sound"
    DAMAGED = "damaged"  # a part in the middle of the log is bad; the promises are there
    FORGOTTEN = "forgotten"  # all is lost, the promises too
    JOINING = "joining"  # nothing is lost, but the replica began empty in a shard that is older


TRANSITIONS: Final[dict[tuple[Role, Event], Role]] = {
    (Role.NOT_MEMBER, Event.NEW_TERM): Role.FENCED,
    (Role.FENCED, Event.NEW_TERM): Role.FENCED,
    (Role.FOLLOWER, Event.NEW_TERM): Role.FENCED,
    (Role.LEADER, Event.NEW_TERM): Role.FENCED,
    (Role.FENCED, Event.REPLICATE): Role.FOLLOWER,
    (Role.FENCED, Event.TRUNCATE): Role.FOLLOWER,
    (Role.FENCED, Event.SNAPSHOT): Role.FOLLOWER,
    (Role.FOLLOWER, Event.REPLICATE): Role.FOLLOWER,
    (Role.FOLLOWER, Event.SNAPSHOT): Role.FOLLOWER,
    (Role.FENCED, Event.BECOME_LEADER): Role.LEADER,
    (Role.LEADER, Event.ADD_FOLLOWER): Role.LEADER,
}


def next_role(role: Role, event: Event) -> Role | None:
    """The role after `event`, or None where the edge is illegal and the event must be refused."""
    return TRANSITIONS.get((role, event))
