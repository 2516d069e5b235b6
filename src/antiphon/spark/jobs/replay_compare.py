"""Is a table what its log says? Its rows now, scanned from the stores of the leaders, against the fold of its log.

Writes may go on meanwhile. The rows are read first, then the log up to its end; a key that changed in between may rightly
differ, and is left out (`moving`).
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.client.blocking import Cluster
from antiphon.spark.jobs.replay_cut import Cut, bounds_of, find_cut
from antiphon.spark.jobs.replay_frames import source_frame, state_frame
from antiphon.spark.option_values import parse_servers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES_MAX: Final = 20
TIMEOUT_MS: Final = 120_000
_MISSING: Final = "missing"
_EXTRA: Final = "extra"
_VALUE: Final = "other value"
_VERSION: Final = "other version"
KINDS: Final = (_MISSING, _EXTRA, _VALUE, _VERSION)


class Difference(NamedTuple):
    """A key of which table and log say different things.

    `kind`: missing (the log has it, the table has not), extra (the other way round), other value, other version.
    """

    key: bytes
    kind: str
    table_value: bytes | None
    log_value: bytes | None
    table_version: int | None
    log_version: int | None


class Compared(NamedTuple):
    """What a comparison found.

    Attributes:
        table: which one.
        ends: exclusive offset by shard up to which its log was folded.
        rows: of the table; `log_rows`: of the fold.
        moving: keys that changed while they were read and are not judged.
        differences: by kind, how many.
        examples: some of them, by key.
    """

    table: str
    ends: dict[int, int]
    rows: int
    log_rows: int
    moving: int
    differences: dict[str, int]
    examples: list[Difference]

    @property
    def agrees(self) -> bool:
        """Nothing differs."""
        return not self.differences


def compare_table(
    spark: "SparkSession", servers: str, table: str, *, timeout_ms: int = TIMEOUT_MS
) -> Compared:
    """Compare a table's state with the fold of its log.

    Args:
        spark: any session.
        servers: native addresses, `host:port[,host:port...]`.
        table: the table's name.
        timeout_ms: how long a request may go unanswered.

    Raises:
        UnknownTopicError, WrongKindError: there is no such table.
        DataLossError: its log does not reach back to its beginning.
    """
    with Cluster(parse_servers(servers), timeout_ms) as cluster:
        meta = cluster.topic(table, table=True)
        before = {index: bound.end for index, bound in bounds_of(cluster, meta).items()}
        first = find_cut(cluster, meta)
        rows = source_frame(spark, servers, first, timeout_ms, mode="snapshot")
        rows = rows.select("key", "value", "version", "modifications").cache()
        try:
            count = rows.count()
            cut = find_cut(cluster, cluster.topic(table, table=True))
            fold = state_frame(spark, servers, cut, timeout_ms).select(
                "key", "value", "version", "modifications"
            )
            differing = _differing(rows, fold)
            changed = _changed(spark, servers, cut, before, timeout_ms)
            return _judged(table, cut, count, fold.count(), differing, changed)
        finally:
            rows.unpersist()


def _changed(
    spark: "SparkSession", servers: str, cut: Cut, before: dict[int, int], timeout_ms: int
) -> "DataFrame | None":
    """Keys that changed since the comparison began; None: none did."""
    starts = {
        index: min(end, max(cut.starts[index], before.get(index, 0))) for index, end in cut.ends.items()
    }
    if starts == cut.ends:
        return None
    moved = cut._replace(starts=starts)
    options = {
        "mode": "changes",
        "startingOffsets": moved.starts_json(),
        "endingOffsets": moved.offsets_json(),
    }
    return source_frame(spark, servers, moved, timeout_ms, **options).select("key").distinct()


def _differing(rows: "DataFrame", fold: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as sf

    table, log = rows.alias("t"), fold.alias("l")
    joined = table.join(log, sf.col("t.key") == sf.col("l.key"), "full_outer")
    same_version = sf.col("t.version").eqNullSafe(sf.col("l.version")) & sf.col("t.modifications").eqNullSafe(
        sf.col("l.modifications")
    )
    kind = (
        sf.when(sf.col("t.key").isNull(), _MISSING)
        .when(sf.col("l.key").isNull(), _EXTRA)
        .when(~sf.col("t.value").eqNullSafe(sf.col("l.value")), _VALUE)
        .when(~same_version, _VERSION)
    )
    return joined.select(
        sf.coalesce("t.key", "l.key").alias("key"),
        kind.alias("kind"),
        sf.col("t.value").alias("table_value"),
        sf.col("l.value").alias("log_value"),
        sf.col("t.version").alias("table_version"),
        sf.col("l.version").alias("log_version"),
    ).where("kind is not null")


def _judged(
    table: str, cut: Cut, count: int, log_rows: int, differing: "DataFrame", changed: "DataFrame | None"
) -> Compared:
    moving = 0
    if changed is not None:
        moving = changed.count()
        differing = differing.join(changed, "key", "left_anti")
    found: dict[str, int] = {}
    examples: list[Difference] = []
    for row in differing.groupBy("kind").count().collect():
        found[row["kind"]] = int(row["count"])
    if found:
        examples = [_difference(row) for row in differing.orderBy("key").limit(EXAMPLES_MAX).collect()]
    by_kind: dict[str, int] = {kind: found[kind] for kind in KINDS if kind in found}
    return Compared(table, cut.ends, count, log_rows, moving, by_kind, examples)


def _difference(row: Any) -> Difference:
    values = {name: None if row[name] is None else bytes(row[name]) for name in ("table_value", "log_value")}
    return Difference(
        bytes(row["key"]),
        row["kind"],
        values["table_value"],
        values["log_value"],
        row["table_version"],
        row["log_version"],
    )
