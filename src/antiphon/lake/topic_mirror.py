"""Mirror a topic into a lake table: its whole history, a row a record, exactly once."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from antiphon.lake.mirror import Mirror, MirrorProgress, find_source
from antiphon.lake.query import MAX_OFFSETS_DEFAULT, TIMEOUT_MS_DEFAULT, MirrorQuery, TriggerOptions, recipe
from antiphon.lake.records import RowShape
from antiphon.lake.targets.target import Target, open_target
from antiphon.lake.values.options import ValueOptions
from antiphon.spark.connect import refuse_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mirror_topic(
    spark: "SparkSession",
    servers: str,
    topic: str,
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
    headers: bool = False,
    dead_letters: str | None = None,
    starting: str = "earliest",
    every: str | None = None,
    max_offsets: int = MAX_OFFSETS_DEFAULT,
    partitions: int | None = None,
    fail_on_data_loss: bool = True,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
    on_epoch: Callable[[MirrorProgress], None] | None = None,
) -> MirrorQuery:
    """Append a topic's records to a lake table, each once, whatever dies.

        progress = mirror_topic(spark, servers, "flights", "delta:/lake/flights", format="json").progress

    Rows have `_key`, the columns of the value, `_partition`, `_offset`, `_timestamp`, and with `headers` `_headers`; a
    record without a value has null in the value's columns. How far the mirror is, is kept in the lake table: run it again
    and it goes on from there, with or without a checkpoint.

    - `target`: `KIND:PATH` or a mapping, see `antiphon.lake.open_target`.
    - `checkpoint`: a folder that the driver can read, for Spark's own account of epochs; None: a temporary one.
    - `format`, `schema`, `message`, `framing`, `writers`, `new_fields`: what values are, see
      `antiphon.lake.values.options.ValueOptions`. `key`: raw (binary) or text. `headers`: take the records' headers along.
    - `select`, `where`: SQL over each row, such as `select="flight, alt * 0.3048 as altitude_m", where="alt > 0"`. The
      columns of the value are those that `select` names then; rows that `where` does not call true are left out. Needs
      `antiphon[sql]`, and columns that are known before (`schema`).
    - `dead_letters`: a topic for records that cannot be decoded, as they were, with reason and place in headers. Without it
      such a record ends the mirror, and nothing of its epoch is written.
    - `starting`: where a table that has nothing of the topic begins: earliest, latest or JSON, as in `startingOffsets`.
    - `every`: None: mirror what is there now, then return. Otherwise, such as `10 seconds`: return at once; epochs go on
      until the result is stopped.
    - `max_offsets`: an epoch's most. `partitions`: tasks per epoch, at least; default: one a core.
    - `fail_on_data_loss`: fail when records were removed before they were mirrored.
    - `timeout_ms`: how long a request to the cluster may take. `on_epoch`: called after each epoch.

    Returns the mirror, with `.progress`, `.wait()` and `.stop()`. Raises InvalidRequestError that names the argument;
    BadRecordError that names the first bad record, without `dead_letters`; DataLossError where the records to go on with are
    gone, or the checkpoint is ahead of the table; TargetConflictError where another mirror of the topic writes to the table.
    """
    refuse_connect(spark, "mirror_topic")
    options = ValueOptions(format, schema, message, framing, writers or {}, new_fields, select, where)
    trigger = TriggerOptions(
        every, max_offsets, partitions, starting, fail_on_data_loss, timeout_ms
    ).checked()
    lake = open_target(target)
    source, shards = find_source(servers, topic, table=False, timeout_ms=timeout_ms)
    shape = RowShape(is_table=False, key_format=key, headers=headers)
    mirror = Mirror(
        spark, source, lake, recipe(spark, source, lake, shape, options, trigger, dead_letters), shards
    )
    mirror.recover()
    owned = None if lake is target else lake
    return MirrorQuery(mirror, checkpoint, on_epoch, owned).start(spark, source, shape, trigger)
