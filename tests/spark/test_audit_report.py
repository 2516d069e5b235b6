"""How an audit is cut into tasks, and what it says in the end. No JVM."""

import json
from collections import Counter
from random import Random

import msgspec

from antiphon.spark.jobs.audit_job import _never_judged, _uncompared
from antiphon.spark.jobs.audit_model import (
    AuditPlan,
    Finding,
    ReplicaPlan,
    ShardPlan,
    ShardResult,
    decode_plan,
    encode_plan,
)
from antiphon.spark.jobs.audit_plan import BLOCK_BYTES, _bounds, _step
from antiphon.spark.jobs.audit_report import SHOWN_MAX, build_report
from antiphon.spark.jobs.audit_source import (
    PIECE_BYTES_MAX,
    FoldPiece,
    LogPiece,
    StorePiece,
    fold_ranges,
    log_works,
    table_works,
)

NODES = {0: "127.0.0.1:1", 1: "127.0.0.1:2", 2: "127.0.0.1:3"}


def random_plan(random: Random) -> AuditPlan:
    shards = []
    for shard_id in range(random.randrange(1, 9)):
        cut = random.choice([0, 1, 1_000, 10_000_000])
        size = cut * random.choice([1, 70, 300])
        start = random.choice([0, 0, cut // 3])
        members = random.sample(sorted(NODES), random.randrange(1, 4))
        replicas = tuple(ReplicaPlan(node, start if node == members[0] else 0, cut, size) for node in members)
        bounds = _bounds(0, cut, _step(replicas, 65_536), {start})
        shards.append(
            ShardPlan(
                f"t{shard_id}",
                random.random() < 0.5,
                0,
                shard_id,
                cut,
                bounds,
                replicas,
                tuple(members),
                reference=members[-1],
            )
        )
    return AuditPlan("c", NODES, 1_000, tuple(shards))


def test_every_block_of_every_replica_is_read_once() -> None:
    for seed in range(60):
        plan = random_plan(Random(seed))
        assert decode_plan(encode_plan(plan)) == plan
        read: Counter[tuple[int, int, int]] = Counter()
        for work in log_works(plan, 2):
            for piece in work.pieces:
                assert isinstance(piece, LogPiece)
                read.update((work.node, piece.shard_id, start) for start in piece.bounds[:-1])
            size = sum(piece.size_bytes for piece in work.pieces)
            assert len(work.pieces) == 1 or size <= PIECE_BYTES_MAX
        wanted = {
            (replica.node, shard.shard_id, start)
            for shard in plan.shards
            for replica in shard.replicas
            for start in shard.bounds_of(replica.node)[:-1]
        }
        assert set(read) == wanted
        assert set(read.values()) <= {1}
        for shard in plan.shards:
            for replica in shard.replicas:
                blocks = max(1, len(shard.bounds_of(replica.node)) - 1)
                assert replica.size_bytes / blocks < 3 * BLOCK_BYTES


def test_every_store_and_the_whole_log_of_a_table_is_read_once() -> None:
    for seed in range(60):
        plan = random_plan(Random(seed))
        pieces = [(work.node, piece) for work in table_works(plan) for piece in work.pieces]
        for shard in plan.shards:
            stores = [
                node for node, p in pieces if isinstance(p, StorePiece) and p.plan.shard_id == shard.shard_id
            ]
            expected = [replica.node for replica in shard.replicas] if shard.is_table else []
            assert sorted(stores) == sorted(expected)
            folds = [p for _, p in pieces if isinstance(p, FoldPiece) and p.plan.shard_id == shard.shard_id]
            ranges = sorted((p.start, p.end) for p in folds)
            if shard.is_table:
                assert ranges == fold_ranges(shard)
                assert sum(end - start for start, end in ranges) == shard.cut - next(
                    (r.start for r in shard.replicas if r.node == shard.reference), 0
                )


def plan_of_two() -> AuditPlan:
    replicas = tuple(ReplicaPlan(node, 0, 100, 1_000) for node in NODES)
    topic = ShardPlan("flights", False, 3, 7, 100, (0, 100), replicas, tuple(NODES), reference=0)
    table = msgspec.structs.replace(topic, topic="aircraft", is_table=True, index=0, shard_id=8)
    return AuditPlan("c", NODES, 1_000, (topic, table))


def result(shard_id: int, *findings: Finding) -> ShardResult:
    return ShardResult(shard_id, list(findings), offsets=100, batches=4, size_bytes=3_000)


def test_the_gravest_finding_is_the_verdict() -> None:
    plan = plan_of_two()
    note = Finding("note", "trimmed", 7, 1, 20, "it moved")
    away = Finding("incomplete", "unreachable", 8, 2, -1, "it is away")
    wrong = Finding("differs", "gap", 7, 1, 30, "30 to 32 are missing")
    assert build_report(plan, [result(7, note), result(8)], []).verdict == "agree"
    assert build_report(plan, [result(7, note), result(8, away)], []).verdict == "incomplete"
    report = build_report(plan, [result(7, note, wrong), result(8, away)], [])
    assert report.verdict == "differs"
    assert {topic.name: topic.verdict for topic in report.topics} == {
        "aircraft": "incomplete",
        "flights": "differs",
    }
    report.log_seconds, report.seconds = 2e-6, 3.0
    said = json.loads(json.dumps(report.as_dict()))
    assert said["gb_per_s"] == 3.0
    assert said["problems"][0] == {
        "verdict": "differs",
        "kind": "gap",
        "topic": "flights",
        "shard": 3,
        "node": 1,
        "offset": 30,
        "key": None,
        "what": "30 to 32 are missing",
    }
    text = report.text()
    assert "problem: flights/3 on node 1 at offset 30: gap: 30 to 32 are missing" in text
    assert "note: flights/3 on node 1 at offset 20: trimmed" in text
    assert "verdict: differs" in text


def test_a_difference_is_told_once() -> None:
    crc = Finding("differs", "bad_crc", 7, 1, 30, "its bytes")
    same = Finding("differs", "differs", 7, 1, 30, "other bytes")
    other = Finding("differs", "differs", 7, 1, 60, "other bytes")
    report = build_report(plan_of_two(), [result(7, crc)], [same, other, other])
    assert [(problem.kind, problem.offset) for problem in report.problems] == [
        ("bad_crc", 30),
        ("differs", 60),
    ]


def test_a_long_list_is_cut_in_the_text_only() -> None:
    many = [Finding("differs", "gap", 7, 1, at, "gone") for at in range(SHOWN_MAX + 5)]
    report = build_report(plan_of_two(), [result(7, *many)], [])
    assert len(report.as_dict()["problems"]) == SHOWN_MAX + 5
    assert report.text().count("problem: ") == SHOWN_MAX
    assert "and 5 more problems" in report.text()


def test_notes_that_all_replicas_share_are_one_line() -> None:
    moved = [Finding("note", "trimmed", 7, node, 20, "the start moved") for node in (0, 1, 2)]
    report = build_report(
        plan_of_two(), [result(7, *moved, Finding("note", "trimmed", 7, 1, 30, "once"))], []
    )
    assert len(report.as_dict()["notes"]) == 4
    notes = [line for line in report.text().splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: flights/3 at offset 20: trimmed: the start moved",
        "note: flights/3 on node 1 at offset 30: trimmed: once",
    ]


def test_silence_is_not_agreement() -> None:
    plan = plan_of_two()
    assert [one.shard_id for one in _never_judged(plan, [result(8)])] == [7]
    assert not _never_judged(plan, [result(7), result(8)])
    empty = msgspec.structs.replace(plan.shards[0], bounds=(), cut=0)
    assert not _never_judged(AuditPlan("c", NODES, 1, (empty,)), [])


def test_what_is_left_out_by_its_nature_is_said() -> None:
    topic, table = plan_of_two().shards
    assert not _uncompared(AuditPlan("c", NODES, 1, (topic, table)))
    trimmed = msgspec.structs.replace(
        table, replicas=tuple(msgspec.structs.replace(replica, start=50) for replica in table.replicas)
    )
    own = msgspec.structs.replace(table, conflict="largest", every_replica_writes=True)
    found = _uncompared(AuditPlan("c", NODES, 1, (trimmed, own)))
    assert [(one.verdict, one.kind, one.offset) for one in found] == [
        ("note", "trimmed_log", 50),
        ("note", "own_rule", -1),
    ]
