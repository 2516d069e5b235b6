"""A group of the consumer protocol as a state machine: its rules one by one, and random histories with lost answers."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.coordination.consumer_assignors import ASSIGNORS, RANGE, UNIFORM
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    NO_PLACES,
    Beat,
    Beaten,
    Catalog,
    GroupBounds,
    GroupState,
    Kind,
    Member,
    MemberState,
    Place,
    Places,
    Refused,
    RowBody,
    RowName,
    TopicFacts,
)

BOUNDS = GroupBounds(session_timeout_ms=10_000, max_size=4)
A, B = b"a" * 16, b"b" * 16


def catalog(version: int = 1, **sizes: int) -> Catalog:
    return Catalog(version, {name: TopicFacts(name.encode() * 16, size) for name, size in sizes.items()})


def places(topic: bytes, *partitions: int) -> Places:
    return frozenset((topic, partition) for partition in partitions)


@dataclass
class Client:
    """A member as a client is one: it says what is new, and remembers what it was told."""

    name: str
    topics: tuple[str, ...] = ("a",)
    instance: str | None = None
    epoch: int = 0
    owned: Places = NO_PLACES
    fields: dict[str, Any] = field(default_factory=dict)

    def heartbeat(self, **changed: Any) -> Beat:
        said: dict[str, Any] = {
            "instance_id": self.instance,
            "rebalance_ms": 5_000,
            "topics": self.topics,
            "owned": NO_PLACES if self.epoch == 0 else self.owned,
        }
        return Beat(self.name, **{"epoch": self.epoch, **said, **self.fields, **changed})


class Driver:
    """A group, its clock and its topics."""

    def __init__(self, **sizes: int) -> None:
        self.group = ConsumerGroup(BOUNDS)
        self.now_ms = 0
        self.catalog = catalog(**sizes)

    def ask(self, client: Client, **changed: Any) -> Beaten | Refused:
        return self.group.heartbeat(self.now_ms, client.heartbeat(**changed), self.catalog)

    def heartbeat(self, client: Client, **changed: Any) -> Beaten:
        """A heartbeat that is answered; the client gives up and takes what it is told to."""
        answer = self.ask(client, **changed)
        assert isinstance(answer, Beaten), answer
        client.epoch = answer.epoch
        if answer.assigned is not None:
            client.owned = answer.assigned
        return answer

    def settle(self, *clients: Client) -> None:
        for _ in range(6):
            for client in clients:
                self.heartbeat(client)
        assert self.group.state is GroupState.STABLE


def test_one_member_has_everything_at_once() -> None:
    driver, one = Driver(a=3), Client("1")
    assert driver.heartbeat(one) == Beaten("1", 1, places(A, 0, 1, 2))
    assert driver.group.state is GroupState.STABLE
    assert driver.group.row.assignor == UNIFORM


def test_a_place_is_given_up_before_it_is_given() -> None:
    driver, one, two = Driver(a=2), Client("1"), Client("2")
    driver.heartbeat(one)
    assert driver.heartbeat(two) == Beaten("2", 2, NO_PLACES)
    assert driver.group.state == "Reconciling"
    told = driver.group.heartbeat(0, Beat("1", 1), driver.catalog)
    assert isinstance(told, Beaten)
    assert (told.epoch, told.assigned) == (1, places(A, 0)), "it stays in its epoch until it has given up"
    assert driver.heartbeat(two).assigned == NO_PLACES, "the other one has not said so yet"
    assert driver.group.heartbeat(0, Beat("1", 1), driver.catalog) == Beaten("1", 1), (
        "nor does silence say it"
    )
    one.owned = places(A, 0)
    assert driver.heartbeat(one) == Beaten("1", 2, places(A, 0))
    assert driver.heartbeat(two) == Beaten("2", 2, places(A, 1))
    assert driver.group.state == "Stable"


def test_sessions_that_have_begun_become_longer_and_not_shorter() -> None:
    """A member that is told to come less often must not be gone before it does."""
    driver, one = Driver(a=1), Client("1")
    driver.heartbeat(one)
    session_ms = BOUNDS.session_timeout_ms
    driver.group.bind(BOUNDS._replace(session_timeout_ms=3 * session_ms))
    assert driver.group.deadline_ms() == 3 * session_ms
    driver.group.bind(BOUNDS)
    assert driver.group.deadline_ms() == 3 * session_ms, "it was told that it may be silent for so long"
    driver.now_ms = 3 * session_ms - 1
    assert driver.group.tick(driver.now_ms) == []
    driver.heartbeat(one)
    assert driver.group.deadline_ms() == driver.now_ms + session_ms


def test_epochs_fence() -> None:
    driver, one, two = Driver(a=2), Client("1"), Client("2")
    driver.heartbeat(one)
    driver.heartbeat(two)
    driver.settle(one, two)
    assert driver.ask(one, epoch=one.epoch + 1) is Refused.FENCED_EPOCH
    assert driver.ask(one, epoch=one.epoch - 1, owned=None) is Refused.FENCED_EPOCH
    assert driver.ask(one, epoch=one.epoch - 1, owned=places(A, 0, 1)) is Refused.FENCED_EPOCH
    again = driver.ask(one, epoch=one.epoch - 1)
    assert isinstance(again, Beaten), "its answer was lost, and it has no more than it may have"
    assert driver.ask(Client("3"), epoch=1) is Refused.UNKNOWN_MEMBER


def test_several_answers_in_a_row_may_be_lost() -> None:
    """A member that shows an old epoch is told again what it has, and takes no step on, however often the group does."""
    driver, one, two = Driver(a=3, b=1), Client("1"), Client("2")
    driver.heartbeat(one)
    driver.heartbeat(two)
    driver.settle(one, two)
    shown, had = one.epoch, one.owned
    for size in (5, 7, 9):
        driver.catalog = catalog(size, a=size, b=1)
        lost = driver.ask(one)
        assert isinstance(lost, Beaten), "it cannot know another epoch"
        assert (lost.epoch, lost.assigned) == (shown + 1, driver.group.members["1"].assigned)
        driver.heartbeat(two)
    one.topics = ("a", "b")
    assert isinstance(driver.ask(one), Beaten)
    assert driver.group.members["1"].topics == ("a", "b"), "what it says that it wants is taken all the same"
    assert driver.heartbeat(one).assigned == one.owned >= had
    driver.settle(one, two)
    assert one.owned | two.owned == places(A, *range(9)) | places(B, 0)


def test_offsets_take_the_epoch_of_now() -> None:
    driver, one = Driver(a=2), Client("1")
    check = driver.group.check_offsets
    assert check("", -1) is None, "a group without members is nobody's"
    driver.heartbeat(one)
    assert check("1", 1) is None
    assert check("1", 0) is Refused.STALE_EPOCH
    assert check("1", 2) is Refused.STALE_EPOCH
    assert check("2", 1) is Refused.UNKNOWN_MEMBER
    assert check("", -1) is Refused.UNKNOWN_MEMBER


def test_who_is_silent_or_keeps_what_it_should_give_up_goes() -> None:
    driver, one, two = Driver(a=2), Client("1"), Client("2")
    driver.heartbeat(one)
    driver.heartbeat(two)
    driver.ask(one)
    assert driver.group.deadline_ms() == 5_000, "one has to give up by then"
    driver.now_ms = 4_000
    driver.ask(one)
    driver.heartbeat(two)
    assert driver.group.deadline_ms() == 5_000, "asking again does not put it off"
    driver.now_ms = 5_000
    assert driver.group.tick(5_000) == ["1"]
    assert driver.heartbeat(two).assigned == places(A, 0, 1)
    assert driver.ask(one) is Refused.UNKNOWN_MEMBER
    assert driver.group.tick(15_000) == ["2"]
    assert driver.group.state is GroupState.EMPTY


def test_a_full_group_and_members_that_leave() -> None:
    driver = Driver(a=2)
    clients = [Client(str(number)) for number in range(5)]
    for client in clients[:4]:
        driver.heartbeat(client)
    assert driver.ask(clients[4]) is Refused.FULL
    epoch = driver.group.epoch
    assert driver.ask(clients[0], epoch=LEAVE_EPOCH) == Beaten("0", LEAVE_EPOCH)
    assert driver.group.epoch == epoch + 1
    assert driver.group.leave("1", None) is None
    assert driver.group.leave("1", None) is Refused.UNKNOWN_MEMBER
    assert set(driver.group.members) == {"2", "3"}


def test_static_members_come_back_to_what_they_had() -> None:
    driver = Driver(a=4)
    one, two = Client("1", instance="i"), Client("2", instance="j")
    driver.heartbeat(one)
    driver.heartbeat(two)
    driver.settle(one, two)
    epoch, had = driver.group.epoch, one.owned
    assert driver.ask(Client("3", instance="i")) is Refused.UNRELEASED_INSTANCE
    assert driver.ask(one, epoch=AWAY_EPOCH) == Beaten("1", AWAY_EPOCH)
    assert driver.group.check_offsets("1", epoch) is Refused.STALE_EPOCH
    driver.heartbeat(two)
    assert two.owned == places(A, 0, 1, 2, 3) - had, "nobody takes what is its"
    again = Client("3", instance="i")
    assert driver.heartbeat(again) == Beaten("3", epoch, had)
    assert driver.group.epoch == epoch, "and nothing was assigned anew"
    assert driver.ask(one, epoch=epoch) is Refused.FENCED_INSTANCE
    assert driver.ask(Client("1"), epoch=epoch) is Refused.UNKNOWN_MEMBER
    driver.ask(again, epoch=AWAY_EPOCH)
    assert driver.group.tick(10_000) == ["2", "3"], "away for longer than its session"


def test_topics_come_grow_and_go() -> None:
    driver, one = Driver(a=1), Client("1", topics=("a", "b"))
    driver.heartbeat(one)
    driver.catalog = catalog(2, a=3, b=1, c=5)
    assert driver.heartbeat(one).assigned == places(A, 0, 1, 2) | places(B, 0)
    epoch = driver.group.epoch
    driver.catalog = catalog(3, a=3, b=1, c=6)
    driver.heartbeat(one)
    assert driver.group.epoch == epoch, "nobody reads what changed"
    driver.catalog = catalog(4, b=1)
    driver.heartbeat(one)
    driver.heartbeat(one)
    assert one.owned == places(B, 0)


def test_a_regular_expression_is_what_it_matched() -> None:
    driver = Driver(a=1, b=1)
    one = Client("1", topics=(), fields={"regex": ".*", "regex_topics": ("a",)})
    two = Client("2", topics=("b",))
    assert driver.heartbeat(one).assigned == places(A, 0)
    one.fields["regex_topics"] = ("a", "b")
    driver.heartbeat(two)
    driver.settle(one, two)
    assert one.owned | two.owned == places(A, 0) | places(B, 0)
    assert driver.group.regexes == {".*": ("a", "b")}
    one.fields = {"regex": ""}
    one.topics = ("a",)
    driver.settle(one, two)
    assert (driver.group.regexes, one.owned, two.owned) == ({}, places(A, 0), places(B, 0))


def test_most_members_choose_the_assignor() -> None:
    driver = Driver(a=4)
    clients = [Client(str(n), fields={"assignor": name}) for n, name in enumerate((RANGE, UNIFORM, RANGE))]
    for client in clients:
        driver.heartbeat(client)
    driver.settle(*clients)
    assert driver.group.row.assignor == RANGE
    assert [len(client.owned) for client in clients] == [2, 1, 1]


def test_a_place_that_two_would_have_is_a_fault() -> None:
    driver, one = Driver(a=1), Client("1")
    driver.heartbeat(one)
    with pytest.raises(Exception, match="is of 1 and of 2"):
        driver.group._put(Member("2", assigned=places(A, 0)))


READERS = st.dictionaries(
    st.sampled_from("123456"), st.frozensets(st.sampled_from([A, B, b"c" * 16])), min_size=1
)
SIZES = st.dictionaries(st.sampled_from([A, B, b"c" * 16]), st.integers(0, 7))


@given(st.sampled_from((RANGE, UNIFORM)), READERS, READERS, SIZES, SIZES)
@settings(max_examples=150, deadline=None)
def test_assignors_give_each_place_once_and_evenly(
    name: str, before: Any, readers: Any, old_sizes: Any, sizes: Any
) -> None:
    old = ASSIGNORS[name](before, old_sizes, {})
    found = ASSIGNORS[name](readers, sizes, old)
    given_away = [place for each in found.values() for place in each]
    read = {topic for topics in readers.values() for topic in topics}
    assert sorted(given_away) == sorted((t, p) for t, size in sizes.items() if t in read for p in range(size))
    assert all(place[0] in readers[member] for member, each in found.items() for place in each)
    assert found == ASSIGNORS[name](readers, sizes, old)
    if len({frozenset(topics & set(sizes)) for topics in readers.values()}) == 1 and name == UNIFORM:
        loads = [len(each) for each in found.values()]
        assert max(loads) - min(loads) <= 1
    if (before, old_sizes) == (readers, sizes):
        assert found == old, "nothing changed, so nothing moves"


def test_uniform_moves_no_more_than_it_has_to() -> None:
    sizes = {A: 12, B: 12}
    three = dict.fromkeys("123", frozenset(sizes))
    before = ASSIGNORS[UNIFORM](three, sizes, {})
    four = ASSIGNORS[UNIFORM]({**three, "4": frozenset(sizes)}, sizes, before)
    assert {len(each) for each in four.values()} == {6}
    assert all(four[member] < before[member] for member in three), "the new one took, nobody else did"
    two = ASSIGNORS[UNIFORM]({member: three[member] for member in "12"}, sizes, before)
    assert all(before[member] < two[member] for member in "12")


def test_uniform_is_even_where_members_read_different_topics() -> None:
    sizes = {A: 6, B: 6}
    readers = {"1": frozenset({A, B}), "2": frozenset({A}), "3": frozenset({B}), "4": frozenset({B})}
    found = ASSIGNORS[UNIFORM](readers, sizes, {"1": places(A, *range(6)) | places(B, *range(6))})
    assert sorted(len(each) for each in found.values()) == [2, 3, 3, 4], "no single move makes it more even"


def test_range_gives_neighbours_and_the_same_of_each_topic() -> None:
    readers = dict.fromkeys("12", frozenset({A, B}))
    found = ASSIGNORS[RANGE](readers, {A: 4, B: 4}, {})
    assert found["1"] == places(A, 0, 1) | places(B, 0, 1)
    wider = ASSIGNORS[RANGE]({**readers, "0": frozenset({A, B})}, {A: 6, B: 6}, found)
    assert wider["1"] == places(A, 0, 1) | places(B, 0, 1), "who was there stays in front"


class Histories(RuleBasedStateMachine):
    """Members come, go, lose answers and fall silent, topics change, and the coordinator is another one now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(a=3, b=2)
        self.version = 1
        self.clients: dict[str, Client] = {}
        self.stored: dict[RowName, RowBody] = {}
        self.made = 0

    def _store(self) -> None:
        for name, body in self.driver.group.take_changes().items():
            if body is None:
                self.stored.pop(name, None)
            else:
                self.stored[name] = body

    def _heartbeat(self, client: Client, lost: bool) -> None:
        answer = self.driver.ask(client)
        self._store()
        assert answer is not Refused.FENCED_EPOCH, (
            "a client shows what it was told last, however much was lost since"
        )
        if isinstance(answer, Refused):
            if answer is Refused.UNKNOWN_MEMBER:
                client.owned, client.epoch = NO_PLACES, 0
            return
        if lost:
            return
        if client.epoch == 0 and client.name not in self.clients:
            self.clients[client.name] = client
        client.epoch = answer.epoch
        if answer.assigned is not None:
            client.owned = answer.assigned

    @rule(topics=st.sampled_from([("a",), ("b",), ("a", "b")]), lost=st.booleans())
    @precondition(lambda self: len(self.clients) < 4)
    def join(self, topics: tuple[str, ...], lost: bool) -> None:
        self.made += 1
        client = Client(f"m{self.made}", topics)
        self.clients[client.name] = client
        self._heartbeat(client, lost)

    @rule(data=st.data(), lost=st.booleans())
    @precondition(lambda self: self.clients)
    def heartbeat(self, data: Any, lost: bool) -> None:
        self._heartbeat(self.clients[data.draw(st.sampled_from(sorted(self.clients)))], lost)

    @rule(data=st.data(), topics=st.sampled_from([("a",), ("b",), ("a", "b")]))
    @precondition(lambda self: self.clients)
    def subscribe(self, data: Any, topics: tuple[str, ...]) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.topics = topics
        self._heartbeat(client, lost=False)

    @rule(data=st.data(), silently=st.booleans())
    @precondition(lambda self: self.clients)
    def leave(self, data: Any, silently: bool) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        if not silently:
            self.driver.ask(client, epoch=LEAVE_EPOCH)
            self._store()

    @rule(ms=st.sampled_from([100, 5_000, 10_000]))
    def wait(self, ms: int) -> None:
        self.driver.now_ms += ms
        for name in self.driver.group.tick(self.driver.now_ms):
            if name in self.clients:  # a client stops by itself when its time is up
                self.clients[name].owned, self.clients[name].epoch = NO_PLACES, 0
        self._store()

    @rule(a=st.integers(0, 5), b=st.integers(0, 3))
    def change_topics(self, a: int, b: int) -> None:
        self.version += 1
        self.driver.catalog = catalog(self.version, a=a, b=b)

    @rule()
    def another_coordinator(self) -> None:
        before = self.driver.group
        self.driver.group = ConsumerGroup.restored(self.driver.now_ms, BOUNDS, self.stored)
        assert self.driver.group.members == before.members
        assert self.driver.group.row == before.row

    @invariant()
    def no_place_has_two_owners(self) -> None:
        owners: dict[Place, str] = {}
        for client in self.clients.values():
            for place in client.owned:
                assert owners.setdefault(place, client.name) == client.name

    @invariant()
    def rows_are_the_group(self) -> None:
        members = {name: body for (kind, name), body in self.stored.items() if kind is Kind.MEMBER}
        assert members == self.driver.group.members

    def teardown(self) -> None:
        """Left alone, those who are there end up with everything that they read."""
        driver = self.driver
        driver.now_ms += 20_000
        driver.group.tick(driver.now_ms)
        for client in self.clients.values():
            client.owned, client.epoch = NO_PLACES, 0
        for _ in range(12):
            for client in self.clients.values():
                self._heartbeat(client, lost=False)
        if self.clients:
            assert driver.group.state is GroupState.STABLE
            read = {name for client in self.clients.values() for name in client.topics}
            facts = [driver.catalog.topics[name] for name in read]
            wanted = {(one.topic_id, partition) for one in facts for partition in range(one.partitions)}
            assert {place for client in self.clients.values() for place in client.owned} == wanted


Histories.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase


def test_a_group_whose_own_row_is_lost_begins_above_its_members() -> None:
    member = Member("1", epoch=7, state=MemberState.STABLE, topics=("a",), assigned=places(A, 0))
    group = ConsumerGroup.restored(0, BOUNDS, {(Kind.MEMBER, "1"): member})
    answer = group.heartbeat(0, Beat("1", 7), catalog(a=2))
    assert isinstance(answer, Beaten)
    assert answer.epoch > 7
    assert answer.assigned == places(A, 0, 1)
