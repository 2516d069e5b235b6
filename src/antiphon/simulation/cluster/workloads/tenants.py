"""Several users of one cluster: one has a share of the nodes' time, one may have few connections, one comes and goes.

The work of nodes takes time here, a little at each look at their clocks (`Process.work_takes_time`). So there is something
to charge a quota of `request_percentage` with. What a node must have done by then is judged by what it knew, and by how long
its process has run since (`node_clocks.py`).
"""

import asyncio
import contextlib
from functools import cache
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError, OverloadedError, UnauthenticatedError
from antiphon.model.access import Credential
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterQuota, AlterUser
from antiphon.security.account import Account
from antiphon.security.passwords import SALT_BYTES, SHA_256, credential
from antiphon.simulation.cluster.accounts import ITERATIONS, credential_of, password_of
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.access_history import Moment
from antiphon.simulation.cluster.workloads.logins import Asker, log_in
from antiphon.simulation.cluster.workloads.node_clocks import ClockedWorkload
from antiphon.simulation.cluster.workloads.places import PLACES, Places
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.shown_logins import WAYS, log_in_by
from antiphon.simulation.cluster.workloads.workload import administer_all, insist, shards_of
from antiphon.simulation.runtime.process import LOOK_S, Shield
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "of-tenants"  # they have no right to it: to be told so takes a node's time as well
METERED, NEIGHBOUR, FEW, LEAVER = "metered", "neighbour", "few", "leaver"
SHARE: Final = 0.02  # percent of a node's time that METERED may take
HELD_S: Final = 10.0  # of the rate, what a quota holds at once
FASTER: Final = 1.25  # than the world's, a node's clock at most
CALM_S: Final = 0.5  # an answer takes less, where nothing goes wrong
HANGS_UP_S: Final = 2.0  # of a node's time, from when it has heard that a login is none any more
END_S: Final = 20.0  # when all is mended: until a place is free, and until who is gone is hung up on
CHANGE_PAUSE_S: Final = 0.8
BACK_OFF_S: Final = 0.3


@workload("tenants", 39, Drawn(one_of(0, 1, 1)))
class TenantsWorkload(ClockedWorkload):
    """A user with a quota of `request_percentage` asks without a pause, a neighbour without one asks now and then; one with
    a quota of `connections` opens one after the other, at all four listeners; one is removed, comes back and gets other
    passwords while his clients are logged in, busy or silent, and try passwords of before. Two in three worlds with
    `principals` have it, and in them the work of nodes takes time.

    Checked: no connection gets more requests through than the quota lets; who is told to wait waits; the neighbour is never
    told to, nor slowed where nothing goes wrong. No more connections than the quota answer at the same time; none is refused
    while there is a place, and who is refused is told why; when all have hung up, there is one again at each listener.
    Logins are taken and refused by what `__cluster` said in that time; who was removed, or has another password, is answered
    no more once a node has known of it for 2 s, and in the end is hung up on.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "tenants") -> None:
        super().__init__(cluster, name)
        self.shard_id = -1
        self._passwords = 1  # that LEAVER has had, the newest included
        self._gone = False  # LEAVER was removed for good
        self.outcomes = dict.fromkeys(
            (
                *("metered", "told-to-wait", "neighbourly", "places-again"),
                *(f"places-{what}-{way}" for what in ("taken", "refused") for way in WAYS),
                *("leaver-logins", "leaver-refused", "leaver-hung-up", "leaver-changes"),
            ),
            0,
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await insist(lambda: db.create_topic(TOPIC))
        (self.shard_id,) = await shards_of(db, TOPIC)
        users = [AlterUser(name, (credential_of(name),)) for name in (METERED, NEIGHBOUR, FEW)]
        # METERED's last: a node that knows of it learns of no other one later, which would free who waits.
        quotas = [Quota(FEW, connections=PLACES), Quota(METERED, request_percentage=SHARE)]
        await administer_all(db, (*users, AlterUser(LEAVER, (_key(0),)), *map(AlterQuota, quotas)))

    def begin(self) -> None:
        """See `Workload`."""
        super().begin()
        for work in (self._ask_without_pause, self._ask_as_neighbour):
            self.start(work.__name__.strip("_"), work)
        self.start("change_leaver", self.with_client(self._change_leaver))
        # By HTTP and Oxia's protocol passwords go over TLS only.
        self.start("open_many", self._open_many, Shield())
        for number in range(3):
            self.start(f"leaver-{number}", self._leave_running)

    async def _log_in(self, process: "Process", user: str, node: int, *, kafka: bool) -> Asker | None:
        """As a user who is never removed; None where nobody answers."""
        try:
            return await log_in(process, self.host(node), Account(user, password_of(user)), kafka=kafka)
        except NoAnswerError:
            await asyncio.sleep(process.random.uniform(0.0, BACK_OFF_S))
            return None

    # -- time of the nodes ------------------------------------------------------------------------------------------

    async def _ask_without_pause(self, process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            node, kafka = self.any_node(draw), draw.random() < 0.7
            found = await self._log_in(process, METERED, node, kafka=kafka)
            if found is None:
                continue
            meter = Meter(self, node)
            for _ in range(draw.choice((20, 200, 2_000))):
                if not await meter.ask(found, writes=draw.random() < 0.3) or self.stopped:
                    break
            await found.close()

    async def _ask_as_neighbour(self, process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            node = self.any_node(draw)
            found = await self._log_in(process, NEIGHBOUR, node, kafka=draw.random() < 0.7)
            if found is None:
                continue
            for _ in range(draw.randint(1, 60)):
                asked_s = self.now
                if not await found.ask(self.shard_id, writes=draw.random() < 0.3) or self.stopped:
                    break
                self.outcomes["neighbourly"] += 1
                self._judge_neighbour(node, found.throttle_ms, self.now - asked_s)
                await asyncio.sleep(draw.uniform(0.0, 0.05))
            await found.close()

    def _judge_neighbour(self, node: int, throttle_ms: int, took_s: float) -> None:
        is_calm = not self.cluster.options.fault_every_ms
        require(
            throttle_ms == 0 and (took_s < CALM_S or not is_calm),
            "quota-of-others",
            f"node {node} tells {NEIGHBOUR}, who has no quota, to wait {throttle_ms} ms, and takes {took_s:.3f} s",
        )

    # -- connections of one user ------------------------------------------------------------------------------------

    async def _open_many(self, process: "Process") -> None:
        draw, places = process.random, Places(self, process, Account(FEW, password_of(FEW)), self.shard_id)
        while not self.stopped:
            node, steps = self.any_node(draw), draw.randint(2, 12)
            while steps and not self.stopped:
                if places.held and draw.random() < 0.35:
                    await places.close_one(draw)
                else:
                    await places.open_one(node, draw.choice(WAYS))
                await asyncio.sleep(draw.uniform(0.0, 0.1))
                steps -= 1
            await places.close_all()
        for node in range(len(self.cluster.machines)):
            for way in WAYS:
                await self._get_in_again(process, node, way)

    async def _get_in_again(self, process: "Process", node: int, way: str) -> None:
        """All is mended, and the user has no connection: there is a place before long."""
        since_s = self.now
        account = Account(FEW, password_of(FEW))
        while True:
            try:
                found = await log_in_by(process, self.host(node), account, way)
            except (NoAnswerError, OverloadedError):
                require(
                    self.now - since_s < END_S,
                    "place-again",
                    f"node {node} has no place for {FEW} ({way}), {END_S:.0f} s after all of his connections were closed",
                )
                await asyncio.sleep(BACK_OFF_S)
            else:
                self.outcomes["places-again"] += 1
                await found.close()
                return

    # -- who comes and goes -----------------------------------------------------------------------------------------

    async def _change_leaver(self, db: "AsyncClient", process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            await asyncio.sleep(draw.expovariate(1 / CHANGE_PAUSE_S))
            if draw.random() < 0.4:
                await self._remove_leaver(db)
            else:
                number, self._passwords = self._passwords, self._passwords + 1
                request = AlterUser(LEAVER, (_key(number),))
                await administer_all(db, (request,))
            self.outcomes["leaver-changes"] += 1
        await self._remove_leaver(db)
        self._gone = True

    async def _remove_leaver(self, db: "AsyncClient") -> None:
        with contextlib.suppress(InvalidRequestError):  # by now there is no such user
            await insist(lambda: db.administer(AlterUser(LEAVER, remove=True)))

    async def _leave_running(self, process: "Process") -> None:
        """Log in, often with the newest password, and stay, asking or silent, for as long as that lasts."""
        draw = process.random
        while not self.stopped:
            node, newest = self.any_node(draw), self._passwords - 1
            number = newest if draw.random() < 0.6 else draw.randint(max(0, newest - 3), newest)
            found = await self._log_in_as_leaver(process, node, number)
            if found is None:
                await asyncio.sleep(draw.uniform(0.0, BACK_OFF_S))
                continue
            await self._stay(found, node, number, draw)
            await found.close()

    async def _log_in_as_leaver(self, process: "Process", node: int, number: int) -> Asker | None:
        since = self.history.moment(node) or Moment(self.begun_at)
        account, kafka = Account(LEAVER, _password(number)), process.random.random() < 0.5
        found, taken = None, True
        try:
            found = await log_in(process, self.host(node), account, kafka=kafka)
        except UnauthenticatedError:
            taken = False
        except NoAnswerError:
            return None
        self.outcomes["leaver-logins" if taken else "leaver-refused"] += 1
        mine = (LEAVER, _key(number).stored_key)
        require(
            self.history.could(since, lambda known: (mine in known.keys) == taken),
            "login",
            f"node {node} {'takes' if taken else 'refuses'} password {number} of {LEAVER}, which was "
            f"{'none' if taken else 'right'} from version {since.version} on",
        )
        return found

    async def _stay(self, found: Asker, node: int, number: int, draw: "Random") -> None:
        until_s = self.now + draw.choice((0.5, 3.0, 1e9))
        is_silent = draw.random() < 0.3
        ended_s = 0.0  # when it was over with the world, and all was mended
        while not found.is_over and (self.stopped or self.now < until_s):
            known_for_s = self._gone_for_s(node, number)
            if is_silent and known_for_s < HANGS_UP_S:
                await asyncio.sleep(draw.uniform(0.0, 0.2))
            elif await found.ask(self.shard_id):
                require(
                    known_for_s < HANGS_UP_S,
                    "login-over",
                    f"node {node} answers who logged in with password {number} of {LEAVER}, and knows for "
                    f"{known_for_s:.1f} s that this is none",
                )
                await asyncio.sleep(draw.uniform(0.0, 0.2))
            ended_s = ended_s or self.now * self._gone
            require(
                not self._gone or self.now - ended_s < END_S,
                "login-over",
                f"node {node} has not hung up on {LEAVER}, who was removed {END_S:.0f} s ago, with all mended",
            )
        self.outcomes["leaver-hung-up"] += found.is_over

    def _gone_for_s(self, node: int, number: int) -> float:
        """For how long, of its own time, a node has known that this is no password of LEAVER's."""
        gone_at = self.history.gone_at(LEAVER, _key(number).stored_key)
        return 0.0 if gone_at is None else self.clocks.knows_for_s(node, gone_at)


class Meter:
    """What one connection of METERED gets through at a node. The first question that is too much is answered."""

    def __init__(self, tenants: TenantsWorkload, node: int) -> None:
        self._tenants = tenants
        self._node = node
        since = tenants.history.moment(node)
        knows = since is not None and not tenants.history.could(
            since, lambda known: METERED not in known.quotas
        )
        self._since = since if knows else None
        self._began_s = tenants.now
        self._answered = 0
        self._until_s = 0.0  # no answer before that, unless quotas have changed since
        self._told_at: Moment | None = None

    async def ask(self, found: Asker, *, writes: bool) -> bool:
        """Was a question answered?"""
        tenants, asked_s = self._tenants, self._tenants.now
        asked_at = tenants.history.moment(self._node)
        found.throttle_ms = 0
        if not await found.ask(tenants.shard_id, writes=writes):
            return False
        self._answered += 1
        tenants.outcomes["metered"] += 1
        tenants.outcomes["told-to-wait"] += found.throttle_ms > 0
        if self._since is not None:
            self._judge(self._since)
        # It waits from when the node says so, which is after it was asked.
        self._until_s = asked_s + found.throttle_ms / 1000 / FASTER if found.throttle_ms else 0.0
        self._told_at = asked_at
        return True

    def _judge(self, since: Moment) -> None:
        now_s = self._tenants.now
        passed_s = now_s - self._began_s
        most_s = SHARE / 100 * (HELD_S + FASTER * passed_s)
        history, told_at = self._tenants.history, self._told_at
        freed = history.quota_changes(since)
        took_s = (self._answered - 1 - freed) * LOOK_S[0] / FASTER  # by the slowest clock
        has_waited = now_s >= self._until_s or told_at is None or history.quota_changes(told_at) > 0
        require(
            took_s <= most_s and has_waited,
            "quota",
            f"node {self._node} has answered {self._answered} questions of {METERED} in {passed_s:.1f} s, which took it "
            f"{took_s * 1e6:.0f} us at least; the quota lets {most_s * 1e6:.0f} us; told to wait for "
            f"{self._until_s - now_s:.3f} s more",
        )


def _password(number: int) -> str:
    return f"password {number} of {LEAVER}"


@cache
def _key(number: int) -> Credential:
    """What the cluster keeps of a password of LEAVER's; the same each time, and each is another one."""
    salt = f"{number}".encode().ljust(SALT_BYTES, b".")
    return credential(SHA_256, _password(number), salt, ITERATIONS)
