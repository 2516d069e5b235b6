"""What replicas, candidates and coordinators say to each other about one shard.

Every message names its shard (a cluster-wide number; `__cluster` is 0) and the term it speaks for (S0.3). Offsets are
exclusive ends. The transport carries the `entries` of an `Append` as the frame's payload: RecordBatches, byte for byte.
"""

from typing import NamedTuple

import msgspec

from antiphon.records.entry_id import EntryId
from antiphon.replication.members import Members

NodeId = int
ShardId = int


class Entry(NamedTuple):
    """One entry of a shard's log: a whole RecordBatch, opaque here.

    `next_offset` is `base_offset` plus the number of offsets that it takes (always at least 1).
    """

    term: int
    base_offset: int
    next_offset: int
    data: object  # bytes-like in the node; anything comparable in the simulator
    members: Members | None = None  # set in entries that change the members of a shard that elects for itself

    @property
    def end(self) -> EntryId:
        """Id of the log prefix that ends with this entry."""
        return EntryId(self.term, self.next_offset)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Common head of every message: which shard, in which term."""

    shard: ShardId
    term: int


class NewTerm(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to replica: promise `term`, durably, and say what you have (S0.35)."""


class NewTermReply(Message, frozen=True, array_like=True, tag=True):
    """The promise is on disk. `head` is the id of the durable log; a damaged log is not a vote for what it lost."""

    head: EntryId
    log_start: int
    damaged: bool = False


class BecomeLeader(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to the best fenced replica: lead. `heads` are the entry ids of the others that promised.

    With `live` the term commits by the live rule, starting from this live replica set, recorded as `live_version`; without,
    by the topic's rule over the voters. `outgoing` and `learners`: see `Members`; `members_version` numbers their record.
    `deleted_before`: records before it were deleted on request. That is for whoever serves clients; the log is as it is.
    """

    ensemble: tuple[NodeId, ...]
    heads: tuple[tuple[NodeId, EntryId], ...]
    live: tuple[NodeId, ...] = ()
    live_version: int = 0
    outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    members_version: int = 0
    deleted_before: int = 0


class BecomeLeaderReply(Message, frozen=True, array_like=True, tag=True):
    """The replica leads in `term` (sent once its term-start entry is committed: it is ready for clients)."""


class AddFollower(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to leader: `node` has promised your term too, replicate to it (S0.38)."""

    node: NodeId
    head: EntryId


class ChangeMembers(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to leader: these are the members now, as recorded under `version` (S0.2).

    Where a coordinator elects, `members` is in force at once. Where replicas vote, `members.voters` and `learners` are what
    to change to (`outgoing` is ignored): the leader writes the change into the log, as a joint step where voters change.
    """

    version: int
    members: Members


class MembersSettled(Message, frozen=True, array_like=True, tag=True):
    """Leader to coordinator: all that was ever committed is held by the `voters` of `version` as its rule demands."""

    version: int


class TransferLeadership(Message, frozen=True, array_like=True, tag=True):
    """Coordinator (or an operator) to the leader of a shard whose replicas vote: hand over to `to`."""

    to: NodeId


class GoOnAlone(Message, frozen=True, array_like=True, tag=True):
    """Coordinator to a replica that votes: the others are lost for good, by an operator's word; be the only member.

    `term` is the mark of the recovery: a term beyond all that can have begun.
    """


class TimeoutNow(Message, frozen=True, array_like=True, tag=True):
    """Leader to the follower that is to succeed it: you have my whole log, stand for election at once."""

    leader: NodeId


class Truncate(Message, frozen=True, array_like=True, tag=True):
    """Leader to a fenced replica whose head is not in the leader's log: cut back to `to` (S0.36)."""

    leader: NodeId
    to: EntryId


class TruncateReply(Message, frozen=True, array_like=True, tag=True):
    """`head` is what is left; it is durable."""

    head: EntryId


class Append(Message, frozen=True, array_like=True, tag=True):
    """Leader to follower: entries after `prev`, and the high watermark; without entries a heartbeat (S0.26, S1.19)."""

    leader: NodeId
    prev: EntryId
    high_watermark: int
    round: int  # echoed by the answer; a majority of echoes confirms leadership for reads
    entries: tuple[Entry, ...] = ()
    live: tuple[NodeId, ...] = ()  # the live replica set, where commits go by it (S3.26)
    log_end: int = -1  # the leader's own (S3.26); -1: not told
    # The follower is asked to support nobody else for so long. An older version may have a trace here, which is text.
    lease_ms: int | str = 0


class Ack(Message, frozen=True, array_like=True, tag=True):
    """Follower to leader: my log agrees with yours up to `end` and is durable there (S0.13, S0.29, hazard H2).

    What a `damaged` follower has counts for commits as any other's does, but its promise would be no vote: before members
    are changed the leader has to know.
    """

    end: EntryId
    round: int
    high_watermark: int = -1  # the follower's own (S3.26); -1: not told
    damaged: bool = False
    promised_ms: int = 0  # for so long since a message of `round` came it supports nobody else


class Reject(Message, frozen=True, array_like=True, tag=True):
    """Follower to leader: `prev` is not in my log. `hint` is the longest prefix I have whose term is not above prev's.

    `log_start` tells a leader whether the follower's log can be joined at all. Sent with the follower's own term; a higher
    one deposes the sender (S1.10).
    """

    hint: EntryId
    log_start: int
    round: int


class StaleTerm(Message, frozen=True, array_like=True, tag=True):
    """Anyone to a sender of an older term: `term` is mine (S1.10)."""


class SnapshotOffer(Message, frozen=True, array_like=True, tag=True):
    """Leader to follower: your log cannot be joined; a snapshot up to `at` follows over the transport (S0.37)."""

    leader: NodeId
    at: EntryId
    members: Members | None = None  # as of `at`, where replicas vote


class RequestVote(Message, frozen=True, array_like=True, tag=True):
    """Candidate to peers (S1.24). With `pre_vote` nobody's term changes: would you vote for me in `term`?"""

    candidate: NodeId
    head: EntryId
    pre_vote: bool = False
    # The leader itself asked for this election: whoever hears from it votes all the same
    transfer: bool = False


class VoteReply(Message, frozen=True, array_like=True, tag=True):
    """The answer to `RequestVote`; a granted real vote is on disk before it is sent (S1.38)."""

    granted: bool
    pre_vote: bool = False


class AskTerm(Message, frozen=True, array_like=True, tag=True):
    """From a replica whose log is damaged: which term have you promised, and please begin one beyond `floor`.

    A `floor` of -1 begs for no term yet: the replica forgot its promises too, and has to hear from enough others first.
    """

    floor: int = -1


class TermReply(Message, frozen=True, array_like=True, tag=True):
    """The answer to `AskTerm`: `term` is promised here, durably.

    Where members change, `members` are those of the log here, which ends at `end`; earlier versions do not send them.
    """

    end: EntryId | None = None
    members: Members | None = None


AnyMessage = (
    NewTerm
    | NewTermReply
    | BecomeLeader
    | BecomeLeaderReply
    | AddFollower
    | ChangeMembers
    | MembersSettled
    | TransferLeadership
    | GoOnAlone
    | TimeoutNow
    | Truncate
    | TruncateReply
    | Append
    | Ack
    | Reject
    | StaleTerm
    | SnapshotOffer
    | RequestVote
    | VoteReply
    | AskTerm
    | TermReply
)
