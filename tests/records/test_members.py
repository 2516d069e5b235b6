"""Members as sets that must agree, the batch that carries them, and the index of such entries of a log."""

import pytest

from antiphon.errors import CorruptBatchError
from antiphon.invariants import InvariantError
from antiphon.records.batch import validate_batch
from antiphon.records.builder import (
    MEMBERS_TYPE,
    build_batch,
    build_control,
    build_members,
    build_term_start,
    control_value,
    members_of,
    seal,
)
from antiphon.records.decode import decode_records
from antiphon.records.members import Members, MembersIndex

THREE = Members((1, 2, 3))
JOINT = Members((1, 2, 4), (1, 2, 3), (5,))


def test_the_sets_that_must_agree() -> None:
    assert THREE.sets == ((1, 2, 3),)
    assert JOINT.sets == ((1, 2, 4), (1, 2, 3))
    assert (JOINT.voting, JOINT.everybody) == ((1, 2, 4, 3), (1, 2, 4, 3, 5))
    assert (THREE.is_joint, JOINT.is_joint) == (False, True)


@pytest.mark.parametrize(
    "members",
    [THREE, JOINT, Members(tuple(range(40)), tuple(range(30, 90))), Members((1, 2), (), (3,), 1 << 40)],
)
def test_a_members_batch_says_what_was_put_in(members: Members) -> None:
    batch = build_members(members, 3, 7, 1000)
    assert validate_batch(batch).is_control
    assert members_of(batch) == members_of(memoryview(bytes(batch))) == members
    assert decode_records(batch) == [], "consumers do not see it"
    assert decode_records(batch, include_control=True)[0].offset == 7


def test_no_other_batch_says_anything_of_members() -> None:
    assert members_of(build_term_start(3, 0, 0)) is None
    record = decode_records(build_members(THREE, 3, 0, 0), include_control=True)[0]
    assert members_of(build_batch([(record.key, record.value, (), 0)])) is None


def test_a_members_batch_that_cannot_be_read_is_an_error() -> None:
    batch = build_members(THREE, 3, 7, 1000)
    at = bytes(batch).index(b"\0\3\0\0\0\1")
    batch[at + 1] = 90
    seal(batch)
    with pytest.raises(CorruptBatchError, match="members"):
        members_of(batch)


def test_a_deletion_that_is_cut_short_is_an_error_and_older_versions_pass_over_it() -> None:
    value = control_value(build_members(Members((1, 2), (), (3,), 9), 3, 7, 1000), MEMBERS_TYPE)
    assert value is not None
    assert value[:-8] == control_value(build_members(Members((1, 2), (), (3,)), 3, 7, 1000), MEMBERS_TYPE)
    with pytest.raises(CorruptBatchError, match="members"):
        members_of(build_control(MEMBERS_TYPE, value[:-1], 3, 7, 1000))


def test_the_last_entry_counts_and_a_cut_brings_the_one_before_back() -> None:
    index = MembersIndex(THREE)
    assert (index.current, index.end, len(index)) == (THREE, 0, 0)
    index.append(5, JOINT)
    index.append(8, Members((1, 2, 4)))
    assert index.current == Members((1, 2, 4))
    assert [index.at(offset) for offset in (4, 5, 7, 8)] == [THREE, JOINT, JOINT, Members((1, 2, 4))]
    assert not index.truncate(8)
    assert index.truncate(7)
    assert (index.current, index.end) == (JOINT, 5)
    assert index.truncate(4)
    assert index.current == THREE


def test_what_is_trimmed_away_is_remembered_and_a_snapshot_replaces_it_all() -> None:
    index = MembersIndex(None, [(5, JOINT), (8, THREE)])
    index.trim(5)
    assert (index.base, index.items()) == (JOINT, [(8, THREE)])
    copy = index.copy()
    index.trim(100)
    assert (index.base, index.items(), index.current) == (THREE, [], THREE)
    assert copy.items() == [(8, THREE)]
    copy.reset(None)
    assert copy.current is None


def test_entries_rise() -> None:
    with pytest.raises(InvariantError):
        MembersIndex(None, [(5, JOINT), (5, THREE)])
