"""A mirror: one topic or table of a cluster into one lake table, an epoch of a streaming query at a time.

How far it has come is kept in the lake table itself, a mark a shard, and moves in the commit that brings the rows. So
Spark's checkpoint only says what an epoch covers; records that the table has are passed over, and a checkpoint that is lost,
restored from an old copy, or never kept costs nothing. A checkpoint that is ahead of its table (the table was restored or
removed) is refused, since rows would be missing.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.client.blocking import Cluster
from antiphon.errors import BadRecordError, DataLossError, InvalidRequestError
from antiphon.lake.plans import Plan, Plans, send_dead_letters
from antiphon.lake.records import Landing, MirrorTask, RowShape, TaskReport
from antiphon.lake.targets.changes import last_changes
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.staged import REPORT, collected, lake_schema
from antiphon.lake.targets.target import Marks, MarkStep, Target
from antiphon.lake.values.decoding import ValueSpec
from antiphon.lake.values.json_values import unified
from antiphon.lake.values.spec import fixed_columns, with_rest
from antiphon.model.metadata import is_multi
from antiphon.records.unreadable import DEAD_LETTER
from antiphon.spark.option_values import parse_servers

ROUNDS_MAX: Final = 3  # of an epoch whose values have new fields
CHANGES: Final = "changes"


class Source(NamedTuple):
    """A topic or table; `id` tells it from others that had its name."""

    servers: str
    name: str
    id: str
    is_table: bool

    def mark(self, shard: int) -> str:
        """Name of the mark that says how far a shard has been mirrored."""
        return f"mirror/{self.name}/{self.id}/{shard}"


@dataclass
class MirrorProgress:
    """What a mirror has done since it was started."""

    epochs: int = 0
    rows: int = 0
    files: int = 0
    dead_letters: int = 0
    positions: dict[int, int] = field(default_factory=dict)


class Epoch(NamedTuple):
    """Offsets that an epoch covers, by shard; `start` has the shards that an earlier epoch ended at."""

    start: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class Recipe:
    """How records become rows."""

    shape: RowShape
    spec: ValueSpec
    dead_letters: str | None = None


class Mirror:
    """Applies epochs. One object per source and table; `recover` first."""

    def __init__(self, spark: Any, source: Source, target: Target, recipe: Recipe, shards: list[int]) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self._recipe = recipe
        self._plans = Plans(target, f"{source.name}/{source.id}")
        self.shards = shards
        self.progress = MirrorProgress()
        self._positions: dict[int, int] = {}

    def recover(self) -> None:
        """Complete what an earlier run left, and find out how far the table is."""
        plan = self._plans.open()
        if plan is not None:
            self._carry_out(plan)
        found = {shard: self._target.mark(self._source.mark(shard)) for shard in self.shards}
        self._positions = {shard: offset for shard, offset in found.items() if offset is not None}
        self.progress.positions = dict(self._positions)

    @property
    def positions(self) -> dict[int, int]:
        """How far the table is, by shard; without those of which it has nothing."""
        return dict(self._positions)

    @property
    def past_corrupt(self) -> dict[str, str]:
        """Options of the read: whole batches that cannot be read become dead letters, where these have a topic."""
        letters = self._recipe.dead_letters
        if letters is None or self._source.is_table:
            return {}
        return {"onCorrupt": DEAD_LETTER, "deadLetters": letters}

    def apply(self, frame: Any, epoch: Epoch) -> None:
        """Bring an epoch's records to the table, all at once. What is there already is passed over.

        Raises BadRecordError (without dead letters), DataLossError, TargetConflictError; then nothing of it is there.
        """
        self._check_gap(epoch)
        due = {
            shard: end
            for shard, end in epoch.end.items()
            if shard not in self._positions or end > self._positions[shard]
        }
        if not due:
            return
        marks = {
            self._source.mark(shard): MarkStep(self._positions.get(shard), end) for shard, end in due.items()
        }
        self._bring(frame, marks, merge=self._source.is_table)
        self._positions |= due
        self.progress.epochs += 1
        self.progress.positions = dict(self._positions)

    def load(self, frame: Any, positions: Mapping[int, int]) -> None:
        """Fill an empty table with a snapshot of a table that holds everything up to `positions`, by shard."""
        marks = {self._source.mark(shard): MarkStep(None, end) for shard, end in positions.items()}
        self._bring(frame, marks, merge=False)
        self._positions |= positions
        self.progress.positions = dict(self._positions)

    def _bring(self, frame: Any, marks: Marks, *, merge: bool) -> None:
        told = self._stage(frame, merge=merge)
        bad = sum(one.bad for one in told)
        if bad and self._recipe.dead_letters is None:
            self._discard(told, merge=merge)
            raise self._bad_record(told, bad)
        files = tuple(file for one in told for file in one.files)
        bad_files = tuple(one.bad_file for one in told if one.bad_file is not None)
        plan = Plan(files, bad_files, dict(marks), bad, merge, uuid.uuid4().hex)
        if bad:
            self._plans.write(plan)
        self._carry_out(plan)

    def _check_gap(self, epoch: Epoch) -> None:
        for shard, start in epoch.start.items():
            known = self._positions.get(shard, 0)
            if start > known:
                raise DataLossError(
                    f"{self._target.folder.url} has {self._source.name} shard {shard} up to offset {known}, but the "
                    f"checkpoint goes on at {start}: rows would be missing. It belongs to another table, or to this one as "
                    "it was: give a new checkpoint, or none, and the mirror goes on from what the table has"
                )

    # -- staging --------------------------------------------------------------------------------------------------

    def _stage(self, frame: Any, *, merge: bool) -> list[TaskReport]:
        """Have the tasks write; again with more columns where values turn out to have new fields."""
        spec = self._recipe.spec
        for number in range(ROUNDS_MAX):
            if spec.does_with_new_fields("add") and number == ROUNDS_MAX - 1:
                spec = replace(spec, new_fields="rest")
            decoded, columns = self._schemas(spec)
            schema = self._target.prepare(columns)
            landing = Landing(
                self._folder(merge=merge), self._plans.bad_folder, schema, self._target.spread(),
                None if spec.projection is None else decoded,
            )  # fmt: skip
            task = MirrorTask(
                self._recipe.shape,
                spec,
                landing,
                self._source.name,
                self._positions,
                stop_at_bad=self._recipe.dead_letters is None,
                merge=merge,
            )
            told = [TaskReport.from_json(one) for one in collected(frame.mapInArrow(task, REPORT))]
            fresh, mixed = _new_fields(told)
            if not fresh:
                break
            self._discard(told, merge=merge)
            self._target.add_columns([pa.field(name, kind) for name, kind in fresh.items()])
            spec = replace(spec, blocked=spec.blocked | mixed)
        return told

    def _schemas(self, spec: ValueSpec) -> tuple[pa.Schema, pa.Schema]:
        """The columns that values are decoded to, and those of the lake table."""
        known = self._target.schema()
        columns = fixed_columns(spec)
        if columns is None:
            if known is None:
                raise InvalidRequestError(
                    "JSON values without a schema need a table or a sample to learn from"
                )
            columns = RowShape.values(known)
        columns = with_rest(spec, columns)
        return columns, lake_schema(self._recipe.shape.columns(columns, spec.projection))

    def _folder(self, *, merge: bool) -> Folder:
        """Where tasks write rows; what is to be merged is nobody's data."""
        return self._target.meta.child(CHANGES) if merge else self._target.data

    def _discard(self, told: list[TaskReport], *, merge: bool) -> None:
        for one in told:
            for file in one.files:
                self._folder(merge=merge).delete(file.name)
            if one.bad_file is not None:
                self._plans.bad_folder.delete(one.bad_file.name)

    def _bad_record(self, told: list[TaskReport], bad: int) -> BadRecordError:
        first = min(one.first_bad for one in told if one.first_bad is not None)
        kind = "table" if self._source.is_table else "topic"
        place = f"offset {first.offset}" if first.offset >= 0 else "(a row of its snapshot)"
        return BadRecordError(
            f"{kind} {self._source.name} shard {first.shard} {place} cannot be decoded as "
            f"{self._recipe.spec.format}: {first.reason}. Nothing of this epoch was written. Name a topic for dead letters "
            "to go on without such records, or mend the schema",
            topic=self._source.name,
            shard=first.shard,
            offset=first.offset,
            reason=first.reason,
            bad=bad,
        )

    # -- carrying out ---------------------------------------------------------------------------------------------

    def _carry_out(self, plan: Plan) -> None:
        """All of it may have been done before, up to any point."""
        done = self._merge(plan) if plan.merge else self._target.append(plan.files, plan.marks)
        if plan.bad:
            topic = self._recipe.dead_letters
            if topic is None:
                raise InvalidRequestError(
                    f"an epoch of {self._source.name} with {plan.bad} bad records was begun with a topic for dead letters: "
                    "name it again"
                )
            send_dead_letters(self._spark, self._source.servers, topic, self._plans.bad_folder, plan)
            self._plans.remove(plan)
            self.progress.dead_letters += plan.bad
        if plan.merge:
            for file in plan.files:
                self._folder(merge=True).delete(file.name)
        if done:
            self.progress.rows += sum(file.rows for file in plan.files)
            self.progress.files += len(plan.files)

    def _merge(self, plan: Plan) -> bool:
        if plan.marks and all(
            (self._target.mark(name) or 0) >= step.new for name, step in plan.marks.items()
        ):
            return False
        parts = []
        for file in plan.files:
            with self._folder(merge=True).open_read(file.name) as stream:
                parts.append(pq.read_table(stream))
        changes = last_changes(pa.concat_tables(parts)) if parts else pa.table({})
        return self._target.merge(changes, plan.marks)


def _new_fields(told: list[TaskReport]) -> tuple[dict[str, pa.DataType], frozenset[str]]:
    """Columns that the tasks' new fields come to, and fields that get none since their values have no type in common."""
    fresh: dict[str, pa.DataType] = {}
    mixed: set[str] = set().union(*(one.mixed for one in told)) if told else set()
    for one in told:
        for name, kind in one.found.items():
            common = unified(fresh.get(name, pa.null()), kind)
            if common is None:
                mixed.add(name)
            else:
                fresh[name] = common
    return {name: kind for name, kind in fresh.items() if name not in mixed}, frozenset(mixed)


def find_source(servers: str, name: str, *, table: bool, timeout_ms: int) -> tuple[Source, list[int]]:
    """A topic or table as it is now, and its shards; raises UnknownTopicError, WrongKindError, UnreachableError."""
    with Cluster(parse_servers(servers), timeout_ms) as cluster:
        found = cluster.topic(name, table=table)
        if is_multi(found):
            raise InvalidRequestError(
                f"every replica of {name} writes its shards, each in its own order: there are no offsets, and no "
                "versions, that say how far a mirror is. Take a snapshot with spark.read instead"
            )
        return Source(servers, name, found.topic_id.hex(), table), [shard.index for shard in found.shards]
