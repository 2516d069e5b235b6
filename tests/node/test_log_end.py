"""A replica and its log agree on what the log holds, whatever clients do while the replica's actions are carried out."""

from typing import Any, cast

import pytest

from antiphon.errors import NotLeaderError
from antiphon.log.operations import APPEND, WriteStep
from antiphon.model.results import AppendResult
from antiphon.records.builder import build_batch
from antiphon.replication.raft import RaftReplica
from tests.node.hosts_in_memory import Shard


def _replica(shard: Shard) -> RaftReplica:
    return cast("RaftReplica", shard.leader.replica)


def _assert_same(shard: Shard) -> None:
    logs = shard.logs()
    assert logs[1] == logs[2]
    assert logs[3] == logs[1][: len(logs[3])]
    for host in shard.hosts.values():
        assert host.replica.log_end == host.log.log_end
        assert host.replica.log.terms.items() == host.log.terms.items()


def test_an_append_out_of_an_answer_does_not_take_the_place_of_the_replicas_own_entries() -> None:
    """The commit that answers a client lets the leader write a marker and the next members, in one step."""
    shard = Shard()
    answers: list[Any] = []

    def again(result: Any) -> None:
        answers.append(result)
        if len(answers) < 5:
            shard.append(b"again", again)

    shard.append(b"first", again)
    shard.leader.driver.call(_replica(shard).propose_members, (1, 2), ())
    shard.settle()
    assert shard.leader.state.failed is None
    assert [type(answer) for answer in answers] == [AppendResult] * 5
    assert _replica(shard).members.voters == (1, 2)
    assert not _replica(shard).members.is_joint
    _assert_same(shard)


def test_readers_and_observers_may_append_when_they_hear_of_a_commit() -> None:
    shard = Shard()
    host = shard.leader
    answers: list[Any] = []
    start = host.log.log_end
    host.readers.follow(1, start, "committed", lambda: shard.append(b"reader", answers.append))

    class Observer:
        heard = 0

        def committed(self, _high_watermark: int) -> None:
            self.heard += 1
            if self.heard == 1:
                shard.append(b"observer", answers.append)

        def role_changed(self, *_news: object) -> None:
            pass

        def leader_ready(self, _term: int) -> None:
            pass

    host.state.observer = Observer()
    shard.append(b"first", answers.append)
    shard.leader.driver.call(_replica(shard).propose_members, (1, 2), ())
    shard.settle()
    assert [type(answer) for answer in answers] == [AppendResult] * 3
    _assert_same(shard)


def test_appends_of_one_turn_cost_one_group_and_one_message_to_each_follower() -> None:
    shard = Shard()
    answers: list[Any] = []
    wal, groups, sent = shard.services(1).wal, len(shard.services(1).wal.groups), shard.appends_sent
    for number in range(5):
        shard.append(b"%d" % number, answers.append)
        assert shard.leader.replica.log_end == shard.leader.log.log_end
    assert not wal.waiting, "the group waits for the end of the turn"
    shard.services(1).turn.end()
    (op,) = wal.waiting
    (step,) = op.steps
    assert isinstance(step, WriteStep)
    assert len(step.buffers) == len(step.entries) == 5
    assert len(shard.network) == 2
    shard.settle()
    assert [answer.base_offset for answer in answers] == list(range(2, 7))
    assert wal.groups[groups] == 1
    assert shard.appends_sent - sent <= 4, "the entries, and the marker of their commit"
    _assert_same(shard)


def test_other_operations_of_the_log_go_behind_what_was_appended_before_them() -> None:
    shard = Shard()
    wal = shard.services(1).wal
    shard.append(b"first", lambda _result: None)
    shard.leader.upkeep.note_watermark()
    assert [op.kind == APPEND for op in wal.waiting] == [True, False]
    shard.append(b"second", lambda _result: None)
    shard.leader.close()
    assert [op.kind == APPEND for op in wal.waiting] == [True, False, True]


def test_an_append_in_the_middle_of_a_step_stops_the_replica_and_writes_nothing() -> None:
    """What must not happen: the state machine of the shard appends while it applies."""
    shard = Shard()
    host, answers = shard.leader, list[Any]()

    class Table:
        @property
        def evaluator(self) -> "Table":
            return self

        def committed(self, _high_watermark: int) -> None:
            end = host.log.log_end
            host.driver.stage(
                build_batch([(None, b"x", [], 1)], base_offset=end, leader_epoch=host.state.term), 1
            )

        def stop_leading(self) -> None:
            pass

    shard.append(b"first", answers.append)
    host.state.table = cast("Any", Table())
    shard.settle()
    assert host.state.failed is not None
    assert "being carried out" in host.state.failed.message
    assert [type(answer) for answer in answers] == [NotLeaderError]
    assert shard.logs()[1] == shard.logs()[2]


@pytest.mark.parametrize(
    ("term", "base", "records"), [(1, 0, 1), (0, 1, 1), (0, 0, 2)], ids=["term", "offset", "length"]
)
def test_a_batch_that_is_not_what_the_replica_said_stops_it(term: int, base: int, records: int) -> None:
    shard = Shard()
    host = shard.leader
    end = host.log.log_end
    batch = build_batch(
        [(None, b"x", [], 1)] * records, base_offset=end + base, leader_epoch=host.state.term + term
    )
    with pytest.raises(NotLeaderError, match="the replica appends"):
        host.driver.stage(batch, 1)
    assert host.state.failed is not None
    assert host.log.log_end == end
    shard.settle()
    assert shard.logs()[1] == shard.logs()[2]


def test_a_replica_whose_log_ends_elsewhere_stops() -> None:
    shard = Shard()
    host = shard.leader
    host.log.stage_append([build_batch([(None, b"x", [], 1)], base_offset=host.log.log_end, leader_epoch=1)])
    host.driver.tick()
    assert host.state.failed is not None
    assert "the replica's" in host.state.failed.message


def test_an_answer_that_ends_the_replica_leaves_nobody_answered_twice() -> None:
    shard = Shard()
    host = shard.leader
    first, second = list[Any](), list[Any]()

    def end(result: Any) -> None:
        first.append(result)
        host.driver.fail(RuntimeError("its store is gone"))

    shard.append(b"first", end)
    shard.append(b"second", second.append)
    shard.settle()
    assert [type(one) for one in (*first, *second)] == [AppendResult] * 2


def test_a_client_that_cannot_take_its_answer_is_no_trouble_to_the_others() -> None:
    shard = Shard()
    answers: list[Any] = []

    def broken(_result: Any) -> None:
        raise ValueError("hung up")

    shard.append(b"first", broken)
    shard.append(b"second", answers.append)
    shard.settle()
    assert [type(answer) for answer in answers] == [AppendResult]
    assert shard.leader.state.failed is None
