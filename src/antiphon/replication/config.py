"""Settings of the replication protocol. Time is counted in ticks; the node decides how long a tick is."""

from dataclasses import dataclass

from antiphon.errors import InvalidRequestError
from antiphon.replication.commit_rule import QUORUM, CommitRule

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """What every replica needs to know.

    Attributes:
        max_in_flight_bytes: pushed to one follower and not yet acknowledged. Enough to fill a fast network during one
            sync of a slow disk; little enough that a few hundred shards do not exhaust memory.
        feed_bytes_max: of one Append. Small enough that one shard's catching up does not hold up the others that share
            the connection.
        resend_ticks: without progress before a leader asks a follower again. Asking is cheap (an empty Append that the
            follower answers with what it has), so this may be short.
        waiting_reads_max: linearizable reads that may wait for a round before new ones are refused.
        term_start_on_empty: open a leadership with a term-start entry even when the log is empty. Without it the first
            record of a topic has offset 0, as its clients expect (S3.22). That is safe: an empty best log among a
            majority means that nothing was ever committed, so there is nothing that the entry would have to commit.
        commit: when an entry is committed, in terms that do not go by the live set (C1); `ReplicaBase.set_config`
            changes it on a living shard.
        min_live: fewest members of the live set with which the live rule commits (C1).
        live_lag_entries_max: a live member that trails the leader's log by more for `live_lag_ticks` is proposed for removal
            (S3.28); what was written in the last tick does not count. Who trails by no more is waited for when it comes
            back (S3.29).
        live_lag_ticks: so is one that for so long is disconnected, or has not done all that there was to do at some moment:
            hold the log up to its end of then, and answer a read's question.
        commit_marker: write a record into the log when the high watermark has moved (C6: `record`, S4.7).
        ack_every: a follower acknowledges when it has this many entries, or on the next heartbeat, which comes after at most
            `resend_ticks` (C2).
        unclean: a leader may have been elected that lacks what was committed (S3.18, C10). A follower whose settled log is
            not in such a leader's gives up the difference, instead of stopping for good.
        lease_ms: for so long a follower supports nobody else, and a leader asks for that (`lease`); 0: off. The host has to
            be able to tell, after a restart, that this was ever on (`RestoredState.bound_until_us`).
    """

    max_in_flight_bytes: int = 8 * MIB
    feed_bytes_max: int = 1 * MIB
    resend_ticks: int = 4
    waiting_reads_max: int = 100_000
    term_start_on_empty: bool = True
    commit: CommitRule = QUORUM
    min_live: int = 1
    live_lag_entries_max: int = 10_000
    live_lag_ticks: int = 60
    commit_marker: bool = False
    ack_every: int = 1
    unclean: bool = False
    lease_ms: int = 0

    def __post_init__(self) -> None:
        for name in (
            "max_in_flight_bytes",
            "feed_bytes_max",
            "resend_ticks",
            "waiting_reads_max",
            "min_live",
            "live_lag_ticks",
            "ack_every",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} must be at least 1, is {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ElectionConfig:
    """What replicas that elect their leader themselves need to know besides.

    Attributes:
        heartbeat_ticks: between a leader's signs of life; several must fit into `election_ticks_min`.
        election_ticks_min: a follower that heard from its leader less than this ago neither campaigns nor grants a
            pre-vote; a leader that hears from no majority for as long gives up. The random timeouts that the
            constructor of `RaftReplica` is given should lie between this and twice this.
        pre_vote: ask whether an election could be won before the term is raised, so that a replica that was cut off
            does not depose a working leader when it comes back.
        first_ticks: a replica in term 0, or one that votes alone, has no leader whom it could depose: so long it waits
            then, in place of a random time-out. Each founder has another, so that they do not split the votes. 0: as
            others.
    """

    heartbeat_ticks: int = 2
    election_ticks_min: int = 10
    pre_vote: bool = True
    first_ticks: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks_min:
            raise InvalidRequestError(
                f"heartbeat_ticks ({self.heartbeat_ticks}) must be at least 1 and below election_ticks_min "
                f"({self.election_ticks_min})"
            )
