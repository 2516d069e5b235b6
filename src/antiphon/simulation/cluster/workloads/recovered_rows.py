"""Puts, deletes and sessions of a table that may lose most of its replicas, and scans of it all the while.

The table is where the topic of `recovered` is, so both may lose most replicas at once. An operator may split it. What its
logs come to is in `recovered_history`.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError, SessionNotFoundError
from antiphon.model.metadata import Kind
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.replica_faults import RECOVERED
from antiphon.simulation.cluster.workloads.kept_session import KeptSession
from antiphon.simulation.cluster.workloads.recovered import make_where_replicas_are_lost
from antiphon.simulation.cluster.workloads.recovered_history import Begun, RecoveredTable, Seen
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.session_history import OWN
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

KEYS: Final = ("aisle", "bay", "cellar", "dome")
TIMEOUTS_S: Final = (0.6, 1.0, 2.0)
LIVES_S: Final = (0.3, 1.0, 4.0, 20.0)
LOOK_S: Final = 0.2
MILLION: Final = 1_000_000


@workload(
    "recovered_putters",
    48,
    Drawn(
        lambda draw, world: draw.choice((0, 2)) * int(world["most_replicas_gone_weight"] > 0), "recoveries", 2
    ),
)
class RecoveredRowsWorkload(Workload):
    """Put and delete rows of a table that is where `recovered` is, also under sessions, and scan it.

    Checked: a scan after a recovery has the rows, versions and owners that the logs which are left come to at some moment
    between request and answer, in each shard that the table was split into; versions rise over a recovery; what was
    acknowledged or read is in the log of one of these shards, as it was, or is among what was lost; a put that began when
    its key was another shard's is in the log of that one, or of one that took the key over since; a row of a session that
    is kept is there as long as no replicas are lost; by the logs that are left, each end of a session removes its rows, and
    no others; in the end all sessions that are silent have ended.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = f"{RECOVERED}-rows") -> None:
        super().__init__(cluster, name)
        self.shard_id = -1
        self._history = RecoveredTable(cluster, self.name, -1)
        self._told: dict[bytes, int] = {}  # values that clients were told of, with their versions
        self._begun: dict[bytes, Begun] = {}  # puts, by value
        self._refused: set[bytes] = set()  # their sessions were not open
        self._fastest = 1.0 + cluster.options.clock_skew_ppm / MILLION
        self.outcomes = {
            "rows-kept": 0,
            "rows-lost": 0,
            "rows-scanned": 0,
            "rows-scanned-after": 0,
            "rows-scanned-in-parts": 0,
            "rows-beside-a-split": 0,
            "leases": 0,
            "leases-lost": 0,
        }

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        self.shard_id = await make_where_replicas_are_lost(self.cluster, db, self.name, Kind.TABLE)
        self._history = RecoveredTable(self.cluster, self.name, self.shard_id)

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.recovered_putters, self.with_client(self._change))
        for number in range(self.cluster.options.recovered_putters):
            self.spawn(f"leases-{number}", partial(self._have_sessions, number))
        self.spawn("scans", self.with_client(self._scan))
        self.spawn("last", self._see_the_end)

    # -- clients --------------------------------------------------------------------------------------------------

    async def _change(self, db: "AsyncClient", process: "Process", number: int) -> None:
        table: Any = db.table(self.name)
        draw, serial = process.random, 0
        while not self.stopped:
            key, serial = draw.choice(KEYS), serial + 1
            if draw.random() < 0.75:
                value = b"%d:%d" % (number, serial)
                self._begun[value] = self._history.begun(key.encode())
                await self._acknowledged(value, table.put(key, value, timeout_s=PATIENCE_S))
            else:
                await self._acknowledged(b"", table.delete(key, timeout_s=PATIENCE_S))
            await self.think(process)

    async def _acknowledged(self, value: bytes, change: "asyncio.Future[Any]") -> bool:
        """Is it? `value`: of a put."""
        try:
            version = await change
        except SessionNotFoundError:
            self._refused.add(value)
        except AntiphonError as error:
            self.cluster.tell("row-not-kept", value.decode(), error.code)
        else:
            if value:
                self._told[value] = version.id
                self.outcomes["rows-kept"] += 1
            return True
        return False

    async def _have_sessions(self, number: int, process: "Process") -> None:
        count = 0
        while not self.stopped:
            count += 1
            db = await self.connected()
            await self._live(db, process, f"lease-{number}-{count}")
            await db.close()  # what is open is left to its time-out

    async def _live(self, db: "AsyncClient", process: "Process", name: str) -> None:
        draw, serial = process.random, 0
        table: Any = db.table(self.name)
        session = db.session(timeout_s=draw.choice(TIMEOUTS_S))
        life, ends_s = KeptSession(session, process), self.now + draw.choice(LIVES_S)
        session.when_lost(life.lost)
        self.outcomes["leases"] += 1
        while not self.stopped and self.now < ends_s and not session.is_lost:
            serial += 1
            value, recoveries = f"{name}-{serial}".encode(), self._history.recoveries()
            shared = draw.random() < 0.3
            key = draw.choice(KEYS).encode() if shared else OWN + value
            self._begun[value] = self._history.begun(key)
            put = table.put(key, value, session=session, timeout_s=PATIENCE_S)
            if await self._acknowledged(value, put) and not shared:
                await self._look(table, life, key, recoveries)
            await self.think(process, 2)
        self.outcomes["leases-lost"] += session.is_lost
        if draw.random() < 0.4:
            life.is_over = True
            await session.close()

    async def _look(self, table: Any, life: KeptSession, key: bytes, recoveries: int) -> None:
        """The row was acknowledged after so many recoveries."""
        try:
            row: Any = await table.find(key, timeout_s=PATIENCE_S)
        except AntiphonError:
            return
        until_s = life.kept_until_s(self._fastest)
        require(
            (row is not None and row.session_id == life.session.id)
            or self.now >= until_s
            or recoveries < 0
            or recoveries != self._history.recoveries(),
            "ended-early",
            f"{key!r} of session {life.session.id} is {row} at {self.now}; the session was kept until {until_s}, and "
            "nothing was lost meanwhile",
            self.shard_id,
        )

    async def _scan(self, db: "AsyncClient", process: "Process") -> None:
        while not self.stopped:
            recoveries, began = self._history.recoveries(), self._history.ends()
            rows: dict[bytes, Seen] = {}
            with self.tells("rows-not-scanned"):
                async for row in db.table(self.name).scan(timeout_s=PATIENCE_S):
                    rows[row.key] = (bytes(row.value), row.version.id, row.session_id)
                self._told.update({value: version for value, version, _ in rows.values()})
                if 0 <= recoveries == self._history.recoveries():
                    self._judge(rows, began, recoveries)
            await self.think(process, 5)

    def _judge(self, rows: dict[bytes, Seen], began: dict[int, int], recoveries: int) -> None:
        """A scan began when so much was committed of each shard, and no replicas were lost meanwhile."""
        self.outcomes["rows-scanned"] += 1
        self.outcomes["rows-scanned-after"] += recoveries > 0
        self.outcomes["rows-scanned-in-parts"] += len(began) > 1
        self.cluster.tell("rows-scanned", len(rows), tuple(began.items()))
        misfit = self._history.misfit(rows, began)
        require(
            not misfit, "rows-of-what-is-left", f"after recovery {recoveries} a scan {misfit}", self.shard_id
        )

    async def _see_the_end(self, _process: "Process") -> None:
        while self.is_working or self._history.recoveries() < 0 or self._history.is_open():  # noqa: ASYNC110 (nobody says when)
            await asyncio.sleep(LOOK_S)

    # -- what is committed ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        history = self._history
        folds, lost = [history.folds[shard_id] for shard_id in history.read()], history.lost()
        for value, version in self._told.items():
            found = {fold.versions[value] for fold in folds if value in fold.versions}
            require(
                found == {version} or (not found and value in lost),
                "rows-kept",
                f"a client was told of {value!r} with version {version}; the logs have it with {sorted(found)}, and it is "
                f"{'among' if value in lost else 'not among'} the {len(lost)} that were lost",
                self.shard_id,
            )
            self.outcomes["rows-lost"] += not found
            there = [fold.shard_id for fold in folds if value in fold.versions]
            begun = self._begun.get(value)
            if begun is not None and there:
                self._check_place(value, begun, there)
        for fold in folds:
            again = self._refused & fold.values
            require(not again, "session-put", f"{again} were refused, and are in the log", fold.shard_id)
            left = {key: row.owner for key, row in fold.rows.items() if row.owner is not None}
            require(not left, "session-end", f"rows are left of sessions that ended: {left}", fold.shard_id)

    def _check_place(self, value: bytes, begun: Begun, there: list[int]) -> None:
        """Is it where readers look for it? Shards that hold its key by now are those of before, and their upper parts."""
        starts = self._history.read()
        moved = [one for one in there if begun.start <= starts[one] <= begun.hash]
        self.outcomes["rows-beside-a-split"] += begun.start > 0
        require(
            bool(moved),
            "rows-in-their-shard",
            f"{value!r} was put when keys with hashes from {begun.start} on were another shard's, its key has {begun.hash}; "
            f"it is in the logs of shards {there}, which begin with {[starts[one] for one in there]}",
            self.shard_id,
        )
