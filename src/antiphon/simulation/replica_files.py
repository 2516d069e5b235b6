"""What one replica of a script has on its disk, durably."""

from typing import TYPE_CHECKING

from antiphon.replication.actions import AppendLog, PersistTerm, ResetLog, TruncateLog
from antiphon.replication.replica_state import LogCondition
from antiphon.simulation.stored_log import StoredLog

if TYPE_CHECKING:
    from antiphon.replication.members import Members
    from antiphon.replication.messages import NodeId

StorageAction = PersistTerm | AppendLog | TruncateLog | ResetLog


class ReplicaFiles:
    """What one replica has on its disk, durably."""

    def __init__(self) -> None:
        self.term = 0
        self.voted_for: NodeId | None = None
        self.log = StoredLog()
        self.high_watermark = 0  # a checkpoint: may be old, never ahead
        self.acknowledged = (
            0  # end of what a leader here told clients to be committed, where that is not settled
        )
        self.condition = LogCondition.SOUND  # where it is not, `log` is the sound part
        self.members: Members | None = None  # as of the log's start, where replicas vote; None: the founders

    @property
    def damaged(self) -> bool:
        """Is the log not whole?"""
        return self.condition is not LogCondition.SOUND

    def carry_out(self, action: StorageAction, chain: int = 0) -> None:
        """Make one storage action durable; `chain` is that of a reset's position."""
        match action:
            case PersistTerm():
                self.term, self.voted_for = action.term, action.voted_for
            case AppendLog():
                self.log.append(action.entries)
            case TruncateLog():
                self.log.truncate(action.to_offset)
            case ResetLog():
                self.log.reset(action.at, chain)
                self.members = action.members

    def trim(self, log_start: int) -> None:
        """Cut the head of the log; what its members entries said is remembered."""
        for entry in self.log.entries:
            if entry.members is not None and entry.next_offset <= log_start:
                self.members = entry.members
        self.log.trim(log_start)
