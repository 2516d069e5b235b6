"""Replay: a table, or any fold of a log, as of an offset or a time, into a new table or a lake table.

    jobs.replay_table(spark, servers, "aircraft", as_of_timestamp_ms=1_767_225_600_000, to_table="aircraft-2026")
    jobs.replay_table(spark, servers, "aircraft", as_of_offset={"0": 1200, "1": 998}, to_lake="delta:/lake/aircraft")
    jobs.fold_topic(spark, servers, "flights", fold="last-per-key", to_table="last-flight")

A fold is a function of a state and a record, over the records of a key or of a whole shard, in order:

    def longest(state, record):
        minutes = json.loads(record.value)["air_time"] or 0
        return max(state or 0, minutes)

    frame = jobs.fold_topic(spark, servers, "flights", fold=longest)       # columns key and value

Every replay has a name, by default made of its source and target; a run that was killed is completed by running it again
with `resume=True`, up to the same offsets. `docs/spark.md` has the whole of it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.blocking import Cluster
from antiphon.errors import InvalidRequestError, UnknownTopicError
from antiphon.model.metadata import Kind
from antiphon.records.unreadable import FAIL, Choice, checked
from antiphon.spark.jobs.replay_cut import AsOfOffset, Cut, find_cut, parse_offsets
from antiphon.spark.jobs.replay_frames import (
    LAST_PER_KEY,
    Fold,
    folded,
    last_per_key,
    log_frame,
    name_of,
    options_on_corrupt,
    state_frame,
)
from antiphon.spark.jobs.replay_output import LakeTable, Output, Replayed, deliver
from antiphon.spark.option_values import parse_servers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from antiphon.model.metadata import TopicMeta

TIMEOUT_MS: Final = 120_000


def replay_table(
    spark: "SparkSession",
    servers: str,
    table: str,
    *,
    as_of_offset: AsOfOffset = None,
    as_of_timestamp_ms: int | None = None,
    to_table: str | None = None,
    to_lake: str | Mapping[str, Any] | LakeTable | None = None,
    name: str | None = None,
    resume: bool = False,
    shards: int | None = None,
    replicas: int | None = None,
    config: Mapping[str, str] | None = None,
    rate: int | None = None,
    timeout_ms: int = TIMEOUT_MS,
) -> Replayed:
    """A table's state at an offset or a time, by default now, into another table or a lake table.

    Args:
        spark: any session.
        servers: native addresses, `host:port[,host:port...]`.
        table: what to replay.
        as_of_offset: exclusive ends: a number (of a table with one shard), `{"0": 17, "1": 4}`, or that as JSON.
        as_of_timestamp_ms: ms since 1970; what happened at that time belongs to it.
        to_table: a table that is made, or is there and empty. Only keys and values are carried over; versions begin anew.
        to_lake: `delta:PATH`, `parquet:PATH`, `iceberg:WAREHOUSE#TABLE`, or what `antiphon.lake.open_target` takes.
        name: under which the replay can be completed after a crash; default: made of source and target.
        resume: complete a replay of that name.
        shards: of the new table; default: as many as the source was made with.
        replicas: of the new table; default: the source's.
        config: settings of the new table; default: the source's.
        rate: at most so many bytes a second into the new table; the cluster sets a rate in any case.
        timeout_ms: how long a request may go unanswered, fail-overs included.

    Raises:
        UnknownTopicError, WrongKindError: there is no such table.
        InvalidRequestError: what is asked for does not exist, or the target has rows already.
        DataLossError: the past that is asked for is gone.
        VerificationError: what arrived is not what was written.
    """
    output = Output(servers, to_table, to_lake, name, resume, shards, replicas, config, rate, timeout_ms)
    with Cluster(parse_servers(servers), timeout_ms) as cluster:
        source = cluster.topic(table, table=True)
        return deliver(
            spark,
            cluster,
            source,
            {"job": "replay_table", "as_of": _as_of(source, as_of_offset, as_of_timestamp_ms)},
            lambda: find_cut(cluster, source, as_of_offset, as_of_timestamp_ms),
            lambda cut: state_frame(spark, servers, cut, timeout_ms),
            output,
        )


def fold_topic(
    spark: "SparkSession",
    servers: str,
    topic: str,
    *,
    fold: Fold | str = LAST_PER_KEY,
    by: str = "key",
    as_of_offset: AsOfOffset = None,
    as_of_timestamp_ms: int | None = None,
    to_table: str | None = None,
    to_lake: str | Mapping[str, Any] | LakeTable | None = None,
    name: str | None = None,
    resume: bool = False,
    shards: int | None = None,
    replicas: int | None = None,
    config: Mapping[str, str] | None = None,
    rate: int | None = None,
    on_corrupt: Choice = FAIL,
    timeout_ms: int = TIMEOUT_MS,
) -> "Replayed | DataFrame":
    """A fold of a topic's records, or of a table's changes, up to an offset or a time, by default up to now.

    Args:
        spark: as for `replay_table`, like every argument that is not named here.
        servers: native addresses.
        topic: a topic or a table.
        fold: "last-per-key", which leaves what log compaction leaves; or `fold(state, record) -> state` with a `FoldRecord`,
            whose state is None before the first record.
        by: "key": a state a key (records without a key are passed over), and None at the end is no row. "shard": a state a
            shard; a dictionary at the end is a row an entry, anything else one row whose key is the shard's number.
        as_of_offset: where it ends.
        as_of_timestamp_ms: where it ends.
        to_table: a new table.
        to_lake: a lake table.
        name: of the replay.
        resume: complete a replay of that name.
        shards: of the new table.
        replicas: of the new table.
        config: of the new table; default: none where the source is a topic.
        rate: bytes a second.
        on_corrupt: of a topic, what becomes of a batch that cannot be read: "fail", "skip" or
            `antiphon.dead_letters(TOPIC)`. Spark may read a part twice, which appends its dead letters twice.
        timeout_ms: for requests.

    Returns:
        What was done; without `to_table` and `to_lake` a DataFrame with columns key and value.

    Raises:
        UnknownTopicError: there is no such topic or table.
        InvalidRequestError, DataLossError, VerificationError: as for `replay_table`.
        AntiphonError: the fold raised; the message has the offset.
    """
    if isinstance(fold, str) and fold != LAST_PER_KEY:
        raise InvalidRequestError(f"fold is {LAST_PER_KEY!r} or a function, not {fold!r}")
    if by not in {"key", "shard"}:
        raise InvalidRequestError(f"a fold goes by key or by shard, not by {by!r}")
    checked(on_corrupt, topic)
    with Cluster(parse_servers(servers), timeout_ms) as cluster:
        source = any_topic(cluster, topic)
        if source.kind is Kind.TABLE and on_corrupt != FAIL:
            raise InvalidRequestError(
                f"on_corrupt is for topics; {topic} is a table, whose batches are the nodes' own"
            )

        def frame(cut: Cut) -> "DataFrame":
            if fold == LAST_PER_KEY and cut.is_table:
                return state_frame(spark, servers, cut, timeout_ms)
            records = log_frame(spark, servers, cut, timeout_ms, on_corrupt)
            return last_per_key(records) if isinstance(fold, str) else folded(records, fold, by, _shards(cut))

        def cut() -> Cut:
            return find_cut(cluster, source, as_of_offset, as_of_timestamp_ms)

        if to_table is None and to_lake is None:
            return frame(cut())
        wanted = {
            "job": "fold_topic",
            "as_of": _as_of(source, as_of_offset, as_of_timestamp_ms),
            "fold": name_of(fold),
            "by": by,
            **options_on_corrupt(on_corrupt),
        }
        output = Output(servers, to_table, to_lake, name, resume, shards, replicas, config, rate, timeout_ms)
        return deliver(spark, cluster, source, wanted, cut, frame, output)


def _shards(cut: Cut) -> int:
    return max(cut.ends, default=0) + 1


def any_topic(cluster: Cluster, name: str) -> "TopicMeta":
    """A topic or a table by its name; raises UnknownTopicError."""
    for topic in cluster.metadata().topics:
        if topic.name == name:
            return cluster.topic(name, table=topic.kind is Kind.TABLE, refresh=False)
    raise UnknownTopicError(f"there is no topic or table {name!r}", name=name)


def _as_of(source: "TopicMeta", offset: AsOfOffset, timestamp_ms: int | None) -> str:
    """As the plan has it, however it was written."""
    if timestamp_ms is not None:
        return f"time {timestamp_ms}"
    if offset is None:
        return "now"
    return f"offset {dict(sorted(parse_offsets(source.name, offset, len(source.shards)).items()))}"
