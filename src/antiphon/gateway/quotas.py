"""Quotas of a node: what each user, program (client id) and address has used, and how long it has to wait for more.

A limit is a token bucket that fills at the limit's rate and holds `WINDOW_S` of it; what is used is taken out, and who has
taken more than there was waits until that is made up. That is Kafka's time, (observed - limit) / limit * window, for the ten
full windows of a second that its brokers look back; but debts here do not end with the window.

Kafka's order decides which limit counts, for each kind of use by itself: that of the user with the client id, of the user
with any client id, of the user; then the same of every user; then of the client id, of every client id. Who shares a limit
shares its bucket: all clients of a user where the user has one. A limit of "everyone" is a bucket for each.

How many connections a user may have open is no rate: each takes a place when it is known whose it is (`Place`).

Nothing is looked up while the cluster has no quotas. What is kept is bounded (`TRACKED_MAX`): the bucket that was not used
for the longest is forgotten first.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Generator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

import structlog

from antiphon import system
from antiphon.errors import OverloadedError
from antiphon.model.access import AccessBook
from antiphon.model.quotas import (
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    NAME_BYTES_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Quota,
    address,
)
from antiphon.security.authorizer import Rights
from antiphon.security.principal import NODE, Principal

WINDOW_S: Final = 10.0  # of a limit, what may be used at once after a pause
WAIT_S_MAX: Final = 20.0  # one wait; clients give a request up after 30 s
REQUEST_WAIT_S_MAX: Final = 1.0  # one wait for time of the event loop, as Kafka's
DEBT_S_MAX: Final = 300.0
TRACKED_MAX: Final = 10_000  # buckets, and decisions about which limit counts
TELL_EVERY_S: Final = 5.0  # of connections that are refused


class Use(StrEnum):
    """What is limited."""

    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"
    MUTATION = "mutation"
    CONNECTION = "connection"
    OPEN_CONNECTION = "open_connection"


LIMIT_OF: Final = {
    Use.PRODUCE: PRODUCER_BYTE_RATE,
    Use.FETCH: CONSUMER_BYTE_RATE,
    Use.REQUEST: REQUEST_PERCENTAGE,
    Use.MUTATION: CONTROLLER_MUTATION_RATE,
    Use.CONNECTION: CONNECTION_CREATION_RATE,
    Use.OPEN_CONNECTION: CONNECTIONS,
}
REFUSALS: Final = (Use.CONNECTION, Use.OPEN_CONNECTION)  # kinds of which nobody waits
_Entity = tuple[str | None, str | None, str | None]


class Payer(NamedTuple):
    """On whose account a request goes."""

    user: str
    client_id: str


def payer_of(principal: Principal, client_id: str) -> Payer | None:
    """Who pays for what a client does; None for the nodes themselves."""
    if principal.kind == NODE.kind:
        return None
    return Payer(principal.name, client_id[:NAME_BYTES_MAX])


class Charged(Protocol):
    """What a use is charged to: an answer, a connection."""

    def throttle(self, wait_s: float) -> None:
        """It is to wait so long."""


class _Limit(NamedTuple):
    bucket: tuple[Use, _Entity]
    rate: float  # units a second; of open connections, how many


class _Bucket:
    """What is left of one limit; below 0: what is owed."""

    __slots__ = ("_at_s", "left")

    def __init__(self, rate: float, now_s: float) -> None:
        self.left = rate * WINDOW_S
        self._at_s = now_s

    def fill(self, rate: float, now_s: float) -> None:
        """Let in what has come since the last time."""
        self.left = min(rate * WINDOW_S, self.left + (now_s - self._at_s) * rate)
        self._at_s = now_s

    def take(self, rate: float, amount: float) -> None:
        """Take out, into debt where it has to be."""
        self.left = max(-rate * DEBT_S_MAX, self.left - amount)

    def wait_s(self, rate: float) -> float:
        """Until nothing is owed."""
        return max(0.0, -self.left / rate)


class Quotas:
    """See the module's text. `book` changes as the metadata does.

    Attributes:
        all: every quota that there is; empty where nobody has to wait.
        waits: by kind of use, how often somebody had to wait; of connections: how many were refused.
        waited_s: by kind of use, how long in all.
    """

    def __init__(self, book: AccessBook) -> None:
        self._book = book
        self.all: Mapping[str, Quota] = book.quotas
        self._version = -1
        self._rules: dict[_Entity, dict[str, float]] = {}
        self._limited: frozenset[str] = frozenset()
        self._decided: dict[tuple[Use, str, str], _Limit | None] = {}
        self._buckets: OrderedDict[tuple[Use, _Entity], _Bucket] = OrderedDict()
        self._mutes: dict[Mute, None] = {}
        self._places: Counter[str] = Counter()  # user -> connections that are open
        self._told_s = -TELL_EVERY_S
        self.waits = dict.fromkeys(Use, 0)
        self.waited_s = dict.fromkeys(Use, 0.0)

    @property
    def times_requests(self) -> bool:
        """Does anybody's share of the event loop's time matter?"""
        if not self._book.quotas:
            return False
        self.follow()
        return REQUEST_PERCENTAGE in self._limited

    @property
    def tracked(self) -> int:
        """Buckets that are kept."""
        return len(self._buckets)

    @property
    def muted(self) -> int:
        """Connections whose requests wait now."""
        return len(self._mutes)

    def follow(self) -> None:
        """Take over what the metadata says now. Who waits because of other limits than there are waits no more."""
        if self._version == self._book.version:
            return
        self._version = self._book.version
        rules = {quota.entity: quota.limits for quota in self._book.quotas.values()}
        if rules == self._rules:
            return
        self._rules = rules
        self._limited = frozenset(name for limits in rules.values() for name in limits)
        self._decided.clear()
        kept = {bucket for bucket in self._buckets if LIMIT_OF[bucket[0]] in self._limited}
        for bucket in self._buckets.keys() - kept:
            del self._buckets[bucket]
        for mute in list(self._mutes):
            asyncio.get_running_loop().call_soon(mute.end)

    # -- use ------------------------------------------------------------------------------------------------------

    def charge(self, use: Use, payer: Payer | None, amount: float, charged: Charged | None) -> None:
        """Count a use, and have what it is charged to (None: nothing) wait where that was too much."""
        limit = self._limit(use, payer) if self._book.quotas else None
        if limit is None:
            return
        bucket = self._bucket(limit)
        bucket.take(limit.rate, amount)
        wait_s = min(bucket.wait_s(limit.rate), REQUEST_WAIT_S_MAX if use is Use.REQUEST else WAIT_S_MAX)
        if wait_s > 0.0 and charged is not None:
            self._count(use, wait_s)
            charged.throttle(wait_s)

    def owed_s(self, use: Use, payer: Payer | None) -> float:
        """How long it takes until a payer owes nothing, as of now; nothing is counted."""
        limit = self._limit(use, payer) if self._book.quotas else None
        return 0.0 if limit is None else min(self._bucket(limit).wait_s(limit.rate), WAIT_S_MAX)

    def refuses(self, use: Use, payer: Payer | None, charged: Charged | None) -> bool:
        """Does a payer owe something? Then what would be charged (None: nothing) waits."""
        wait_s = self.owed_s(use, payer)
        if wait_s > 0.0:
            self._count(use, wait_s)
            if charged is not None:
                charged.throttle(wait_s)
        return wait_s > 0.0

    def at_once(self, use: Use, payer: Payer | None) -> float | None:
        """The most that anybody with such a limit can use without a debt; None: there is no limit."""
        limit = self._limit(use, payer) if self._book.quotas else None
        return None if limit is None else limit.rate * WINDOW_S

    def admits(self, host: str) -> bool:
        """Count a new connection from an address; False: there were too many."""
        if not self._book.quotas:
            return True
        self.follow()
        found = address(host) if CONNECTION_CREATION_RATE in self._limited else ""
        if not found:
            return True
        entities: tuple[_Entity, ...] = ((None, None, found), (None, None, DEFAULT))
        limit = self._first(Use.CONNECTION, entities, (None, None, found))
        if limit is None:
            return True
        bucket = self._bucket(limit)
        if bucket.left < 1.0:
            self._count(Use.CONNECTION, 0.0)
            return False
        bucket.take(limit.rate, 1.0)
        return True

    def _count(self, use: Use, wait_s: float) -> None:
        self.waits[use] += 1
        self.waited_s[use] += wait_s

    # -- which limit ----------------------------------------------------------------------------------------------

    def _limit(self, use: Use, payer: Payer | None) -> _Limit | None:
        """The limit that counts; None: there is none."""
        if payer is None:
            return None
        self.follow()
        question = (use, *payer)
        if question in self._decided:
            return self._decided[question]
        if len(self._decided) >= TRACKED_MAX:
            self._decided.clear()
        found = self._decided[question] = self._decide(use, payer)
        return found

    def _decide(self, use: Use, payer: Payer) -> _Limit | None:
        user, client = payer
        pair: _Entity = (user, client, None)
        # Where a client says no name, its name reads as everyone's, which is the limit that it has.
        orders: tuple[tuple[_Entity, _Entity], ...] = (
            ((user, client, None), pair),
            ((user, DEFAULT, None), pair),
            ((user, None, None), (user, None, None)),
            ((DEFAULT, client, None), pair),
            ((DEFAULT, DEFAULT, None), pair),
            ((DEFAULT, None, None), (user, None, None)),
            ((None, client, None), (None, client, None)),
            ((None, DEFAULT, None), (None, client, None)),
        )
        for entity, shared_by in orders:
            found = self._first(use, (entity,), shared_by)
            if found is not None:
                return found
        return None

    def _first(self, use: Use, entities: tuple[_Entity, ...], shared_by: _Entity) -> _Limit | None:
        for entity in entities:
            value = self._rules.get(entity, {}).get(LIMIT_OF[use])
            if value is not None:
                return _Limit((use, shared_by), value / 100.0 if use is Use.REQUEST else value)
        return None

    def _bucket(self, limit: _Limit) -> _Bucket:
        now_s, buckets = system.monotonic_s(), self._buckets
        found = buckets.get(limit.bucket)
        if found is None:
            if len(buckets) >= TRACKED_MAX:
                buckets.popitem(last=False)
            found = buckets[limit.bucket] = _Bucket(limit.rate, now_s)
        else:
            buckets.move_to_end(limit.bucket)
            found.fill(limit.rate, now_s)
        return found

    # -- open connections -----------------------------------------------------------------------------------------

    def place(self) -> "Place":
        """For a new connection, which takes it when it is known whose it is."""
        return Place(self)

    def occupy(self, user: str, rights: Rights, peer: str) -> OverloadedError | None:
        """Count an open connection of a user; returns why there is no place for it, or None.

        Each is counted, also without quotas: one that is set later has to know. Super users always have a place, as
        somebody has to be able to change a quota.
        """
        limit = self._limit(Use.OPEN_CONNECTION, Payer(user, "")) if self._book.quotas else None
        count = self._places[user]
        if limit is None or count < limit.rate or rights.of_super_user:
            self._places[user] = count + 1
            return None
        self._count(Use.OPEN_CONNECTION, 0.0)
        self._log_refused(user, count, limit.rate, peer)
        return OverloadedError(
            f"user {user!r} has {count:,} connections open at this node, and may have {limit.rate:,.0f} (quota "
            f"{CONNECTIONS}): close some, or have the quota raised",
            user=user,
            limit=CONNECTIONS,
        )

    def vacate(self, user: str) -> None:
        """A connection of the user is gone."""
        self._places[user] -= 1
        if self._places[user] <= 0:
            del self._places[user]

    def _log_refused(self, user: str, count: int, most: float, peer: str) -> None:
        now_s = system.monotonic_s()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            refused = self.waits[Use.OPEN_CONNECTION]
            structlog.get_logger().warning(
                "too_many_connections_of_a_user",
                user=user,
                peer=peer,
                open=count,
                limit=most,
                refused=refused,
            )

    # -- who waits ------------------------------------------------------------------------------------------------

    def mute(self, go_on: Callable[[], None]) -> "Mute":
        """For a connection whose requests are not begun for a while: what lets it go on."""
        return Mute(self._mutes, go_on)

    async def wait(self, wait_s: float) -> None:
        """Return after so many seconds, or when the quotas are others, for a request that waits by itself."""
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not waited.done():
                waited.set_result(None)

        mute = self.mute(go_on)
        mute.begin(wait_s)
        try:
            await waited
        finally:
            mute.end()


class Mute:
    """One connection whose requests are not begun until its client has waited, which whoever begins them asks (`is_on`).

    `end()` when the connection is gone.
    """

    __slots__ = ("_all", "_go_on", "_timer", "_until_s")

    def __init__(self, mutes: "dict[Mute, None]", go_on: Callable[[], None]) -> None:
        self._all = mutes
        self._go_on = go_on
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    @property
    def is_on(self) -> bool:
        """Does its client have to wait?"""
        return self._timer is not None

    def begin(self, wait_s: float) -> None:
        """Wait so long from now on, or as long as was said before where that is longer."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        if self._timer is None:
            self._all[self] = None
        elif until_s <= self._until_s:
            return
        else:
            self._timer.cancel()
        self._until_s = until_s
        self._timer = loop.call_at(until_s, self.end)

    def end(self) -> None:
        """Wait no more; harmless where nobody waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._all.pop(self, None)
            self._go_on()


class Place:
    """One open connection among those of its user. `leave()` when it is gone."""

    __slots__ = ("_quotas", "_user")

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._user: str | None = None

    def take(self, rights: Rights, peer: str) -> OverloadedError | None:
        """The connection belongs to whom has these rights, from now on; returns why it has to go, or None.

        Who has a place keeps it, whatever the quota has become since.
        """
        payer = payer_of(rights.principal, "")
        user = None if payer is None else payer.user
        if user == self._user:
            return None
        self.leave()
        refusal = None if user is None else self._quotas.occupy(user, rights, peer)
        self._user = user if refusal is None else None
        return refusal

    def leave(self) -> None:
        """Free the place; harmless where there is none."""
        user, self._user = self._user, None
        if user is not None:
            self._quotas.vacate(user)


class Steps:
    """Awaits a piece of work, and adds up how long the steps of its own took: the time that others had to wait for it."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = work
        self.took_s = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            began_s = system.monotonic_s()
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                self.took_s += system.monotonic_s() - began_s
            error = None
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - a cancellation, which belongs to the work
                error = thrown


FREE: Final = Quotas(AccessBook())
"""For listeners that stand alone: nobody has to wait."""
