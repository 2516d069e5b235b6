"""What the surroundings of a replica may look at: numbers and names, nothing that changes anything."""

from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.follower import FollowerSide
from antiphon.replication.follower_cursor import FollowerStatus
from antiphon.replication.leader import LeaderSide
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId


class ReplicaView:
    """The properties of every kind of replica; see `ReplicaCore`."""

    node_id: NodeId
    members: Members
    _rule: CommitRule
    _log: LocalLog
    _leading: LeaderSide | None
    _following: FollowerSide | None

    @property
    def ensemble(self) -> tuple[NodeId, ...]:
        """Everybody whose acknowledgement or vote counts somewhere, as far as this replica knows."""
        return self.members.voting

    @property
    def commit_rule(self) -> CommitRule:
        """By which an entry is committed, in terms that do not go by a live set."""
        return self._rule

    @property
    def leader(self) -> NodeId | None:
        """The leader of this term, if known."""
        if self._leading is not None:
            return self.node_id
        return self._following.leader if self._following is not None else None

    @property
    def log_start(self) -> int:
        """First offset that is still in the log."""
        return self._log.terms.log_start

    @property
    def log_end(self) -> int:
        """Next offset to write, appends underway included."""
        return self._log.terms.log_end

    @property
    def durable_end(self) -> int:
        """End of what is on this disk of the log as it stands."""
        return self._log.durable_end

    @property
    def high_watermark(self) -> int:
        """First offset that is not known to be committed: `commit_mark` on a leader, `settled` elsewhere."""
        return self._log.commit_mark if self._leading is not None else self._log.high_watermark

    @property
    def settled(self) -> int:
        """First offset that is not known to be safe from every election.

        It is what a checkpoint is to hold, and as far as a log may be trimmed. What is below is on this disk, except for a
        leader's newest entries. While a snapshot is being put in place of the log it is below `log_start`.
        """
        return self._log.high_watermark

    @property
    def commit_mark(self) -> int:
        """First offset that this replica has told nobody is committed.

        Beyond `settled` only where a rule acknowledges sooner (`local`, small `at_least(k)`); there it falls when `LostTail`
        says so, and not when leadership ends.
        """
        return self._log.commit_mark

    @property
    def live(self) -> tuple[NodeId, ...]:
        """The live replica set as recorded, as far as it is known here; empty in terms that do not go by it (S3.6)."""
        if self._leading is not None:
            return self._leading.live.recorded if self._leading.live is not None else ()
        return self._following.live if self._following is not None else ()

    @property
    def head(self) -> EntryId:
        """Id of the whole log."""
        return self._log.terms.end

    @property
    def terms(self) -> TermIndex:
        """The replica's own index of terms; read only."""
        return self._log.terms

    @property
    def ready(self) -> bool:
        """May clients be served: this replica leads and its term's first entry is committed (S1.36)."""
        return self._leading is not None and self._leading.ready

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only `tick` can mend? An idle shard needs none."""
        return self._leading is not None and self._leading.needs_tick

    def followers(self) -> tuple[FollowerStatus, ...]:
        """What a leader knows of its followers; empty on others."""
        return self._leading.followers() if self._leading is not None else ()
