"""The term index against a plain list of terms."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId, TermIndex


class ListModel:
    """A log as the list of the terms of its offsets, from `start` on."""

    def __init__(self) -> None:
        self.start = EMPTY
        self.terms: list[int] = []

    @property
    def end(self) -> int:
        return self.start.offset + len(self.terms)

    def term_before(self, offset: int) -> int:
        return self.start.term if offset == self.start.offset else self.terms[offset - 1 - self.start.offset]

    def end_of_term(self, term: int) -> EntryId:
        kept = self.end
        while kept > self.start.offset and self.term_before(kept) > term:
            kept -= 1
        return EntryId(self.term_before(kept), kept)


def check(index: TermIndex, model: ListModel) -> None:
    assert index.start == model.start
    assert index.end == EntryId(model.term_before(model.end), model.end)
    for offset in range(model.start.offset, model.end + 1):
        assert index.term_before(offset) == model.term_before(offset)
        assert index.holds(EntryId(model.term_before(offset), offset))
        assert not index.holds(EntryId(model.term_before(offset) + 1, offset))
    for term in range(12):
        assert index.end_of_term(term) == model.end_of_term(term)
    assert not index.holds(EntryId(0, model.end + 1))
    items = index.items()
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(items))
    assert all(model.start.offset <= s < model.end for _, s in items)
    copy = TermIndex(index.start.offset, index.start.term)
    copy.load(items, index.log_end)
    assert (copy.items(), copy.start, copy.end) == (items, index.start, index.end)


OPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "truncate", "trim", "reset"]),
        st.integers(0, 100),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(OPS)
def test_term_index_is_what_a_list_of_terms_is(ops: list[tuple[str, int, int]]) -> None:
    index, model = TermIndex(), ListModel()
    for name, number, small in ops:
        span = model.end - model.start.offset
        if name == "append":
            term = max(1, index.end.term + (small == 3))
            index.append(term, model.end + 1 + small)
            model.terms += [term] * (1 + small)
        elif name == "truncate":
            to = model.start.offset + number % (span + 1)
            index.truncate(to)
            del model.terms[to - model.start.offset :]
        elif name == "trim":
            to = model.start.offset + number % (span + 1)
            index.trim(to)
            start = EntryId(model.term_before(to), to)
            del model.terms[: to - model.start.offset]
            model.start = start
        else:
            at = EntryId(index.end.term + small, number)
            index.reset(at)
            model.start, model.terms = at, []
        check(index, model)


def test_entry_ids_order_as_the_up_to_date_check_does_s1_27() -> None:
    assert EntryId(2, 1) > EntryId(1, 100)
    assert EntryId(2, 5) > EntryId(2, 4)
    assert max([EntryId(1, 9), EntryId(3, 2), EntryId(3, 1)]) == EntryId(3, 2)


@pytest.mark.parametrize("offset", [-1, 4, 11])
def test_outside_offsets_are_a_bug(offset: int) -> None:
    index = TermIndex(5, 1)
    index.append(2, 10)
    with pytest.raises(InvariantError):
        index.term_before(offset)
    with pytest.raises(InvariantError):
        index.truncate(offset)
    with pytest.raises(InvariantError):
        index.trim(offset)


def test_a_log_neither_shrinks_by_append_nor_lets_terms_fall() -> None:
    index = TermIndex()
    index.append(3, 2)
    with pytest.raises(InvariantError):
        index.append(3, 2)
    with pytest.raises(InvariantError):
        index.append(2, 3)
