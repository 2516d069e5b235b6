"""Tarantool's document on asynchronous and master-master replication, claim by claim (S4.18-S4.28)."""

import pytest

from antiphon.errors import InvalidRequestError, NotReadyError
from antiphon.replication.multi_messages import Relay, RelayAck, Subscribe
from antiphon.replication.origins import assign, origin_of
from antiphon.replication.vclock import clock_of, covers, join, lag
from tests.replication.multi_cluster import Sites


def test_s4_18_an_asynchronous_commit_needs_the_local_log_only() -> None:
    sites = Sites(sync_at_once=False)
    sites.split(1)
    sites[1].write("a")
    assert sites[1].committed == 0  # not even an asynchronous commit comes before the own disk
    sites[1].sync()
    assert sites[1].committed == 1


def test_s4_19_a_replica_asks_for_everything_from_a_point_and_is_fed_for_ever() -> None:
    sites = Sites(2)
    sites[1].write(*"abcdefg")
    sites.settle()
    sites[2].crash()
    sites[1].write(*"hij")
    sites.restart(2)
    sites.deliver()
    asked = next(m for m in reversed(sites[2].said) if isinstance(m, Subscribe))
    assert asked.vclock == (0, 7)
    again = [
        e.data
        for m in sites[1].said
        if isinstance(m, Relay) and m.session == asked.session
        for e in m.entries
    ]
    assert again == [*"hij"]  # from the log, from that point on, nothing twice
    sites[1].write("k")
    sites.settle()
    assert sites[2].of_origin(1) == [*"abcdefghijk"]


def test_s4_20_the_replica_dials_data_goes_one_way_and_acknowledgements_come_back() -> None:
    sites = Sites(2)
    sites.settle()
    sites[1].write("a")
    sites.settle()
    assert any(isinstance(m, Subscribe) for m in sites[2].said)
    assert not any(m.entries for m in sites[2].said if isinstance(m, Relay))
    assert any(isinstance(m, RelayAck) and m.vclock == (0, 1) for m in sites[2].said)


def test_s4_21_lsns_rise_by_one_for_each_origin_on_its_own() -> None:
    sites = Sites()
    for text in ("first", "second"):
        for node in (1, 2, 3):
            sites[node].write(text, text)
        sites.settle()
    for site in sites.sites.values():
        for origin in (1, 2, 3):
            assert [e.lsn for e in site.log if e.origin == origin] == [1, 2, 3, 4]
    assert not covers((0, 5), (0, 0, 7))
    assert not covers((0, 0, 7), (0, 5))


def test_s4_22_at_most_31_origins_and_component_0_is_local() -> None:
    assert len(clock_of(range(32))) == 32
    with pytest.raises(InvalidRequestError, match="up to 31 origins"):
        clock_of(range(33))
    disks = {node: f"disk-{node}" for node in range(40)}
    table = assign((), range(40), disks)
    assert [row[0] for row in table] == list(range(31))
    assert origin_of(table, 30, "disk-30") == 31
    assert origin_of(table, 31, "disk-31") == 0
    assert lag((9, 5), (0, 5)) == 0  # what is local is nobody else's business


def test_s4_22_a_new_disk_is_a_new_origin_and_ids_are_not_given_again() -> None:
    table = assign((), (1, 2), {1: "a", 2: "b"})
    table = assign(table, (1, 2), {1: "new", 2: "b"})
    assert table == ((1, "a"), (2, "b"), (1, "new"))
    assert origin_of(table, 1, "new") == 3
    assert assign(table, (2, 4), {2: "b", 4: "d"})[3] == (4, "d")


def test_s4_23_vclocks_tell_the_lag_what_to_send_and_what_came_twice() -> None:
    assert lag((0, 5, 6, 9), (0, 5, 6)) == 9
    assert covers((0, 5, 6), (0, 5))
    assert join((0, 5), (0, 0, 6)) == (0, 5, 6)
    sites = Sites()  # everybody passes everything on: each entry reaches each node twice
    sites[1].write("a", "b")
    sites.settle()
    assert sites.agree()
    sites[3].crash()
    sites[2].write("c")
    sites.settle()
    assert sites[1].replica.lags()[3] == 1
    sites.restart(3)
    sites.settle()
    assert sites.vclocks() == [[2, 1, 0]] * 3
    assert sites[3].of_origin(2) == ["c"]


def test_s4_23_what_comes_by_two_paths_is_taken_once() -> None:
    sites = Sites()
    sites.settle()
    for number in range(10):
        sites[1].write(f"a{number}")
    sites.settle()
    assert sum(site.replica.duplicates for site in sites.sites.values()) > 0
    assert not any(site.splits for site in sites.sites.values())
    assert all(len(site.log) == 10 for site in sites.sites.values())
    assert all(site.of_origin(1) == [f"a{number}" for number in range(10)] for site in sites.sites.values())


def test_s4_24_entries_keep_their_origin_and_lsn_whoever_passes_them_on() -> None:
    sites = Sites()
    sites.cut |= {(1, 3), (3, 1)}
    sites[1].write("a")
    sites[3].write("z")
    sites.settle()
    assert [(e.origin, e.lsn, e.data) for e in sites[3].log if e.origin == 1] == [(1, 1, "a")]
    assert sites.vclocks() == [[1, 0, 1]] * 3


def test_s4_25_the_vectors_of_the_document() -> None:
    sites = Sites()
    sites.settle()
    assert sites.vclocks() == [[0, 0, 0]] * 3
    sites[1].write(*"abcde")
    sites.settle()
    assert sites.vclocks() == [[5, 0, 0]] * 3
    sites.split(1)
    sites.cut |= {(2, 3), (3, 2)}
    sites[2].write(*"abcdef")
    sites[3].write(*"abcdefghi")
    sites.settle(3)
    assert sites.vclocks() == [[5, 0, 0], [5, 6, 0], [5, 0, 9]]
    sites.heal()
    sites.settle()
    assert sites.vclocks() == [[5, 6, 9]] * 3


@pytest.mark.parametrize("first_hand", [False, True])
def test_s4_26_several_nodes_write_at_once(first_hand: bool) -> None:
    sites = Sites(4, first_hand=first_hand)
    for number in range(20):
        for node in (1, 2, 3, 4):
            sites[node].write(f"{node}-{number}")
        if number % 3 == 0:
            sites.deliver()
    sites.settle()
    assert sites.vclocks() == [[20] * 4] * 4
    assert sites.agree()


def test_s4_27_the_seven_steps_in_their_order() -> None:
    sites = Sites(2, sync_at_once=False)
    sites.settle()
    one, two = sites[1], sites[2]
    one.said.clear()
    two.said.clear()
    one.write("a")  # 1 begin
    assert one.committed == 0
    assert not one.said
    one.sync()  # 2 log, 3 the user sees the commit, 4 the relay sends
    assert one.committed == 1
    assert [m.entries[0].data for m in one.said if isinstance(m, Relay)] == ["a"]
    sites.deliver()  # 5 the applier takes it
    assert two.of_origin(1) == ["a"]
    assert two.committed == 0
    assert not any(isinstance(m, RelayAck) for m in two.said)
    two.sync()  # 6 the replica's log, 7 the acknowledgement with its clock
    assert two.committed == 1
    assert [m.vclock for m in two.said if isinstance(m, RelayAck)] == [(0, 1)]


def test_s4_28_what_was_not_sent_is_lost_if_its_node_never_comes_back() -> None:
    sites = Sites()
    sites.settle()
    sites.split(1)
    sites[1].write("acknowledged")
    assert sites[1].committed == 1
    sites[1].crash()
    sites.heal()
    sites[2].write("b")
    sites.settle()
    assert sites[2].vclock(3) == sites[3].vclock(3) == [0, 1, 0]


def test_s4_28_and_goes_on_its_way_when_the_node_returns() -> None:
    sites = Sites()
    sites.settle()
    sites.split(1)
    sites[1].write("acknowledged")
    sites[1].crash()
    sites.heal()
    sites.restart(1)
    sites.settle()
    assert sites.vclocks() == [[1, 0, 0]] * 3
    assert sites[3].of_origin(1) == ["acknowledged"]


def test_c11_a_replica_without_an_origin_takes_no_writes() -> None:
    sites = Sites(2)
    sites[1].run(sites[1].replica.set_members({1: 0, 2: 2}))
    with pytest.raises(NotReadyError, match="no origin id"):
        sites[1].write("a")
