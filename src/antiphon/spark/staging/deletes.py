"""Deletes of a staged epoch, which must not come late.

A request leaves a trace by which its repeat is recognised: its effects in the log. Deletes of keys that are not there have
no effect and leave none. One that comes again when a later epoch has put the key, from somebody who was slow to apply this
epoch, would delete what the later epoch wrote. So where a request has nothing but deletes, look first: what is not there
needs no delete; what is there is deleted in the version that was seen, and that was seen before it was certain that the
epoch is still being applied. A later epoch only begins after that, and then the key has another version.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import Answer
from antiphon.model.metadata import TopicMeta
from antiphon.model.requests import GET_KEYS_MAX, Delete, OpStatus, TableGet, TableRows, TableWrite
from antiphon.spark.job import Job
from antiphon.spark.shard_writers import TableWriters, Waiting


class EpochTableWriters(TableWriters):
    """Table requests of an epoch that others may apply as well."""

    ACCEPTED: ClassVar[frozenset[int]] = TableWriters.ACCEPTED | {OpStatus.UNEXPECTED_VERSION}

    def __init__(
        self, cluster: Cluster, table: TopicMeta, job: Job, timeout_ms: int, check_open: Callable[[], None]
    ) -> None:
        """`check_open` raises ProducerFencedError when the epoch is applied or a later one is there."""
        super().__init__(cluster, table, job, timeout_ms)
        self._check_open = check_open

    def _answers(self, heads: Sequence[Waiting]) -> list[Answer | None]:
        """See TableWriters; None for what there was nothing to delete for, too."""
        checked = [self._checked(head) if head.only_deletes else head for head in heads]
        if any(head.only_deletes for head in checked if head is not None):
            self._check_open()
        sent = [head for head in checked if head is not None]
        answers = iter(super()._answers(sent) if sent else ())
        return [None if head is None else next(answers) for head in checked]

    def _checked(self, head: Waiting) -> Waiting | None:
        request: TableWrite = head.call.body
        keys = tuple(op.key for op in request.ops if isinstance(op, Delete))
        shard_id = head.call.shard_id
        ops: tuple[Delete, ...] = ()
        for at in range(0, len(keys), GET_KEYS_MAX):
            call = ShardCall(shard_id, TableGet(shard_id, keys[at : at + GET_KEYS_MAX], include_value=False))
            found: TableRows = self._cluster.call(call).body
            ops += tuple(Delete(row.key, row.version.id) for row in found.rows if row is not None)
        if not ops:
            return None
        return head._replace(call=ShardCall(shard_id, msgspec.structs.replace(request, ops=ops)))
