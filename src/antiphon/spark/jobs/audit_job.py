"""The audit: reads every replica of every shard in parallel, up to one cut, and proves that they agree, or says where not.

1. The planner (`audit_plan`) fixes the cut.
2. Tasks (`audit_source`, `audit_blocks`) read each replica's batches from its own node and tell what is there, per block of
   offsets.
3. Spark brings the blocks of a shard together, and they are judged (`audit_judge`): the same bytes on every replica, offsets
   without gap or repeat, terms that never fall, each producer's markers once.
4. Blocks that differ are looked at again, batch by batch (`audit_locate`).
5. Of tables, every replica's store is held against the fold of the log (`audit_tables`).

Only one kind of job can say that all copies are the same: one that reads all of them. It takes no locks and stops no writes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.client.access import Access
from antiphon.errors import AntiphonError
from antiphon.spark.connect import parallelism
from antiphon.spark.jobs.audit_link import NodeLink
from antiphon.spark.jobs.audit_locate import locate
from antiphon.spark.jobs.audit_model import (
    DIFFERS,
    INCOMPLETE,
    NOBODY,
    NOTE,
    NOWHERE,
    AuditPlan,
    Finding,
    ShardResult,
    encode_plan,
)
from antiphon.spark.jobs.audit_notify import report_to_nodes
from antiphon.spark.jobs.audit_plan import BLOCK_OFFSETS, Scope, plan_audit
from antiphon.spark.jobs.audit_report import AuditReport, Problem, TopicReport, build_report
from antiphon.spark.jobs.audit_source import (
    FORMAT,
    RESULT_SCHEMA,
    AuditSource,
    fold_ranges,
    judge_keys,
    judge_logs,
)
from antiphon.spark.option_values import parse_servers
from antiphon.spark.servers import access_in, access_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LOOKED_AT_AGAIN_MAX: Final = 64  # blocks that differ; of the others only the block is named


def audit(
    spark: "SparkSession",
    servers: str,
    *,
    topics: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    internal: bool = True,
    replica_timeout_s: float = 10.0,
    block_offsets: int = BLOCK_OFFSETS,
    tell: Callable[[str], None] = lambda _words: None,
) -> AuditReport:
    """Read every replica and compare.

    Args:
        spark: any session whose workers have this package.
        servers: native addresses, `host:port[,host:port...]`.
        topics: only these topics (`__cluster`, the coordinator's log, is one).
        tables: only these tables. Without both: everything.
        internal: without names, also what belongs to the cluster itself.
        replica_timeout_s: how long one replica is waited for before it is reported as missing.
        block_offsets: offsets of a block at most; a block is the unit that is compared.
        tell: called with a few words when a new phase begins.

    Returns:
        The report; nothing that is wrong with the data is raised.

    Raises:
        UnreachableError: no node answers at `servers`.
        UnknownTopicError, WrongKindError, InvalidRequestError: of the arguments.
    """
    tell("fixing the cut")
    plan = plan_audit(
        parse_servers(servers),
        Scope(topics, tables, internal=internal),
        timeout_ms=max(1, int(replica_timeout_s * 1000)),
        block_offsets=block_offsets,
    )
    return run_plan(spark, plan, tell, access_options(servers))


def run_plan(
    spark: "SparkSession",
    plan: AuditPlan,
    tell: Callable[[str], None],
    access: Mapping[str, str] | None = None,
) -> AuditReport:
    """Carry out a plan. `access`: options that say how to get into the cluster."""
    access = access or {}
    began_s = time.monotonic()
    spark.dataSource.register(AuditSource)
    tell("reading every replica's log")
    results = _run(spark, plan, access, "logs", ["shard_id"], judge_logs) if plan.shards else []
    log_seconds = time.monotonic() - began_s
    tell("looking at differences again")
    located = look_again(plan, results, access_in(access)) + _never_judged(plan, results)
    if any(shard.is_table and shard.replicas for shard in plan.shards):
        tell("comparing tables with their logs")
        results += _run(spark, plan, access, "tables", ["shard_id", "part"], judge_keys)
    report = reported(plan, results, [*located, *_uncompared(plan)], access_in(access))
    report.log_seconds = log_seconds
    report.seconds = time.monotonic() - began_s
    return report


def reported(
    plan: AuditPlan, results: Sequence[ShardResult], located: Sequence[Finding], access: Access | None = None
) -> AuditReport:
    """All that was found, which the nodes are told too."""
    found = [*plan.findings, *located, *(one for result in results for one in result.findings)]
    untold = report_to_nodes(plan, found, access) if plan.shards else []
    return build_report(plan, results, [*located, *untold])


def _run(
    spark: "SparkSession",
    plan: AuditPlan,
    access: Mapping[str, str],
    what: str,
    keys: list[str],
    judge: "Callable[[AuditPlan, pa.Table], pa.Table]",
) -> list[ShardResult]:
    frame = spark.read.format(FORMAT).options(
        plan=encode_plan(plan), what=what, parallelism=str(parallelism(spark)), **access
    )

    def judged(table: "pa.Table") -> "pa.Table":
        return judge(plan, table)

    rows = frame.load().groupBy(*keys).applyInArrow(judged, RESULT_SCHEMA).collect()
    return [msgspec.msgpack.decode(bytes(row["body"]), type=ShardResult) for row in rows]


def look_again(
    plan: AuditPlan, results: Sequence[ShardResult], access: Access | None = None
) -> list[Finding]:
    """Where exactly replicas part, in the blocks of which they hold different bytes."""
    found: list[Finding] = []
    looked_at = 0
    with ExitStack() as stack:
        links: dict[int, NodeLink] = {}
        for result in results:
            for start, end, nodes in result.differing:
                for node in nodes:
                    if node not in links:
                        links[node] = stack.enter_context(
                            NodeLink(node, plan.nodes[node], plan.timeout_ms, access)
                        )
                if looked_at < LOOKED_AT_AGAIN_MAX:
                    looked_at += 1
                    try:
                        found += locate(links, result.shard_id, start, end, nodes)
                        continue
                    except AntiphonError as error:
                        what = f"replicas differ in offsets {start} to {end - 1}; not looked at again: {error.message}"
                else:
                    what = f"replicas differ somewhere in offsets {start} to {end - 1}"
                found.append(Finding(DIFFERS, "differs_more", result.shard_id, NOBODY, start, what))
    return found


def _never_judged(plan: AuditPlan, results: Sequence[ShardResult]) -> list[Finding]:
    """Shards of which no task told anything, though there was something to be read: silence is never taken for agreement."""
    judged = {result.shard_id for result in results}
    return [
        Finding(INCOMPLETE, "unread", shard.shard_id, NOBODY, shard.start, "no block of it was read")
        for shard in plan.shards
        if shard.shard_id not in judged and any(len(shard.bounds_of(one.node)) > 1 for one in shard.replicas)
    ]


def _uncompared(plan: AuditPlan) -> list[Finding]:
    """What this audit leaves out by its nature, said aloud."""
    found: list[Finding] = []
    for shard in plan.shards:
        if not shard.is_table:
            continue
        if shard.conflict and shard.replicas and not fold_ranges(shard) and shard.cut:
            what = (
                f"conflict rule {shard.conflict!r} is the table's own: stores were compared with each other, "
                "not with the fold of their logs"
            )
            found.append(Finding(NOTE, "own_rule", shard.shard_id, NOBODY, NOWHERE, what))
        if not shard.every_replica_writes and shard.start > 0:
            what = (
                f"the log begins at offset {shard.start}: keys without a change from there on were compared between "
                "replicas only"
            )
            found.append(Finding(NOTE, "trimmed_log", shard.shard_id, NOBODY, shard.start, what))
    return found


__all__ = ["AuditReport", "Problem", "TopicReport", "audit", "run_plan"]
