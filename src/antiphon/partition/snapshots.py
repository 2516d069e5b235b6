"""Snapshots of a shard's committed state: what a leader's says beside its files, and how a follower takes one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from antiphon.errors import AntiphonError, DamagedStoreError, InvalidRequestError, WrongKindError
from antiphon.partition.driver import ReplicaDriver
from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.replication.members import Members
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica

if TYPE_CHECKING:
    from antiphon.log.producer_state import ProducerState
    from antiphon.partition.services import SnapshotSource


class InstallingSnapshot(NamedTuple):
    """What a log that is reset for a snapshot begins with, and what follows once the reset is durable."""

    producers: "ProducerState"
    then: Callable[[], None] | None


class PartitionSnapshots(Protocol):
    """See the module's text. `installing`: while a snapshot takes the place of log and store."""

    installing: InstallingSnapshot | None

    def members_at(self, offset: int) -> Members | None:
        """Who the members were at `offset`, where the replicas vote; None elsewhere."""

    def installed(self, at: EntryId, members: Members | None) -> Sequence[Any]:
        """Event: a whole snapshot is here. Returns what the replica makes of it; InvalidRequestError where none is taken."""

    def source(self) -> "SnapshotSource":
        """Where the committed state can be copied from. Raises WrongKindError where nothing of the kind is kept."""


class SingleWriterSnapshots:
    """Where one leader writes, it sends one (`SnapshotSource`), and a follower takes it."""

    def __init__(self, driver: ReplicaDriver, replica: Replica | RaftReplica) -> None:
        self._driver = driver
        self._replica = replica
        self.shard_id = driver.shard_id
        self.log = driver.state.log
        self.table = driver.state.table
        self.installing: InstallingSnapshot | None = None

    @property
    def term(self) -> int:
        """See SnapshotSource."""
        return self._replica.term

    @property
    def terms(self) -> TermIndex:
        """See SnapshotSource."""
        return self._replica.log.terms

    def members_at(self, offset: int) -> Members | None:
        """See PartitionSnapshots."""
        replica = self._replica
        return replica.members_at(offset) if isinstance(replica, RaftReplica) else None

    def installed(self, at: EntryId, members: Members | None) -> Sequence[Any]:
        """See PartitionSnapshots."""
        replica = self._replica
        if isinstance(replica, RaftReplica):
            return replica.snapshot_installed(at, members)
        return replica.snapshot_installed(at)

    def source(self) -> "SnapshotSource":
        """See PartitionSnapshots."""
        return self

    def sent(self, to: int, at: EntryId) -> None:
        """See SnapshotSource."""
        self._driver.call(self._replica.snapshot_sent, to, at)

    def failed(self, to: int) -> None:
        """See SnapshotSource."""
        self._driver.call(self._replica.snapshot_failed, to)

    def stopped_by(self, error: DamagedStoreError) -> AntiphonError:
        """See SnapshotSource."""
        return self._driver.stopped_by(error)


class NoSnapshots:
    """Where every replica writes, a log is filled by relays, and a table from its log."""

    def __init__(self, shard_id: int) -> None:
        self._shard_id = shard_id
        self.installing: InstallingSnapshot | None = None

    def members_at(self, _offset: int) -> Members | None:
        """See PartitionSnapshots."""
        return None

    def installed(self, _at: EntryId, _members: Members | None) -> NoReturn:
        """See PartitionSnapshots."""
        raise InvalidRequestError(f"every replica writes shard {self._shard_id}: none takes a snapshot")

    def source(self) -> NoReturn:
        """See PartitionSnapshots."""
        raise WrongKindError(f"every replica writes shard {self._shard_id}: there is no state to copy")
