"""Replicas made of lists of batches, and an audit of them without Spark: the same reading and judging, span by span."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from antiphon.errors import AntiphonError, OffsetOutOfRangeError
from antiphon.model.requests import Fetched
from antiphon.records.batch import read_header, stamp
from antiphon.records.builder import build_batch
from antiphon.spark.jobs.audit_blocks import BlockScanner, scan_replica
from antiphon.spark.jobs.audit_job import look_again, reported
from antiphon.spark.jobs.audit_judge import judge_shard
from antiphon.spark.jobs.audit_locate import locate
from antiphon.spark.jobs.audit_model import (
    AuditPlan,
    Block,
    ReplicaPlan,
    ShardPlan,
    ShardResult,
    encode,
)
from antiphon.spark.jobs.audit_plan import Scope, _bounds, plan_audit
from antiphon.spark.jobs.audit_report import AuditReport, build_report
from antiphon.spark.jobs.audit_source import (
    Work,
    judge_keys,
    judge_logs,
    log_works,
    run_work,
    table_works,
)
from antiphon.spark.option_values import parse_servers

SHARD = 7


def batch(
    offset: int,
    count: int = 3,
    *,
    term: int = 1,
    value: bytes = b"value",
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch of `count` records at `offset`; `producer` is (id, epoch, first sequence)."""
    made = build_batch(
        [(b"%d" % (offset + i), value, [], 1_000 + offset) for i in range(count)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    stamp(made, offset, term)
    return bytes(made)


def honest_log(batches: int = 20) -> list[bytes]:
    """Batches of three records, of two producers and two terms."""
    return [
        batch(
            3 * n,
            term=1 + n // 12,
            producer=(5, 0, 3 * (n // 2)) if n % 2 else (-1, -1, -1),
            value=b"value %d" % n,
        )
        for n in range(batches)
    ]


@dataclass
class FakeReplica:
    """Serves its batches as a node does: whole ones, from the one that holds the offset. `places` are their offsets."""

    node: int
    batches: list[bytes]
    answer_bytes: int = 200
    places: list[tuple[int, int]] = field(default_factory=list)
    log_start: int = 0
    fails: Callable[[int], AntiphonError | None] = lambda _offset: None
    asked: int = 0
    damage: str | None = None

    def __post_init__(self) -> None:
        if not self.places:
            self.places = [(h.base_offset, h.next_offset) for h in map(read_header, self.batches)]

    @property
    def end(self) -> int:
        return self.places[-1][1] if self.places else 0

    def fetch(self, shard_id: int, offset: int) -> tuple[Fetched, memoryview]:
        self.asked += 1
        assert self.asked < 10_000, "the reader asks for ever"
        error = self.fails(offset)
        if error is not None:
            raise error
        if not self.log_start <= offset <= self.end:
            raise OffsetOutOfRangeError(f"offset {offset}", asked=offset, start=self.log_start, end=self.end)
        found = b""
        for (_, next_offset), one in zip(self.places, self.batches, strict=True):
            if next_offset <= offset:
                continue
            if found and len(found) + len(one) > self.answer_bytes:
                break
            found += one
        return Fetched(self.end, self.log_start, self.end, 1), memoryview(found)

    def fetch_ahead(self, shard_id: int, offset: int) -> None:
        """Nothing to prepare."""

    def known_damage(self, shard_id: int) -> str | None:
        return self.damage


def shard_plan(
    replicas: Sequence[FakeReplica],
    *,
    cut: int | None = None,
    step: int = 10,
    is_table: bool = False,
    origins: tuple[int, ...] = (),
) -> ShardPlan:
    """A plan for one shard. The cut is the furthest end, unless it is given."""
    target = max(replica.end for replica in replicas) if cut is None else cut
    multi = bool(origins)
    planned = tuple(
        ReplicaPlan(one.node, one.log_start, one.end if multi else target, sum(map(len, one.batches)))
        for one in replicas
    )
    starts = {one.start for one in planned}
    return ShardPlan(
        "t",
        is_table,
        0,
        SHARD,
        target,
        () if multi else _bounds(min(starts), target, step, starts),
        planned,
        tuple(one.node for one in planned),
        every_replica_writes=multi,
        origins=origins,
        own_bounds=tuple(_bounds(one.start, one.end, step, set()) for one in planned) if multi else (),
        reference=planned[0].node,
    )


def read_blocks(plan: ShardPlan, replica: FakeReplica, blocks_per_task: int) -> list[Block]:
    """What tasks find in a replica, each of which reads some blocks."""
    bounds = plan.bounds_of(replica.node)
    found: list[Block] = []
    for first in range(0, max(0, len(bounds) - 1), blocks_per_task):
        scanner = BlockScanner(
            SHARD,
            replica.node,
            bounds[first : first + blocks_per_task + 1],
            is_table=plan.is_table,
            origins=plan.origins,
            every_replica_writes=plan.every_replica_writes,
        )
        found += scan_replica(scanner, replica)
    return found


def audit_fakes(
    replicas: Sequence[FakeReplica], plan: ShardPlan | None = None, blocks_per_task: int = 2
) -> AuditReport:
    """The whole audit of one shard's logs."""
    plan = plan or shard_plan(replicas)
    blocks = [block for replica in replicas for block in read_blocks(plan, replica, blocks_per_task)]
    result: ShardResult = judge_shard(plan, blocks)
    logs = {replica.node: replica for replica in replicas}
    found = [f for start, end, nodes in result.differing for f in locate(logs, SHARD, start, end, nodes)]
    assert encode(blocks), "what tasks find can travel"
    return build_report(AuditPlan("c", {}, 1, (plan,)), [result], found)


def places(report: AuditReport) -> set[tuple[str, int | None, int | None]]:
    """(kind, node, offset) of every problem."""
    return {(problem.kind, problem.node, problem.offset) for problem in report.problems}


def audit_without_spark(servers: str, scope: Scope | None = None, **options: Any) -> AuditReport:
    """The whole audit of a cluster, its tasks one after the other in this process."""
    plan = plan_audit(parse_servers(servers), scope or Scope(), **options)
    results = _joined(plan, log_works(plan, 2), judge_logs)
    located = look_again(plan, results)
    results += _joined(plan, table_works(plan), judge_keys)
    return reported(plan, results, located)


def _joined(
    plan: AuditPlan, works: Iterable[Work], judge: Callable[[AuditPlan, Any], Any]
) -> list[ShardResult]:
    groups: dict[tuple[int, int], list[bytes]] = {}
    for work in works:
        travelled = msgspec.msgpack.decode(encode(work), type=Work)
        for shard_id, part, body in run_work(travelled):
            groups.setdefault((shard_id, part), []).append(body)
    results = []
    for (shard_id, part), bodies in groups.items():
        columns = {"shard_id": [shard_id] * len(bodies), "part": [part] * len(bodies), "body": bodies}
        (body,) = judge(plan, pa.table(columns)).column("body").to_pylist()
        results.append(msgspec.msgpack.decode(body, type=ShardResult))
    return results
