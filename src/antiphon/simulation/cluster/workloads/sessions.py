"""Clients with sessions that come, put rows, fall silent, stand still, are closed or closed badly, while leaders change.

- `ended-early`: a row of a session is there as long as the time-out has not passed since the last request of its client was
  sent that showed the session to be open, by the fastest clock that a node may have. Others look, too: through leaders that
  the session's client has not heard of.
- `lost-early`: until then no shard says that the session has ended. A client that has heard nothing takes it for lost when
  the time-out has passed by its own clock, not before (`kept_session`). It ends the session itself then.
- `session-put`: what was acknowledged is in the log, and what was refused is not.
- What the logs say of sessions is judged by itself (`session_history`).
- At the end every session that is silent ends, with its rows, or the run does not end.
"""

from typing import TYPE_CHECKING, Any, Final

from antiphon.client.session import AsyncSession
from antiphon.errors import AntiphonError, SessionNotFoundError, VersionMismatchError
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.kept_session import KeptSession
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.sessioned import TIMEOUTS_S, SessionedWorkload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.violation import require
from antiphon.table.evaluator import ABSENT

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.client.table import AsyncTable
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

SHARED: Final = ("apse", "bema", "crypt")
LIVES_S: Final = (0.3, 1.0, 4.0, 20.0)
OBSERVERS: Final = 2
SOON_S: Final = 0.3


class Life(KeptSession):
    """One session of one client. `own`: keys that nobody else puts, acknowledged."""

    def __init__(self, session: AsyncSession, name: str, process: "Process") -> None:
        super().__init__(session, process)
        self.name = name
        self.own: list[str] = []


@workload("session_clients", 25, Drawn(one_of(0, 0, 0, 0, 2, 3), "sessions", 0))
class SessionWorkload(SessionedWorkload):
    """Clients with sessions come, put rows, fall silent, stand still, close; others overwrite and look.

    Checked: a row of a session that is kept is there, by the fastest clock that a node may have, whoever leads; no shard
    calls such a session ended; a client that hears nothing takes it for lost when the time-out is over by its own clock,
    and not before; in the logs (`session_history.py`) each end removes the rows that belong to the session then, all of
    them and no others, and nothing is put after it; a shard that was split off took the sessions over; in the end all that
    are silent have ended.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "leases") -> None:
        super().__init__(cluster, name)
        self.lives: list[Life] = []
        self.outcomes = {"sessions": 0, "sessions-lost": 0, "session-puts": 0, "session-looks": 0}
        self._puts: dict[bytes, str] = {}  # acknowledged, refused or unknown, by value

    def begin_others(self) -> None:
        """See `SessionedWorkload`."""
        for number in range(OBSERVERS):
            self.spawn(f"observer-{number}", self._observe)

    # -- clients with sessions ------------------------------------------------------------------------------------

    async def live(self, db: "AsyncClient", process: "Process", name: str) -> None:
        """See `SessionedWorkload`."""
        draw, table = process.random, db.table(self.name)
        life = Life(db.session(timeout_s=draw.choice(TIMEOUTS_S)), name, process)
        life.session.when_lost(lambda error: self._lost(life, error))
        self.lives.append(life)
        self.outcomes["sessions"] += 1
        ends_s, serial = self.now + draw.choice(LIVES_S), 0
        while not self.stopped and self.now < ends_s and not life.session.is_lost:
            serial += 1
            value, kind = f"{name}-{serial}".encode(), draw.random()
            if kind < 0.35:
                await self._put(table, life, f"own {value.decode()}", value)
            elif kind < 0.55:
                await self._put(table, life, draw.choice(SHARED), value)
            elif kind < 0.65:
                await self._disturb(table, draw.choice(SHARED), value)
            elif life.own:
                await self._look(table, life, draw.choice(life.own))
            await self.think(process)
        if draw.random() < 0.4:
            life.is_over = True
            await life.session.close()

    async def _put(self, table: "AsyncTable", life: Life, key: str, value: bytes) -> None:
        self._puts[value] = "unknown"
        try:
            await table.put(key, value, session=life.session, timeout_s=PATIENCE_S)
        except SessionNotFoundError:
            self._puts[value] = "refused"
        except AntiphonError as error:
            self.cluster.tell("lease-failed", key, error.code)
        else:
            self._puts[value] = "acknowledged"
            self.outcomes["session-puts"] += 1
            if key not in SHARED:
                life.own.append(key)
        self.cluster.tell("lease", key, life.session.id, self._puts[value])

    async def _disturb(self, table: "AsyncTable", key: str, value: bytes) -> None:
        """As somebody who knows nothing of sessions."""
        try:
            if value[-1] % 3 == 0:
                await table.delete(key, timeout_s=PATIENCE_S)
            elif value[-1] % 3 == 1:
                await table.put(key, value, expected_version=ABSENT, timeout_s=PATIENCE_S)
            else:
                await table.put(key, value, timeout_s=PATIENCE_S)
        except VersionMismatchError:
            return
        except AntiphonError as error:
            self.cluster.tell("lease-not-disturbed", key, error.code)

    def _lost(self, life: Life, error: SessionNotFoundError) -> None:
        self.outcomes["sessions-lost"] += 1
        until_s = life.lost_from_s(error, self.fastest)
        self.cluster.tell("lease-lost", life.name, life.session.id)
        if self.now < until_s:
            self.early.append(f"{error.message}, at {self.now}; {life.name} kept it until {until_s}")

    # -- others ---------------------------------------------------------------------------------------------------

    async def _look(self, table: "AsyncTable", life: Life, key: str, patience_s: float = PATIENCE_S) -> bool:
        """Look at a row; was there an answer?"""
        try:
            row: Any = await table.find(key, timeout_s=patience_s)
        except AntiphonError:
            return False
        self.outcomes["session-looks"] += 1
        until_s = life.kept_until_s(self.fastest)
        require(
            (row is not None and row.session_id == life.session.id) or self.now >= until_s,
            "ended-early",
            f"key {key!r} of session {life.session.id} is {row} at {self.now}; the session was kept until {until_s}",
            self.shard_ids[0],
        )
        return True

    async def _observe(self, process: "Process") -> None:
        """Look at what others have put. Whoever is not answered soon asks anew, as somebody who knows of no leader."""
        draw = process.random
        while not self.stopped:
            db, answered = await self.connected(), True
            while answered and not self.stopped:
                known = [life for life in self.lives[-8:] if life.own and not life.is_over]
                if known:
                    life = draw.choice(known)
                    answered = await self._look(db.table(self.name), life, draw.choice(life.own), SOON_S)
                await self.think(process)
            await db.close()

    # -- judges ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        require(not self.early, "lost-early", "; ".join(self.early), self.shard_ids[0])
        history = self.read_all()
        values = history.values
        for value, outcome in self._puts.items():
            require(
                (outcome != "acknowledged" or value in values)
                and (outcome != "refused" or value not in values),
                "session-put",
                f"the put of {value!r} was {outcome}, and {'is' if value in values else 'is not'} in the log",
                self.shard_ids[0],
            )
        for shard in history.shards.values():
            left = {key: row.owner for key, row in shard.rows.items() if row.owner is not None}
            require(not left, "session-end", f"rows are left of sessions that ended: {left}", shard.shard_id)
