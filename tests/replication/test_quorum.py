"""Quorum arithmetic: from properties, and from the tables that other implementations are judged by."""

import re
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.invariants import InvariantError
from antiphon.replication.quorum import VoteResult, commit_point, committed_offset, majority, vote_result
from antiphon.replication.quorum_ack_tracker import NOT_VOTING, QuorumAckTracker
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


def test_tracker_counts_members_only() -> None:
    tracker = QuorumAckTracker((4, 5, 6), term_start=10)
    assert tracker.slot(9) == NOT_VOTING
    tracker.record(tracker.slot(9), 20)
    assert tracker.commit_offset(10) == 10
    tracker.record(tracker.slot(4), 20)
    tracker.record(tracker.slot(6), 15)
    assert tracker.commit_offset(10) == 15
