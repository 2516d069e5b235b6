"""The states of a replica and the edges between them, as tables. The diagrams of docs/protocol.md are drawn from them.

* `TRANSITIONS`: the four roles and the eleven edges between them (S0.4). Every role change passes through FENCED: there is
  no edge from FOLLOWER to LEADER nor back. A Raft vote, a coordinator's NewTerm and a manual promotion all take the NEW_TERM
  edge; winning an election takes BECOME_LEADER.
* `CANDIDACIES`: what a replica that votes does to become leader, while it is FENCED or FOLLOWER.
* `LEADER_PHASES`: what a LEADER may take from clients.
* `LOG_CONDITIONS`: whether the log is whole, in every role.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from antiphon.invariants import unreachable

State = TypeVar("State", bound=StrEnum)
Happening = TypeVar("Happening", bound=StrEnum)


class Role(StrEnum):
    """State of one replica of one shard on one node."""

    NOT_MEMBER = "not_member"  # S0.5: not in the shard's ensemble
    FENCED = "fenced"  # S0.6: being synchronised; serves no client
    FOLLOWER = "follower"  # S0.7: accepts Appends of the leader of its term
    LEADER = "leader"  # S0.8: serves reads and writes


class Event(StrEnum):
    """What can happen to a replica's role."""

    NEW_TERM = "NewTerm"
    REPLICATE = "Replicate"
    TRUNCATE = "Truncate"
    SNAPSHOT = "Snapshot"
    BECOME_LEADER = "BecomeLeader"
    ADD_FOLLOWER = "AddFollower"


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


class Candidacy(StrEnum):
    """How far a replica that votes has come in becoming leader (S1.22)."""

    NONE = "none"
    PRE_CANDIDATE = "pre-candidate"  # asks whether it could win; raises no term
    CANDIDATE = "candidate"  # asks for votes of its term


class CandidacyEvent(StrEnum):
    """What begins and ends a candidacy."""

    PRE_CAMPAIGN = "PreCampaign"  # the time-out passed
    CAMPAIGN = "Campaign"  # the replica has promised the next term to itself
    WON = "Won"
    LOST = "Lost"  # enough refused, or the time-out passed again
    LEADER_HEARD = "LeaderHeard"
    STEP_DOWN = "StepDown"  # a newer term, its own next one too, or a failed disk


CANDIDACIES: Final[dict[tuple[Candidacy, CandidacyEvent], Candidacy]] = {
    (Candidacy.NONE, CandidacyEvent.PRE_CAMPAIGN): Candidacy.PRE_CANDIDATE,
    (Candidacy.NONE, CandidacyEvent.CAMPAIGN): Candidacy.CANDIDATE,
    (Candidacy.PRE_CANDIDATE, CandidacyEvent.LOST): Candidacy.NONE,
    (Candidacy.PRE_CANDIDATE, CandidacyEvent.LEADER_HEARD): Candidacy.NONE,
    (Candidacy.PRE_CANDIDATE, CandidacyEvent.STEP_DOWN): Candidacy.NONE,
    (Candidacy.CANDIDATE, CandidacyEvent.WON): Candidacy.NONE,
    (Candidacy.CANDIDATE, CandidacyEvent.LOST): Candidacy.NONE,
    (Candidacy.CANDIDATE, CandidacyEvent.LEADER_HEARD): Candidacy.NONE,
    (Candidacy.CANDIDATE, CandidacyEvent.STEP_DOWN): Candidacy.NONE,
}


class LeaderPhase(StrEnum):
    """What a leader may take from clients."""

    STARTING = "starting"  # nothing: no entry of its term is committed yet (S1.36)
    READY = "ready"
    TRANSFERRING = "transferring"  # reads only: it hands leadership over


class LeaderEvent(StrEnum):
    """What moves a leader from one phase to the next. Whatever ends leadership ends the phase with it."""

    FIRST_COMMIT = "FirstCommit"
    TRANSFER = "Transfer"
    GIVE_UP = "GiveUp"  # the transfer took too long, or its target is no voter any more


LEADER_PHASES: Final[dict[tuple[LeaderPhase, LeaderEvent], LeaderPhase]] = {
    (LeaderPhase.STARTING, LeaderEvent.FIRST_COMMIT): LeaderPhase.READY,
    (LeaderPhase.READY, LeaderEvent.TRANSFER): LeaderPhase.TRANSFERRING,
    (LeaderPhase.TRANSFERRING, LeaderEvent.TRANSFER): LeaderPhase.TRANSFERRING,
    (LeaderPhase.TRANSFERRING, LeaderEvent.GIVE_UP): LeaderPhase.READY,
}


class LogCondition(StrEnum):
    """Is what a replica's disk gave back whole? Only a sound log makes a voter and a candidate."""

    SOUND = "sound"
    DAMAGED = "damaged"  # a part in the middle of the log is bad; the promises are there
    FORGOTTEN = "forgotten"  # all is lost, the promises too
    JOINING = "joining"  # nothing is lost, but the replica began empty in a shard that is older


class LogEvent(StrEnum):
    """What makes a log whole again."""

    TERMS_KNOWN = "TermsKnown"  # no term can have begun that an older self had a part in, beyond those that are known now
    REPAIRED = "Repaired"  # the log has, durably, an entry that was committed in a term begun since


LOG_CONDITIONS: Final[dict[tuple[LogCondition, LogEvent], LogCondition]] = {
    (LogCondition.FORGOTTEN, LogEvent.TERMS_KNOWN): LogCondition.DAMAGED,
    (LogCondition.DAMAGED, LogEvent.REPAIRED): LogCondition.SOUND,
    (LogCondition.JOINING, LogEvent.REPAIRED): LogCondition.SOUND,
}


def next_role(role: Role, event: Event) -> Role | None:
    """The role after `event`, or None where the edge is illegal and the event must be refused."""
    return TRANSITIONS.get((role, event))


def next_state(table: Mapping[tuple[State, Happening], State], state: State, event: Happening) -> State:
    """The state after `event`, by one of the tables of this module. An edge that is not in the table is a bug."""
    after = table.get((state, event))
    if after is None:
        unreachable(f"there is no edge {event} from {state}")
    return after
