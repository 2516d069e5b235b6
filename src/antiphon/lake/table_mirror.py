"""Mirror a table into a lake table: its current state, deletions included."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import DataLossError, InvalidRequestError
from antiphon.lake.mirror import Mirror, MirrorProgress, Source, find_source
from antiphon.lake.query import MAX_OFFSETS_DEFAULT, TIMEOUT_MS_DEFAULT, MirrorQuery, TriggerOptions, recipe
from antiphon.lake.records import RowShape
from antiphon.lake.sample import shard_ends
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.target import Target, open_target
from antiphon.lake.values.decoding import check_choice
from antiphon.lake.values.options import ValueOptions
from antiphon.spark.connect import refuse_connect
from antiphon.spark.servers import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS: Final = ("snapshot", "earliest")


def mirror_table(
    spark: "SparkSession",
    servers: str,
    table: str,
    target: str | Mapping[str, Any] | Target,
    checkpoint: str | None = None,
    *,
    format: str = "raw",  # noqa: A002 - what it is called everywhere
    schema: Any = None,
    message: str | None = None,
    framing: str = "none",
    writers: Mapping[Any, str] | None = None,
    new_fields: str | None = None,
    select: str | None = None,
    where: str | None = None,
    key: str = "raw",
    dead_letters: str | None = None,
    start: str = "snapshot",
    every: str | None = None,
    max_offsets: int = MAX_OFFSETS_DEFAULT,
    partitions: int | None = None,
    fail_on_data_loss: bool = True,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
    on_epoch: Callable[[MirrorProgress], None] | None = None,
) -> MirrorQuery:
    """Keep a lake table equal to a table: a row a key, with `_key`, the value's columns, `_version` and `_modified`.

        mirror_table(spark, servers, "aircraft", "delta:/lake/aircraft", format="json", every="10 seconds")

    Each epoch merges the last change of each key: a put where its version is higher than the row's, a deletion where the
    row's is not higher. A new mirror begins with a `snapshot` of the table, which is loaded as it is; or with the `earliest`
    change, which needs the table's log from its beginning.

    With `where` the lake table has the rows for which it is true: a key's row goes when its value no longer is one.
    A change whose value cannot be decoded is a dead letter, and its key has no row until a later change can be. Other
    arguments, results and errors are those of `mirror_topic`; a target is refused whose rows cannot be changed (parquet).
    """
    refuse_connect(spark, "mirror_table")
    check_choice("start", start, STARTS)
    options = ValueOptions(format, schema, message, framing, writers or {}, new_fields, select, where)
    trigger = TriggerOptions(
        every, max_offsets, partitions, "earliest", fail_on_data_loss, timeout_ms
    ).checked()
    lake = open_target(target)
    KINDS[lake.kind].refuse_changes()
    source, shards = find_source(servers, table, table=True, timeout_ms=timeout_ms)
    shape = RowShape(is_table=True, key_format=key)
    mirror = Mirror(
        spark, source, lake, recipe(spark, source, lake, shape, options, trigger, dead_letters), shards
    )
    mirror.recover()
    if not mirror.positions:
        _begin(spark, source, mirror, lake, shape, trigger, start)
    owned = None if lake is target else lake
    return MirrorQuery(mirror, checkpoint, on_epoch, owned).start(spark, source, shape, trigger)


def _begin(
    spark: "SparkSession",
    source: Source,
    mirror: Mirror,
    lake: Target,
    shape: RowShape,
    trigger: TriggerOptions,
    start: str,
) -> None:
    """The table's first rows, where the lake has nothing of it."""
    if lake.schema() is not None and lake.files():
        raise InvalidRequestError(
            f"{lake.folder.url} has rows that do not come from a mirror of the present table {source.name}: choose an "
            "empty table"
        )
    bounds = shard_ends(source, trigger.timeout_ms)
    if start == "earliest":
        late = {shard: first for shard, (first, _) in bounds.items() if first > 0}
        if late and trigger.fail_on_data_loss:
            raise DataLossError(
                f"the changes of table {source.name} are there from offsets {late} on only: begin with start=snapshot"
            )
        return
    # Changes from before the scan's end come again in the first epochs, and merge as what is there already.
    columns = shape.source_columns
    frame = frame_of(spark, source.servers, trigger.timeout_ms, table=source.name, columns=columns)
    mirror.load(frame, {shard: end for shard, (_, end) in bounds.items()})
