"""The beginning of a row `head/...` of the internal table `__epochs`: what is told of an epoch of a Spark query."""

import msgspec


class EpochHead(msgspec.Struct, frozen=True, array_like=True):
    """What a row begins with; `spark.staging.epochs.Epoch` is all of it.

    Attributes:
        query: names the query, or the transaction.
        number: of the epoch.
        target: name of the topic or table.
        target_id: its id: a topic of the same name that was made anew is another one.
        is_table: is it a table?
        plan: what Spark noted about the epoch before it ran it, as a digest; empty where that could not be read.
        rows: rows in all parts.
        decided_ms: when the manifest was put.
        applied_ms: when it was marked as applied; 0: not yet.
    """

    query: str
    number: int
    target: str
    target_id: bytes
    is_table: bool
    plan: bytes
    rows: int
    decided_ms: int
    applied_ms: int
