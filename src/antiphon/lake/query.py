"""The streaming query of a mirror: what both kinds of mirrors share of Spark."""

import json
import shutil
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from antiphon.errors import AntiphonError, InvalidRequestError, TimedOutError
from antiphon.lake.checkpoint import epoch_end
from antiphon.lake.mirror import Epoch, Mirror, MirrorProgress, Recipe, Source, find_source
from antiphon.lake.records import KEY_FORMATS, RowShape
from antiphon.lake.sample import learnt
from antiphon.lake.targets.staged import lake_schema
from antiphon.lake.targets.target import Target
from antiphon.lake.values.decoding import check_choice
from antiphon.lake.values.options import ValueOptions
from antiphon.lake.values.spec import fixed_columns, value_spec, with_rest
from antiphon.spark.connect import parallelism
from antiphon.spark.servers import options_of
from antiphon.spark.spark_errors import our_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

TIMEOUT_MS_DEFAULT: Final = 60_000
MAX_OFFSETS_DEFAULT: Final = 1_000_000
EARLIEST: Final = -2
STOP_S_MAX: Final = 30.0


class TriggerOptions(NamedTuple):
    """How a mirror runs. `every` None: until all that is there now is through; else epochs that far apart, without end.

    An epoch takes at most `max_offsets`, in `partitions` tasks (None: one a core).
    """

    every: str | None = None
    max_offsets: int = MAX_OFFSETS_DEFAULT
    partitions: int | None = None
    starting: str = "earliest"
    fail_on_data_loss: bool = True
    timeout_ms: int = TIMEOUT_MS_DEFAULT

    def checked(self) -> "TriggerOptions":
        """Itself; raises InvalidRequestError for what cannot be."""
        if self.max_offsets < 1:
            raise InvalidRequestError(f"max_offsets has to be at least 1, not {self.max_offsets}")
        return self


class MirrorQuery:
    """A mirror that runs. Use as a context, or `stop` it; `wait` raises what it failed with."""

    def __init__(
        self,
        mirror: Mirror,
        checkpoint: str | None,
        on_epoch: "Callable[[MirrorProgress], None] | None" = None,
        owned: Target | None = None,
    ) -> None:
        self._mirror = mirror
        self._own_checkpoint = tempfile.mkdtemp(prefix="antiphon-mirror-") if checkpoint is None else None
        self._checkpoint = checkpoint or str(self._own_checkpoint)
        self._on_epoch = on_epoch
        self._owned = owned  # closed at the end
        self._query: Any = None
        self._error: BaseException | None = None
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def progress(self) -> MirrorProgress:
        """What it has done since it was started, and how far the lake table is."""
        return self._mirror.progress

    @property
    def tally(self) -> MirrorProgress:
        """The same; its name in earlier versions."""
        return self._mirror.progress

    @property
    def running(self) -> bool:
        """Does it go on?"""
        return self._query is not None and bool(self._query.isActive)

    def start(self, spark: "SparkSession", source: Source, shape: RowShape, trigger: TriggerOptions) -> Self:
        """Start the query from where the table is (or, with a checkpoint, from where that is).

        Returns when all is through, or at once where it is to go on without end.
        """
        try:
            self._query = self._begun(spark, source, shape, trigger)
        except BaseException:
            self._clean()
            raise
        if trigger.every is None:
            self.wait()
        return self

    def _begun(self, spark: "SparkSession", source: Source, shape: RowShape, trigger: TriggerOptions) -> Any:
        kind = "table" if source.is_table else "topic"
        frame = (
            spark.readStream.format("antiphon")
            .options(
                **options_of(source.servers),
                startingOffsets=self._starting(source, trigger),
                maxOffsetsPerTrigger=str(trigger.max_offsets),
                minPartitions=str(trigger.partitions or parallelism(spark)),
                failOnDataLoss=str(trigger.fail_on_data_loss).lower(),
                timeoutMs=str(trigger.timeout_ms),
                columns=shape.source_columns,
                **{kind: source.name},
                **({"includeHeaders": "true"} if shape.headers else {}),
                **self._mirror.past_corrupt,
            )
            .load()
        )
        writer = (
            frame.writeStream.queryName(f"mirror-{source.name}-{time.time_ns():x}")
            .option("checkpointLocation", self._checkpoint)
            .foreachBatch(self._apply)
        )
        when: Mapping[str, Any] = (
            {"availableNow": True} if trigger.every is None else {"processingTime": trigger.every}
        )
        return writer.trigger(**when).start()

    def _starting(self, source: Source, trigger: TriggerOptions) -> str:
        known = self._mirror.positions
        if not known:
            return trigger.starting
        shards = {str(shard): known.get(shard, EARLIEST) for shard in self._mirror.shards}
        return json.dumps({source.name: shards})

    def _apply(self, frame: "DataFrame", epoch: int) -> None:
        with self._busy:
            try:
                end = epoch_end(self._checkpoint, epoch)
                if end is None:
                    raise InvalidRequestError(
                        f"the checkpoint {self._checkpoint} has no offsets of epoch {epoch}: the driver has to read it"
                    )
                before = epoch_end(self._checkpoint, epoch - 1) or {}
                self._mirror.apply(
                    frame,
                    Epoch(
                        {shard: at for (_, shard), at in before.items()},
                        {s: at for (_, s), at in end.items()},
                    ),
                )
                if self._on_epoch is not None:
                    self._on_epoch(self._mirror.progress)
            except BaseException as error:
                self._error = error
                raise

    def wait(self, timeout_s: float | None = None) -> MirrorProgress:
        """Wait for its end. Raises what it failed with, TimedOutError when it goes on after `timeout_s`."""
        try:
            ended = self._query.awaitTermination(timeout_s)
        except Exception as error:
            self._clean()
            if isinstance(self._error, AntiphonError):
                raise self._error from error
            ours = our_error(str(error))
            if ours is not None:
                raise AntiphonError(ours) from error
            raise
        if timeout_s is not None and not ended:
            raise TimedOutError(f"the mirror goes on after {timeout_s:.0f} s")
        self._clean()
        return self.progress

    def stop(self) -> None:
        """End it; an epoch that is cut short is done by the next run."""
        if self._query is not None:
            self._query.stop()
            # Spark does not wait for the function that it has called, which may be about to commit.
            if self._busy.acquire(timeout=STOP_S_MAX):
                self._busy.release()
        self._clean()

    def _clean(self) -> None:
        if self._owned is not None:
            self._owned.close()
        if self._own_checkpoint is not None:
            shutil.rmtree(self._own_checkpoint, ignore_errors=True)


def recipe(
    spark: "SparkSession", source: Source, target: Target, shape: RowShape, options: ValueOptions, trigger: TriggerOptions,
    dead_letters: str | None,
) -> Recipe:  # fmt: skip
    """How records become rows; JSON columns that nobody gave are learnt from the table, or from a sample."""
    check_choice("key", shape.key_format, KEY_FORMATS)
    if dead_letters is not None:
        if dead_letters == source.name:
            raise InvalidRequestError(f"dead letters of {source.name} cannot go to {source.name} itself")
        find_source(source.servers, dead_letters, table=False, timeout_ms=trigger.timeout_ms)
    spec = value_spec(options)
    found = target.check()  # before anything is written, and what an earlier run left is done
    if fixed_columns(spec) is None and not (spec.row.from_table and found is not None):
        spec = learnt(spark, source, spec, trigger.timeout_ms)
    columns = fixed_columns(spec)
    if columns is not None:
        target.check(lake_schema(shape.columns(with_rest(spec, columns), spec.projection)))
    return Recipe(shape, spec, dead_letters)
