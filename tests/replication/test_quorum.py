"""Quorum arithmetic: from properties, and from the tables that other implementations are judged by."""

import re
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.invariants import InvariantError
from antiphon.replication.commit_rule import QUORUM, CommitRule
from antiphon.replication.members import Members
from antiphon.replication.quorum import VoteResult, commit_point, committed_offset, majority, vote_result
from antiphon.replication.quorum_ack_tracker import NOT_FED, QuorumAckTracker
from tests.judged_cases import JUDGED_CASES, needs_judged_cases

TABLES = JUDGED_CASES / "etcd-raft" / "quorum"
ACKS = st.lists(st.integers(0, 20), min_size=1, max_size=7)


def stanzas(name: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of each stanza: command, ----, output, blank line."""
    for block in re.split(r"\n\s*\n", (TABLES / name).read_text()):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if "----" in lines:
            cut = lines.index("----")
            yield " ".join(lines[:cut]), "\n".join(lines[cut + 1 :])


def group(command: str, name: str) -> list[str]:
    """The comma separated values of `name=(...)`."""
    found = re.search(rf"{name}=\(([^)]*)\)", command)
    return [value.strip() for value in found[1].split(",")] if found and found[1].strip() else []


@needs_judged_cases
def test_majority_commit_agrees_with_the_judged_table() -> None:
    judged = 0
    for command, expected in stanzas("majority_commit.txt"):
        members, acks = group(command, "cfg"), group(command, "idx")
        if not members:
            continue  # a quorum of nobody is refused here
        values = [0 if ack == "_" else int(ack) for ack in acks]
        values += [0] * (len(members) - len(values))
        assert committed_offset(values, majority(len(members))) == int(expected.splitlines()[-1]), command
        judged += 1
    assert judged >= 15


@needs_judged_cases
def test_majority_vote_agrees_with_the_judged_table() -> None:
    names = {"VoteWon": VoteResult.WON, "VoteLost": VoteResult.LOST, "VotePending": VoteResult.PENDING}
    judged = 0
    for command, expected in stanzas("majority_vote.txt"):
        members, votes = group(command, "cfg"), group(command, "votes")
        if not members:
            continue
        result = vote_result(votes.count("y"), votes.count("n"), len(members))
        assert result is names[expected.strip()], command
        judged += 1
    assert judged >= 15


@pytest.mark.parametrize("members", range(1, 8))
def test_any_two_majorities_share_a_member_and_no_smaller_number_would_do(members: int) -> None:
    everyone, k = range(members), majority(members)
    assert all(set(a) & set(b) for a, b in product(combinations(everyone, k), repeat=2))
    if members > 1:
        assert any(not set(a) & set(b) for a, b in product(combinations(everyone, k - 1), repeat=2))


@given(ACKS, st.data())
def test_the_committed_prefix_is_the_longest_that_k_members_hold(
    acks: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(acks)))
    reached = committed_offset(acks, k)
    assert sum(ack >= reached for ack in acks) >= k
    assert sum(ack > reached for ack in acks) < k


@given(ACKS, st.integers(0, 20), st.integers(0, 20))
def test_the_commit_point_never_falls_and_never_ends_in_an_older_term(
    acks: list[int], mark: int, start: int
) -> None:
    k = majority(len(acks))
    point = commit_point(acks, k, mark, start)
    assert point >= mark
    if point > mark:
        assert point > start
        assert sum(ack >= point for ack in acks) >= k


@given(ACKS, st.data())
def test_another_acknowledgement_never_lowers_the_commit_point(acks: list[int], data: st.DataObject) -> None:
    member = data.draw(st.integers(0, len(acks) - 1))
    more = list(acks)
    more[member] += data.draw(st.integers(0, 5))
    k = majority(len(acks))
    assert commit_point(more, k, 3, 2) >= commit_point(acks, k, 3, 2)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_a_quorum_of_nobody_or_of_more_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(InvariantError):
        committed_offset([1, 2, 3], k)


def test_a_quorum_of_no_members_is_refused() -> None:
    with pytest.raises(InvariantError):
        majority(0)


def tracker_of(members: Members, rule: CommitRule = QUORUM, own: int = 1) -> QuorumAckTracker:
    tracker = QuorumAckTracker(own, members, term_start=10)
    tracker.go_by_sets(members, rule)
    return tracker


def hold(tracker: QuorumAckTracker, **ends: int) -> None:
    """`n4=20`: node 4 holds up to 20."""
    for name, end in ends.items():
        tracker.record(tracker.slot(int(name[1:])), end)


def test_tracker_counts_members_only() -> None:
    tracker = tracker_of(Members((4, 5, 6)), own=4)
    assert tracker.slot(9) == NOT_FED
    tracker.add(9)
    hold(tracker, n9=20)
    assert tracker.commit_offset(10) == 10
    hold(tracker, n4=20, n6=15)
    assert tracker.commit_offset(10) == 15


def test_s0_2_what_a_learner_holds_is_known_when_it_becomes_a_voter() -> None:
    tracker = tracker_of(Members((1, 2)))
    tracker.add(3)
    hold(tracker, n1=20, n3=18)
    assert tracker.commit_offset(10) == 10
    tracker.go_by_sets(Members((1, 3), (1, 2)), QUORUM)
    assert tracker.commit_offset(10) == 10, "node 2 is still one of two"
    tracker.go_by_sets(Members((1, 3)), QUORUM)
    assert tracker.commit_offset(10) == 18
    tracker.add(3)
    assert tracker.commit_offset(18) == 18
    assert tracker.acks[tracker.slot(3)] == 0, "a replica that comes anew has shown nothing yet"


@pytest.mark.parametrize(
    ("rule", "committed", "settled"),
    [
        ("quorum", 18, 18),
        ("local", 20, 18),
        ("at_least(1)", 20, 18),
        ("at_least(3)", 16, 18),
        ("at_least(9)", 16, 18),
    ],
)
def test_c1_every_rule_is_the_same_arithmetic_over_other_sets(
    rule: str, committed: int, settled: int
) -> None:
    tracker = tracker_of(Members((1, 2, 3)), CommitRule.parse(rule))
    hold(tracker, n1=20, n2=18, n3=16)
    assert tracker.commit_offset(10) == committed
    assert tracker.settled_offset(10) == settled
    assert tracker.settles_apart == (committed > settled)


def test_s3_24_the_live_rule_takes_all_of_the_live_set_and_enough_of_them() -> None:
    tracker = tracker_of(Members((1, 2, 3)))
    hold(tracker, n1=20, n2=18, n3=16)
    tracker.go_by_live((1, 2, 3), enough=True)
    assert tracker.commit_offset(10) == 16
    tracker.go_by_live((1, 2), enough=True)
    assert tracker.commit_offset(10) == 18
    tracker.go_by_live((1,), enough=False)
    assert tracker.commit_offset(10) == 10
    assert tracker.confirmed([5, 0, 0]) == 5, "nobody else could be elected"
    tracker.go_by_live((1, 3), enough=True)
    assert tracker.confirmed([5, 5, 4]) == 4


def members_of(command: str) -> Members:
    """The two configurations of a judged case; nodes 1, 2, ... in their order."""
    return Members(
        tuple(int(node) for node in group(command, "cfg")),
        tuple(int(node) for node in group(command, "cfgj") if node != "zero"),
    )


@needs_judged_cases
def test_s0_2_joint_commit_agrees_with_the_judged_table() -> None:
    judged = 0
    for command, expected in stanzas("joint_commit.txt"):
        members, acks = members_of(command), group(command, "idx")
        if not members.voters:
            continue
        tracker = QuorumAckTracker(members.voters[0], members, term_start=0)
        for node, ack in zip(sorted(members.voting), acks, strict=False):
            if ack != "_":
                tracker.record(tracker.slot(node), int(ack))
        assert tracker.commit_offset(0) == int(expected.splitlines()[-1]), command
        judged += 1
    assert judged >= 15
