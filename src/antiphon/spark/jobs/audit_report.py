"""What an audit says in the end: one verdict, figures, every problem with its place; for people and for machines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from antiphon.spark.jobs.audit_judge import topic_verdict
from antiphon.spark.jobs.audit_model import (
    AGREE,
    DIFFERS,
    INCOMPLETE,
    NOBODY,
    NOTE,
    NOWHERE,
    AuditPlan,
    Finding,
    ShardPlan,
    ShardResult,
)

SHOWN_MAX: Final = 40  # problems in the text; all that were kept are in the JSON
_EXPLAINED: Final = {
    AGREE: "every replica of every shard holds the same, and nothing is missing or twice",
    DIFFERS: "there are differences that replication never makes",
    INCOMPLETE: "what could be read agrees, but not everything could be read",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
        verdict: `differs`, `incomplete`, or `note` for what says nothing against the data.
        kind: a short stable name, such as `bad_crc`, `gap`, `repeat`, `differs`, `doubled_marker`, `falling_term`,
            `row_differs`, `unreachable`.
        topic: the topic or table; empty where a whole node is meant.
        shard: the shard's index in it; -1 where a whole node is meant.
        node: the node whose replica is meant, None where it is about all of them.
        offset: in the shard's log, None where there is none.
        what: what was found.
        key: of a table's row.
    """

    verdict: str
    kind: str
    topic: str
    shard: int
    node: int | None
    offset: int | None
    what: str
    key: bytes | None = None

    def __str__(self) -> str:
        place = f"{self.topic}/{self.shard}" if self.topic else "cluster"
        if self.node is not None:
            place += f" on node {self.node}"
        if self.offset is not None:
            place += f" at offset {self.offset}"
        return f"{place}: {self.kind}: {self.what}"


@dataclass
class TopicReport:
    """One topic or table. `offsets` and `batches` are of one replica, summed over shards; `size_bytes` of all replicas."""

    name: str
    is_table: bool
    shards: int = 0
    replicas: int = 0
    offsets: int = 0
    batches: int = 0
    size_bytes: int = 0
    rows: int = 0
    rows_skipped: int = 0
    verdict: str = AGREE


@dataclass
class AuditReport:
    """The result of `antiphon.spark.jobs.audit`.

    Attributes:
        verdict: `agree`, `differs` (something is wrong) or `incomplete` (nothing was found wrong in what could be read).
        problems: the graver ones first; `omitted` counts those beyond the limits per shard.
        notes: what says nothing against the data, such as a log start that moved.
        seconds: time it took to read and compare everything, without Spark's start; `log_seconds`: the logs alone.
        size_bytes: bytes of record batches that were read, of all replicas together.
    """

    cluster_id: str
    verdict: str = AGREE
    topics: list[TopicReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    omitted: int = 0
    seconds: float = 0.0
    log_seconds: float = 0.0
    size_bytes: int = 0

    @property
    def gb_per_s(self) -> float:
        """Logs read, in 10^9 bytes a second."""
        return self.size_bytes / self.log_seconds / 1e9 if self.log_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict,
            "cluster_id": self.cluster_id,
            "problems": [_problem(problem) for problem in self.problems],
            "notes": [_problem(problem) for problem in self.notes],
            "omitted": self.omitted,
            "topics": [
                {
                    "topic": topic.name,
                    "kind": "table" if topic.is_table else "topic",
                    "shards": topic.shards,
                    "replicas": topic.replicas,
                    "offsets": topic.offsets,
                    "batches": topic.batches,
                    "bytes": topic.size_bytes,
                    "rows": topic.rows,
                    "rows_skipped": topic.rows_skipped,
                    "verdict": topic.verdict,
                }
                for topic in self.topics
            ],
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "log_seconds": round(self.log_seconds, 3),
            "gb_per_s": round(self.gb_per_s, 3),
        }

    def text(self) -> str:
        """For people."""
        lines = [_line("TOPIC", "SHARDS", "REPLICAS", "OFFSETS", "BATCHES", "BYTES", "ROWS", "VERDICT")]
        for topic in self.topics:
            rows = f"{topic.rows:,}" if topic.is_table else "-"
            lines.append(
                _line(
                    topic.name,
                    f"{topic.shards:,}",
                    f"{topic.replicas:,}",
                    f"{topic.offsets:,}",
                    f"{topic.batches:,}",
                    f"{topic.size_bytes:,}",
                    rows,
                    topic.verdict,
                )
            )
        lines.append("")
        for title, found in (("problem", self.problems), ("note", _once(self.notes))):
            lines += [f"{title}: {problem}" for problem in found[:SHOWN_MAX]]
            if len(found) > SHOWN_MAX:
                lines.append(f"... and {len(found) - SHOWN_MAX} more {title}s (--json has them)")
        if self.omitted:
            lines.append(f"... and {self.omitted} more that were counted only")
        rate = f"{self.size_bytes:,} bytes in {self.log_seconds:.1f} s, {self.gb_per_s:.2f} GB/s"
        lines.append(f"read {rate}; everything took {self.seconds:.1f} s")
        lines.append(f"verdict: {self.verdict}: {_EXPLAINED[self.verdict]}")
        return "\n".join(lines)


def _once(notes: Sequence[Problem]) -> list[Problem]:
    """Notes that say the same of several nodes are one, of the shard."""
    alike: dict[Problem, list[Problem]] = {}
    for note in notes:
        alike.setdefault(replace(note, node=None), []).append(note)
    return [shared if len(same) > 1 else same[0] for shared, same in alike.items()]


def _problem(problem: Problem) -> dict[str, Any]:
    key = None if problem.key is None else problem.key.decode("utf-8", "backslashreplace")
    return {
        "verdict": problem.verdict,
        "kind": problem.kind,
        "topic": problem.topic,
        "shard": problem.shard,
        "node": problem.node,
        "offset": problem.offset,
        "key": key,
        "what": problem.what,
    }


def _line(*cells: str) -> str:
    widths = (28, 7, 9, 13, 11, 16, 12, 0)
    first, *rest = cells
    shown = [first.ljust(widths[0])]
    shown += [
        cell.rjust(width) if width else "  " + cell for cell, width in zip(rest, widths[1:], strict=True)
    ]
    return "".join(shown).rstrip()


def build_report(plan: AuditPlan, results: Iterable[ShardResult], located: Iterable[Finding]) -> AuditReport:
    """Everything that was found, in one report; times are the caller's to fill in."""
    report = AuditReport(plan.cluster_id)
    shards = {shard.shard_id: shard for shard in plan.shards}
    found = [*plan.findings, *located]
    topics: dict[str, TopicReport] = {}
    for shard in plan.shards:
        topic = topics.setdefault(shard.topic, TopicReport(shard.topic, shard.is_table))
        topic.shards += 1
        topic.replicas += len(shard.members)
    for result in results:
        topic = topics[shards[result.shard_id].topic]
        topic.offsets += result.offsets
        topic.batches += result.batches
        topic.size_bytes += result.size_bytes
        topic.rows += result.rows
        topic.rows_skipped += result.rows_skipped
        report.size_bytes += result.size_bytes
        report.omitted += result.omitted
        found += result.findings
    for topic in topics.values():
        topic.verdict = topic_verdict(
            finding
            for finding in found
            if finding.shard_id in shards and shards[finding.shard_id].topic == topic.name
        )
    report.topics = sorted(topics.values(), key=lambda topic: (topic.name.startswith("__"), topic.name))
    problems = sorted((_named(finding, shards) for finding in _unrepeated(found)), key=_order)
    report.problems = [problem for problem in problems if problem.verdict != NOTE]
    report.notes = [problem for problem in problems if problem.verdict == NOTE]
    report.verdict = topic_verdict(found)
    return report


def _unrepeated(found: Iterable[Finding]) -> list[Finding]:
    """Without the word that a batch differs where its own replica was found to have it wrong."""
    listed = list(dict.fromkeys(found))
    own = {
        (one.shard_id, one.node, one.offset)
        for one in listed
        if one.verdict == DIFFERS and one.kind not in {"differs", "differs_more"}
    }
    return [one for one in listed if one.kind != "differs" or (one.shard_id, one.node, one.offset) not in own]


def _named(finding: Finding, shards: Mapping[int, ShardPlan]) -> Problem:
    shard = shards.get(finding.shard_id)
    return Problem(
        finding.verdict,
        finding.kind,
        "" if shard is None else shard.topic,
        -1 if shard is None else shard.index,
        None if finding.node == NOBODY else finding.node,
        None if finding.offset == NOWHERE else finding.offset,
        finding.what,
        finding.key,
    )


def _order(problem: Problem) -> tuple[int, str, int, int, int]:
    grave = {DIFFERS: 0, INCOMPLETE: 1}.get(problem.verdict, 2)
    return grave, problem.topic, problem.shard, problem.offset or 0, problem.node or 0
