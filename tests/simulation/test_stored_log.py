"""The logs of scripts: what a chain names, and how a log is read, cut and trimmed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import Entry
from antiphon.simulation.stored_log import StoredLog


def entry(term: int, base: int, count: int = 1, data: object = 0) -> Entry:
    return Entry(term, base, base + count, data)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=30), st.randoms(use_true_random=False)
)
def test_chain_names_the_prefix(steps: list[tuple[int, int]], random: Random) -> None:
    """Two logs have equal chains at an offset exactly when their entries before it are equal."""
    one, other, term = StoredLog(), StoredLog(), 1
    for rise, count in steps:
        term += rise
        one.append([entry(term, one.end_offset, count, random.randrange(2))])
        other.append([entry(term, other.end_offset, count, random.randrange(2))])
    for index, end in enumerate(one.ends):
        same = one.entries[: index + 1] == other.entries[: index + 1]
        assert (one.chain_at(end) == other.chain_at(end)) is same


def test_log_reads_cuts_trims_and_resets() -> None:
    log = StoredLog()
    log.append([entry(1, 0, 2), entry(1, 2), entry(2, 3, 3)])
    assert log.end == EntryId(2, 6)
    assert log.read(1, 6, 10) == log.entries
    assert log.read(2, 5, 10) == [entry(1, 2)]
    assert log.read(0, 6, 1) == [entry(1, 0, 2)]
    assert log.chain_at(4) is None
    with pytest.raises(InvariantError, match="inside an entry"):
        log.truncate(4)
    copy, chain = log.copy(), log.chain_at(3)
    assert log.truncate(3) == [entry(2, 3, 3)]
    assert log.end == EntryId(1, 3)
    assert copy.end == EntryId(2, 6)
    copy.trim(3)
    assert (copy.start, copy.start_chain, copy.ends) == (EntryId(1, 3), chain, [6])
    assert copy.read(2, 6, 10) == []
    copy.reset(EntryId(5, 9), 77)
    assert (copy.end, copy.end_chain, copy.chain_at(9)) == (EntryId(5, 9), 77, 77)
    with pytest.raises(InvariantError, match="appended to a log"):
        copy.append([entry(5, 10)])
    with pytest.raises(InvariantError, match="after 5"):
        copy.append([entry(4, 9)])
