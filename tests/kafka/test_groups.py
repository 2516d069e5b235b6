"""Consumer groups as a state machine: every rule without sockets, and random histories against what must always hold."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.invariants import InvariantError
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_row import ClassicRow
from antiphon.kafka.groups.types import TRANSITIONS, GroupConfig, GroupState, Join, Joined, Sync, Synced

CONFIG = GroupConfig(initial_delay_ms=100, members_max=5)
RANGE = (("range", b"r"),)


def join_of(name: str, member_id: str = "", **fields: Any) -> Join:
    values: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": None,
        "client_id": name,
        "client_host": "h",
        "session_ms": 10_000,
        "rebalance_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "new_member_id": f"{name}-id",
    }
    return Join(**{**values, **fields})


class Driver:
    """A group, its clock, and what each request was answered."""

    def __init__(self) -> None:
        self.group = ClassicGroup("g", CONFIG)
        self.now_ms = 0
        self.answers: dict[str, Joined | Synced] = {}
        self.rows: list[ClassicRow] = []
        self.stores = True  # is a row stored as soon as it is due?

    def join(self, name: str, member_id: str = "", **fields: Any) -> None:
        self.answers.pop(name, None)
        self.group.join(self.now_ms, join_of(name, member_id, **fields), name)
        self.take()

    def sync(self, name: str, *assignments: tuple[str, bytes], generation: int | None = None) -> None:
        self.answers.pop(name, None)
        asked = self.group.generation if generation is None else generation
        request = Sync(f"{name}-id", None, asked, "consumer", "range", assignments)
        self.group.sync(self.now_ms, request, name)
        self.take()

    def wait(self, ms: int) -> None:
        """Let time pass in steps of the group's own deadlines."""
        end = self.now_ms + ms
        for _ in range(1000):
            deadline = self.group.deadline_ms()
            if deadline is None or deadline > end:
                break
            self.now_ms = max(self.now_ms, deadline)
            self.group.tick(self.now_ms)
            self.take()
        self.now_ms = end

    def state(self) -> GroupState:
        return self.group.state

    def write(self) -> ClassicRow | None:
        row = self.group.take_row(1_000_000 + self.now_ms)
        if row is not None:
            self.rows.append(row)
        return row

    def take(self) -> None:
        while self.stores and self.write() is not None:
            self.group.stored(self.now_ms)
        for answer in self.group.take_answers():
            assert answer.token not in self.answers, "answered twice"
            self.answers[str(answer.token)] = answer.result

    def joined(self, name: str) -> Joined:
        found = self.answers[name]
        assert isinstance(found, Joined)
        return found

    def synced(self, name: str) -> Synced:
        found = self.answers[name]
        assert isinstance(found, Synced)
        return found

    def heartbeat(self, name: str, generation: int | None = None) -> int:
        asked = self.group.generation if generation is None else generation
        return self.group.heartbeat(self.now_ms, f"{name}-id", None, asked)


def stable(*names: str) -> Driver:
    """A group in which everybody works."""
    driver = Driver()
    for name in names:
        driver.join(name)
    driver.wait(CONFIG.initial_delay_ms)
    for name in reversed(names):
        driver.sync(name, *((f"{n}-id", f"for {n}".encode()) for n in names))
    assert driver.state() is GroupState.STABLE
    return driver


def test_a_first_round() -> None:
    driver = Driver()
    driver.join("a")
    driver.wait(50)
    driver.join("b")
    driver.wait(99)
    assert driver.answers == {}  # each new member makes the first ones wait a little longer
    driver.wait(1)
    a, b = driver.joined("a"), driver.joined("b")
    assert (a.generation, b.generation) == (1, 1)
    assert a.leader == b.leader == "a-id"
    assert a.members == (("a-id", None, b"r"), ("b-id", None, b"r"))
    assert b.members == ()
    driver.sync("b")
    assert "b" not in driver.answers or isinstance(driver.answers["b"], Joined)
    driver.sync("a", ("a-id", b"1"), ("b-id", b"2"))
    assert (driver.synced("a").assignment, driver.synced("b").assignment) == (b"1", b"2")
    assert driver.state() is GroupState.STABLE


def test_the_first_round_does_not_wait_for_ever() -> None:
    driver = Driver()
    for n in range(4):
        driver.join(f"m{n}", rebalance_ms=250)
        driver.wait(80)
    driver.wait(10)
    assert driver.joined("m0").generation == 1


def test_a_newcomer_causes_a_rebalance() -> None:
    driver = stable("a", "b")
    driver.join("c")
    assert driver.heartbeat("a") == code.REBALANCE_IN_PROGRESS
    driver.join("a", "a-id")
    driver.join("b", "b-id")
    assert {driver.joined(n).generation for n in "abc"} == {2}
    assert driver.joined("a").leader == "a-id"
    assert driver.heartbeat("a", 1) == code.ILLEGAL_GENERATION


def test_who_does_not_rejoin_in_time_is_out() -> None:
    driver = stable("a", "b")
    driver.join("c")
    driver.join("a", "a-id")
    for _ in range(6):
        driver.wait(9_000)
        driver.heartbeat("b")
    driver.wait(6_000)
    assert driver.joined("a").generation == 2
    assert set(driver.group.members) == {"a-id", "c-id"}
    assert driver.heartbeat("b") == code.UNKNOWN_MEMBER_ID


def test_who_is_silent_is_out_and_who_waits_is_not_silent() -> None:
    driver = stable("a", "b")
    driver.wait(9_999)
    assert driver.heartbeat("a") == code.NONE
    driver.wait(1)
    assert driver.heartbeat("a") == code.REBALANCE_IN_PROGRESS
    assert set(driver.group.members) == {"a-id"}
    driver.join("a", "a-id")
    assert driver.joined("a").generation == 2


def test_leaving() -> None:
    driver = stable("a", "b")
    assert driver.group.leave(0, "b-id", None) == code.NONE
    assert driver.group.leave(0, "b-id", None) == code.UNKNOWN_MEMBER_ID
    assert driver.state() is GroupState.PREPARING
    assert driver.group.leave(0, "a-id", None) == code.NONE
    assert driver.state() is GroupState.EMPTY
    assert driver.group.is_unused
    assert driver.group.deadline_ms() is None


def test_a_leader_that_never_assigns_is_put_out() -> None:
    driver = Driver()
    driver.join("a", rebalance_ms=1_000, session_ms=100_000)
    driver.join("b", rebalance_ms=1_000, session_ms=100_000)
    driver.wait(100)
    driver.sync("b")
    driver.wait(1_000)
    assert driver.synced("b").error_code == code.REBALANCE_IN_PROGRESS
    assert set(driver.group.members) == {"b-id"}
    driver.join("b", "b-id")
    assert driver.joined("b").leader == "b-id"


def test_an_id_is_promised_before_a_member_joins() -> None:
    driver = Driver()
    driver.join("a", id_first=True)
    assert driver.joined("a") == Joined(code.MEMBER_ID_REQUIRED, "a-id")
    assert not driver.group.is_unused
    driver.join("a", "a-id", id_first=True)
    driver.wait(100)
    assert driver.joined("a").member_id == "a-id"
    driver.join("b", id_first=True)
    driver.wait(9_000)
    driver.heartbeat("a")
    driver.wait(1_000)
    driver.join("b", "b-id", id_first=True)
    assert driver.joined("b").error_code == code.UNKNOWN_MEMBER_ID  # the promise lapsed


def test_a_promised_id_does_not_take_the_place_of_a_static_member() -> None:
    driver = Driver()
    driver.join("a", instance_id="i1")
    driver.join("b", id_first=True)
    driver.join("b", "b-id", instance_id="i1")  # was pending to a member that is not static
    assert driver.joined("b").error_code == code.FENCED_INSTANCE_ID
    driver.join("b", "b-id", instance_id="i2")
    assert driver.joined("b").error_code == code.UNKNOWN_MEMBER_ID
    driver.wait(70_000)
    assert driver.group.is_unused


def test_a_promised_member_holds_up_a_rebalance_until_it_joins_or_leaves() -> None:
    driver = stable("a")
    driver.join("b", id_first=True)
    driver.join("a", "a-id")
    assert "a" not in driver.answers
    assert driver.group.leave(driver.now_ms, "b-id", None) == code.NONE
    driver.take()
    assert driver.joined("a").generation == 2


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"session_ms": 1}, code.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 10**9}, code.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, code.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, code.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(fields: dict[str, Any], error: int) -> None:
    driver = stable("a")
    driver.join("x", **fields)
    assert driver.joined("x").error_code == error
    assert driver.state() is GroupState.STABLE


def test_a_full_group_refuses_newcomers() -> None:
    driver = stable(*"abcde")
    driver.join("f")
    assert driver.joined("f").error_code == code.GROUP_MAX_SIZE_REACHED
    driver.join("a", "a-id")
    assert "a" not in driver.answers  # members may rejoin


def test_the_protocol_with_most_votes_wins() -> None:
    driver = Driver()
    driver.join("a", protocols=(("x", b"ax"), ("y", b"ay")))
    driver.join("b", protocols=(("y", b"by"), ("x", b"bx")))
    driver.join("c", protocols=(("y", b"cy"), ("x", b"cx"), ("z", b"")))
    driver.wait(100)
    a = driver.joined("a")
    assert a.protocol_name == "y"
    assert [data for _, _, data in a.members] == [b"ay", b"by", b"cy"]


def test_a_lost_answer_can_be_asked_for_again() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.wait(100)
    driver.join("b", "b-id")
    assert driver.joined("b").generation == 1
    driver.join("a", "a-id")
    assert len(driver.joined("a").members) == 2
    driver.sync("b")
    driver.sync("a", ("a-id", b"1"), ("b-id", b"2"))
    driver.join("b", "b-id")
    assert driver.joined("b").generation == 1
    driver.sync("b")
    assert driver.synced("b").assignment == b"2"
    assert driver.state() is GroupState.STABLE
    driver.join("a", "a-id")  # the leader asks for a rebalance by joining again
    assert driver.state() is GroupState.PREPARING


def test_a_second_request_of_a_member_replaces_the_first() -> None:
    driver = stable("a", "b")
    driver.join("a", "a-id")
    first = driver.answers.get("a")
    driver.group.join(driver.now_ms, join_of("a", "a-id"), "again")
    driver.take()
    assert first is None
    assert driver.joined("a").error_code == code.REBALANCE_IN_PROGRESS
    driver.join("b", "b-id")
    assert driver.joined("again").generation == 2


def test_static_members() -> None:
    driver = Driver()
    driver.join("a", instance_id="i1")
    driver.join("b", instance_id="i2")
    driver.wait(100)
    driver.sync("b")
    driver.sync("a", ("a-id", b"1"), ("b-id", b"2"))
    driver.join("b2", instance_id="i2", can_skip_assignment=True)
    back = driver.joined("b2")
    assert (back.error_code, back.generation, back.member_id) == (0, 1, "b2-id")
    assert driver.state() is GroupState.STABLE
    driver.sync("b2")
    assert driver.synced("b2").assignment == b"2"
    assert driver.group.heartbeat(driver.now_ms, "b-id", "i2", 1) == code.FENCED_INSTANCE_ID
    assert driver.group.check_commit(driver.now_ms, "b-id", "i2", 1) == code.FENCED_INSTANCE_ID
    driver.join("a2", instance_id="i1")  # the leader, with a version that cannot skip the assignment
    assert (driver.joined("a2").leader, driver.joined("a2").members) == ("a-id", ())
    driver.join("a3", instance_id="i1", can_skip_assignment=True)
    assert (driver.joined("a3").leader, driver.joined("a3").skip_assignment) == ("a3-id", True)
    assert driver.group.leave(driver.now_ms, "", "i1") == code.NONE
    assert driver.group.leave(driver.now_ms, "", "i1") == code.UNKNOWN_MEMBER_ID
    assert driver.group.leave(driver.now_ms, "b-id", "i2") == code.FENCED_INSTANCE_ID


def test_a_static_member_with_new_protocols_causes_a_rebalance() -> None:
    driver = Driver()
    driver.join("a", instance_id="i1")
    driver.wait(100)
    driver.sync("a", ("a-id", b"1"))
    driver.join("a2", instance_id="i1", protocols=(("range", b"other"),))
    assert driver.joined("a2").generation == 2


def test_a_silent_static_member_stays_through_a_rebalance_until_its_session_ends() -> None:
    driver = Driver()
    driver.join("a", instance_id="i1", session_ms=1_000_000, rebalance_ms=1_000)
    driver.join("b", rebalance_ms=1_000)
    driver.wait(100)
    driver.sync("b")
    driver.sync("a", ("a-id", b"1"))
    driver.join("b", "b-id", protocols=(("range", b"new"),), rebalance_ms=1_000)
    driver.wait(1_000)
    assert [member for member, _, _ in driver.joined("b").members] == ["a-id", "b-id"]


def test_commits() -> None:
    driver = Driver()
    assert driver.group.check_commit(0, "", None, -1) == code.NONE
    driver.join("a")
    driver.wait(100)
    check = driver.group.check_commit
    assert check(driver.now_ms, "a-id", None, 1) == code.REBALANCE_IN_PROGRESS
    driver.sync("a", ("a-id", b"1"))
    assert check(driver.now_ms, "a-id", None, 1) == code.NONE
    assert check(driver.now_ms, "a-id", None, 0) == code.ILLEGAL_GENERATION
    assert check(driver.now_ms, "x", None, 1) == code.UNKNOWN_MEMBER_ID
    assert check(driver.now_ms, "", None, -1) == code.UNKNOWN_MEMBER_ID
    driver.join("b")
    assert check(driver.now_ms, "a-id", None, 1) == code.NONE  # before it joins again, its work still counts


def test_syncs_that_are_refused() -> None:
    driver = stable("a")
    driver.sync("a", generation=9)
    assert driver.synced("a").error_code == code.ILLEGAL_GENERATION
    driver.sync("x")
    assert driver.synced("x").error_code == code.UNKNOWN_MEMBER_ID
    driver.group.sync(0, Sync("a-id", None, 1, "consumer", "sticky", ()), "s")
    driver.take()
    assert driver.synced("s").error_code == code.INCONSISTENT_GROUP_PROTOCOL
    driver.join("b")
    driver.sync("a")
    assert driver.synced("a").error_code == code.REBALANCE_IN_PROGRESS


def test_dissolving_answers_everybody() -> None:
    driver = stable("a", "b")
    driver.join("a", "a-id")
    driver.group.unload(code.NOT_COORDINATOR)
    driver.take()
    assert driver.joined("a").error_code == code.NOT_COORDINATOR


def test_only_the_edges_of_the_table_are_taken() -> None:
    for source in GroupState:
        for target in GroupState:
            group = ClassicGroup("g", state=source)
            if (source, target) in TRANSITIONS:
                group._transition_to(target)
            else:
                with pytest.raises(InvariantError):
                    group._transition_to(target)


class Histories(RuleBasedStateMachine):
    """Members do anything at any time."""

    names = st.sampled_from(["a", "b", "c", "d", "e", "f"])

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.highest = 0

    @rule(name=names, knows_id=st.booleans(), id_first=st.booleans(), static=st.booleans())
    def join(self, name: str, knows_id: bool, id_first: bool, static: bool) -> None:
        known = self.driver.group.members.get(f"{name}-id")
        if known is not None and not knows_id and (known.instance_id is None or not static):
            return  # ids that are given out are new
        if name in self.driver.answers or not self.waits(name):
            instance = f"i-{name}" if static else None
            self.driver.join(name, f"{name}-id" if knows_id else "", id_first=id_first, instance_id=instance)

    @rule(name=names, generation=st.sampled_from([None, 0, 1]))
    def sync(self, name: str, generation: int | None) -> None:
        if not self.waits(name):
            everyone = tuple((member, member.encode()) for member in self.driver.group.members)
            self.driver.sync(name, *everyone, generation=generation)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.driver.group.leave(self.driver.now_ms, f"{name}-id", None)
        self.driver.take()

    @rule(name=names)
    def heartbeat(self, name: str) -> None:
        self.driver.heartbeat(name)

    @rule(ms=st.sampled_from([0, 10, 100, 5_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.driver.wait(ms)

    def waits(self, name: str) -> bool:
        member = self.driver.group.members.get(f"{name}-id")
        return member is not None and (member.join_token is not None or member.sync_token is not None)

    @invariant()
    def what_always_holds(self) -> None:
        group = self.driver.group
        assert group.generation >= self.highest
        self.highest = group.generation
        assert len(group.members) <= CONFIG.members_max
        if group.state in {GroupState.STABLE, GroupState.COMPLETING}:
            assert group.members
            assert group.protocol_name == "range"
            assert not any(m.join_token for m in group.members.values())
        if group.state is GroupState.STABLE:
            assert not any(m.sync_token for m in group.members.values())
        if group.state is GroupState.EMPTY:
            assert not group.members
        waiting = any(m.join_token or m.sync_token for m in group.members.values())
        assert not waiting or group.deadline_ms() is not None, (
            "somebody waits, and nothing would wake the group"
        )
        for instance, member_id in group._members._static.items():
            assert group.members[member_id].instance_id == instance

    def teardown(self) -> None:
        """When everybody falls silent, everybody is answered and the group is empty."""
        for name in "abcdef":
            waiting = self.waits(name)
            if waiting:
                self.driver.answers.pop(name, None)
        self.driver.wait(10_000_000)
        assert self.driver.group.is_unused
        assert self.driver.state() is GroupState.EMPTY


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
