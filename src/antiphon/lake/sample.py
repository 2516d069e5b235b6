"""What a mirror finds out of its source before it begins: where shards begin and end, and what values look like."""

from collections.abc import Mapping
from typing import Any, Final

from antiphon.client.blocking import Cluster, list_offsets
from antiphon.client.log_reader import committed_end
from antiphon.lake.mirror import Source
from antiphon.lake.values.decoding import ValueSpec
from antiphon.lake.values.spec import learnt as spec_of_sample
from antiphon.spark.option_values import parse_servers
from antiphon.spark.servers import frame_of

SAMPLE_OFFSETS: Final = 5_000  # from each end of the log, over all shards
LIST_LATEST: Final = -1


def shard_ends(source: Source, timeout_ms: int) -> dict[int, tuple[int, int]]:
    """First offset and committed end of every shard, now."""
    with Cluster(parse_servers(source.servers), timeout_ms) as cluster:
        shards = cluster.topic(source.name, table=source.is_table).shards
        replies = list_offsets(cluster, {shard.shard_id: LIST_LATEST for shard in shards})
    found = zip(shards, replies.values(), strict=True)
    return {shard.index: (reply.log_start, committed_end(reply)) for shard, reply in found}


def learnt(spark: Any, source: Source, spec: ValueSpec, timeout_ms: int) -> ValueSpec:
    """With the schema that the oldest and the newest records have. JSON without records has no columns yet."""
    return spec_of_sample(spec, _sample(spark, source, timeout_ms), source.name)


def _sample(spark: Any, source: Source, timeout_ms: int) -> list[bytes | None]:
    """Values of records from both ends of the log."""
    ends = shard_ends(source, timeout_ms)
    each = max(1, SAMPLE_OFFSETS // max(1, len(ends)))
    ranges = [
        {shard: (start, min(end, start + each)) for shard, (start, end) in ends.items()},
        {shard: (max(start + each, end - each), end) for shard, (start, end) in ends.items()},
    ]
    values: list[bytes | None] = []
    for span in ranges:
        chosen = {shard: (start, end) for shard, (start, end) in span.items() if end > start}
        if chosen:
            values += _values(spark, source, chosen, timeout_ms)
    return values


def _values(
    spark: Any, source: Source, span: Mapping[int, tuple[int, int]], timeout_ms: int
) -> list[bytes | None]:
    import json

    kind = {"table": source.name, "mode": "changes"} if source.is_table else {"topic": source.name}
    bounds = {
        name: json.dumps({source.name: {str(shard): pair[at] for shard, pair in span.items()}})
        for at, name in enumerate(("startingOffsets", "endingOffsets"))
    }
    frame = frame_of(spark, source.servers, timeout_ms, columns="value", **kind, **bounds)
    return [None if row["value"] is None else bytes(row["value"]) for row in frame.collect()]
