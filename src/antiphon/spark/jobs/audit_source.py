"""The audit's own data source: partitions are pieces of replicas, rows are what was found in them.

The plan, with its cut, is made once in the driver and travels in the option `plan`; the pieces are cut from it in
`partitions()` and carry all that their task needs. Two reads of it: `what=logs` gives a row per block, `what=tables` gives
chunks of keys. A row is (shard_id, part, body): what belongs together has the same first two, and `body` is msgpack.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from antiphon.client.access import Access
from antiphon.errors import AntiphonError
from antiphon.spark.jobs.audit_blocks import BlockScanner, scan_replica
from antiphon.spark.jobs.audit_judge import judge_shard
from antiphon.spark.jobs.audit_link import NodeLink
from antiphon.spark.jobs.audit_model import (
    AuditPlan,
    Block,
    Finding,
    ShardPlan,
    ShardResult,
    decode_plan,
    encode,
)
from antiphon.spark.jobs.audit_tables import (
    KeyChunk,
    fold_range,
    is_folded,
    judge_bucket,
    scan_store,
    store_problem,
)
from antiphon.spark.servers import access_in

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "antiphon_audit"
SCHEMA: Final = "shard_id int, part int, body binary"
RESULT_SCHEMA: Final = "body binary"
PIECE_BYTES_MIN: Final = 8 * 1024 * 1024
PIECE_BYTES_MAX: Final = 256 * 1024 * 1024
FOLD_BYTES: Final = 64 * 1024 * 1024
NO_BUCKET: Final = -1  # part of rows that are a finding
ROWS_PER_BATCH: Final = 64


class LogPiece(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Blocks of one replica, one behind the other."""

    shard_id: int
    bounds: tuple[int, ...]
    is_table: bool
    every_replica_writes: bool
    origins: tuple[int, ...]
    size_bytes: int


class FoldPiece(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A range of a table's log, and who has it."""

    plan: ShardPlan
    start: int
    end: int
    part: int
    nodes: tuple[int, ...]
    size_bytes: int


class StorePiece(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A table's store on one replica. `size_bytes` is its log's, for want of the store's own."""

    plan: ShardPlan
    size_bytes: int


Piece = LogPiece | FoldPiece | StorePiece


class Work(msgspec.Struct, frozen=True, array_like=True):
    """What one task does: pieces of one node, first of all."""

    node: int
    nodes: dict[int, str]
    timeout_ms: int
    pieces: tuple[Piece, ...]


class AuditPartition(InputPartition):
    """One task."""

    def __init__(self, work: Work) -> None:
        super().__init__(encode(work))


# -- cutting the plan into tasks -------------------------------------------------------------------------------------


def log_works(plan: AuditPlan, parallelism: int) -> list[Work]:
    """The tasks that read logs: about even in bytes, those of different nodes in turns."""
    by_node: dict[int, list[LogPiece]] = {node: [] for node in plan.nodes}
    total = sum(replica.size_bytes for shard in plan.shards for replica in shard.replicas)
    wanted = max(PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, total // (4 * max(1, parallelism))))
    for shard in plan.shards:
        for replica in shard.replicas:
            bounds = shard.bounds_of(replica.node)
            if len(bounds) > 1:
                by_node[replica.node] += _pieces(shard, bounds, replica.size_bytes, wanted)
    return _in_turns(plan, by_node, wanted)


def _pieces(shard: ShardPlan, bounds: Sequence[int], size_bytes: int, wanted: int) -> Iterator[LogPiece]:
    blocks = len(bounds) - 1
    block_bytes = max(1, size_bytes // blocks)
    step = max(1, wanted // block_bytes)
    for first in range(0, blocks, step):
        own = tuple(bounds[first : first + step + 1])
        yield LogPiece(
            shard.shard_id,
            own,
            shard.is_table,
            shard.every_replica_writes,
            shard.origins,
            block_bytes * (len(own) - 1),
        )


def _grouped(pieces: Iterable[Piece], wanted: int) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and size + piece.size_bytes > wanted:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.size_bytes
    if group:
        yield group


def fold_ranges(shard: ShardPlan) -> list[tuple[int, int]]:
    """The ranges in which a table's log is folded: blocks of the replica that it is taken from, some together."""
    bounds = shard.bounds_of(shard.reference)
    if not is_folded(shard) or len(bounds) < 2:
        return []
    size = max(replica.size_bytes for replica in shard.replicas)
    step = max(1, (len(bounds) - 1) * FOLD_BYTES // max(1, size))
    starts = bounds[:-1:step]
    return list(zip(starts, [*starts[1:], bounds[-1]], strict=True))


def table_works(plan: AuditPlan) -> list[Work]:
    """The tasks that read tables: stores first, for they take longest; small ones of a node together."""
    stores: dict[int, list[StorePiece]] = {node: [] for node in plan.nodes}
    folds: dict[int, list[FoldPiece]] = {node: [] for node in plan.nodes}
    for shard in plan.shards:
        if not shard.is_table or not shard.replicas:
            continue
        small = msgspec.structs.replace(shard, bounds=(), own_bounds=())  # tasks need no borders
        for replica in shard.replicas:
            if shard.every_replica_writes or replica.end == shard.cut:
                stores[replica.node].append(StorePiece(small, replica.size_bytes))
        ranges = fold_ranges(shard)
        size = max(replica.size_bytes for replica in shard.replicas) // max(1, len(ranges))
        for part, (start, end) in enumerate(ranges):
            having = {r.node for r in shard.replicas if r.start <= start and end <= r.end}
            nodes = (shard.reference, *sorted(having - {shard.reference}))
            if shard.every_replica_writes:
                nodes = (shard.reference,)  # offsets are its own
            folds[shard.reference].append(FoldPiece(small, start, end, part, nodes, size))
    return _in_turns(plan, stores, PIECE_BYTES_MIN) + _in_turns(plan, folds, PIECE_BYTES_MIN)


def _in_turns(plan: AuditPlan, by_node: Mapping[int, Sequence[Piece]], wanted: int) -> list[Work]:
    """Pieces of each node in groups of about so many bytes, those of different nodes in turns."""
    lists = [
        [Work(node, plan.nodes, plan.timeout_ms, tuple(group)) for group in _grouped(pieces, wanted)]
        for node, pieces in by_node.items()
    ]
    return [work for turn in zip_longest(*lists) for work in turn if work is not None]


# -- what tasks do -------------------------------------------------------------------------------------------------------


def run_work(work: Work, access: Access | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Rows (shard_id, part, body) of one task."""
    with ExitStack() as stack:
        links: dict[int, NodeLink] = {}

        def link(node: int) -> NodeLink:
            if node not in links:
                links[node] = stack.enter_context(
                    NodeLink(node, work.nodes[node], work.timeout_ms, access, learns=True)
                )
            return links[node]

        for piece in work.pieces:
            match piece:
                case LogPiece():
                    scanner = BlockScanner(
                        piece.shard_id,
                        work.node,
                        piece.bounds,
                        is_table=piece.is_table,
                        origins=piece.origins,
                        every_replica_writes=piece.every_replica_writes,
                    )
                    for block in scan_replica(scanner, link(work.node)):
                        yield piece.shard_id, 0, encode(block)
                case FoldPiece():
                    logs = [link(node) for node in piece.nodes]
                    yield from _encoded(
                        piece.plan, work, fold_range(logs, piece.plan, piece.start, piece.end, piece.part)
                    )
                case StorePiece():
                    yield from _encoded(piece.plan, work, scan_store(link(work.node), piece.plan))


def _encoded(
    plan: ShardPlan, work: Work, chunks: Iterator[tuple[int, KeyChunk]]
) -> Iterator[tuple[int, int, bytes]]:
    try:
        for bucket, chunk in chunks:
            yield plan.shard_id, bucket, encode(chunk)
    except AntiphonError as error:
        yield plan.shard_id, NO_BUCKET, encode(store_problem(plan, work.node, error))


class AuditReader(DataSourceReader):
    """Reads the pieces."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._access = access_in(options)

    def partitions(self) -> list[InputPartition]:
        """One per task."""
        plan = decode_plan(self._options["plan"])
        parallelism = int(self._options["parallelism"])
        works = log_works(plan, parallelism) if self._options["what"] == "logs" else table_works(plan)
        return [AuditPartition(work) for work in works]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """The rows of one task."""
        import pyarrow as pa

        if not isinstance(partition, AuditPartition):
            return  # Spark's stand-in for a read without partitions
        names = ["shard_id", "part", "body"]
        kinds = [pa.int32(), pa.int32(), pa.binary()]
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        rows: list[tuple[int, int, bytes]] = []
        for row in run_work(msgspec.msgpack.decode(partition.value, type=Work), self._access):
            rows.append(row)
            if len(rows) >= ROWS_PER_BATCH:
                yield _batch(rows, schema)
                rows = []
        if rows:
            yield _batch(rows, schema)


def _batch(rows: Sequence[tuple[int, int, bytes]], schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class AuditSource(DataSource):
    """`format("antiphon_audit")`; registered by the audit itself."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """Columns of both reads."""
        return SCHEMA

    def reader(self, schema: Any) -> AuditReader:  # noqa: ARG002 - Spark's signature
        """Spark asks for it once."""
        return AuditReader(dict(self.options))


# -- what joins them -------------------------------------------------------------------------------------------------------


def judge_logs(plan: AuditPlan, table: "pa.Table") -> "pa.Table":
    """All blocks of one shard in, its result out."""
    blocks = [msgspec.msgpack.decode(body, type=Block) for body in table.column("body").to_pylist()]
    shards = {shard.shard_id: shard for shard in plan.shards}
    return _result(judge_shard(shards[blocks[0].shard_id], blocks))


def judge_keys(plan: AuditPlan, table: "pa.Table") -> "pa.Table":
    """All chunks of one bucket of a shard in, its result out."""
    shard_id = table.column("shard_id")[0].as_py()
    bodies = table.column("body").to_pylist()
    if table.column("part")[0].as_py() == NO_BUCKET:
        findings = [msgspec.msgpack.decode(body, type=Finding) for body in bodies]
        return _result(ShardResult(shard_id, findings))
    shard = next(shard for shard in plan.shards if shard.shard_id == shard_id)
    chunks = [msgspec.msgpack.decode(body, type=KeyChunk) for body in bodies]
    return _result(judge_bucket(shard, chunks, len(fold_ranges(shard))))


def _result(result: ShardResult) -> "pa.Table":
    import pyarrow as pa

    return pa.table({"body": pa.array([encode(result)], pa.binary())})
