"""A leader whose log is compacted feeds a follower that has other borders between its batches."""

import pytest

from antiphon.log.config import LogConfig
from antiphon.partition.follower_reads import read_entries
from antiphon.records.batch import read_header
from antiphon.records.compacted import filler
from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.replication.actions import Action, AppendLog, TruncateLog
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.follower import FollowerSide
from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import Append, Entry
from antiphon.replication.repair import LogRepair
from antiphon.replication.replica_state import LogCondition
from tests.log.helpers import batch_at
from tests.log.test_compaction import Fixture


def following(terms: list[tuple[int, int]], settled: int, term: int = 5) -> FollowerSide:
    """A follower with a log of (term, end) pieces, of which it knows that so much is settled."""
    index = TermIndex(0, 0)
    for one, end in terms:
        index.append(one, end)
    log = LocalLog(index, settled)
    log.durable_end = index.log_end
    side = FollowerSide(1, term, log, ReplicaConfig(), LogRepair(LogCondition.SOUND, 0))
    side.leader = 2
    return side


def entry(base: int, end: int, term: int) -> Entry:
    return Entry(term, base, end, filler(base, end, term))


def taken(side: FollowerSide, prev: EntryId, *entries: Entry) -> list[Action]:
    out: list[Action] = []
    side.on_append(Append(1, 5, 2, prev, 0, 1, entries), out)
    return [one for one in out if isinstance(one, AppendLog | TruncateLog)]


def test_a_follower_takes_the_rest_of_a_filler() -> None:
    """Its leader does not know that it has the first part."""
    side = following([(1, 20)], settled=10)
    (append,) = taken(side, EntryId(1, 10), entry(10, 50, 1), entry(50, 60, 2))
    assert isinstance(append, AppendLog)
    assert [one[:3] for one in append.entries] == [(1, 20, 50), (2, 50, 60)]
    header = read_header(append.entries[0].data)  # type: ignore[arg-type]
    assert (header.base_offset, header.next_offset, header.record_count) == (20, 50, 0)


def test_what_contradicts_a_filler_is_cut_where_it_does() -> None:
    """What was settled here since is before that, in the middle of what is one batch of the leader's."""
    side = following([(1, 15), (2, 20)], settled=13)
    side.verified = 10
    cut, append = taken(side, EntryId(1, 10), entry(10, 50, 1))
    assert isinstance(cut, TruncateLog)
    assert cut.to_offset == 15
    assert isinstance(append, AppendLog)
    assert append.entries[0][:3] == (1, 15, 50)


def test_a_batch_with_records_is_never_parted() -> None:
    side = following([(1, 10), (2, 12)], settled=10)
    whole = Entry(3, 10, 14, bytes(batch_at(10, count=4, term=3)))
    cut, append = taken(side, EntryId(1, 10), whole)
    assert isinstance(cut, TruncateLog)
    assert isinstance(append, AppendLog)
    assert append.entries == (whole,)


@pytest.mark.parametrize("offset", [1, 7, 19])
def test_a_leader_reads_the_rest_of_a_filler(offset: int) -> None:
    made = Fixture(config=LogConfig())
    made.runner.run(made.log.stage_append([filler(0, 20, 1), batch_at(20)]))
    for _ in range(2):
        entries, size = read_entries(made.log, offset, 1 << 20, made.log.log_end)
        assert [one[:3] for one in entries] == [(1, offset, 20), (1, 20, 21)]
        assert size == sum(len(one.data) for one in entries)  # type: ignore[arg-type, misc]
        made.log.release_memory()  # the second time from the disk
    first = read_header(entries[0].data)  # type: ignore[arg-type]
    assert (first.base_offset, first.last_offset_delta) == (offset, 19 - offset)
