"""What a recovered log gives the replica that opens on it."""

from antiphon.log.shard_log import ShardLog
from antiphon.records.entry_id import TermIndex
from antiphon.replication.members import MembersIndex
from antiphon.replication.replica_state import LogCondition
from antiphon.replication.restored_state import RestoredState


def restored_state(
    log: ShardLog,
    high_watermark: int,
    *,
    acknowledged: int = 0,
    members: MembersIndex | None = None,
    bound_until_us: int = 0,
) -> RestoredState:
    """The state of a replica as its log was recovered. The replica gets a copy of the index of terms.

    Args:
        log: as recovered.
        high_watermark: the offset up to which entries are known to be committed; a table's store may know of more than the
            log's hard state does.
        acknowledged: see `RestoredState`.
        members: the replica's own copy of the log's index, where it goes by members entries.
        bound_until_us: see `RestoredState`.
    """
    start, hard_state = log.terms.start, log.hard_state
    terms = TermIndex(start.offset, start.term)
    terms.load(log.terms.items(), log.log_end)
    return RestoredState(
        terms=terms,
        term=hard_state.term,
        voted_for=hard_state.voted_for,
        high_watermark=high_watermark,
        acknowledged=acknowledged,
        condition=_condition(log),
        members=members,
        bound_until_us=bound_until_us,
    )


def acknowledged_by_leader(log: ShardLog) -> int:
    """The offset up to which this replica may have told clients, as a leader before it closed, that entries are committed.

    What came before its last leadership was in that leader's log, and acknowledged with it. 0: it never led.
    """
    led_term = log.hard_state.led_term
    return log.terms.end_of_term(led_term).offset if led_term else 0


def _condition(log: ShardLog) -> LogCondition:
    if log.damaged is None:
        return LogCondition.SOUND
    if log.damaged.forgot:
        return LogCondition.FORGOTTEN
    return LogCondition.JOINING if log.damaged.joins else LogCondition.DAMAGED
