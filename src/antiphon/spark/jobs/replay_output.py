"""Where a replay goes: a new table, or a lake table; once, however often it is run, and compared at the end.

The first run fixes in the book of jobs (`job_state`) what is replayed up to where and how it is cut. A later run of the same
name takes that over, and what is there already is recognised: by the leaders of the new table's shards, or by the mark in
the lake table. At the end what arrived is read back and compared with what was written.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from antiphon.client.blocking import Cluster
from antiphon.client.blocking_topics import created
from antiphon.errors import (
    InvalidRequestError,
    UnknownTopicError,
    VerificationError,
)
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic
from antiphon.spark import jobs
from antiphon.spark.jobs.bulk_load_job import (
    BATCH_BYTES,
    BATCH_ROWS,
    RECORD_ROOM_BYTES,
    is_empty,
    message_bytes_max,
    run_load,
    slices_for,
    verify_table,
)
from antiphon.spark.jobs.bulk_load_writer import LoadSpec
from antiphon.spark.jobs.digests import Digest, frame_digest
from antiphon.spark.jobs.job_state import JobState, same_or_refuse
from antiphon.spark.jobs.replay_cut import Cut
from antiphon.spark.option_values import parse_servers
from antiphon.spark.shard_writers import TableWriters
from antiphon.spark.staging.blobs import replicas_to_ask_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from antiphon.model.metadata import TopicMeta

MakeFrame = Callable[[Cut], "DataFrame"]
LAKE_EPOCH: Final = 1


class LakeTable(Protocol):
    """What a replay asks of a lake table. Lake tables are a floor above: `jobs.open_target` opens one by its name."""

    kind: str
    name: str
    """Kind and place, the same in every run."""
    folder: Any

    def schema(self) -> Any:
        """Columns; None while there is no table."""

    def check(self) -> Any:
        """Raises InvalidRequestError where it is there, and laid out otherwise than asked for."""

    def files(self) -> list[str]:
        """URLs of its files."""

    def write_epoch(self, frame: Any, query_id: str, epoch: int) -> bool:
        """Write a DataFrame once for each epoch; False: it had been written before."""

    def read(self, spark: Any) -> Any:
        """The rows as a DataFrame."""

    def close(self) -> None:
        """Let go of what is held open."""


class Output(NamedTuple):
    """What the caller asked for.

    `shards`, `replicas` and `config` None: as the source has them.
    """

    servers: str
    to_table: str | None
    to_lake: str | Mapping[str, Any] | LakeTable | None
    name: str | None
    resume: bool
    shards: int | None
    replicas: int | None
    config: Mapping[str, str] | None
    rate: int | None
    timeout_ms: int


class Replayed(NamedTuple):
    """What a replay did.

    Attributes:
        source, target: from where to where.
        name: under which it can be run again to complete it.
        ends: exclusive offset by shard up to which it was replayed.
        digest: rows that arrived, and their digest; what was written has the same.
        superseded: rows whose key another row had, too (only a fold by shard gives such).
        duplicates: requests that an earlier attempt had made; `skipped`: tasks of an earlier run.
        seconds: how long it took.
        was_done: an earlier run had done all of it; nothing was written.
    """

    source: str
    target: str
    name: str
    ends: dict[int, int]
    digest: Digest
    superseded: int
    duplicates: int
    skipped: int
    seconds: float
    was_done: bool


def deliver(
    spark: "SparkSession",
    cluster: Cluster,
    source: "TopicMeta",
    wanted: Mapping[str, Any],
    cut: Callable[[], Cut],
    make: MakeFrame,
    output: Output,
) -> Replayed:
    """Write what `make` gives at the cut. `wanted` is all that decides about it, and has to be the same in every run."""
    if (output.to_table is None) == (output.to_lake is None):
        raise InvalidRequestError("give to_table or to_lake: the table, or the lake table, to replay into")
    started = time.monotonic()
    target, lake = _target(output)
    try:
        done = _delivered(spark, cluster, source, {**wanted, "target": target}, cut, make, (output, lake))
    finally:
        if lake is not None and lake is not output.to_lake:
            lake.close()
    return done._replace(seconds=time.monotonic() - started)


def _delivered(
    spark: "SparkSession",
    cluster: Cluster,
    source: "TopicMeta",
    wanted: Mapping[str, Any],
    cut: Callable[[], Cut],
    make: MakeFrame,
    where: tuple[Output, LakeTable | None],
) -> Replayed:
    output, lake = where
    target = str(wanted["target"])
    name = output.name or f"{source.name} to {target}"
    book = JobState(cluster, f"replay/{name}")
    wanted = {**wanted, "source": source.name, "topic_id": source.topic_id.hex()}
    stored = book.plan()
    if stored is None:
        _check_free(cluster, output, lake, name)
        chosen = cut()
        stored = book.begin(
            {
                **wanted,
                "starts": _texts(chosen.starts),
                "ends": _texts(chosen.ends),
                "slices": _slices(spark, source),
            }
        )
    elif not output.resume:
        how = "is through" if book.end() is not None else "did not get through"
        raise InvalidRequestError(
            f"a replay named {name!r} was begun before and {how}: resume it, or give this one another name"
        )
    same_or_refuse(stored, wanted, name)
    final = Cut(
        source.name,
        source.topic_id.hex(),
        source.kind is Kind.TABLE,
        _numbers(stored["starts"]),
        _numbers(stored["ends"]),
    )
    frame = make(final)
    base = Replayed(source.name, target, name, final.ends, Digest(), 0, 0, 0, 0.0, book.end() is not None)
    if lake is not None:
        done = _into_lake(spark, frame, lake, name, base)
    else:
        done = _into_table(spark, cluster, source, frame, output, base, int(stored["slices"]))
    book.ended({"rows": done.digest.rows, "total": str(done.digest.total)})
    return done


def _target(output: Output) -> tuple[str, LakeTable | None]:
    if output.to_lake is None:
        return f"table {output.to_table}", None
    lake: LakeTable = jobs.open_target(output.to_lake)
    lake.check()
    return lake.name, lake


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(shard): offset for shard, offset in offsets.items()}


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(shard): int(offset) for shard, offset in offsets.items()}


def _slices(spark: "SparkSession", source: "TopicMeta") -> int:
    return slices_for(spark, source)


def _check_free(cluster: Cluster, output: Output, lake: LakeTable | None, name: str) -> None:
    """A replay that begins finds nothing where it goes; else what is there would be taken for its own."""
    if lake is not None:
        if lake.schema() is not None and lake.files():
            raise InvalidRequestError(
                f"the {lake.kind} table at {lake.folder.url} has rows already, and they are not of a replay named {name!r}: "
                "replay to another place"
            )
        return
    table = output.to_table or ""
    with suppress(UnknownTopicError):
        if not is_empty(cluster, cluster.topic(table, table=True)):
            raise InvalidRequestError(
                f"table {table} has rows already, and they are not of a replay named {name!r}: replay to a new table"
            )


def _into_table(
    spark: "SparkSession",
    cluster: Cluster,
    source: "TopicMeta",
    frame: "DataFrame",
    output: Output,
    base: Replayed,
    slices: int,
) -> Replayed:
    table = _made(cluster, source, output)
    if base.was_done:
        found = _verified_again(spark, cluster, output, base)
        return base._replace(digest=found)
    limit = message_bytes_max(table)
    spec = LoadSpec(
        servers=parse_servers(output.servers),
        table=table.name,
        topic_id=table.topic_id.hex(),
        name=f"replay/{base.name}",
        producer=f"replay/{base.name}",
        version=0,
        tasks=TableWriters.shards(table) * slices,
        slices=slices,
        batch_rows=BATCH_ROWS,
        batch_bytes=min(BATCH_BYTES, limit // 2),
        row_bytes_max=limit - RECORD_ROOM_BYTES,
        timeout_ms=output.timeout_ms,
        rate=output.rate or 0,
        keeps_book=True,
    )
    results = run_load(frame.select("key", "value"), spec)
    digest = sum((result.digest for result in results), Digest())
    verify_table(spark, output.servers, table.name, digest, output.timeout_ms)
    return base._replace(
        digest=digest,
        superseded=sum(result.superseded for result in results),
        duplicates=sum(result.duplicates for result in results),
        skipped=sum(result.skipped for result in results),
    )


def _verified_again(spark: "SparkSession", cluster: Cluster, output: Output, base: Replayed) -> Digest:
    """Of a replay that was through before: does the table still hold what it wrote?"""
    end = JobState(cluster, f"replay/{base.name}").end() or {}
    expected = Digest(int(end.get("rows", 0)), int(end.get("total", 0)))
    return verify_table(spark, output.servers, output.to_table or "", expected, output.timeout_ms)


def _made(cluster: Cluster, source: "TopicMeta", output: Output) -> "TopicMeta":
    """The table, made like the source unless told otherwise, or unless it is there."""
    name = output.to_table or ""
    with suppress(UnknownTopicError):
        return cluster.topic(name, table=True)
    config = output.config
    if config is None:  # what a topic is told of retention and the like is no use to a table
        config = source.config if source.kind is Kind.TABLE else {}
    shards = output.shards or (
        TableWriters.shards(source) if source.kind is Kind.TABLE else len(source.shards)
    )
    replicas = output.replicas or replicas_to_ask_for(cluster, source.replicas)
    wanted = CreateTopic(name, Kind.TABLE, shards, replicas, source.profile, dict(config))
    return created(cluster, wanted)


def _into_lake(
    spark: "SparkSession", frame: "DataFrame", lake: LakeTable, name: str, base: Replayed
) -> Replayed:
    written = lake.write_epoch(frame, f"replay/{name}", LAKE_EPOCH)
    expected = frame_digest(frame)
    found = Digest() if not expected.rows and lake.schema() is None else frame_digest(lake.read(spark))
    if found != expected:
        raise VerificationError(
            f"the {lake.kind} table at {lake.folder.url} holds {found}, what was read is {expected}: did anybody else write "
            "to it meanwhile?",
            expected_rows=expected.rows,
            found_rows=found.rows,
        )
    return base._replace(digest=found, was_done=not written)
