"""Holds what was found in the blocks of one shard's replicas against each other. Pure: blocks in, verdicts out.

Along each replica: blocks follow each other without a gap or a repeat, terms never fall, each producer's batches follow its
earlier ones. Across replicas: who holds a block holds the same bytes. Where two do not, the block is named in `differing`
and looked at again (`audit_locate`), because a digest does not tell at which batch they part.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from antiphon.spark.jobs.audit_markers import marker_problem
from antiphon.spark.jobs.audit_model import (
    AGREE,
    DIFFERS,
    INCOMPLETE,
    NOWHERE,
    READ,
    TRIMMED,
    Block,
    Finding,
    Marker,
    ShardPlan,
    ShardResult,
)
from antiphon.spark.jobs.audit_origins import PART_LSNS, OriginTotal

FINDINGS_MAX: Final = 200  # of one shard; the rest is counted


def judge_shard(plan: ShardPlan, blocks: Iterable[Block]) -> ShardResult:
    """The verdict on one shard's logs."""
    by_node: dict[int, list[Block]] = defaultdict(list)
    for block in blocks:
        by_node[block.node].append(block)
    found: list[Finding] = []
    for replica in plan.replicas:
        own = sorted(by_node.get(replica.node, []), key=lambda block: block.start)
        by_node[replica.node] = own
        found += [finding for block in own for finding in block.findings]
        found += _uncovered(plan, replica.node, own)
        found += _along(plan, own)
    result = ShardResult(plan.shard_id)
    if plan.every_replica_writes:
        found += _origins_agree(plan, by_node)
    else:
        result.differing = _differing(by_node)
    result.findings, result.omitted = limited(_once(found))
    result.offsets = max(0, plan.cut - plan.start)
    result.batches = max((sum(b.batches for b in own) for own in by_node.values()), default=0)
    result.size_bytes = sum(block.size_bytes for own in by_node.values() for block in own)
    return result


def limited(found: Sequence[Finding], limit: int = FINDINGS_MAX) -> tuple[list[Finding], int]:
    """The first `limit` findings, the grave ones first, and how many more there are."""
    order = {DIFFERS: 0, INCOMPLETE: 1}
    ranked = sorted(found, key=lambda finding: (order.get(finding.verdict, 2), finding.node, finding.offset))
    return ranked[:limit], max(0, len(ranked) - limit)


def _once(found: Iterable[Finding]) -> list[Finding]:
    """Without what was seen from both sides of a border: one finding per place and kind."""
    kept: dict[tuple[str, int, int], Finding] = {}
    for finding in found:
        kept.setdefault((finding.kind, finding.node, finding.offset), finding)
    return list(kept.values())


def _uncovered(plan: ShardPlan, node: int, own: Sequence[Block]) -> list[Finding]:
    bounds = plan.bounds_of(node)
    there = {block.start for block in own}
    lost = [start for start in bounds[:-1] if start not in there]
    if not lost:
        return []
    what = f"{len(lost)} of {len(bounds) - 1} blocks were not read, the first at {lost[0]}"
    return [Finding(INCOMPLETE, "unread", plan.shard_id, node, lost[0], what)]


def _along(plan: ShardPlan, own: Sequence[Block]) -> list[Finding]:
    """What is wrong from one block of a replica to the next."""
    found: list[Finding] = []
    gaps = {finding.offset for block in own for finding in block.findings if finding.kind == "gap"}
    markers: dict[int, Marker] = {}
    unsure: set[int] = set()  # producers that may have written where nothing could be read
    offset, term = NOWHERE, -1

    def note(kind: str, at: int, what: str) -> None:
        found.append(Finding(DIFFERS, kind, plan.shard_id, own[0].node, at, what))

    for block in own:
        if block.state != READ:
            offset, term = NOWHERE, -1
            unsure.update(markers)
            continue
        if offset not in {NOWHERE, block.entry} and offset not in gaps:
            kind = "gap" if block.entry > offset else "repeat"
            note(kind, offset, f"the log goes on at {block.entry} behind a batch that ends at {offset}")
        if 0 <= block.first_term < term:
            note("falling_term", block.entry, f"term {block.first_term} comes behind term {term}")
        for span in block.markers:
            known = markers.get(span.producer)
            problem = known and marker_problem(span.producer, known, span.first, is_table=plan.is_table)
            if problem and not (problem.kind == "sequence_gap" and span.producer in unsure):
                note(problem.kind, span.first.offset, problem.what)
            unsure.discard(span.producer)
            markers[span.producer] = span.last
        offset = block.next_offset if block.batches else block.entry
        term = max(term, block.last_term)
    return found


def _differing(by_node: dict[int, list[Block]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Blocks of which replicas hold different bytes: (start, end, the nodes that hold it)."""
    held: dict[tuple[int, int], list[Block]] = defaultdict(list)
    for own in by_node.values():
        for block in own:
            if block.state == READ:
                held[block.start, block.end].append(block)
    return [
        (start, end, tuple(block.node for block in blocks))
        for (start, end), blocks in sorted(held.items())
        if len({(block.digest, block.batches, block.size_bytes) for block in blocks}) > 1
    ]


def _origins_agree(plan: ShardPlan, by_node: dict[int, list[Block]]) -> list[Finding]:
    """Every replica's entries, per origin: the same, each once, as far as no retention has removed them."""
    totals: dict[int, dict[tuple[int, int], OriginTotal]] = {}
    trimmed = False
    for replica in plan.replicas:
        own = totals.setdefault(replica.node, defaultdict(OriginTotal))
        for block in by_node[replica.node]:
            if block.state not in {READ, TRIMMED}:
                return []  # it says so itself
            trimmed = trimmed or block.state == TRIMMED
            for span in block.origins:
                own[span.origin, span.part].add(span)
        trimmed = trimmed or replica.start > 0
    found: list[Finding] = []
    for origin, last in enumerate(plan.origins):
        if origin and last:
            found += _origin_agrees(plan, totals, origin, last, trimmed)
    return found


def _origin_agrees(
    plan: ShardPlan,
    totals: dict[int, dict[tuple[int, int], OriginTotal]],
    origin: int,
    last: int,
    trimmed: bool,
) -> list[Finding]:
    found: list[Finding] = []
    lows = [
        min((t.low for (o, _), t in own.items() if o == origin), default=last + 1) for own in totals.values()
    ]
    first = max(lows) if trimmed else 1
    for part in range(first // PART_LSNS, last // PART_LSNS + 1):
        own = {node: parts.get((origin, part), OriginTotal()) for node, parts in totals.items()}
        if trimmed and len({total.low for total in own.values()}) > 1:
            continue  # removed here and there up to another entry
        low, high = max(first, part * PART_LSNS), min(last, part * PART_LSNS + PART_LSNS - 1)
        entries = f"entries {low} to {high} of origin {origin}"
        for node, total in own.items():
            if total.count != high - low + 1 or (total.low, total.high) != (low, high):
                what = f"it has {total.count} of the {high - low + 1} {entries}, {total.low} to {total.high}"
                found.append(Finding(DIFFERS, "missing_entry", plan.shard_id, node, total.offset, what))
        whole = {node: total for node, total in own.items() if total.count == high - low + 1}
        odd = odd_ones({node: total.total for node, total in whole.items()})
        for node in odd:
            others = ", ".join(str(other) for other in whole if other not in odd) or "the others"
            what = f"{entries} differ from those of node {others}"
            found.append(Finding(DIFFERS, "other_entries", plan.shard_id, node, own[node].offset, what))
    return found


def odd_ones(values: Mapping[int, Hashable]) -> list[int]:
    """The nodes whose value is not that of most nodes; all of them where no value has most."""
    counts: dict[Hashable, int] = defaultdict(int)
    for value in values.values():
        counts[value] += 1
    if len(counts) < 2:
        return []
    most = max(counts.values())
    usual = [value for value, count in counts.items() if count == most]
    if len(usual) > 1:
        return list(values)
    return [node for node, value in values.items() if value != usual[0]]


def topic_verdict(found: Iterable[Finding]) -> str:
    """The gravest of the findings' verdicts, or `agree`."""
    verdicts = {finding.verdict for finding in found}
    return DIFFERS if DIFFERS in verdicts else INCOMPLETE if INCOMPLETE in verdicts else AGREE
