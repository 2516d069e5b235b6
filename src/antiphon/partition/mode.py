"""What follows from how a shard's log is replicated (docs/modes.md): who elects, what is settled, what may be lost."""

from typing import Final, Protocol

from antiphon.partition.state import PartitionState
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import Role

EARLY: Final = "its commit rule acknowledges what an election may still lose, so a transaction could be committed in part"
UNCLEAN: Final = (
    "it allows unclean elections, which could undo a transaction in one shard and not in the others"
)
MANY_WRITERS: Final = (
    "every replica of it writes (writers=multi), so there is no one order of batches and markers"
)


class ReplicationMode(Protocol):
    """What the node asks of a partition's mode of replication."""

    @property
    def is_appointed(self) -> bool:
        """Does the coordinator appoint the leader of this shard?"""

    @property
    def elects_itself(self) -> bool:
        """Do the replicas of this shard vote? `__cluster`'s do, and those of topics with `election=raft`."""

    @property
    def needs_new_term(self) -> bool:
        """Is the log being repaired after damage? It counts only from a term that began since: somebody must begin one."""

    @property
    def live(self) -> tuple[int, ...]:
        """The live replica set that the leader goes by (`commit=live`); empty elsewhere, and where this replica follows."""

    @property
    def settled(self) -> int:
        """First offset that an election may still take back: what is written down, and as far as the log may be trimmed."""

    @property
    def acknowledges_early(self) -> bool:
        """Does the topic's rule acknowledge what an election may still lose (`local`, small `at_least(k)`)?"""

    @property
    def needs_every_other(self) -> bool:
        """Does it take all other replicas to have all that this one had? Elsewhere a majority has it."""

    def waits_for(self) -> str:
        """What may be missing when nothing is committed, as a question to an operator."""

    def no_transactions(self) -> str:
        """Why this shard takes no parts of transactions; empty: it does."""


class SingleWriterMode:
    """One leader writes. `voter`: the state machine, where the replicas vote."""

    needs_every_other = False

    def __init__(self, state: PartitionState, replica: Replica | RaftReplica) -> None:
        self._state = state
        self._replica = replica
        self.voter = replica if isinstance(replica, RaftReplica) else None

    @property
    def elects_itself(self) -> bool:
        """See ReplicationMode."""
        return self.voter is not None

    @property
    def is_appointed(self) -> bool:
        """See ReplicationMode."""
        return self.voter is None

    @property
    def needs_new_term(self) -> bool:
        """See ReplicationMode."""
        replica = self._replica
        return (
            self._state.failed is None
            and self.is_appointed
            and replica.damaged
            and replica.role is Role.FOLLOWER
            and replica.log_end > 0  # an empty one may be waiting for a snapshot
            and replica.high_watermark >= replica.log_start  # equal where a snapshot brought all of it
        )

    @property
    def live(self) -> tuple[int, ...]:
        """See ReplicationMode."""
        return self._replica.live if self._state.is_leader else ()

    @property
    def settled(self) -> int:
        """See ReplicationMode."""
        return self._replica.settled

    @property
    def acknowledges_early(self) -> bool:
        """See ReplicationMode."""
        if self._replica.live:
            return False
        return self._replica.config.commit.may_lose(len(self._replica.members.voters))

    def no_transactions(self) -> str:
        """See ReplicationMode."""
        return EARLY if self.acknowledges_early else ""

    def waits_for(self) -> str:
        """See ReplicationMode."""
        live, settings = self._replica.live, self._state.settings
        if live and settings is not None:
            wanted = settings.replica.min_live
            return f"are enough replicas live (min.live={wanted}, live are {', '.join(map(str, live))})"
        return "is a majority of its replicas up"


class MultiWriterMode:
    """Every replica writes: nobody leads and nobody is elected, and what is acknowledged is on this disk."""

    is_appointed = False
    elects_itself = False
    needs_new_term = False
    live: tuple[int, ...] = ()
    acknowledges_early = False
    needs_every_other = True

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    @property
    def settled(self) -> int:
        """See ReplicationMode."""
        return self._state.high_watermark

    def no_transactions(self) -> str:
        """See ReplicationMode."""
        return MANY_WRITERS

    def waits_for(self) -> str:
        """See ReplicationMode."""
        return "is a majority of its replicas up"
