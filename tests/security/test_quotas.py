"""Quotas: which limit counts, how long somebody has to wait, and that what is kept of all that is bounded."""

import asyncio
import random
from typing import Any

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.gateway import quotas as module
from antiphon.gateway.quotas import Payer, Place, Quotas, Steps, Use, payer_of
from antiphon.model.access import AccessBook
from antiphon.model.quotas import DEFAULT, Quota, check_quota
from antiphon.security.authorizer import EVERYTHING, Authorizer, Rights
from antiphon.security.principal import ANONYMOUS, NODE, Principal
from tests.clock import Clock
from tests.coroutines import on_a_loop


class Waiter:
    """What is charged, and how long it was to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def throttle(self, wait_s: float) -> None:
        self.waits.append(wait_s)


def book_of(*quotas: Quota) -> AccessBook:
    book = AccessBook()
    for quota in quotas:
        book.put("quota", quota.key, quota)
    return book


def waited(quotas: Quotas, use: Use, payer: Payer | None, amount: float) -> float:
    waiter = Waiter()
    quotas.charge(use, payer, amount, waiter)
    assert len(waiter.waits) <= 1
    return waiter.waits[0] if waiter.waits else 0.0


ALICE = Payer("alice", "app")
PRECEDENCE = (
    Quota("alice", "app", producer_byte_rate=1.0),
    Quota("alice", DEFAULT, producer_byte_rate=2.0),
    Quota("alice", producer_byte_rate=3.0),
    Quota(DEFAULT, "app", producer_byte_rate=4.0),
    Quota(DEFAULT, DEFAULT, producer_byte_rate=5.0),
    Quota(DEFAULT, producer_byte_rate=6.0),
    Quota(None, "app", producer_byte_rate=7.0),
    Quota(None, DEFAULT, producer_byte_rate=8.0),
)


def test_kafkas_order_of_precedence(clock: Clock) -> None:
    """Of all the limits that could be meant, the first one of Kafka's list counts; then, without it, the next."""
    book = book_of(
        *PRECEDENCE, Quota("bob", producer_byte_rate=99.0), Quota(None, "other", producer_byte_rate=98.0)
    )
    quotas = Quotas(book)
    for place, quota in enumerate(PRECEDENCE, 1):
        assert quotas.at_once(Use.PRODUCE, ALICE) == place * module.WINDOW_S
        book.put("quota", quota.key, None)
    assert quotas.at_once(Use.PRODUCE, ALICE) is None


def test_a_limit_of_one_kind_does_not_hide_others(clock: Clock) -> None:
    quotas = Quotas(book_of(Quota("alice", producer_byte_rate=3.0), Quota(DEFAULT, consumer_byte_rate=4.0)))
    assert quotas.at_once(Use.FETCH, ALICE) == 4.0 * module.WINDOW_S
    assert quotas.at_once(Use.REQUEST, ALICE) is None


def test_who_shares_a_limit(clock: Clock) -> None:
    """All clients of a user share the user's; each pair, each user and each client has its own where it says so."""

    def owes(quota: Quota, payer: Payer) -> bool:
        quotas = Quotas(book_of(quota))
        assert waited(quotas, Use.PRODUCE, ALICE, 200.0) == pytest.approx(10.0)
        return quotas.owed_s(Use.PRODUCE, payer) > 0

    other_client, other_user = Payer("alice", "cron"), Payer("bob", "app")
    of_user, of_each_user = Quota("alice", producer_byte_rate=10.0), Quota(DEFAULT, producer_byte_rate=10.0)
    assert owes(of_user, other_client)
    assert owes(of_each_user, other_client)
    assert not owes(of_each_user, other_user), "everybody has the limit for himself"
    of_pair = Quota(DEFAULT, DEFAULT, producer_byte_rate=10.0)
    assert not owes(of_pair, other_client)
    assert not owes(of_pair, other_user)
    of_client = Quota(None, DEFAULT, producer_byte_rate=10.0)
    assert owes(of_client, other_user)
    assert not owes(of_client, other_client)


def kafkas_throttle_s(limit: float, uses: list[tuple[float, float]]) -> float:
    """What Kafka's rate over 11 windows of a second makes of these (second, amount): (observed - limit) / limit * window."""
    now_s = uses[-1][0]
    windows: list[list[float]] = []  # begin, sum
    for at_s, amount in uses:
        if not windows or at_s - windows[-1][0] >= 1.0:
            windows.append([at_s, 0.0])
        windows[-1][1] += amount
    windows = [window for window in windows if now_s - window[0] < 11.0]
    elapsed_s = now_s - windows[0][0]
    elapsed_s += max(0, 10 - int(elapsed_s))
    observed = sum(amount for _, amount in windows) / elapsed_s
    return max(0.0, (observed - limit) / limit * elapsed_s)


def test_the_time_is_kafkas(clock: Clock) -> None:
    """For one burst, and for a client that waits as it is told, the time is that of Kafka's brokers."""
    draw = random.Random(7)
    for _ in range(200):
        limit, amount = draw.uniform(10, 1000), draw.uniform(1, 20_000)
        expected = kafkas_throttle_s(limit, [(0.0, amount)])
        found = waited(Quotas(book_of(Quota("alice", producer_byte_rate=limit))), Use.PRODUCE, ALICE, amount)
        assert found == pytest.approx(min(expected, module.WAIT_S_MAX))
    quotas = Quotas(book_of(Quota("alice", producer_byte_rate=100.0)))
    begin_s, sent = clock.now_s, 0.0
    while clock.now_s - begin_s < 300:
        sent += 250.0
        clock.now_s += waited(quotas, Use.PRODUCE, ALICE, 250.0) + 0.01
    assert sent / (clock.now_s - begin_s) == pytest.approx(100.0, rel=0.05), "in the long run, the limit"


def test_a_debt_is_paid_and_bounded(clock: Clock) -> None:
    quotas = Quotas(book_of(Quota("alice", producer_byte_rate=100.0)))
    assert waited(quotas, Use.PRODUCE, ALICE, 2500.0) == pytest.approx(15.0)
    clock.now_s += 14.9
    assert quotas.owed_s(Use.PRODUCE, ALICE) == pytest.approx(0.1)
    clock.now_s += 0.2
    assert quotas.owed_s(Use.PRODUCE, ALICE) == 0.0
    assert waited(quotas, Use.PRODUCE, ALICE, 1e12) == module.WAIT_S_MAX, "one wait is bounded"
    clock.now_s += module.DEBT_S_MAX + 0.1
    assert quotas.owed_s(Use.PRODUCE, ALICE) == 0.0, "and so is what is owed in all"
    assert quotas.waits[Use.PRODUCE] == 2
    assert quotas.waited_s[Use.PRODUCE] == pytest.approx(15.0 + module.WAIT_S_MAX)


def test_time_of_the_event_loop_is_a_share(clock: Clock) -> None:
    """5 % are 50 ms in each second, half a second at once; one wait is a second at most, as with Kafka."""
    quotas = Quotas(book_of(Quota(DEFAULT, request_percentage=5.0)))
    assert quotas.times_requests
    assert waited(quotas, Use.REQUEST, ALICE, 0.5) == 0.0
    assert waited(quotas, Use.REQUEST, ALICE, 0.01) == pytest.approx(0.2)
    assert waited(quotas, Use.REQUEST, ALICE, 5.0) == module.REQUEST_WAIT_S_MAX


def test_connections_of_an_address(clock: Clock) -> None:
    quotas = Quotas(
        book_of(
            Quota(ip="192.0.2.1", connection_creation_rate=1.0),
            Quota(ip=DEFAULT, connection_creation_rate=2.0),
        )
    )
    assert sum(quotas.admits("192.0.2.1") for _ in range(50)) == 10
    assert sum(quotas.admits("::ffff:192.0.2.1") for _ in range(50)) == 0, "the same address"
    assert sum(quotas.admits("192.0.2.2") for _ in range(50)) == 20
    clock.now_s += 3.0
    assert sum(quotas.admits("192.0.2.1") for _ in range(50)) == 3
    assert all(quotas.admits("a pipe") for _ in range(50))
    assert quotas.waits[Use.CONNECTION] == 40 + 50 + 30 + 47


class Counters:
    denied = 0


def rights_of(name: str) -> Rights:
    authorizer = Authorizer(AccessBook(), ["User:root"], Counters())
    return Rights(authorizer, NODE if name == NODE.name else Principal("User", name))


def test_open_connections_of_a_user(clock: Clock) -> None:
    """Those that were open before the quota count, and stay. Nodes and super users are never refused."""
    book = book_of()
    quotas = Quotas(book)

    def opened(name: str, count: int) -> list[Place]:
        places = [quotas.place() for _ in range(count)]
        return [place for place in places if place.take(rights_of(name), "x:1") is None]

    early = opened("alice", 3)
    for quota in (Quota("alice", connections=2.0), Quota(DEFAULT, connections=1.0)):
        book.put("quota", quota.key, quota)
    assert not opened("alice", 5)
    assert early[0].take(rights_of("alice"), "x:1") is None, "who has a place keeps it"
    assert len(opened("bob", 5)) == len(opened("eve", 5)) == 1, "everybody has the limit for himself"
    assert len(opened("root", 5)) == len(opened(NODE.name, 5)) == 5
    assert quotas.waits[Use.OPEN_CONNECTION] == 5 + 4 + 4
    early[0].leave()
    early[0].leave()
    assert not opened("alice", 1), "two are left, as many as there may be"
    early[1].leave()
    (late,) = opened("alice", 5)
    refusal = late.take(rights_of("bob"), "x:1")
    assert refusal is not None
    assert refusal.retriable
    assert "'bob' has 1 connections open at this node, and may have 1" in refusal.message
    assert len(opened("alice", 2)) == 1, "it was taken over by somebody else, and is alice's no more"
    anonymous = quotas.place()
    assert anonymous.take(EVERYTHING, "x:1") is None
    assert quotas.place().take(EVERYTHING, "x:1") is not None


def test_nodes_never_wait(clock: Clock) -> None:
    quotas = Quotas(
        book_of(Quota(DEFAULT, producer_byte_rate=1.0), Quota(None, DEFAULT, producer_byte_rate=1.0))
    )
    assert payer_of(NODE, "antiphon") is None
    assert waited(quotas, Use.PRODUCE, payer_of(NODE, "x"), 1e9) == 0.0
    assert waited(quotas, Use.PRODUCE, payer_of(ANONYMOUS, ""), 1e9) > 0.0


def test_what_is_kept_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes up names forgets the oldest; who goes on using a limit is not forgotten."""
    monkeypatch.setattr(module, "TRACKED_MAX", 100)
    quotas = Quotas(book_of(Quota(DEFAULT, DEFAULT, producer_byte_rate=1.0)))
    waited(quotas, Use.PRODUCE, ALICE, 100.0)
    for number in range(1000):
        waited(quotas, Use.PRODUCE, Payer("mallory", f"name {number}"), 1.0)
        assert quotas.owed_s(Use.PRODUCE, ALICE) > 0
    assert quotas.tracked == 100
    assert len(quotas._decided) <= 100
    assert len(payer_of(Principal("User", "m"), "x" * 30_000).client_id) == 255  # type: ignore[union-attr]


@on_a_loop
async def test_a_changed_quota_counts_at_once(clock: Clock) -> None:
    book = book_of(Quota("alice", producer_byte_rate=1.0))
    quotas = Quotas(book)
    quotas.follow()
    told: list[str] = []
    mute = quotas.mute(lambda: told.append("go on"))
    mute.begin(1000.0)
    mute.begin(10.0)
    assert (mute.is_on, quotas.muted, told) == (True, 1, [])
    book.version += 1  # something else has changed
    quotas.follow()
    await asyncio.sleep(0)
    assert mute.is_on
    other = Quota("alice", producer_byte_rate=1e6)
    book.put("quota", other.key, other)
    quotas.follow()
    await asyncio.sleep(0)
    assert (mute.is_on, quotas.muted, told) == (False, 0, ["go on"])
    waited(quotas, Use.PRODUCE, ALICE, 2e7)
    book.put("quota", other.key, None)
    assert waited(quotas, Use.PRODUCE, ALICE, 1e9) == 0.0
    quotas.follow()
    assert quotas.tracked == 0


@on_a_loop
async def test_a_request_waits_until_its_time_is_over_or_the_quotas_are_others() -> None:
    book = book_of(Quota("alice", producer_byte_rate=1.0))
    quotas = Quotas(book)
    quotas.follow()
    await asyncio.wait_for(quotas.wait(0.01), 5)
    freed, given_up = (asyncio.create_task(quotas.wait(1000.0)) for _ in range(2))
    await asyncio.sleep(0)
    assert quotas.muted == 2
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert quotas.muted == 1
    book.put("quota", Quota("alice").key, None)
    quotas.follow()
    await asyncio.wait_for(freed, 5)
    assert not quotas.muted


@on_a_loop
async def test_a_mute_ends_when_the_longest_wait_is_over() -> None:
    quotas = Quotas(AccessBook())
    ended = asyncio.Event()
    mute = quotas.mute(ended.set)
    began_s = asyncio.get_running_loop().time()
    mute.begin(0.01)
    mute.begin(0.05)
    mute.begin(0.02)
    await asyncio.wait_for(ended.wait(), 5)
    assert asyncio.get_running_loop().time() - began_s >= 0.05
    assert not mute.is_on
    assert not quotas.muted


@on_a_loop
async def test_steps_count_own_time_only(clock: Clock) -> None:
    async def work() -> str:
        clock.now_s += 1.0
        await asyncio.sleep(0)
        clock.now_s += 2.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(10)
        clock.now_s += 4.0
        return "done"

    steps = Steps(work())

    async def others() -> None:
        clock.now_s += 100.0

    task = asyncio.create_task(others())
    assert await steps == "done"
    await task
    assert steps.took_s == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("quota", "gone"),
    [
        (Quota(), ()),
        (Quota("alice", ip="192.0.2.1"), ()),
        (Quota("__node", producer_byte_rate=1.0), ()),
        (Quota("a\nb", producer_byte_rate=1.0), ()),
        (Quota(None, "x" * 256, producer_byte_rate=1.0), ()),
        (Quota(ip="example.org", connection_creation_rate=1.0), ()),
        (Quota(ip="192.0.2.1", producer_byte_rate=1.0), ()),
        (Quota("alice", connection_creation_rate=1.0), ()),
        (Quota("alice", "app", connections=1.0), ()),
        (Quota(None, "app", connections=1.0), ()),
        (Quota(ip="192.0.2.1", connections=1.0), ()),
        (Quota("alice", connections=1.5), ()),
        (Quota("alice", producer_byte_rate=0.0), ()),
        (Quota("alice", producer_byte_rate=1.5), ()),
        (Quota("alice", request_percentage=float("nan")), ()),
        (Quota("alice", request_percentage=float("inf")), ()),
        (Quota("alice"), ("no such limit",)),
        (Quota("alice"), ("connection_creation_rate",)),
    ],
)
def test_what_means_nothing_is_refused(quota: Any, gone: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError):
        check_quota(quota, gone)


def test_entities_have_keys_of_their_own() -> None:
    names = (None, "", "a", "=a", "-", "a\0b")
    entities = [Quota(user, client, ip) for user in names for client in names for ip in names]
    assert len({quota.key for quota in entities}) == len(entities)
