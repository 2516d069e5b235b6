"""What is kept of a classic group, and what its next coordinator makes of it: as a state machine, without sockets."""

from typing import Any

import msgspec
import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_row import ClassicMember, ClassicRow, decoded, encoded
from antiphon.kafka.groups.types import GroupState, Synced
from tests.kafka.test_groups import CONFIG, Driver, stable

MEMBER = ClassicMember("a-id", None, "a", "h", 10_000, 60_000, (("range", b"r"),), b"for a")
ROW = ClassicRow(1, "consumer", "range", "a-id", 1_000_100, (MEMBER,))


def assigned(*names: str) -> Driver:
    """A group whose leader has handed in the assignments, which are not stored."""
    driver = Driver()
    driver.stores = False
    for name in names:
        driver.join(name)
    driver.wait(CONFIG.initial_delay_ms)
    for name in reversed(names):
        driver.sync(name, *((f"{n}-id", f"for {n}".encode()) for n in names))
    return driver


def succeeded(driver: Driver) -> Driver:
    """The same group at its next coordinator, by its last row."""
    after = Driver()
    after.now_ms = 77_000
    row = decoded(encoded(driver.rows[-1]))
    after.group = ClassicGroup.restored("g", CONFIG, after.now_ms, row)
    return after


def commit(driver: Driver, name: str, generation: int) -> int:
    return driver.group.check_commit(driver.now_ms, f"{name}-id", None, generation)


def test_a_generation_works_when_its_row_is_stored() -> None:
    driver = assigned("a", "b")
    assert not any(isinstance(answer, Synced) for answer in driver.answers.values())
    row = driver.write()
    assert row is not None
    assert (row.generation, row.leader, row.changed_ms) == (1, "a-id", 1_000_100)
    assert [(m.member_id, m.assignment) for m in row.members] == [("a-id", b"for a"), ("b-id", b"for b")]
    assert driver.write() is None, "one write at a time"
    driver.take()
    assert driver.state() is GroupState.COMPLETING
    assert commit(driver, "a", 1) == code.REBALANCE_IN_PROGRESS
    driver.group.stored(driver.now_ms)
    driver.take()
    assert (driver.synced("a").assignment, driver.synced("b").assignment) == (b"for a", b"for b")
    assert commit(driver, "a", 1) == code.NONE
    assert driver.write() is None, "nothing changed"


def test_members_go_on_with_the_next_coordinator() -> None:
    after = succeeded(stable("a", "b"))
    assert (after.state(), after.group.generation) == (GroupState.STABLE, 1)
    assert after.heartbeat("a") == after.heartbeat("b") == code.NONE
    assert commit(after, "b", 1) == code.NONE
    assert commit(after, "b", 0) == code.ILLEGAL_GENERATION
    after.sync("b")
    assert after.synced("b").assignment == b"for b", "a lost answer can be asked for again"
    assert after.write() is None, "nothing is written for that"


def test_sessions_begin_anew_with_the_next_coordinator() -> None:
    after = succeeded(stable("a", "b"))
    after.wait(9_999)
    assert after.heartbeat("a") == code.NONE
    assert set(after.group.members) == {"a-id", "b-id"}
    after.wait(1)
    assert set(after.group.members) == {"a-id"}
    assert after.heartbeat("a") == code.REBALANCE_IN_PROGRESS


def test_a_rebalance_that_was_under_way_begins_anew_from_the_last_row() -> None:
    driver = stable("a", "b")
    driver.join("c")
    driver.join("a", "a-id")
    assert driver.state() is GroupState.PREPARING
    after = succeeded(driver)
    assert set(after.group.members) == {"a-id", "b-id"}
    after.join("a", "a-id")  # it leads: to join again is a rebalance
    after.join("b", "b-id")
    assert after.joined("a").generation == after.joined("b").generation == 2


def test_a_generation_whose_row_may_not_be_stored_is_not_used() -> None:
    driver = assigned("a", "b")
    assert driver.write() is not None
    driver.group.not_stored(driver.now_ms, code.COORDINATOR_NOT_AVAILABLE)
    driver.take()
    assert driver.synced("a").error_code == driver.synced("b").error_code == code.COORDINATOR_NOT_AVAILABLE
    assert driver.state() is GroupState.PREPARING
    assert all(member.assignment == b"" for member in driver.group.members.values())
    driver.join("a", "a-id")
    driver.join("b", "b-id")
    assert driver.joined("b").generation == 2
    driver.stores = True
    driver.sync("b")
    driver.sync("a", ("a-id", b"x"))
    assert (driver.synced("a").assignment, driver.synced("b").assignment) == (b"x", b"")


def test_what_the_leader_hands_in_first_stands() -> None:
    driver = assigned("a")
    row = driver.write()
    driver.sync("a", ("a-id", b"something else"))
    assert driver.answers.pop("a").error_code == code.REBALANCE_IN_PROGRESS, "another request took its place"
    driver.group.stored(driver.now_ms)
    driver.take()
    assert row is not None
    assert driver.synced("a").assignment == row.members[0].assignment == b"for a"


def test_a_group_that_goes_on_while_its_row_is_written_does_not_work_in_that_generation() -> None:
    driver = assigned("a", "b")
    assert driver.write() is not None
    driver.join("c")
    assert driver.synced("a").error_code == code.REBALANCE_IN_PROGRESS
    driver.group.stored(driver.now_ms)
    assert driver.state() is GroupState.PREPARING
    assert commit(driver, "a", 1) == code.REBALANCE_IN_PROGRESS, "nobody was given anything in it"
    driver.take()
    for name in ("a", "b"):
        driver.join(name, f"{name}-id")
    assert driver.joined("c").generation == 2
    assert driver.write() is None


def empty_since(driver: Driver) -> int | None:
    return driver.group.empty_since_ms


def test_an_empty_group_keeps_its_generation_and_since_when_it_is_empty() -> None:
    driver = stable("a")
    assert empty_since(driver) is None
    driver.wait(5_000)
    driver.stores = False
    assert driver.group.leave(driver.now_ms, "a-id", None) == code.NONE
    assert empty_since(driver) is None, "nothing says so yet"
    driver.write()
    driver.group.not_stored(driver.now_ms, code.COORDINATOR_NOT_AVAILABLE)
    row = driver.write()
    assert row is not None, "it is tried again"
    driver.group.stored(driver.now_ms)
    assert (row.members, row.generation, row.empty_since_ms) == ((), 2, 1_005_100)
    assert empty_since(driver) == 1_005_100
    after = succeeded(driver)
    assert (after.state(), after.group.is_unused) == (GroupState.EMPTY, True)
    assert empty_since(after) == 1_005_100
    after.join("b")
    after.wait(CONFIG.initial_delay_ms)
    assert after.joined("b").generation == 3
    assert empty_since(after) is None


def static(driver: Driver, token: str, new_id: str, **fields: Any) -> None:
    driver.join(token, instance_id="place", new_member_id=new_id, **fields)


def test_static_members_keep_their_ids_and_their_places() -> None:
    driver = Driver()
    static(driver, "a", "a-id")
    driver.wait(CONFIG.initial_delay_ms)
    request_generation = driver.joined("a").generation
    driver.sync("a", ("a-id", b"x"))
    after = succeeded(driver)
    check = after.group.check_commit
    assert check(after.now_ms, "a-id", "place", request_generation) == code.NONE
    after.stores = False
    static(after, "b", "b-id", can_skip_assignment=True)
    assert "b" not in after.answers, "a successor would fence it"
    row = after.write()
    assert row is not None
    assert (row.leader, row.generation, row.changed_ms) == ("b-id", 1, driver.rows[-1].changed_ms)
    after.group.stored(after.now_ms)
    after.take()
    assert (after.joined("b").generation, after.joined("b").skip_assignment) == (1, True)
    last = succeeded(after).group
    assert last.check_commit(77_000, "a-id", "place", 1) == code.FENCED_INSTANCE_ID
    assert last.check_commit(77_000, "b-id", "place", 1) == code.NONE


def test_a_static_member_whose_place_is_not_stored_is_told_to_come_again() -> None:
    driver = Driver()
    static(driver, "a", "a-id")
    driver.wait(CONFIG.initial_delay_ms)
    driver.sync("a", ("a-id", b"x"))
    driver.stores = False
    static(driver, "b", "b-id")
    assert driver.write() is not None
    static(driver, "c", "c-id")  # and the next one, meanwhile
    assert driver.joined("b").error_code == code.FENCED_INSTANCE_ID
    driver.group.not_stored(driver.now_ms, code.COORDINATOR_NOT_AVAILABLE)
    driver.take()
    assert "c" not in driver.answers, "another write has to say so"
    assert driver.write() is not None
    driver.group.not_stored(driver.now_ms, code.COORDINATOR_NOT_AVAILABLE)
    driver.take()
    assert driver.joined("c").error_code == code.COORDINATOR_NOT_AVAILABLE
    assert driver.state() is GroupState.STABLE


def test_a_static_member_that_waits_for_a_write_takes_part_in_the_round_that_begins_meanwhile() -> None:
    driver = Driver()
    static(driver, "a", "a-id")
    driver.wait(CONFIG.initial_delay_ms)
    driver.sync("a", ("a-id", b"x"))
    driver.stores = False
    static(driver, "b", "b-id")
    assert driver.write() is not None
    driver.join("c")
    assert driver.joined("b").generation == driver.joined("c").generation == 2
    driver.group.stored(driver.now_ms)
    driver.take()
    assert driver.joined("b").generation == 2


def test_the_row_on_the_wire() -> None:
    assert encoded(ROW).hex() == (
        "9801a8636f6e73756d6572a572616e6765a4612d6964ce000f42a491"
        "98a4612d6964c0a161a168cd2710cdea609192a572616e6765c40172c405666f722061c3c2"
    )
    assert decoded(encoded(ROW)) == ROW
    longer = [*msgspec.msgpack.decode(encoded(ROW)), "of a later version"]
    assert decoded(msgspec.msgpack.encode(longer)) == ROW
    assert ROW.empty_since_ms is None
    assert ROW.without_members.empty_since_ms is None, "it has members that are not kept"


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": -1},
        {"generation": 2**31 - 1},
        {"changed_ms": -1},
        {"leader": "b-id"},
        {"protocol_type": ""},
        {"protocol_name": "other"},
        {"members": (MEMBER, MEMBER)},
        {"members": (msgspec.structs.replace(MEMBER, session_ms=0),)},
        {"members": (msgspec.structs.replace(MEMBER, rebalance_ms=2**31),)},
        {"members": (msgspec.structs.replace(MEMBER, client_id="c" * 40_000),)},
        {
            "members": tuple(
                msgspec.structs.replace(MEMBER, member_id=name, instance_id="i") for name in ("a-id", "b-id")
            )
        },
    ],
)
def test_rows_that_no_node_writes_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reader tells of it in its own words
        decoded(encoded(msgspec.structs.replace(ROW, **changed)))
