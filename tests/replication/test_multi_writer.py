"""Replicas of a shard that all of them write: what the claims of the document do not name."""

import dataclasses
from collections import deque
from zlib import crc32

import pytest

from antiphon.errors import NotReadyError
from antiphon.replication.multi_messages import OriginAnswer, Relay, RelayBase, Subscribe
from antiphon.replication.origin_history import START, History, OriginEntry
from antiphon.replication.origin_index import OriginIndex
from antiphon.replication.vclock import clock_of, covers, join, meet
from tests.replication.multi_cluster import Sites


def entry(origin: int, lsn: int, at: int, text: str = "x") -> OriginEntry:
    return OriginEntry(origin, lsn, crc32(text.encode()), at, at + 1, 1, text)


def test_clocks_compare_as_sets_of_entries() -> None:
    assert clock_of([0, 1, 0, 0]) == (0, 1)
    assert covers((0, 1), (0, 1))
    assert covers((0, 1, 1), (0, 1))
    assert covers((0, 2), (0, 1))
    assert not covers((0, 1), (0, 2))
    assert meet((0, 3, 1), (0, 2)) == (0, 2)
    assert meet((0, 3), (0, 0, 2)) == ()
    assert join((), (0, 1)) == (0, 1)
    assert not covers((0, 1), (0, 0, 1))


def test_the_index_finds_where_a_peer_goes_on_and_stays_small() -> None:
    index, history = OriginIndex([START], marks_max=8, stride=1), History()
    for number in range(1000):
        history.take(entry(1 + number % 3, number // 3 + 1, number))
        index.passed(history, 1)
    assert len(index.marks) <= 9
    for have in range(0, 1000, 37):
        clock = (0, (have + 2) // 3, (have + 1) // 3, have // 3)
        mark = index.covered_by(clock)
        assert mark is not None
        assert covers(clock, mark.clock)
        assert 0 <= have - mark.offset <= 512
    assert index.covered_by(()) == START
    index.trim(index.marks[3])
    assert index.covered_by(()) is None


def test_chains_differ_for_ever_once_an_entry_differed() -> None:
    one, other = History(), History()
    one.take(entry(1, 1, 0, "a"))
    other.take(entry(1, 1, 0, "b"))
    for lsn in range(2, 50):
        one.take(entry(1, lsn, lsn - 1))
        other.take(entry(1, lsn, lsn - 1))
        assert one.chains[1] != other.chains[1]


def test_loss_is_noticed_by_the_acknowledgement_or_by_ticks() -> None:
    sites = Sites(2)
    sites.settle()
    sites[1].write("a")
    sites.mail.clear()  # lost
    sites[1].write("b")
    sites.settle()
    assert sites[2].of_origin(1) == ["a", "b"]
    sites[1].write("c")
    sites.mail.clear()  # lost, and nothing comes after it
    sites.settle()
    assert sites[2].of_origin(1) == ["a", "b", "c"]


def test_a_gap_is_refused() -> None:
    sites = Sites(2)
    sites.settle()
    sites[1].write("a")
    (first,) = [one for one in sites.mail if isinstance(one[2], Relay)]
    sites.mail.clear()
    sites[1].write("b")
    second = sites.mail.pop()
    sites.mail.clear()
    sites[2].run(sites[2].replica.receive(1, second[2]))
    sites[2].sync()
    assert sites[2].of_origin(1) == []
    sites.mail.append(first)
    sites.settle()
    assert sites[2].of_origin(1) == ["a", "b"]


def test_the_window_bounds_what_is_underway() -> None:
    sites = Sites(2)
    sites.settle()
    sites.cut.add((2, 1))
    sites[1].write(*["0123456789"] * 30)
    sites.settle(20)
    sent = [e for m in sites[1].said if isinstance(m, Relay) for e in m.entries]
    assert 40 <= sum(e.size_bytes for e in sent) <= 70
    sites.heal()
    sites.settle(60)
    assert len(sites[2].of_origin(1)) == 30


def test_first_hand_sends_each_entry_to_each_node_once() -> None:
    sites = Sites(4, first_hand=True)
    sites.settle()
    for number in range(20):
        sites[1].write(str(number))
        sites.deliver()
    sites.settle()
    assert sites.agree()
    assert sum(site.replica.duplicates for site in sites.sites.values()) == 0


def test_first_hand_gives_way_when_the_direct_link_is_silent() -> None:
    sites = Sites(3, first_hand=True)
    sites.settle()
    sites.cut |= {(1, 3)}
    sites[1].write("a")
    sites.settle()
    assert sites[3].of_origin(1) == ["a"]  # by way of node 2, though the link from 1 counts as connected


def test_a_replica_that_is_opened_anew_on_the_same_connections_is_subscribed_at_again() -> None:
    """Its node had no room for a while: nobody else has noticed anything."""
    sites = Sites()
    sites[1].write("a")
    sites.settle()
    sites[1].crash()
    sites[1].start()
    sites.settle()
    sites[1].write("b")
    sites.settle()
    assert sites.agree()
    assert sites.vclocks() == [[2, 0, 0]] * 3


def test_two_histories_of_one_origin_are_found_out_and_the_link_stops() -> None:
    sites = Sites()
    sites[1].write("a", "b")
    sites.settle()
    backup = sites[1].disk[:1]
    sites[1].write("c")
    sites.settle()
    sites[1].crash()
    sites[1].disk = backup  # somebody puts an old copy of the directory back
    sites.split(1)
    sites.restart(1)
    sites[1].write("another b")
    sites.heal()
    sites.restart(1)
    sites[2].write("more")
    sites[3].write("more")
    sites.settle()
    assert sites[1].splits
    assert set(sites[1].replica.splits) == {2, 3}
    assert sites[2].of_origin(1) == sites[3].of_origin(1) == ["a", "b", "c"]
    assert sites[2].of_origin(3) == ["more"]  # the sound link works on


def test_an_old_copy_of_a_directory_writes_nothing_before_it_has_its_own_entries_back() -> None:
    sites = Sites(2)
    sites[1].write("a", "b", "c")
    sites.settle()
    sites[1].crash()
    sites[1].disk = sites[1].disk[:1]
    sites[1].start()
    sites.deliver()
    assert sites[1].of_origin(1) == ["a", "b", "c"]
    sites[1].crash()
    sites[1].disk = sites[1].disk[:1]
    sites.cut.add((2, 1))
    sites[1].start()
    sites.heal()
    message = next(m for m in reversed(sites[2].said) if isinstance(m, Relay))
    sites[1].run(
        sites[1].replica.receive(2, Relay(*(7, 1, sites[1].replica._intake._sessions, 1, message.vclock)))
    )
    with pytest.raises(NotReadyError, match="old copy"):
        sites[1].write("d")
    sites.restart(1)
    sites.settle()
    sites[1].write("d")
    sites.settle()
    assert sites[2].of_origin(1) == ["a", "b", "c", "d"]


def test_histories_that_parted_and_have_equal_length_are_found_out_too() -> None:
    sites = Sites(2)
    sites.split(1)
    sites[1].write("a")
    sites[2].disk.append(entry(1, 1, 0, "not a"))
    sites[2].crash()
    sites.heal()
    sites.restart(2)
    sites.settle()
    assert sites[1].splits or sites[2].splits


def test_a_damaged_log_writes_nothing_before_everybody_has_answered() -> None:
    sites = Sites()
    sites[1].write("a", "b", "c")
    sites.settle()
    sites[3].crash()
    sites[1].crash()
    sites[1].disk = sites[1].disk[:1]
    sites[1].damaged = True
    sites.restart(1)
    sites.settle()
    assert sites[1].of_origin(1) == ["a", "b", "c"]
    with pytest.raises(NotReadyError, match="waiting for: 3"):
        sites[1].write("d")
    sites.restart(3)
    sites.settle()
    assert sites[1].repaired == 1
    sites[1].write("d")
    sites.settle()
    assert sites.vclocks() == [[4, 0, 0]] * 3
    assert sites.agree()


@pytest.mark.parametrize("feed_bytes_max", [1, 1 << 20])
def test_what_stands_behind_damage_and_was_never_relayed_is_appended_again(feed_bytes_max: int) -> None:
    sites = Sites()
    sites.config = dataclasses.replace(sites.config, feed_bytes_max=feed_bytes_max)  # from the next start on
    sites[1].write("a", "b", "c")
    sites[2].write("x")
    sites.settle()
    for node in (2, 3):
        sites[node].crash()
    sites[1].write("d", "e")  # nobody hears of these
    sites.mail.clear()
    sites[1].crash()
    sites[1].kept = [one for one in sites[1].disk if (one.origin, one.lsn) not in ((1, 1), (1, 2))]
    sites[1].kept.sort(key=lambda one: (one.origin, one.lsn))
    sites[1].disk = sites[1].disk[:1]
    sites[1].damaged = True
    sites.restart(1)
    sites.settle()
    assert sites[1].of_origin(1) == ["a"], "others may have what lies between"
    for node in (2, 3):
        sites.restart(node)
    sites.settle()
    assert sites[1].repaired == 1
    assert [sites[node].of_origin(1) for node in (1, 2, 3)] == [["a", "b", "c", "d", "e"]] * 3
    sites[1].write("f")
    sites.settle()
    assert sites.vclocks() == [[6, 1, 0]] * 3
    assert sites.agree()


def test_what_stands_behind_a_gap_is_not_appended_and_the_replica_writes_on() -> None:
    sites = Sites(2)
    sites[2].crash()
    sites[1].write("a", "b", "c")
    sites.mail.clear()
    sites[1].crash()
    sites[1].kept = [one for one in sites[1].disk if one.lsn == 3]
    sites[1].disk = sites[1].disk[:1]
    sites[1].damaged = True
    sites.restart(1)
    sites.restart(2)
    sites.settle()
    assert sites[1].repaired == 1
    sites[1].write("d")
    sites.settle()
    assert sites[2].of_origin(1) == ["a", "d"]
    assert sites.agree()


def test_it_is_whole_when_what_was_kept_is_durable() -> None:
    sites = Sites(2, sync_at_once=False)
    sites[2].crash()
    sites[1].write("a", "b")
    sites[1].sync()
    sites.mail.clear()
    sites[1].crash()
    sites[1].kept, sites[1].disk = sites[1].disk[1:], sites[1].disk[:1]
    sites[1].damaged = True
    sites.restart(1)
    sites.restart(2)
    sites.settle(2)
    assert sites[1].of_origin(1) == ["a", "b"]
    assert sites[1].repaired == 0
    sites[1].sync()
    assert sites[1].repaired == 1


def test_an_answer_is_given_when_what_it_rests_on_is_durable() -> None:
    sites = Sites(2, sync_at_once=False)
    sites.settle()
    sites[1].write("a")
    sites[1].sync()
    sites.deliver()  # node 2 has it, not durably
    sites[1].crash()
    sites[1].disk.clear()
    sites[1].damaged = True
    sites.restart(1)
    sites.deliver()
    assert sites[1].repaired == 0
    sites[2].sync()
    for _ in range(10):
        sites.settle(2)
        sites[1].sync()
    assert sites[1].repaired == 1
    assert sites[1].of_origin(1) == ["a"]


def test_a_new_member_gets_everything_from_the_beginning() -> None:
    sites = Sites(3)
    sites[3].crash()
    for site in (sites[1], sites[2]):
        site.run(site.replica.set_members({1: 1, 2: 2}))
    sites[1].write(*"abc")
    sites[2].write(*"de")
    sites.settle()
    for site in (sites[1], sites[2]):
        site.run(site.replica.set_members(sites.origins))
    sites.restart(3)
    sites.settle()
    assert sites.vclocks() == [[3, 2, 0]] * 3


def test_nothing_is_taken_from_who_is_no_member() -> None:
    sites = Sites(2)
    sites.settle()
    sites[1].run(sites[1].replica.set_members({1: 1}))
    sites[2].write("a")
    sites.deliver()
    assert sites[1].of_origin(2) == []


def test_a_log_is_trimmed_no_further_than_everybody_has_it() -> None:
    sites = Sites(3)
    sites[1].write(*"abcdef")
    sites.settle()
    assert sites[1].replica.common_offset() == 6
    sites[3].crash()
    sites[2].write(*"ghij")
    sites.settle(4)
    assert sites[1].replica.common_offset() == 6


def test_a_peer_hears_that_an_entry_is_here_also_when_it_had_it_first() -> None:
    sites = Sites(3, first_hand=True)
    sites.settle()
    sites[1].write("a")
    late = [letter for letter in sites.mail if letter[1] == 3]
    sites.mail = deque(letter for letter in sites.mail if letter[1] != 3)
    sites.deliver()  # node 2 has it, and says so to node 3
    sites.mail.extend(late)
    sites.settle()
    assert [site.replica.lags() for site in sites.sites.values()] == [
        {2: 0, 3: 0},
        {1: 0, 3: 0},
        {1: 0, 2: 0},
    ]
    assert [site.replica.common_offset() for site in sites.sites.values()] == [1, 1, 1]


def test_nothing_is_settled_while_a_member_has_entries_of_fewer_origins() -> None:
    sites = Sites(3)
    sites[3].crash()
    sites[2].write("a")
    sites.settle(4)
    assert sites[1].replica.settled_clock() == ()
    sites.restart(3)
    sites.settle()
    assert sites[1].replica.settled_clock() == (0, 0, 1)
    sites[3].crash()
    sites[3].disk = []
    sites.restart(3)
    sites[3].write("b")
    sites[1].write("c")
    sites.settle()
    assert sites[1].replica.settled_clock() == (0, 1, 1, 1)


def test_a_new_member_of_a_trimmed_shard_begins_where_the_others_do() -> None:
    sites = Sites(3)
    sites[3].crash()
    sites[1].write(*"abcdef")
    sites[2].write(*"gh")
    for site in (sites[1], sites[2]):
        site.run(site.replica.set_members({1: 1, 2: 2}))
    sites.settle()
    for site in (sites[1], sites[2]):
        site.trim(4)
        site.run(site.replica.set_members(sites.origins))
    sites.restart(3)
    sites.settle()
    assert sites.vclocks() == [[6, 2, 0]] * 3
    sites[3].write("z")
    sites.settle()
    assert sites.vclocks() == [[6, 2, 1]] * 3
    sites[3].crash()
    sites.restart(3)  # what it began with is on its disk
    sites.settle()
    assert sites.vclocks() == [[6, 2, 1]] * 3
    assert not any(site.splits for site in sites.sites.values())


def test_a_subscription_that_was_overtaken_by_its_successor_is_ignored() -> None:
    sites = Sites(2)
    sites.settle()
    old = next(m for m in sites[2].said if isinstance(m, Subscribe))
    sites[2].run(sites[2].replica.peer_connected(1))
    sites.settle()
    sites[1].run(sites[1].replica.receive(2, old))
    sites.settle()
    sites[1].write("a")
    sites.settle()
    assert sites[2].of_origin(1) == ["a"]


def test_a_node_that_comes_back_with_its_clock_set_back_is_fed() -> None:
    sites = Sites(2)
    sites.settle()
    sites[2].crash()
    sites[1].write("a")
    sites[2].life = -1  # it numbers its sessions from before those of its life before, which nobody saw end
    sites.restart(2)
    sites.settle()
    assert sites[2].of_origin(1) == ["a"]


def test_a_late_relay_does_not_hide_that_its_session_was_ended() -> None:
    sites = Sites(2)
    sites[1].write("a")
    sites.settle()
    session = next(m.session for m in reversed(sites[2].said) if isinstance(m, Subscribe))
    sites[1].replica._relays.cursors[2].session = 0
    sites[2].run(sites[2].replica.receive(1, RelayBase(7, 1, session, (0, 1), (0, 9))))
    sites[2].run(sites[2].replica.receive(1, Relay(7, 1, session, 9, (0, 1))))
    sites[1].write("b")
    sites.settle(40)
    assert sites[2].of_origin(1) == ["a", "b"]


def test_a_new_connection_goes_on_from_what_was_asked_for_though_nothing_was_acknowledged() -> None:
    sites = Sites(2)
    sites[1].write(*"abcdef")
    sites.settle()
    base = sites[1].mark_at(4)
    sites[1].run(sites[1].replica.trimmed(base))
    sites[1].base, sites[1].log = base, sites[1].log[4:]
    sites[1].disk = list(sites[1].log)
    sites[1].crash()
    sites.restart(1)
    sites.cut.add((2, 1))
    for source, target, message in list(sites.mail):
        if isinstance(message, Subscribe) and target == 1:
            sites[1].run(sites[1].replica.receive(source, message))
    sites.mail.clear()
    sites[1].said.clear()
    sites[1].run(sites[1].replica.peer_connected(2))
    assert not any(isinstance(m, RelayBase) for m in sites[1].said)
    sites.heal()
    sites[1].write("g")
    sites.settle(40)
    assert sites[2].of_origin(1) == [*"abcdefg"]


def test_what_the_others_have_trimmed_is_skipped_when_nobody_gives_it() -> None:
    sites = Sites(3)
    sites[1].write(*"abcdef")
    sites.settle()
    for site in (sites[1], sites[2]):
        site.trim(4)
    sites[3].crash()
    sites[3].disk = []
    sites.split(3)
    sites[3].start()
    sites[3].write("own")  # so that its log is not empty when it hears of the others
    sites.heal()
    sites.restart(3)
    sites.settle(60)
    assert sites[3].trimmed_away
    assert sites.vclocks() == [[6, 0, 1]] * 3
    assert sites[3].of_origin(1) == ["e", "f"]
    sites[2].write("more")
    sites[3].write("more of its own")
    sites.settle()
    assert sites.vclocks() == [[6, 1, 2]] * 3
    assert not any(site.splits for site in sites.sites.values())


def test_a_member_that_forgot_what_it_named_makes_everybody_be_asked_again() -> None:
    sites = Sites(2)
    sites[1].write("a", "b")
    sites.settle()
    sites[1].crash()
    sites[1].disk = sites[1].disk[:1]
    sites[1].damaged = True
    sites.cut.add((2, 1))
    sites.restart(1)
    sites.deliver()
    (answer,) = [m for m in sites[2].said if isinstance(m, OriginAnswer)]
    sites[1].run(sites[1].replica.receive(2, answer))
    assert sites[1].repaired == 0  # it knows of b, which only node 2 has
    sites[2].lose_disk()
    sites.heal()
    sites.restart(2)
    sites.settle(120)
    assert sites[1].repaired == 1
    sites[1].write("second b")
    sites.settle()
    assert sites.vclocks() == [[2, 0]] * 2


def test_an_idle_shard_needs_no_ticks() -> None:
    sites = Sites(3, first_hand=True)
    sites[1].write("a")
    sites.settle()
    assert not any(site.replica.needs_tick for site in sites.sites.values())
    assert not sites.mail
