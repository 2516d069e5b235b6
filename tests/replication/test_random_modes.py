"""Changes of members, of the live set and of the commit rule under random schedules; and errors put in, which they see."""

import os
from collections.abc import Callable

import pytest

from antiphon.replication.actions import Action
from antiphon.replication.leader_commit import CommitTracker
from antiphon.replication.live_set import LiveSet
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from tests.replication.mode_schedules import (
    CoordinatedSchedule,
    EarlySchedule,
    EarlyVotedSchedule,
    JointSchedule,
    LiveSchedule,
    UncleanSchedule,
)
from tests.replication.schedules import must_fail, passed

KINDS: tuple[type[CoordinatedSchedule], ...] = (
    JointSchedule,
    LiveSchedule,
    UncleanSchedule,
    EarlySchedule,
    EarlyVotedSchedule,
)
EVENTS = 700
SEEDS = int(os.environ.get("SCHEDULES", "25"))  # of each kind


def run(kind: type[CoordinatedSchedule], seed: int) -> CoordinatedSchedule:
    schedule = kind(seed)
    for _ in range(EVENTS):
        schedule.step()
    schedule.settle()
    return schedule


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_any_schedule_is_safe_and_ends_in_agreement(kind: type[CoordinatedSchedule]) -> None:
    runs = passed(lambda seed: run(kind, seed), range(SEEDS))
    assert sum(schedule.worth for schedule in runs) > 1, "the schedules do what they are for"


def forget_the_outgoing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Members, "sets", property(lambda self: (self.voters,)))


def settle_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumAckTracker, "held_by_majority", lambda *_: True)


def shrink_before_it_is_recorded(patch: pytest.MonkeyPatch) -> None:
    def counting(self: LiveSet) -> tuple[NodeId, ...]:
        return tuple(node for node in self._standing if self._standing[node] != "leaving")

    patch.setattr(LiveSet, "counting", property(counting))


def grow_when_it_is_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LiveSet, "counting", property(lambda self: self.recorded))


def take_in_by_the_high_watermark_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitTracker, "ever_committed", property(lambda self: self._log.settled))


def settle_what_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    right = CommitTracker._advance_apart

    def advance(self: CommitTracker, out: list[Action]) -> bool:
        moved = right(self, out)
        self._log.settled = self._log.commit_mark
        return moved

    patch.setattr(CommitTracker, "_advance_apart", advance)


def lose_silently(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalLog, "lose_tail", lambda *_: None)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (JointSchedule, forget_the_outgoing),
        (JointSchedule, settle_at_once),
        (LiveSchedule, shrink_before_it_is_recorded),
        (LiveSchedule, grow_when_it_is_recorded),
        (LiveSchedule, take_in_by_the_high_watermark_alone),  # needs a rare schedule
        (EarlySchedule, settle_what_is_acknowledged),
        (EarlySchedule, lose_silently),
    ],
    ids=lambda value: str(value.__name__),
)
def test_a_known_error_that_is_put_in_is_seen(
    kind: type[CoordinatedSchedule],
    wrong: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong(monkeypatch)
    first = 300 if wrong is take_in_by_the_high_watermark_alone else 0
    must_fail(lambda seed: run(kind, seed), range(first, first + 60))
