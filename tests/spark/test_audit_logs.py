"""The audit finds each fault that was put into a log, at its place, and none that is not there. No JVM, no network."""

import struct
from collections.abc import Callable
from random import Random

import pytest

from antiphon.errors import AntiphonError, DamagedLogError, OffsetOutOfRangeError, UnreachableError
from antiphon.records.batch import HEADER_BYTES, iter_batches
from antiphon.records.builder import RecordInput, build_batch, seal
from antiphon.spark.jobs.audit_blocks import BlockScanner
from antiphon.spark.jobs.audit_markers import marker_problem
from antiphon.spark.jobs.audit_model import Marker
from tests.spark.audit_replicas import (
    SHARD,
    FakeReplica,
    audit_fakes,
    batch,
    honest_log,
    places,
    read_blocks,
    shard_plan,
)

TABLE = 1 << 61
JOB = 1 << 62


def three(log: list[bytes] | None = None) -> list[FakeReplica]:
    return [FakeReplica(node, list(log or honest_log())) for node in range(3)]


@pytest.mark.parametrize("blocks_per_task", [1, 2, 100])
@pytest.mark.parametrize("answer_bytes", [1, 300, 100_000])
def test_replicas_that_agree(blocks_per_task: int, answer_bytes: int) -> None:
    replicas = three()
    replicas[1].answer_bytes = answer_bytes  # cut otherwise than the others
    report = audit_fakes(replicas, blocks_per_task=blocks_per_task)
    assert report.verdict == "agree"
    assert not report.problems
    (topic,) = report.topics
    assert (topic.offsets, topic.batches, topic.shards, topic.replicas) == (60, 20, 1, 3)
    assert topic.size_bytes == report.size_bytes == 3 * sum(map(len, honest_log()))


def test_blocks_are_the_same_however_tasks_are_cut() -> None:
    (replica, *_) = replicas = three()
    plan = shard_plan(replicas)
    whole = [(b.start, b.digest, b.entry, b.next_offset) for b in read_blocks(plan, replica, 100)]
    assert whole == [(b.start, b.digest, b.entry, b.next_offset) for b in read_blocks(plan, replica, 1)]
    assert len(whole) == 6


def test_a_flipped_bit() -> None:
    replicas = three()
    broken = bytearray(replicas[1].batches[7])
    broken[-3] ^= 4
    replicas[1].batches[7] = bytes(broken)
    report = audit_fakes(replicas)
    assert report.verdict == "differs"
    assert places(report) == {("bad_crc", 1, 21)}


def test_any_flipped_bit_anywhere() -> None:
    """Every byte counts, those that no CRC covers too, and it is always that node which is blamed."""
    honest = honest_log(8)
    size = sum(map(len, honest))
    for position in range(size):
        replicas = three(honest)
        number, at = 0, position
        while at >= len(honest[number]):
            at -= len(honest[number])
            number += 1
        broken = bytearray(honest[number])
        broken[at] ^= 1 << Random(position).randrange(8)
        # The node's index still knows the batch by its true offsets.
        replicas[2].batches = [*honest[:number], bytes(broken), *honest[number + 1 :]]
        report = audit_fakes(replicas)
        assert report.verdict == "differs", f"byte {at} of batch {number}"
        grave = [problem for problem in report.problems if problem.verdict == "differs"]
        assert {problem.node for problem in grave} == {2}
        assert min(problem.offset or 0 for problem in grave) <= 3 * number + 2


def test_a_batch_rewritten_with_a_fitting_crc() -> None:
    replicas = three()
    replicas[0].batches[9] = batch(27, value=b"VALUE 9", producer=(5, 0, 12))
    report = audit_fakes(replicas)
    assert places(report) == {("differs", 0, 27)}
    assert "node 1, 2" in report.problems[0].what


def test_a_missing_batch() -> None:
    replicas = three()
    del replicas[2].batches[10], replicas[2].places[10]
    report = audit_fakes(replicas)
    assert report.verdict == "differs"
    assert places(report) == {("gap", 2, 30)}
    assert "30 to 32" in report.problems[0].what


def test_missing_batches_at_both_ends() -> None:
    replicas = three()
    plan = shard_plan(replicas)
    del replicas[0].batches[0], replicas[0].places[0]
    del replicas[2].batches[-1], replicas[2].places[-1]
    assert places(audit_fakes(replicas, plan)) >= {("gap", 0, 0), ("missing", 2, 57)}


def test_a_gap_on_all_replicas() -> None:
    log = honest_log()
    del log[10]
    assert places(audit_fakes(three(log))) == {("gap", node, 30) for node in range(3)}


@pytest.mark.parametrize("blocks_per_task", [1, 100])
@pytest.mark.parametrize("distance", [1, 5])
def test_a_batch_appended_twice(blocks_per_task: int, distance: int) -> None:
    log = [batch(3 * n, producer=(5, 0, 3 * n)) for n in range(10)]
    log += [batch(30 + 3 * n, producer=(6, 2, 3 * n)) for n in range(distance - 1)]
    again = 30 + 3 * (distance - 1)
    log.append(batch(again, producer=(5, 0, 27)))
    log += [batch(again + 3 + 3 * n) for n in range(5)]
    report = audit_fakes(three(log), blocks_per_task=blocks_per_task)
    assert places(report) == {("doubled_marker", node, again) for node in range(3)}
    assert "stands at offset 27 already" in report.problems[0].what


def test_a_batch_stored_twice_under_its_offset() -> None:
    replicas = three()
    replicas[1].batches[4] += replicas[1].batches[4]
    assert ("repeat", 1, 12) in places(audit_fakes(replicas))


@pytest.mark.parametrize("blocks_per_task", [1, 100])
def test_a_falling_term(blocks_per_task: int) -> None:
    log = honest_log()
    log[15] = batch(45, term=1, value=b"value 15", producer=(5, 0, 21))
    log[16] = batch(48, term=1, value=b"value 16")
    report = audit_fakes(three(log), blocks_per_task=blocks_per_task)
    assert places(report) == {("falling_term", node, 45) for node in range(3)}


def test_bytes_that_are_no_batch_do_not_hide_the_rest() -> None:
    replicas = three()
    replicas[1].batches[5] = b"\xff" * len(replicas[1].batches[5])
    replicas[1].batches[17] = batch(51, term=2, value=b"other 17", producer=(5, 0, 24))
    assert places(audit_fakes(replicas)) == {("not_a_batch", 1, 15), ("differs", 1, 51)}


def test_counts_that_do_not_fit() -> None:
    log = honest_log()
    changed = bytearray(log[3])
    struct.pack_into(">i", changed, 57, 9)
    seal(changed)
    log[3] = bytes(changed)
    assert places(audit_fakes(three(log))) == {("bad_header", node, 9) for node in range(3)}


def test_two_replicas_that_differ_name_both() -> None:
    replicas = three()[:2]
    replicas[1].batches[2] = batch(6, value=b"value X")
    assert places(audit_fakes(replicas)) == {("differs", 0, 6), ("differs", 1, 6)}


def test_differences_beyond_the_cut_do_not_matter() -> None:
    replicas = three()
    replicas[1].batches[-1] = batch(57, value=b"not committed yet")
    plan = shard_plan(replicas, cut=57)
    assert audit_fakes(replicas, plan).verdict == "agree"


# -- replicas that cannot be read -----------------------------------------------------------------------------------------


def failing_from(offset: int, error: AntiphonError) -> Callable[[int], AntiphonError | None]:
    return lambda asked: error if asked >= offset else None


def test_a_node_that_goes_away_while_it_is_read() -> None:
    replicas = three()
    replicas[2].fails = failing_from(30, UnreachableError("gone"))
    report = audit_fakes(replicas)
    assert report.verdict == "incomplete"
    assert {(p.kind, p.node) for p in report.problems} == {("unreachable", 2)}
    replicas[0].batches[2] = batch(6, value=b"value X")
    assert audit_fakes(replicas).verdict == "differs", "what could be read is still compared"


def test_damage_that_the_node_finds_itself() -> None:
    replicas = three()

    def fails(asked: int) -> AntiphonError | None:
        return DamagedLogError("a bad batch", offset=33) if 30 <= asked < 40 else None

    replicas[1].fails = fails
    report = audit_fakes(replicas)
    assert ("damaged", 1, 33) in places(report)
    assert report.verdict == "differs"


def test_retention_that_goes_on_meanwhile_is_no_fault() -> None:
    replicas = three()
    replicas[1].fails = lambda asked: (
        OffsetOutOfRangeError("trimmed", asked=asked, start=24) if asked < 24 else None
    )
    report = audit_fakes(replicas)
    assert report.verdict == "agree"
    assert {note.kind for note in report.notes} == {"trimmed"}
    replicas[1].batches[15] = batch(45, term=2, value=b"X")
    assert ("differs", 1, 45) in places(audit_fakes(replicas))


def test_logs_that_begin_at_different_offsets() -> None:
    replicas = three()
    replicas[2].batches, replicas[2].places = replicas[2].batches[8:], replicas[2].places[8:]
    replicas[2].log_start = 24
    assert audit_fakes(replicas).verdict == "agree"
    replicas[0].batches[2] = batch(6, value=b"value X")
    assert {node for _, node, _ in places(audit_fakes(replicas))} == {0, 1}, "two hold it and differ"


def test_a_log_that_was_cut_below_what_was_committed() -> None:
    replicas = three()
    plan = shard_plan(replicas)
    del replicas[0].batches[12:], replicas[0].places[12:]
    report = audit_fakes(replicas, plan)
    assert report.verdict == "differs"
    assert ("missing", 0, 36) in places(report)


@pytest.mark.parametrize("answers", [True, False], ids=["at its end", "behind its end"])
def test_a_log_that_ends_where_its_node_found_damage(answers: bool) -> None:
    """The node has cut the log at the damage before anybody read it: it knows what is missing, and says so."""
    replicas = three()
    plan = shard_plan(replicas)
    replicas[0].damage = "from offset 36 on, 0.log: the batch's CRC does not fit"
    cut = 12 if answers else 11
    del replicas[0].batches[cut:], replicas[0].places[cut:]
    if not answers:
        replicas[0].fails = lambda offset: (
            OffsetOutOfRangeError("no", asked=offset, start=0, end=33) if offset >= 33 else None
        )
    report = audit_fakes(replicas, plan)
    found = {(kind, node) for kind, node, _ in places(report)}
    assert found == {("damaged", 0)}
    assert "the batch's CRC does not fit" in report.problems[0].what


def test_a_replica_that_gives_the_same_for_ever() -> None:
    replicas = three()
    stuck = replicas[1].batches[0]
    replicas[1].batches = [stuck] * len(replicas[1].batches)
    report = audit_fakes(replicas)
    assert report.verdict == "differs"
    assert {node for _, node, _ in places(report)} == {1}


def test_a_difference_that_mends_itself_is_not_believed() -> None:
    replicas = three()
    honest = replicas[1].batches[2]
    replicas[1].batches[2] = batch(6, value=b"value X")

    def mended(_asked: int) -> AntiphonError | None:
        if replicas[1].asked > 20:
            replicas[1].batches[2] = honest
        return None

    replicas[1].fails = mended
    report = audit_fakes(replicas)
    assert report.verdict == "incomplete"
    assert {problem.kind for problem in report.problems} == {"unsteady"}


def test_hostile_answers_never_raise() -> None:
    random = Random(11)
    honest = b"".join(honest_log(6))
    for _ in range(300):
        data = bytearray(honest[random.randrange(40) :])
        for _ in range(random.randrange(6)):
            data[random.randrange(len(data))] = random.randrange(256)
        scanner = BlockScanner(SHARD, 0, (0, 10, 20, 30))
        scanner.feed(memoryview(bytes(data[: random.randrange(len(data))])))
        assert len(scanner.done) <= 3


# -- producers' markers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("producer", "is_table", "before", "after", "kind"),
    [
        (5, False, (0, 0, 2), (0, 3, 5), None),
        (5, False, (0, 2**31 - 3, 2**31 - 1), (0, 0, 4), None),
        (5, False, (0, 7, 9), (1, 0, 4), None),
        (5, False, (0, 0, 2), (0, 0, 2), "doubled_marker"),
        (5, False, (0, 3, 8), (0, 5, 6), "doubled_marker"),
        (5, False, (0, 3, 8), (0, 10, 11), "sequence_gap"),
        (5, False, (1, 3, 8), (0, 9, 9), "stale_epoch"),
        (5, False, (1, 3, 8), (2, 9, 9), "sequence_gap"),
        (TABLE + 5, True, (0, 3, 8), (0, 4, 4), None),  # ten effects of request 3, then request 4
        (TABLE + 5, True, (0, 3, 3), (0, 90, 90), None),
        (TABLE + 5, True, (0, 3, 3), (1, 7, 7), None),
        (TABLE + 5, True, (0, 3, 3), (0, 3, 3), "doubled_marker"),
        (TABLE + 5, True, (0, 3, 3), (0, 2, 2), "doubled_marker"),
        (TABLE + 5, True, (1, 3, 3), (0, 9, 9), "stale_epoch"),
        (JOB + 5, False, (7, 0, 99), (7, 100, 199), None),
        (JOB + 5, False, (7, 0, 99), (8, 0, 9), None),
        (JOB + 5, False, (32_767, 0, 99), (0, 0, 9), None),  # epochs of jobs go round
        (JOB + 5, False, (7, 0, 99), (7, 0, 99), "doubled_marker"),
        (JOB + 5, False, (7, 0, 99), (7, 150, 199), "sequence_gap"),
        (JOB + 5, False, (8, 0, 9), (7, 100, 199), "stale_epoch"),
        (JOB + TABLE + 5, True, (7, 1 << 16 | 77, 0), (7, 2 << 16 | 5, 0), None),
        (JOB + TABLE + 5, True, (7, 1 << 16 | 7, 0), (7, 1 << 16 | 77, 0), "doubled_marker"),
        (JOB + TABLE + 5, True, (7, 1 << 16, 0), (8, 1 << 16, 0), None),
    ],
)
def test_which_batch_of_a_producer_may_follow_which(
    producer: int,
    is_table: bool,
    before: tuple[int, int, int],
    after: tuple[int, int, int],
    kind: str | None,
) -> None:
    problem = marker_problem(producer, Marker(*before, 10), Marker(*after, 20), is_table=is_table)
    assert (problem and problem.kind) == kind


def test_producers_of_a_table_skip_sequences() -> None:
    log = [batch(3 * n, producer=(TABLE + 1, 0, 5 * n)) for n in range(10)]
    replicas = three(log)
    assert audit_fakes(replicas, shard_plan(replicas, is_table=True)).verdict == "agree"
    log.append(batch(30, producer=(TABLE + 1, 0, 20)))
    replicas = three(log)
    report = audit_fakes(replicas, shard_plan(replicas, is_table=True))
    assert places(report) == {("doubled_marker", node, 30) for node in range(3)}


def test_batches_that_could_not_be_read_are_no_gap_in_a_sequence() -> None:
    log = [batch(3 * n, producer=(5, 0, 3 * n)) for n in range(20)]
    replicas = three(log)
    replicas[1].batches[5] = b"\xff" * len(log[5])
    assert places(audit_fakes(replicas)) == {("not_a_batch", 1, 15)}


# -- shards that every replica writes --------------------------------------------------------------------------------------


def entry(origin: int, lsn: int, offset: int, value: bytes = b"v") -> bytes:
    records: list[RecordInput] = [
        (b"%d" % part, b"%d/%d %s" % (origin, lsn, value), [], lsn) for part in range(2)
    ]
    made = build_batch(records, base_offset=offset, leader_epoch=1)
    struct.pack_into(">qhi", made, 43, -1 - lsn, origin, -1)
    seal(made)
    return bytes(made)


def orders(*logs: list[tuple[int, int]]) -> list[FakeReplica]:
    return [
        FakeReplica(node, [entry(origin, lsn, 2 * at) for at, (origin, lsn) in enumerate(log)])
        for node, log in enumerate(logs)
    ]


ONE = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2)]
OTHER = [(2, 1), (1, 1), (2, 2), (1, 2), (1, 3)]


def test_other_orders_of_the_same_entries_agree() -> None:
    replicas = orders(ONE, OTHER, OTHER)
    for blocks_per_task in (1, 100):
        plan = shard_plan(replicas, step=4, origins=(0, 3, 2))
        assert audit_fakes(replicas, plan, blocks_per_task).verdict == "agree"


def test_entries_beyond_the_common_clock_do_not_count() -> None:
    replicas = orders([*ONE, (1, 4), (2, 3)], OTHER, [*OTHER, (2, 3)])
    assert audit_fakes(replicas, shard_plan(replicas, step=4, origins=(0, 3, 2))).verdict == "agree"


def test_a_missing_and_a_doubled_entry() -> None:
    replicas = orders(ONE, [(2, 1), (1, 1), (2, 2), (1, 3)], OTHER)
    report = audit_fakes(replicas, shard_plan(replicas, step=100, origins=(0, 3, 2)))
    assert {(kind, node) for kind, node, _ in places(report)} == {("missing_entry", 1)}
    replicas = orders(ONE, OTHER, [(1, 1), (1, 2), (2, 1), (1, 2), (1, 3), (2, 2)])
    report = audit_fakes(replicas, shard_plan(replicas, step=100, origins=(0, 3, 2)))
    assert ("doubled_entry", 2, 6) in places(report)


def test_logs_that_were_trimmed_to_different_entries() -> None:
    mine = [(1 + lsn % 2, 1 + lsn // 2) for lsn in range(1_400)]
    theirs = [(1, lsn) for lsn in range(1, 701)] + [(2, lsn) for lsn in range(1, 701)]
    replicas = orders(mine, theirs, mine)
    for replica, kept in zip(replicas, (200, 0, 150), strict=True):
        replica.batches, replica.places = replica.batches[kept:], replica.places[kept:]
        replica.log_start = 2 * kept
        replica.answer_bytes = 1 << 20
    plan = shard_plan(replicas, step=500, origins=(0, 700, 700))
    assert audit_fakes(replicas, plan).verdict == "agree"
    place = 650 - 150
    replicas[2].batches[place] = entry(*mine[650], 2 * 650, b"other")
    report = audit_fakes(replicas, plan)
    assert {(kind, node) for kind, node, _ in places(report)} == {("other_entries", 2)}
    replicas[2].batches[place] = replicas[2].batches[place - 2]
    assert ("doubled_entry", 2) in {(kind, node) for kind, node, _ in places(audit_fakes(replicas, plan))}


def test_an_entry_with_other_content() -> None:
    replicas = orders(ONE, OTHER, OTHER)
    replicas[2].batches[3] = entry(1, 2, 6, b"w")
    report = audit_fakes(replicas, shard_plan(replicas, step=4, origins=(0, 3, 2)))
    assert {(kind, node) for kind, node, _ in places(report)} == {("other_entries", 2)}


def test_the_header_is_where_these_tests_think_it_is() -> None:
    ((header, _),) = iter_batches(entry(3, 9, 40))
    assert (header.producer_epoch, header.producer_id, header.base_offset) == (3, -10, 40)
    assert HEADER_BYTES == 61
