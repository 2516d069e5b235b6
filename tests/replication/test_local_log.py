"""What is durable when writes become durable late, in order, and the log is cut in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId, TermIndex
from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import Entry


def entry(term: int, base: int, count: int = 1) -> Entry:
    return Entry(term, base, base + count, f"{term}/{base}")


def log_of(*entries: Entry, high_watermark: int = 0) -> LocalLog:
    terms = TermIndex()
    for one in entries:
        terms.append(one.term, one.next_offset)
    return LocalLog(terms, high_watermark)


def test_what_was_recovered_is_durable() -> None:
    log = log_of(entry(1, 0, 5))
    assert (log.durable_end, log.durable_head) == (5, EntryId(1, 5))


def test_a_high_watermark_beyond_a_log_that_lost_its_end_is_cut() -> None:
    assert log_of(entry(1, 0, 5), high_watermark=9).settled == 5


def test_an_append_counts_when_it_is_persisted() -> None:
    log = log_of()
    first, second = log.append([entry(1, 0)]), log.append([entry(1, 1)])
    assert (log.terms.log_end, log.durable_end) == (2, 0)
    assert log.persisted(first.write_id)
    assert log.durable_end == 1
    assert log.persisted(second.write_id)
    assert log.durable_end == 2
    assert not log.persisted(first.write_id), "a report that comes late changes nothing"


def test_one_report_covers_a_whole_group() -> None:
    log = log_of()
    log.append([entry(1, 0)])
    last = log.append([entry(1, 1), entry(2, 2)])
    log.persisted(last.write_id)
    assert log.durable_head == EntryId(2, 3)


def test_an_append_that_is_cut_before_it_is_durable_proves_only_what_survived() -> None:
    log = log_of(entry(1, 0, 5))
    appended = log.append([entry(1, 5, 5)])
    cut = log.truncate(7 - 2)
    again = log.append([entry(2, 5, 1)])
    log.persisted(appended.write_id)
    assert log.durable_head == EntryId(1, 5), "the disk holds 10 offsets, of which 5 belong to this log"
    log.persisted(cut.write_id)
    assert log.durable_end == 5
    log.persisted(again.write_id)
    assert log.durable_head == EntryId(2, 6)


def test_a_cut_lowers_what_is_durable_at_once() -> None:
    log = log_of(entry(1, 0, 5))
    log.truncate(0)
    assert (log.durable_end, log.durable_head) == (0, EMPTY)


def test_what_is_committed_is_never_cut() -> None:
    log = log_of(entry(1, 0, 5), high_watermark=3)
    with pytest.raises(InvariantError, match="below the high watermark"):
        log.truncate(2)


def test_a_reset_makes_nothing_durable_until_it_is_itself() -> None:
    log = log_of(entry(1, 0, 5))
    appended = log.append([entry(1, 5)])
    reset = log.reset(EntryId(3, 40))
    log.persisted(appended.write_id)
    assert log.durable_end < log.terms.log_start
    assert log.durable_head == EntryId(3, 40)
    log.persisted(reset.write_id)
    assert log.durable_end == 40


def test_a_snapshot_behind_the_high_watermark_is_refused() -> None:
    log = log_of(entry(1, 0, 5), high_watermark=5)
    with pytest.raises(InvariantError):
        log.reset(EntryId(1, 4))


def test_nothing_is_promised_before_the_term_is_durable() -> None:
    log = log_of()
    promise = log.persist_term(4, None)
    assert not log.is_term_durable
    log.persisted(promise.write_id)
    assert log.is_term_durable


def test_a_gap_in_the_log_and_a_write_that_never_was_are_bugs() -> None:
    log = log_of(entry(1, 0))
    with pytest.raises(InvariantError, match="does not continue"):
        log.append([entry(1, 2)])
    with pytest.raises(InvariantError, match="never staged"):
        log.persisted(1)


class Model:
    """The same log as a list of entries, with the disk as another list."""

    def __init__(self) -> None:
        self.staged: list[Entry] = []
        self.disk: list[Entry] = []
        self.writes: list[tuple[int, str, object]] = []

    def sync(self) -> int:
        write_id, kind, what = self.writes.pop(0)
        if kind == "append":
            assert isinstance(what, Entry)
            self.disk.append(what)
        else:
            assert isinstance(what, int)
            self.disk = [one for one in self.disk if one.next_offset <= what]
        return write_id

    @property
    def proved(self) -> int:
        """End of the longest prefix of the staged log that is on the disk."""
        end = 0
        for ours, theirs in zip(self.staged, self.disk, strict=False):
            if ours != theirs:
                break
            end = ours.next_offset
        return end


@given(st.lists(st.one_of(st.just("append"), st.just("sync"), st.integers(0, 5)), max_size=40))
def test_durable_end_never_claims_more_than_the_disk_has_of_this_log(steps: list[str | int]) -> None:
    log, model, term = log_of(), Model(), 1
    for step in steps:
        if step == "append":
            made = entry(term, log.terms.log_end, 1 + term % 3)
            model.writes.append((log.append([made]).write_id, "append", made))
            model.staged.append(made)
        elif step == "sync":
            if model.writes:
                log.persisted(model.sync())
        else:
            assert isinstance(step, int)
            term += 1
            at = model.staged[step].base_offset if step < len(model.staged) else log.terms.log_end
            model.writes.append((log.truncate(at).write_id, "cut", at))
            model.staged = [one for one in model.staged if one.next_offset <= at]
        assert log.durable_end <= model.proved
    while model.writes:
        log.persisted(model.sync())
    assert log.durable_end == model.proved == log.terms.log_end


CHAINS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=6)


def chain(steps: list[tuple[int, int]]) -> LocalLog:
    log, term, end = TermIndex(), 0, 0
    for rise, count in steps:
        term, end = term + rise - 1 or 1, end + count
        log.append(term, end)
    return LocalLog(log, 0)


@given(CHAINS, st.integers(1, 12), st.integers(0, 20))
def test_the_common_point_is_in_our_log_and_not_beyond_the_hint(
    steps: list[tuple[int, int]], term: int, offset: int
) -> None:
    log, hint = chain(steps), EntryId(term if offset else 0, offset)
    point = log.common_point(hint)
    assert point is not None, "a log that starts at 0 shares at least nothing with any other"
    assert log.terms.holds(point)
    assert point.offset <= hint.offset
    assert point.term <= hint.term
    assert (point == hint) == log.terms.holds(hint)


def test_there_is_no_common_point_with_what_lies_before_our_log() -> None:
    log = LocalLog(TermIndex(10, 3), 10)
    assert log.common_point(EntryId(2, 9)) is None
    assert log.common_point(EntryId(2, 14)) is None, "it diverged from ours before offset 10"
    assert log.common_point(EntryId(5, 12)) == EntryId(3, 10)
