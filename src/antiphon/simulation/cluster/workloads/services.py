"""Instances of services that are registered under sessions, and clients that list them and follow what changes.

- `service-listed`: a list has each instance whose registration was acknowledged before, as long as its session is kept, with
  the address of that registration or of a later one.
- `service-gone`: a list has no instance whose session was ended, or that was taken off the list, before the list began, and
  no address that nobody registered.
- `service-changes`: who follows the registry hears of each change of an instance once, in order: versions rise, and what
  goes is what was there. When all sessions have ended nothing is left.
- What the logs say of sessions is judged as for other clients with sessions (`session_history`): the end of one takes all of
  its rows, and none of another one's.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.log_reader import LATEST
from antiphon.errors import AntiphonError, OffsetOutOfRangeError
from antiphon.recipes import AsyncServiceRegistry
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.kept_session import KeptSession
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.sessioned import LOOK_S, TIMEOUTS_S, SessionedWorkload

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

SERVICES: Final = ("mail", "web")
SHARED: Final = "reserve"  # an instance that several clients register, one after the other
HEARD_S: Final = 5.0  # so soon after the end of all sessions who follows has heard of it


@dataclass(slots=True, eq=False)
class Registration:
    """One address of one instance. Times are the world's.

    Attributes:
        acknowledged: was the client told that it is registered?
        is_over: has its client begun to end it, or to give it another address?
        ended_s: when its client was told that it is no more; None while it was not.
    """

    key: str
    address: bytes
    life: KeptSession
    acknowledged: bool = False
    is_over: bool = False
    ended_s: float | None = None


@workload("service_clients", 51, Drawn(one_of(*[0] * 5, 3)))
class ServicesWorkload(SessionedWorkload):
    """Register instances of services (`antiphon.recipes`), change their addresses, take them off, fall silent and stand
    still; list instances; follow the table of the registry.

    Checked: a list has each instance that was registered, while its session is kept, and none whose session was ended
    before; who follows it hears of each change of an instance once, in order; the end of a session takes all of its
    instances, and none of another one's; in the end nothing is left.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "services") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"registered": 0, "services-listed": 0, "instances-seen": 0, "service-changes": 0}
        self._registered: dict[bytes, Registration] = {}  # by address, each of which is given once
        self._is_quiet, self._quiet_s = False, 0.0
        self._view: dict[bytes, int] = {}  # what is there to who follows: versions

    def begin_others(self) -> None:
        """See `SessionedWorkload`."""
        self.spawn("lists", self.with_client(self._list))
        self.spawn("follows", self.with_client(self._follow))

    # -- instances ------------------------------------------------------------------------------------------------

    async def live(self, db: "AsyncClient", process: "Process", name: str) -> None:
        """See `SessionedWorkload`."""
        with self.tells("service-failed", name):
            await self._serve(db, process, name)
        await self.think(process)

    async def _serve(self, db: "AsyncClient", process: "Process", name: str) -> None:
        draw, services = process.random, AsyncServiceRegistry(db, self.name)
        session = db.session(timeout_s=draw.choice(TIMEOUTS_S))
        life = KeptSession(session, process)
        session.when_lost(life.lost)
        service, instance = draw.choice(SERVICES), SHARED if draw.random() < 0.3 else name
        mine: list[Registration] = []
        for serial in range(draw.randint(1, 5)):
            one = Registration(f"{service}/{instance}", f"{name}:{serial}".encode(), life)
            for earlier in mine:
                earlier.is_over = True
            mine.append(one)
            self._registered[one.address] = one
            await services.register(service, instance, one.address, session)
            one.acknowledged = True
            self.outcomes["registered"] += 1
            self.cluster.tell("registered", one.key, one.address)
            await self.think(process, draw.randint(1, 4))
        if draw.random() < 0.4:
            for one in mine:
                one.is_over = True
            await services.deregister(service, instance)
            self._have_ended(mine)
        if draw.random() < 0.6:
            life.is_over = True
            await session.close()
            self._have_ended(mine)

    def _have_ended(self, mine: list[Registration]) -> None:
        for one in mine:
            one.ended_s = self.now if one.ended_s is None else one.ended_s

    # -- who looks ------------------------------------------------------------------------------------------------

    async def _list(self, db: "AsyncClient", process: "Process") -> None:
        services = AsyncServiceRegistry(db, self.name)
        while not self.stopped:
            service = process.random.choice(SERVICES)
            known, began_s = [one for one in self._registered.values() if one.acknowledged], self.now
            with self.tells("services-not-listed"):
                found = await services.instances(service)
                self.outcomes["services-listed"] += 1
                self.outcomes["instances-seen"] += len(found)
                self.cluster.tell("services", service, tuple(found.items()))
                self._judge(service, found, known, began_s)
            await self.think(process, 2)

    def _judge(
        self, service: str, found: dict[str, bytes], known: list[Registration], began_s: float
    ) -> None:
        """`known`: what had been acknowledged when the list was asked for."""
        seen = {f"{service}/{instance}": address for instance, address in found.items()}
        for one in known:
            if one.is_over or one.key.endswith(SHARED) or not one.key.startswith(service):
                continue
            until_s = one.life.kept_until_s(self.fastest)
            self.require(
                self.now >= until_s or seen.get(one.key) == one.address,
                "service-listed",
                f"{one.key} is registered with {one.address!r}, and its session kept until {until_s}; a list at {self.now} "
                f"has {seen.get(one.key)!r}",
            )
        for key, address in seen.items():
            of = self._registered.get(address)
            self.require(
                of is not None and of.key == key and (of.ended_s is None or of.ended_s >= began_s),
                "service-gone",
                f"{key} is listed with {address!r} by {self.now}; that was registered as {of and of.key}, until "
                f"{of and of.ended_s}; the list began at {began_s}",
            )

    async def _follow(self, db: "AsyncClient", process: "Process") -> None:
        while not self._is_quiet:
            try:
                await self._follow_on(db)
            except OffsetOutOfRangeError:  # behind a trim: what is there now is looked at again
                self.cluster.tell("services-anew")
            except AntiphonError as error:
                self.cluster.tell("services-not-followed", error.code)
            await self.think(process)

    async def _follow_on(self, db: "AsyncClient") -> None:
        """Look what there is, and follow what changes, as a balancer does, until nothing is left."""
        table = await db.table(self.name)
        async with table.watch(start=LATEST) as changes:
            view: dict[bytes, int] = {}  # versions
            gone: dict[bytes, int] = {}
            async for row in table.scan():
                view[row.key] = row.version.id
            base = dict(view)
            self._view = view
            while not self._is_quiet or (view and self.now < self._quiet_s + HEARD_S):
                try:
                    async with asyncio.timeout(LOOK_S):
                        chunk = await changes.next_chunk()
                except TimeoutError:
                    continue
                for change in chunk:
                    self._changed(change, view, gone, base)

    def _changed(
        self, change: Any, view: dict[bytes, int], gone: dict[bytes, int], base: dict[bytes, int]
    ) -> None:
        """A change comes. What was there when the watch had begun, `base`, has its own changes before it ignored."""
        key, version, before = change.key, change.version.id, view.get(change.key)
        self.outcomes["service-changes"] += 1
        self.cluster.tell("service-change", key, change.value, version)
        if change.value is None:
            if version < base.get(key, -1):
                return
            self.require(
                before == version or (before is None and key not in gone),
                "service-changes",
                f"{key!r} with version {version} goes, which is {before} to who follows",
            )
            view.pop(key, None)
            gone[key] = version
            return
        if version <= base.get(key, -1):
            return
        newest = max(gone.get(key, -1), -1 if before is None else before)
        self.require(
            version > newest or key in base,
            "service-changes",
            f"{key!r} gets version {version} after {newest}",
        )
        view[key] = version
        base.pop(key, None)

    # -- the end --------------------------------------------------------------------------------------------------

    async def see_the_end(self, process: "Process") -> None:
        """See `SessionedWorkload`."""
        await super().see_the_end(process)
        self._is_quiet, self._quiet_s = True, self.now

    def check(self) -> None:
        """See `Workload`."""
        history = self.read_all()
        left = {key: row.value for shard in history.shards.values() for key, row in shard.rows.items()}
        self.require(not left, "service-gone", f"all sessions have ended, and the registry has {left}")
        self.require(
            not self._view, "service-changes", f"all has gone, and to who follows there is {self._view}"
        )
        missing = [one.address for one in self._registered.values() if one.acknowledged]
        missing = [one for one in missing if one not in history.values]
        self.require(not missing, "service-listed", f"{missing} were registered, and stand in no log")
