"""Going on from one voter's log of `__cluster` when most voters lost theirs: what is written behind that log. Pure.

The log that is left may lack what the lost voters had committed. No rule of the protocol can bring that back, and none may
pretend that it was never there. So what is written makes sure that nothing which was given out by a lost record is given out
again, and that whoever still goes by the lost part is recognised:

- The *mark* of the recovery is a term of `__cluster` beyond all that could have begun (`RECOVERY_TERMS`). Who promised less,
  and has entries, has the old history. It is let into nothing.
- Every shard that the coordinator elects for begins a term beyond all that a lost record could have begun (`SHARD_TERMS`).
  Otherwise a second leader could be appointed in a term that has one.
- No counter gives a number again (`IDS_ABOVE`).
- One voter is left, which is the majority of one. More are added as always (`coordination.voters`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from antiphon.coordination.actions import Record
from antiphon.coordination.cluster_records import (
    PRODUCER_COUNTER,
    counter_record,
    recovery_record,
    shard_record,
    voters_record,
)
from antiphon.coordination.profiles import replication_of
from antiphon.coordination.self_led import is_self_led
from antiphon.coordination.state import ClusterState
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import ABSENT_NODE, CLUSTER_SHARD_ID, Recovery, ShardMeta, ShardStatus
from antiphon.records.entry_id import EntryId
from antiphon.replication.lone_voter import HISTORY_TERMS

RECOVERY_TERMS: Final = HISTORY_TERMS
SHARD_TERMS: Final = 1_000
IDS_ABOVE: Final = 1_000_000
PRODUCER_IDS_ABOVE: Final = 1_000_000_000
TERM_MAX: Final = (1 << 31) - 1  # as batches have it


def next_mark(terms: Iterable[int]) -> int:
    """The term of a recovery, beyond these and whatever may have begun since. Raises InvalidRequestError."""
    mark = (max(terms, default=0) // RECOVERY_TERMS + 1) * RECOVERY_TERMS
    if mark + RECOVERY_TERMS > TERM_MAX:
        raise InvalidRequestError(f"there is no term left for a recovery beyond term {mark - RECOVERY_TERMS}")
    return mark


def longest(heads: dict[str, EntryId]) -> str:
    """Whose log has the most of what may have been committed: by the term of its last entry, then by its length."""
    return max(heads, key=lambda name: (heads[name], name))


def recovery_records(state: ClusterState, recovery: Recovery) -> Iterator[Record]:
    """What is written behind the log whose fold is `state`, in this order."""
    before = state.voters
    number = 1 if before is None else before.members_version + 1
    yield recovery_record(recovery)
    yield voters_record(ShardMeta(CLUSTER_SHARD_ID, 0, (recovery.node,), members_version=number))
    for name, value in state.counters.items():
        yield counter_record(name, value + (PRODUCER_IDS_ABOVE if name == PRODUCER_COUNTER else IDS_ABOVE))
    for record in state.shards.values():
        topic = state.topics[state.names[record.topic_id]]
        if not is_self_led(replication_of(topic.profile, topic.config)):
            meta = record.meta
            changed = msgspec.structs.replace(
                meta, term=meta.term + SHARD_TERMS, leader=ABSENT_NODE, status=ShardStatus.OFFLINE
            )
            yield shard_record(msgspec.structs.replace(record, meta=changed))
