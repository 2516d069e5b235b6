"""Moves the old part of a topic, or of a table's log, to Parquet files, and lets the logs begin later.

For each shard, in this order, and a crash between any two steps loses and doubles nothing:

1. Spark's tasks write files and prove each against the log (`tasks`). A file that nobody knows of is no part of the
   archive; a later run removes it.
2. The driver enters each file in the catalog (`__archive`), in the order of offsets, each where the one before ends. That is
   when it becomes part of the archive. Where another run was first, its file counts, ours is removed, and what is left to do
   is planned anew.
3. Every replica is asked to trim its log to what the catalog holds now. Who is away is asked by the next run.

So two runs at once may do work twice, but never harm each other.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon.archive.catalog import Catalog, topic_named
from antiphon.archive.files import OpenFile
from antiphon.archive.format import ArchivedFile, archived_until, holder, reaching
from antiphon.archive.job.plan import Limits, Place, ShardPlan, plan
from antiphon.archive.job.tasks import ArchiveTask, run_task
from antiphon.client.access import Addresses
from antiphon.client.addresses import Address, parse_address, parse_servers
from antiphon.client.blocking import Cluster
from antiphon.errors import AntiphonError, ArchiveError, InvalidRequestError
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta
from antiphon.model.requests import Trimmed, TrimShard
from antiphon.records.unreadable import FAIL, Choice, checked
from antiphon.spark.servers import access_in, access_options
from antiphon.spark.spark_errors import our_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FILE_BYTES: Final = 128 * 1024 * 1024
ORPHAN_AGE_MS: Final = 24 * 3_600_000
PASSES_MAX: Final = 10  # of planning anew after another run was first
WAVE_FILES: Final = 64  # written before they are entered in the catalog

Runner = Callable[[Sequence[ArchiveTask]], Iterable[ArchivedFile | None]]
"""Carries out tasks, anywhere and in any order; returns the files, None for those that another run made needless."""


class ShardReport(msgspec.Struct, kw_only=True):
    """What came of one shard. `archived` is the range that reaches its log now; `log_starts` are by node id.

    `behind`: nodes whose replica could not be trimmed, with the reason. `lost`: offsets that retention had removed before
    anybody archived them. `unreadable`: batches that could not be read, and were passed over by choice.
    """

    shard: int
    archived: tuple[int, int]
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    log_starts: dict[int, int] = {}
    behind: dict[int, str] = {}
    lost: int = 0
    unreadable: int = 0


class ArchiveReport(msgspec.Struct, kw_only=True):
    """What came of a run. `orphans`: files of runs that did not end, removed now."""

    topic: str
    uri: str
    shards: list[ShardReport]
    orphans: list[str] = []

    @property
    def files(self) -> int:
        """Files that this run added to the archive."""
        return sum(shard.files for shard in self.shards)

    @property
    def rows(self) -> int:
        """Records in these files."""
        return sum(shard.rows for shard in self.shards)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found


def addresses(servers: str | Iterable[str]) -> Addresses:
    """Native addresses, with the access that comes with them; raises InvalidRequestError."""
    access = access_in(access_options(servers)) if isinstance(servers, str) else None
    return Addresses((parse_address(text) for text in parse_servers(servers)), access)


def archive(
    spark: "SparkSession",
    servers: str | Iterable[str],
    topic: str,
    uri: str,
    *,
    older_than_ms: int | None = None,
    keep_bytes: int | None = None,
    up_to: int | Mapping[int, int] | None = None,
    trim: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    file_bytes: int = FILE_BYTES,
    orphan_age_ms: int = ORPHAN_AGE_MS,
    on_corrupt: Choice = FAIL,
    timeout_ms: int = 60_000,
) -> ArchiveReport:
    """Move records of a topic, or the log of a table, to Parquet under `uri`, and trim the replicas' logs.

    What goes is what all of the limits allow; without a limit it is all that is committed.

    Args:
        spark: any session.
        servers: native addresses, `host:port,...`.
        topic: a topic or table.
        uri: a directory on any file system that fsspec knows: `s3://bucket/archive`, `/mnt/archive`. Spark's workers and all
            who are to read from the archive must reach it under the same name.
        older_than_ms: records before the first that is younger than so many ms, of each shard.
        keep_bytes: leave about so many bytes in each shard's log.
        up_to: records before this offset, or before these offsets by shard.
        trim: let the logs begin later; without it they keep what is archived, and a later run may trim them.
        storage_options: of the file system, as for fsspec; by default those in ANTIPHON_ARCHIVE_OPTIONS. They are not kept
            in the catalog.
        file_bytes: about so many bytes of a log go into a file.
        orphan_age_ms: files that no catalog row names are removed when they are older; a run must be done with a file in
            half of that.
        on_corrupt: of a topic, what becomes of a batch that cannot be read: "fail" archives nothing of its file's range;
            "skip" leaves it out, and it is gone with the trim; `antiphon.dead_letters(TOPIC)` appends it there, as it stands
            in the log, before its file counts. A run that repeats the file appends it again.
        timeout_ms: how long a request to the cluster may take, fail-overs included.

    Raises UnknownTopicError, InvalidRequestError, ArchiveError, TimedOutError; the shards' errors name shard and file.
    """
    options = None if storage_options is None else dict(storage_options)
    run = ArchiveRun(
        addresses(servers),
        topic,
        uri,
        Limits(older_than_ms, keep_bytes, up_to),
        options=options,
        file_bytes=file_bytes,
        orphan_age_ms=orphan_age_ms,
        timeout_ms=timeout_ms,
    )
    return run.run(lambda tasks: with_spark(spark, tasks), trim=trim, on_corrupt=on_corrupt)


def with_spark(spark: "SparkSession", tasks: Sequence[ArchiveTask]) -> Iterator[ArchivedFile | None]:
    """Carry out each task in a Spark task of its own."""
    kept = list(tasks)

    def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                row = msgspec.json.encode(run_task(kept[number]))
                yield pa.RecordBatch.from_pydict({"row": pa.array([row], pa.binary())})

    frame = spark.range(0, len(kept), 1, len(kept)).mapInArrow(work, "row binary")
    decode = msgspec.json.Decoder(ArchivedFile | None).decode
    try:
        rows = frame.collect()
    except Exception as error:
        ours = our_error(str(error))
        if ours is None:
            raise
        raise ArchiveError(ours) from error  # what the task said, without Spark's many lines around it
    return iter([decode(bytes(row[0])) for row in rows])


class ArchiveRun:
    """One run of the job, whoever carries out its tasks."""

    def __init__(
        self,
        servers: tuple[Address, ...],
        topic: str,
        uri: str,
        limits: Limits,
        *,
        options: dict[str, Any] | None = None,
        file_bytes: int = FILE_BYTES,
        orphan_age_ms: int = ORPHAN_AGE_MS,
        timeout_ms: int = 60_000,
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._uri = uri
        self._limits = limits
        self._options = options
        self._file_bytes = file_bytes
        self._orphan_age_ms = orphan_age_ms
        self._timeout_ms = timeout_ms
        self._on_corrupt: Choice = FAIL
        self._reports: dict[int, ShardReport] = {}

    def plan(self) -> list[ShardPlan]:
        """What a run would do now. Changes nothing."""
        with Cluster(self._servers, self._timeout_ms) as cluster:
            meta = topic_named(cluster, self._topic, refresh=True)
            return plan(cluster, meta, self._limits, self._file_bytes, _now_ms())

    def run(self, runner: Runner, *, trim: bool = True, on_corrupt: Choice = FAIL) -> ArchiveReport:
        """All of it; see `archive`."""
        self._reports = {}
        self._on_corrupt = checked(on_corrupt, self._topic)
        with Cluster(self._servers, self._timeout_ms) as cluster:
            meta = topic_named(cluster, self._topic, refresh=True)
            if meta.kind is Kind.TABLE and on_corrupt != FAIL:
                raise InvalidRequestError(
                    f"on_corrupt is for topics; {meta.name} is a table, whose batches are the nodes' own"
                )
            place = Place(self._uri, meta, self._options)
            catalog = Catalog(cluster)
            plans = self._write_all(cluster, meta, place, runner)
            for one in plans:
                report = self._report(one)
                files = catalog.of_shard(meta, one.shard.index)
                end = archived_until(files, one.log_start)
                report.archived = (reaching(files, end), end)
                if trim:
                    self._trim(cluster, one, files, report)
            orphans = self._remove_orphans(catalog, meta, place)
        return ArchiveReport(
            topic=meta.name,
            uri=self._uri,
            shards=[self._reports[one.shard.index] for one in plans],
            orphans=orphans,
        )

    def _report(self, one: ShardPlan) -> ShardReport:
        index = one.shard.index
        if index not in self._reports:
            self._reports[index] = ShardReport(shard=index, archived=(0, 0), lost=one.lost)
        return self._reports[index]

    # -- writing ------------------------------------------------------------------------------------------------

    def _write_all(self, cluster: Cluster, meta: TopicMeta, place: Place, runner: Runner) -> list[ShardPlan]:
        """Write and enter everything; returns the plan of the last pass, for the bounds of the trim."""
        for _ in range(PASSES_MAX):
            plans = plan(cluster, meta, self._limits, self._file_bytes, _now_ms())
            for one in plans:
                report = self._report(one)
                report.lost = max(report.lost, one.lost)
            if self._write(cluster, plans, place, runner):
                return plans
        raise ArchiveError(
            f"other runs were archiving {meta.name} at the same time, {PASSES_MAX} times over; run again when they are done"
        )

    def _write(self, cluster: Cluster, plans: list[ShardPlan], place: Place, runner: Runner) -> bool:
        """Carry out one plan; False when another run was first somewhere, so that the rest is to be planned anew."""
        catalog = Catalog(cluster)
        disturbed: set[int] = set()
        for wave in _waves(plans):
            now_ms = _now_ms()
            tasks = [
                ArchiveTask(
                    self._servers,
                    self._timeout_ms,
                    one.shard.shard_id,
                    place.new_file(one.shard.index, start, end, now_ms),
                    self._options,
                    self._on_corrupt,
                )
                for one, (start, end) in wave
                if one.shard.index not in disturbed
            ]
            if not tasks:
                continue
            made = {(file.shard, file.start): file for file in runner(tasks) if file is not None}
            planned = sorted((task.file.shard, task.file.start) for task in tasks)
            for shard, start in planned:
                file = made.get((shard, start))
                if file is None:
                    disturbed.add(shard)
                elif shard in disturbed or not self._enter(catalog, file):
                    disturbed.add(shard)
                    place.remove(file)
        return not disturbed

    def _enter(self, catalog: Catalog, file: ArchivedFile) -> bool:
        """Put a file into the catalog; False where another run was first."""
        if _now_ms() - file.archived_ms > self._orphan_age_ms // 2 > 0:
            raise ArchiveError(
                f"writing {file.name} took so long that another run may take it for forgotten: archive less at once, or "
                "with a larger orphan_age_ms"
            )
        if catalog.put(file).uri != file.uri:
            return False
        report = self._reports[file.shard]
        report.files += 1
        report.rows += file.rows
        report.size_bytes += file.size_bytes
        report.unreadable += file.unreadable
        return True

    # -- afterwards ---------------------------------------------------------------------------------------------

    def _trim(self, cluster: Cluster, one: ShardPlan, files: list[ArchivedFile], report: ShardReport) -> None:
        """Ask every replica to begin where the archive ends, or at the cut, once the files are seen to be there."""
        target = min(archived_until(files, one.log_start), one.cut)
        at = one.log_start
        while at < target:
            file = holder(files, at)
            if file is None:
                raise ArchiveError(
                    f"the catalog has lost offset {at} of {self._topic} shard {one.shard.index}"
                )
            with OpenFile(file, self._options):
                at = file.end
        for node in _replicas(cluster, one.shard):
            try:
                reply = cluster.ask(node, TrimShard(one.shard.shard_id, target)).body
                if isinstance(reply, Trimmed):
                    report.log_starts[node] = reply.log_start
            except AntiphonError as error:
                report.behind[node] = error.message

    def _remove_orphans(self, catalog: Catalog, meta: TopicMeta, place: Place) -> list[str]:
        """Remove files of runs that did not end. What is listed first and in no row afterwards was not entered meanwhile."""
        old_ms = _now_ms() - self._orphan_age_ms
        removed = []
        for shard in meta.shards:
            found = place.files(shard.index)
            if not found:
                continue
            known = {file.uri for file in catalog.of_shard(meta, shard.index)}
            for uri, began_ms in sorted(found.items()):
                if uri not in known and began_ms <= old_ms:
                    place.remove_uri(uri)
                    removed.append(uri)
        return removed


def _waves(plans: list[ShardPlan]) -> Iterator[list[tuple[ShardPlan, tuple[int, int]]]]:
    """All spans, the first of every shard before the second of any, a bounded number at a time."""
    longest = max((len(one.spans) for one in plans), default=0)
    spans = [(one, one.spans[at]) for at in range(longest) for one in plans if at < len(one.spans)]
    for at in range(0, len(spans), WAVE_FILES):
        yield spans[at : at + WAVE_FILES]


def _replicas(cluster: Cluster, shard: ShardMeta) -> tuple[int, ...]:
    """The nodes that hold a replica now."""
    for topic in cluster.metadata().topics:
        for one in topic.shards:
            if one.shard_id == shard.shard_id:
                return one.everybody
    return ()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
