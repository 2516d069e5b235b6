"""Members of the classic protocol in a group of the consumer protocol: rules one by one, and random histories of both."""

import random
from dataclasses import dataclass

import pytest

from antiphon.coordination.consumer_terms import (
    LEAVE_EPOCH,
    NO_PLACES,
    Beat,
    Beaten,
    Catalog,
    ClassicPart,
    GroupBounds,
    Member,
    MemberState,
    Places,
    Refused,
    RowBody,
    RowName,
    TopicFacts,
)
from antiphon.coordination.mixed_group import (
    ClassicBeat,
    ClassicJoin,
    MixedGroup,
    common_protocol,
    generation_of,
    is_all_classic,
    protocol_of,
)

BOUNDS = GroupBounds(session_timeout_ms=10_000, max_size=5)
A, B = b"a" * 16, b"b" * 16
RANGE, ROUND = ("range", b"1"), ("roundrobin", b"2")


def catalog(version: int = 1, **sizes: int) -> Catalog:
    return Catalog(version, {name: TopicFacts(name.encode() * 16, size) for name, size in sizes.items()})


def places(topic: bytes, *partitions: int) -> Places:
    return frozenset((topic, partition) for partition in partitions)


@dataclass
class Classic:
    """A member of the classic protocol. Eager: it gives everything up before it joins."""

    name: str
    eager: bool = True
    instance: str | None = None
    protocols: tuple[tuple[str, bytes], ...] = (RANGE,)
    epoch: int = -1
    member_id: str = ""
    owned: Places = NO_PLACES
    rejoins: bool = True

    def join(self, new_id: str = "") -> ClassicJoin:
        if self.eager:
            self.owned = NO_PLACES
        part = ClassicPart(6_000, self.protocols)
        new = new_id or self.name
        return ClassicJoin(
            self.member_id, new, self.instance, "c", "h", 3_000, None, ("a",), self.owned, part
        )

    @property
    def beat(self) -> ClassicBeat:
        return ClassicBeat(self.member_id, self.instance, self.epoch)


@dataclass
class Consumer:
    name: str
    epoch: int = 0
    owned: Places = NO_PLACES


class Driver:
    def __init__(self, size: int = 4) -> None:
        self.group = MixedGroup(BOUNDS)
        self.now_ms = 0
        self.catalog = catalog(a=size)
        self.rows: dict[RowName, RowBody] = {}

    def join(self, client: Classic) -> Member:
        found = self.group.join(self.now_ms, client.join(), self.catalog)
        assert isinstance(found, Member), found
        client.member_id, client.epoch = found.member_id, found.epoch
        return found

    def sync(self, client: Classic) -> Places | Refused:
        found = self.group.sync(self.now_ms, client.beat, "consumer", client.protocols[0][0])
        if not isinstance(found, Refused):
            client.owned, client.rejoins = found, False
        return found

    def beat(self, client: Classic) -> Refused | None:
        return self.group.beat(self.now_ms, client.beat, self.catalog)

    def work(self, client: Classic) -> None:
        """Do as a classic client does."""
        if client.rejoins or self.beat(client) is Refused.REJOIN:
            before = client.owned
            self.join(client)
            found = self.sync(client)
            if not isinstance(found, Refused):
                client.rejoins = not client.eager and bool(before - found)
            else:
                assert found is Refused.REJOIN
                client.rejoins = True

    def heartbeat(self, client: Consumer) -> None:
        owned = client.owned if client.epoch else NO_PLACES
        asked = Beat(client.name, client.epoch, rebalance_ms=3_000, topics=("a",), owned=owned)
        found = self.group.heartbeat(self.now_ms, asked, self.catalog)
        assert isinstance(found, Beaten), found
        client.epoch = found.epoch
        if found.assigned is not None:
            client.owned = found.assigned

    def leave(self, client: Consumer) -> None:
        found = self.group.heartbeat(self.now_ms, Beat(client.name, LEAVE_EPOCH), self.catalog)
        assert isinstance(found, Beaten)

    def restart(self) -> None:
        """Another coordinator goes on from the rows."""
        self.store()
        found = MixedGroup.restored(self.now_ms, BOUNDS, self.rows)
        assert isinstance(found, MixedGroup)
        self.group = found

    def store(self) -> None:
        for name, body in self.group.take_changes().items():
            if body is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = body

    def one_owner(self, clients: list[Classic | Consumer]) -> None:
        owned = [place for client in clients for place in client.owned]
        assert len(owned) == len(set(owned)), clients

    def settle(self, clients: list[Classic | Consumer]) -> None:
        for _ in range(10):
            for client in clients:
                self.work(client) if isinstance(client, Classic) else self.heartbeat(client)
                self.one_owner(clients)
        everything = {place for client in clients for place in client.owned}
        size = self.catalog.topics["a"].partitions
        assert everything == places(A, *range(size))


def adopted(driver: Driver, *members: Member, generation: int = 7) -> list[Classic]:
    driver.group.adopt(driver.now_ms, generation, members)
    found = []
    for member in members:
        kept = driver.group.members[member.member_id]
        one = Classic(kept.member_id, instance=kept.instance_id, member_id=kept.member_id)
        one.epoch, one.owned, one.rejoins = generation, kept.assigned | kept.revoking, False
        found.append(one)
    return found


def member(name: str, *partitions: int, revoking: Places = NO_PLACES, instance: str | None = None) -> Member:
    return Member(
        name,
        rebalance_ms=3_000,
        topics=("a",),
        instance_id=instance,
        assigned=places(A, *partitions),
        revoking=revoking,
        classic=ClassicPart(6_000, (RANGE,)),
    )


def test_a_group_that_is_adopted_goes_on_until_somebody_joins() -> None:
    driver = Driver()
    one, two = adopted(driver, member("one", 0, 1), member("two", 2, 3))
    assert driver.group.check_classic(one.beat) is None
    assert driver.group.check_classic(two.beat) is None
    assert is_all_classic(driver.group)
    assert generation_of(driver.group) == 7
    new = Consumer("new")
    driver.heartbeat(new)
    assert new.owned == NO_PLACES
    assert not is_all_classic(driver.group)
    assert driver.beat(one) is Refused.REJOIN
    assert driver.group.check_classic(one.beat) is None  # what it has done is committed before it joins again
    driver.settle([one, two, new])
    assert driver.group.check_classic(ClassicBeat("one", None, 7)) is Refused.OLD_GENERATION


def test_no_partition_is_adopted_twice() -> None:
    driver = Driver()
    adopted(
        driver, member("one", 0, 1, revoking=places(A, 2, 3)), member("two", 1, 2), member("three", revoking=places(A, 3))
    )  # fmt: skip
    held = {name: (each.assigned, each.revoking) for name, each in driver.group.members.items()}
    assert held == {
        "one": (places(A, 0, 1), places(A, 3)),
        "two": (places(A, 2), NO_PLACES),
        "three": (NO_PLACES, NO_PLACES),
    }
    assert driver.group.members["one"].state is MemberState.UNREVOKED
    assert driver.group.members["two"].state is MemberState.STABLE


def test_what_a_member_is_giving_up_is_given_to_nobody_before_it_says_so() -> None:
    driver = Driver()
    one, two = adopted(driver, member("one", 0, 1, revoking=places(A, 2)), member("two", 3))
    one.eager = two.eager = False
    new = Consumer("new")
    driver.heartbeat(new)
    assert (A, 2) not in new.owned
    one.owned = places(A, 0, 1)  # it has given it up by now
    driver.settle([one, two, new])


def test_a_cooperative_member_keeps_reading_what_it_keeps() -> None:
    driver = Driver()
    (one,) = adopted(driver, member("one", 0, 1, 2, 3))
    one.eager = False
    new = Consumer("new")
    driver.heartbeat(new)
    assert driver.beat(one) is Refused.REJOIN
    assert driver.join(one).state is MemberState.UNREVOKED
    kept = driver.sync(one)
    assert isinstance(kept, frozenset)
    assert len(kept) == 2
    driver.heartbeat(new)
    assert new.owned == NO_PLACES  # until the other one says that it has given them up
    one.owned = kept
    assert driver.beat(one) is Refused.REJOIN
    driver.join(one)
    assert driver.sync(one) == kept
    driver.heartbeat(new)
    assert len(new.owned) == 2
    assert not new.owned & kept


def test_a_member_that_waits_for_partitions_is_called_when_they_are_free() -> None:
    driver = Driver()
    new, one = Consumer("new"), Classic("one")
    driver.heartbeat(new)
    assert driver.join(one).state is MemberState.UNRELEASED
    assert driver.sync(one) == NO_PLACES
    assert driver.beat(one) is None  # the other one has not given up anything yet
    driver.heartbeat(new)
    driver.heartbeat(new)
    assert driver.beat(one) is Refused.REJOIN
    driver.join(one)
    found = driver.sync(one)
    assert isinstance(found, frozenset)
    assert len(found) == 2


def test_who_does_not_join_again_in_time_is_gone() -> None:
    driver = Driver()
    one, two = adopted(driver, member("one", 0, 1), member("two", 2, 3))
    driver.heartbeat(Consumer("new"))
    assert driver.beat(one) is Refused.REJOIN
    for driver.now_ms in (1_000, 2_000, 2_999):
        assert driver.beat(one) is Refused.REJOIN
        assert driver.beat(two) is Refused.REJOIN
    assert driver.group.tick(2_999) == []
    assert driver.group.deadline_ms() == 3_000
    assert driver.group.tick(3_000) == ["one"]
    assert driver.group.beat(3_000, one.beat, driver.catalog) is Refused.UNKNOWN_MEMBER


def test_who_joined_has_to_sync_in_time() -> None:
    driver = Driver()
    one = Classic("one")
    driver.join(one)
    assert driver.group.tick(2_999) == []
    assert driver.group.tick(3_000) == ["one"]
    driver.join(one)
    driver.sync(one)
    assert driver.group.tick(5_999) == []
    assert driver.group.tick(6_000) == ["one"]  # its session is its own, and not that of the group


def test_only_the_sessions_of_the_consumer_protocol_go_by_the_group() -> None:
    driver = Driver()
    one = Classic("one")
    driver.join(one)
    driver.sync(one)
    driver.group.bind(BOUNDS._replace(session_timeout_ms=60_000))
    assert driver.group.tick(6_000) == ["one"]


def test_protocols_that_the_others_do_not_know_are_refused() -> None:
    driver = Driver()
    driver.join(Classic("one", protocols=(RANGE, ROUND)))
    other = Classic("two", protocols=(("mine", b""),))
    assert driver.group.join(0, other.join(), driver.catalog) is Refused.OTHER_PROTOCOLS
    two = Classic("two", protocols=(ROUND,))
    assert protocol_of(driver.join(two)) == "roundrobin"
    assert driver.group.sync(0, two.beat, "consumer", "range") is Refused.OTHER_PROTOCOLS
    assert driver.group.sync(0, two.beat, "connect", None) is Refused.OTHER_PROTOCOLS
    assert common_protocol(list(driver.group.members.values())) == "roundrobin"


def test_a_group_has_so_many_members_of_both_protocols() -> None:
    driver = Driver()
    driver.heartbeat(Consumer("new"))
    for number in range(4):
        driver.join(Classic(f"one-{number}"))
    assert driver.group.join(0, Classic("more").join(), driver.catalog) is Refused.FULL


@pytest.mark.parametrize("epoch", [0, 3, LEAVE_EPOCH])
def test_a_member_is_of_one_protocol(epoch: int) -> None:
    driver = Driver()
    one, new = Classic("one"), Consumer("new")
    driver.join(one)
    driver.heartbeat(new)
    asked = Beat("one", epoch, rebalance_ms=3_000, topics=("a",), owned=NO_PLACES)
    assert driver.group.heartbeat(0, asked, driver.catalog) is Refused.UNKNOWN_MEMBER
    assert (
        driver.group.join(0, Classic("new", member_id="new").join(), driver.catalog) is Refused.UNKNOWN_MEMBER
    )
    assert driver.group.beat(0, ClassicBeat("new", None, new.epoch), driver.catalog) is Refused.UNKNOWN_MEMBER


def test_a_static_member_comes_back_with_the_other_protocol_to_what_it_had() -> None:
    driver = Driver()
    old, two = adopted(driver, member("old", 0, 1, instance="i"), member("two", 2, 3))
    asked = Beat("new", 0, instance_id="i", rebalance_ms=3_000, topics=("a",), owned=NO_PLACES)
    found = driver.group.heartbeat(0, asked, driver.catalog)
    assert isinstance(found, Beaten)
    assert found.assigned == places(A, 0, 1)
    assert driver.beat(old) is Refused.FENCED_INSTANCE
    assert driver.group.check_classic(old.beat) is Refused.FENCED_INSTANCE
    again = Classic("again", instance="i")
    driver.join(again)  # and back, though the consumer has not left
    assert driver.sync(again) == places(A, 0, 1)
    assert is_all_classic(driver.group)
    stale = Beat("new", found.epoch, instance_id="i", owned=NO_PLACES)
    assert driver.group.heartbeat(0, stale, driver.catalog) is Refused.FENCED_INSTANCE
    driver.settle([again, two])


def test_a_classic_instance_is_taken_over_by_who_has_no_id_yet() -> None:
    driver = Driver()
    one = Classic("one", instance="i")
    driver.join(one)
    driver.sync(one)
    wrong = Classic("x", instance="i", member_id="other")
    assert driver.group.join(0, wrong.join(), driver.catalog) is Refused.FENCED_INSTANCE
    two = Classic("two", instance="i")
    driver.join(two)
    assert driver.beat(one) is Refused.FENCED_INSTANCE
    assert driver.sync(two) == places(A, 0, 1, 2, 3)
    unknown = Classic("three", instance="j", member_id="gone")
    assert driver.group.join(0, unknown.join(), driver.catalog) is Refused.UNKNOWN_MEMBER


def test_a_new_partition_calls_members_of_the_classic_protocol() -> None:
    driver = Driver()
    one = Classic("one")
    driver.join(one)
    driver.sync(one)
    driver.catalog = catalog(2, a=6)
    assert driver.beat(one) is Refused.REJOIN
    driver.settle([one])


def test_a_successor_knows_members_of_both_protocols() -> None:
    driver = Driver()
    one, new = Classic("one"), Consumer("new")
    driver.join(one)
    driver.sync(one)
    driver.heartbeat(new)
    driver.settle([one, new])
    driver.restart()
    assert driver.beat(one) is None
    assert driver.group.tick(5_999) == []
    assert driver.group.tick(6_000) == ["one"]


@pytest.mark.parametrize("seed", range(60))
def test_no_history_gives_a_partition_to_two(seed: int) -> None:
    draw = random.Random(seed)
    driver = Driver(draw.choice((1, 3, 5)))
    clients: list[Classic | Consumer] = []
    for number in range(80):
        what = draw.random()
        if what < 0.15 and len(clients) < 5:
            name = f"m{number}"
            clients.append(
                Consumer(name) if draw.random() < 0.5 else Classic(name, eager=draw.random() < 0.5)
            )
        elif what < 0.22 and clients:
            gone = clients.pop(draw.randrange(len(clients)))
            if isinstance(gone, Consumer):
                driver.leave(gone) if gone.epoch else None
            elif gone.member_id:
                driver.group.leave(gone.member_id, None)
        elif what < 0.27:
            driver.restart()
        elif what < 0.32:
            driver.catalog = catalog(number + 2, a=driver.catalog.topics["a"].partitions + 1)
        elif clients:
            one = draw.choice(clients)
            if isinstance(one, Consumer):
                driver.heartbeat(one)
            elif draw.random() < 0.2 and one.member_id and not one.rejoins:
                driver.join(one)  # it never hears of what SyncGroup would tell it
                one.rejoins = True
            else:
                driver.work(one)
        driver.one_owner(clients)
    if clients:
        driver.settle(clients)
