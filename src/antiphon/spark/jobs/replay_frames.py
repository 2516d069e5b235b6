"""DataFrames of the past: a table's state at a cut, and the records or changes up to one."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.records.unreadable import DEAD_LETTER, FAIL, Choice, letters_of
from antiphon.spark.connect import parallelism
from antiphon.spark.servers import frame_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from antiphon.spark.jobs.replay_cut import Cut

LAST_PER_KEY: Final = "last-per-key"
STATE_COLUMNS: Final = (
    "key",
    "value",
    "version",
    "modifications",
    "created",
    "modified",
    "partition",
    "offset",
)
RESULT_ROWS: Final = 5_000  # of one Arrow batch of results


class FoldRecord(NamedTuple):
    """What a fold is given: a record of a topic, or a change of a table.

    `kind` is None for topics; of a change it is created, modified or deleted (then `value` is None). `timestamp_ms` is in ms
    since 1970.
    """

    key: bytes | None
    value: bytes | None
    shard: int
    offset: int
    timestamp_ms: int
    kind: str | None


Fold = Callable[[Any, FoldRecord], Any]
"""`fold(state, record) -> state`; the state is None before the first record."""


def source_frame(
    spark: "SparkSession", servers: str, cut: "Cut", timeout_ms: int, **options: str
) -> "DataFrame":
    """`format("antiphon")` on what the cut is of."""
    kind = "table" if cut.is_table else "topic"
    return frame_of(spark, servers, timeout_ms, **{kind: cut.name}, **options)


def options_on_corrupt(choice: Choice) -> dict[str, str]:
    """The source's options for what becomes of batches that cannot be read."""
    letters = letters_of(choice)
    if letters is not None:
        return {"onCorrupt": DEAD_LETTER, "deadLetters": letters}
    return {} if choice == FAIL else {"onCorrupt": str(choice)}


def state_frame(spark: "SparkSession", servers: str, cut: "Cut", timeout_ms: int) -> "DataFrame":
    """A table's rows at the cut."""
    if not any(cut.ends.values()):
        return source_frame(spark, servers, cut, timeout_ms).select(*STATE_COLUMNS).limit(0)
    options = {"mode": "snapshot", "asOfOffset": cut.offsets_json()}
    return source_frame(spark, servers, cut, timeout_ms, **options).select(*STATE_COLUMNS)


def log_frame(
    spark: "SparkSession", servers: str, cut: "Cut", timeout_ms: int, on_corrupt: Choice = FAIL
) -> "DataFrame":
    """The records, or a table's changes, from the cut's starts to its ends."""
    options = {
        "startingOffsets": cut.starts_json(),
        "endingOffsets": cut.offsets_json(),
        **options_on_corrupt(on_corrupt),
    }
    if cut.is_table:
        options["mode"] = "changes"
    return source_frame(spark, servers, cut, timeout_ms, **options)


def last_per_key(records: "DataFrame") -> "DataFrame":
    """The last record of every key of a topic, as log compaction leaves it: keys whose last value is null are gone.

    Within a shard the offset says what is last. A key that is in several shards, because shards were added, counts by time.
    """
    from pyspark.sql import functions as sf

    fields = ("value", "partition", "offset", "timestamp")
    in_shard = (
        records.where("key is not null")
        .groupBy("key", "partition")
        .agg(sf.max_by(sf.struct("value", "offset", "timestamp"), sf.col("offset")).alias("last"))
        .select("key", "last.value", "partition", "last.offset", "last.timestamp")
    )
    return (
        in_shard.groupBy("key")
        .agg(sf.max_by(sf.struct(*fields), sf.struct("timestamp", "partition")).alias("last"))
        .select("key", *[f"last.{name}" for name in fields])
        .where("value is not null")
    )


def folded(records: "DataFrame", fold: Fold, by: str, shards: int) -> "DataFrame":
    """Columns key and value: what a fold comes to over the records of each key, or of each shard, in their order.

    The records of one key, or shard, go through one task. Those of a key are in the order of shards and, within a shard, of
    offsets: where a table's shard was split, that is the order in which they were written.
    """
    from pyspark.sql import functions as sf

    columns = ["key", "value", "partition", "offset", "timestamp"]
    kind = sf.col("kind") if "kind" in records.columns else sf.lit(None).cast("string").alias("kind")
    rows = records.select(*columns, kind)
    if by == "shard":
        placed = rows.repartitionById(max(1, shards), "partition").sortWithinPartitions("partition", "offset")
    elif by == "key":
        cores = parallelism(records.sparkSession)
        placed = (
            rows.where("key is not null")
            .repartition(2 * cores, "key")
            .sortWithinPartitions("key", "partition", "offset")
        )
    else:
        raise InvalidRequestError(f"a fold goes by key or by shard, not by {by!r}")
    return placed.mapInArrow(partial(fold_rows, fold, by), "key binary, value binary")


def fold_rows(fold: Fold, by: str, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Runs in tasks: rows that are sorted by key, or by shard, to a row for each state that is not None."""
    results: list[tuple[bytes, bytes]] = []
    current: Any = None  # the key or shard whose records go through now
    state: Any = None
    begun = False
    for record in _records(batches):
        place = record.key if by == "key" else record.shard
        if not begun or place != current:
            if begun:
                results += _results(by, current, state)
            current, state, begun = place, None, True
        try:
            state = fold(state, record)
        except Exception as error:
            raise AntiphonError(
                f"the fold {name_of(fold)} failed at offset {record.offset} of shard {record.shard}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if len(results) >= RESULT_ROWS:
            yield _batch(results)
            results = []
    if begun:
        results += _results(by, current, state)
    for at in range(0, len(results), RESULT_ROWS):
        yield _batch(results[at : at + RESULT_ROWS])


def name_of(fold: Fold | str) -> str:
    """How a fold is called in messages and plans."""
    if isinstance(fold, str):
        return fold
    module, name = getattr(fold, "__module__", ""), getattr(fold, "__qualname__", repr(fold))
    return f"{module}:{name}"


def _records(batches: "Iterator[pa.RecordBatch]") -> Iterator[FoldRecord]:
    import pyarrow as pa

    for batch in batches:
        times = batch.column("timestamp")
        time_us = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        names = ("key", "value", "partition", "offset")
        columns = [batch.column(name).to_pylist() for name in names]
        for key, value, shard, offset, at_us, kind in zip(
            *columns, time_us.to_pylist(), batch.column("kind").to_pylist(), strict=True
        ):
            yield FoldRecord(key, value, shard, offset, -1 if at_us is None else at_us // 1000, kind)


def _results(by: str, place: Any, state: Any) -> list[tuple[bytes, bytes]]:
    if state is None:
        return []
    if by == "key":
        return [(place, as_bytes(state))]
    if isinstance(state, dict):
        return [(as_bytes(key), as_bytes(value)) for key, value in state.items() if value is not None]
    return [(str(place).encode(), as_bytes(state))]


def as_bytes(value: Any) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON. Raises InvalidRequestError for what has no JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    try:
        return msgspec.json.encode(value)
    except TypeError as error:
        raise InvalidRequestError(f"a fold's state has to be bytes, text or fit for JSON: {error}") from error


def _batch(results: Iterable[tuple[bytes, bytes]]) -> "pa.RecordBatch":
    import pyarrow as pa

    keys, values = zip(*results, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"]
    )
