"""Tables in the simulated world: stores, evaluators and what clients see of them."""

from dataclasses import replace

import pytest

from antiphon.records.builder import build_batch
from antiphon.replication.actions import PersistTerm
from antiphon.replication.messages import Entry
from antiphon.simulation import linearizability
from antiphon.simulation.client_messages import TermStart
from antiphon.simulation.disk import Write
from antiphon.simulation.linearizability import Verdict, check_object
from antiphon.simulation.options import TABLES, derive
from antiphon.simulation.runner import report, run_seed
from antiphon.simulation.stored_log import StoredLog
from antiphon.simulation.table_clients import one_key
from antiphon.simulation.table_messages import TableData
from antiphon.simulation.table_store import EVERYTHING, MemoryTable, TableTruth
from antiphon.simulation.world import World
from antiphon.table.evaluator import ABSENT, TableEvaluator
from antiphon.wire.requests import Delete, OpStatus, Put, TableOp

OK, MISSING, UNEXPECTED = OpStatus.OK, OpStatus.KEY_NOT_FOUND, OpStatus.UNEXPECTED_VERSION


@pytest.mark.parametrize("profile", TABLES)
def test_tables_keep_every_promise(profile: str) -> None:
    done = 0
    for seed in range(1, 5):
        result = run_seed(derive(seed, profile, safety_ms=3_000, operator_weight=3))
        assert result.failure is None, report(result)
        done += result.operations["ok"]
    assert done > 100


def test_the_disk_reports_nothing_of_a_replica_that_was_removed_to_the_next_one() -> None:
    """table 20264: removed and opened anew while the disk was stalled."""
    world = World(derive(1, "table-raft"))
    world.add_shard(1, (0, 1, 2))
    node, founded = world.nodes[0], world.checker.shards[1].files[0]
    world.founders[1], node.files[1], node.alive = (0, 1, 2), founded, True
    node.open_replica(1, founded)
    write = Write(1, founded, PersistTerm(7, 3, None), 0)
    node.close_replica(1)
    node.join(1)
    node.disk.submit(write)
    while world.scheduler.step() and founded.term != 3:
        pass
    assert founded.term == 3
    assert node.files[1] is not founded


def written(*ops: TableOp) -> StoredLog:
    """The log of a leader that judged `ops` one after the other, with a term's first entry before them."""
    log, table = StoredLog(), MemoryTable()
    log.append((Entry(1, 0, 1, TermStart(1, 0)),))
    table.apply_entries(log.entries)
    evaluator = TableEvaluator(table)
    for sequence, op in enumerate(ops):
        evaluation = evaluator.evaluate((op,), 1_000 + sequence)
        if evaluation.records:
            base = log.end_offset
            batch = bytes(build_batch(evaluation.records, base_offset=base, leader_epoch=1))
            evaluator.appended(evaluation, base)
            log.append((Entry(1, base, base + 1, TableData.of(1_000, sequence, batch)),))
            evaluator.committed(base + 1)
    return log


def test_leader_and_followers_come_to_the_same() -> None:
    log = written(
        Put(b"a", b"1"), Put(b"b", b"2", ABSENT), Put(b"a", b"3", 0), Put(b"a", b"4", 0), Delete(b"b")
    )
    follower, truth = MemoryTable(), TableTruth(1, log)
    follower.apply_entries(log.read(0, EVERYTHING, EVERYTHING))
    assert follower.applied_offset == log.end_offset == 5, (
        "the put that expected an old version left no trace"
    )
    assert follower.key_state(b"a") == (2, b"3")
    assert follower.key_state(b"b") is None
    image = truth.image_at(5)
    assert image is not None
    assert follower.has(image)
    assert truth.image_at(6) is None
    again = MemoryTable(image, 5)
    again.apply_entries(log.entries)  # what is applied already is passed over
    assert again.has(image)


def test_equal_data_hash_alike_and_other_batches_differ() -> None:
    one, same, other = TableData.of(1, 2, b"x"), TableData.of(1, 2, b"x"), TableData.of(1, 2, b"y")
    assert (one, hash(one)) == (same, hash(same))
    assert one != other
    assert hash(one) != hash(other)


def op(
    what: str, argument: object, result: object, invoked: int, returned: int | None
) -> linearizability.Operation:
    return linearizability.Operation(1, what, argument, result, invoked, returned)


PUT = op("put", (None, b"x"), (OK, 7), 0, 1)


@pytest.mark.parametrize(
    ("then", "possible"),
    [
        (op("get", None, (7, b"x"), 2, 3), True),
        (op("get", None, None, 2, 3), False),
        (op("get", None, (6, b"x"), 2, 3), False),
        (op("put", (7, b"y"), (OK, 9), 2, 3), True),
        (op("put", (6, b"y"), (OK, 9), 2, 3), False),
        (op("put", (None, b"y"), (OK, 5), 2, 3), False),
        (op("put", (ABSENT, b"y"), (UNEXPECTED, 7), 2, 3), True),
        (op("put", (7, b"y"), (UNEXPECTED, 7), 2, 3), False),
        (op("put", (3, b"y"), (UNEXPECTED, 8), 2, 3), False),
        (op("delete", (None, None), (OK, -1), 2, 3), True),
        (op("delete", (None, None), (MISSING, -1), 2, 3), False),
        (op("delete", (ABSENT, None), (UNEXPECTED, 7), 2, 3), True),
    ],
)
def test_a_key_is_judged_with_its_versions(then: linearizability.Operation, possible: bool) -> None:
    verdict = check_object([PUT, then], one_key, None)
    assert verdict is (Verdict.LINEARIZABLE if possible else Verdict.NOT_LINEARIZABLE)


def test_a_write_without_an_answer_may_come_late_or_never() -> None:
    late = replace(PUT, returned=None)
    for seen in (None, (7, b"x")):
        assert check_object([late, op("get", None, seen, 5, 6)], one_key, None) is Verdict.LINEARIZABLE
    gone = [late, op("get", None, (7, b"x"), 2, 3), op("get", None, None, 4, 5)]
    assert check_object(gone, one_key, None) is Verdict.NOT_LINEARIZABLE
