"""Deletions of records by offset, in the metadata: where every later leader of a shard learns of them.

A replica's own log begins at a batch, and each replica trims its own. That records before an offset inside a batch are
deleted is said once, in the shard's record. The leader asks for it when the offset is settled, in the term that it leads.
Whoever leads a later term is appointed after this record, and told of it with its appointment
(docs/decisions/0038-records-are-deleted-to-the-offset.md).
"""

from collections.abc import Callable

import msgspec

from antiphon.coordination.cluster_records import DELETION_FORMAT, ShardRecord
from antiphon.coordination.election import Election
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.profiles import Replication
from antiphon.coordination.self_led import is_self_led
from antiphon.coordination.state import refuse_earlier
from antiphon.errors import InvalidRequestError, StaleTermError
from antiphon.model.cluster import DeleteBefore
from antiphon.model.metadata import ShardMeta


def delete_before(
    ledger: Ledger, request: DeleteBefore, options_of: Callable[[ShardRecord], Replication]
) -> None:
    """Record a deletion, unless as much is deleted already.

    Raises StaleTermError where the asker's term is over: a later leader may have been appointed without the record.
    """
    model = ledger.model
    record = model.shard(request.shard_id)
    meta = record.meta
    if is_self_led(options_of(record)):
        raise InvalidRequestError(f"shard {request.shard_id} keeps its deletions itself")
    if request.before < 0:
        raise InvalidRequestError(f"records are deleted before an offset, not before {request.before}")
    refuse_earlier(
        model,
        DELETION_FORMAT,
        "are of a version that knows no deletions inside of batches: upgrade them first",
    )
    if meta.term != request.term:
        raise StaleTermError(
            f"shard {request.shard_id} is in term {meta.term}; the deletion was asked for in term {request.term}"
        )
    if request.before > meta.deleted_before:
        changed = msgspec.structs.replace(meta, deleted_before=request.before)
        ledger.put_shard(msgspec.structs.replace(record, meta=changed))


def of_new_term(meta: ShardMeta, election: Election) -> ShardMeta:
    """What an unclean leader lacks of the log, it will write anew: those are other records, which nobody has deleted.

    The same holds for the replica from which a shard goes on that lost the others.
    """
    is_recovered = meta.recovery is not None and not meta.recovery.done
    if not (election.unclean or is_recovered) or election.candidate is None:
        return meta
    end = election.replies[election.candidate].head.offset
    return msgspec.structs.replace(meta, deleted_before=end) if end < meta.deleted_before else meta
