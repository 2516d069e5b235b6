"""Records to Arrow, record by record."""

from collections.abc import Iterable
from typing import Any

from antiphon.records.batch import iter_batches
from antiphon.records.decode import decode_records


def to_arrow(
    batches: Iterable[memoryview],
    *,
    start: int,
    end: int,
    topic: str,
    partition: int,
    include_headers: bool = False,
) -> Any:
    """Records with start <= offset < end."""
    import pyarrow as pa

    rows: list[Any] = []
    terms: list[int] = []
    types: list[int] = []
    for batch in batches:
        for header, view in iter_batches(batch):
            found = [r for r in decode_records(view) if start <= r.offset < end]
            rows += found
            terms += [header.leader_epoch] * len(found)
            types += [int(header.is_log_append_time)] * len(found)
    count = len(rows)
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns: dict[str, Any] = {
        "key": pa.array([r.key for r in rows], pa.binary()),
        "value": pa.array([r.value for r in rows], pa.binary()),
        "topic": pa.array([topic] * count, pa.string()),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array([r.offset for r in rows], pa.int64()),
        "timestamp": pa.array([r.timestamp_ms * 1000 for r in rows], pa.timestamp("us", "UTC")),
        "timestampType": pa.array(types, pa.int32()),
    }
    if include_headers:
        columns["headers"] = pa.array(
            [[{"key": k, "value": v} for k, v in r.headers] for r in rows], pa.list_(pair)
        )
    columns["term"] = pa.array(terms, pa.int64())
    return pa.record_batch(columns)
