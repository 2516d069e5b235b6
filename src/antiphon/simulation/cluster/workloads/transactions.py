"""Transactions of a table: each sets, or removes, all keys of a group, or none of them, and readers see no half of one.

The keys of a group belong to one shard. After a split they may not any more: then transactions are refused as the client
says, and what is judged is that nothing of those was written.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import AntiphonError, InvalidRequestError, KeyNotFoundError, VersionMismatchError
from antiphon.model.metadata import KeyRanges
from antiphon.model.requests import Check, Delete, Put, TableOp
from antiphon.simulation.cluster.drawing import Drawn, sometimes
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.scans import Read, check_read
from antiphon.simulation.cluster.workloads.table_history import Positions, Seen, TableHistory, positions
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload, make_table
from antiphon.simulation.violation import require
from antiphon.table.evaluator import ABSENT

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

CLIENTS: Final = 2
GROUPS: Final = 3
GROUP_KEYS: Final = 3
NO_VERSION: Final = 1 << 50  # a version that no key ever gets

Group = tuple[bytes, ...]


class Transaction(NamedTuple):
    """What a client wanted and was told. `outcome`: ok, unknown, or why it was refused.

    `expected`: the version that the first key had to have. `found`: what the refused operation's key had instead.
    """

    group: Group
    value: bytes | None
    expected: int | None
    outcome: str
    versions: tuple[int, ...]
    place: int
    found: int
    began: Positions
    ended: Positions


@workload("transactions", 2, Drawn(sometimes(0.4), "loads", 3), switch=True)
class TransactionWorkload(Workload):
    """`table.write` of all keys of a group, with and without conditions, some sure to be refused.

    Checked: each entry changes a whole group, once; a refused transaction is nowhere and had a valid reason; a scan sees
    no half of a transaction.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "groups") -> None:
        super().__init__(cluster, name)
        self.groups: list[Group] = []
        self.shard_ids: list[int] = []
        self.transactions: list[Transaction] = []
        self.reads: list[Read] = []
        self.outcomes = {"committed": 0, "not-committed": 0, "groups-read": 0}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        shards = await make_table(self.cluster, db, self.name)
        self.shard_ids = [shard.shard_id for shard in shards]
        ranges = KeyRanges(shards)
        for number in range(GROUPS):
            wanted = self.shard_ids[number % len(self.shard_ids)]
            names = (b"%d-%d" % (number, place) for place in range(1_000))
            mine = sorted(name for name in names if ranges.shard_of(name).shard_id == wanted)
            self.groups.append(tuple(mine[:GROUP_KEYS]))

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(CLIENTS, self._work)

    async def _work_with(self, db: "AsyncClient", process: "Process", number: int) -> None:
        table, draw, serial = db.table(self.name), process.random, 0
        versions: dict[bytes, int] = {}
        while not self.stopped:
            group, kind = draw.choice(self.groups), draw.random()
            serial += 1
            value = b"%d-%d" % (number, serial)
            with self.tells("group-not-read"):
                if kind < 0.35:
                    await self._read(table, group, versions, by_scan=draw.random() < 0.7)
                elif kind < 0.6:
                    await self._write(table, group, value, None)
                elif kind < 0.75:
                    await self._write(table, group, value, versions.get(group[0], ABSENT))
                elif kind < 0.9:
                    await self._write(table, group, None, None)
                else:
                    await self._write(table, group, value, None, doomed=True)
            await self.think(process)

    async def _read(self, table: Any, group: Group, versions: dict[bytes, int], *, by_scan: bool) -> None:
        began = positions(self.cluster)
        if by_scan:
            found = [row async for row in table.scan(group[0], group[-1] + b"\x00", timeout_s=PATIENCE_S)]
        else:
            found = [row for row in await table.get_many(group, timeout_s=PATIENCE_S) if row is not None]
        rows: dict[bytes, Seen] = {row.key: (row.version.id, bytes(row.value)) for row in found}
        versions[group[0]] = found[0].version.id if found and found[0].key == group[0] else ABSENT
        self.outcomes["groups-read"] += 1
        self.cluster.tell("group-read", group, rows)
        self.reads.append(Read("scan", group, rows, began, positions(self.cluster), by_scan))

    async def _write(
        self, table: Any, group: Group, value: bytes | None, expected: int | None, *, doomed: bool = False
    ) -> None:
        """Set or remove all keys; `doomed`: the last operation will be refused, so all have to be.

        Every other condition is a check that stands before the operations, instead of a part of the first one.
        """
        checked = expected is not None and bool(len(self.transactions) % 2)
        wanted = [None if checked else expected, *[None] * (len(group) - 2), NO_VERSION if doomed else None]
        ops: list[TableOp] = [
            Delete(key, version) if value is None else Put(key, value, version)
            for key, version in zip(group, wanted, strict=True)
        ]
        if checked and expected is not None:
            ops.insert(0, Check(group[0], expected))
        began, versions, place, found = positions(self.cluster), (), -1, ABSENT
        try:
            done = await table.write(ops, timeout_s=PATIENCE_S)
            outcome, versions = "ok", tuple(version.id for version in done if version is not None)
        except VersionMismatchError as error:
            outcome, place, found = (
                "mismatch",
                error.details["operation"] - checked,
                int(error.details["actual"]),
            )
            place = max(place, 0)  # the check is of the first key
        except KeyNotFoundError as error:
            outcome, place = "absent", error.details["operation"] - checked
        except InvalidRequestError:
            outcome = "several-shards"
        except AntiphonError:
            outcome = "unknown"
        self.outcomes["committed" if outcome == "ok" else "not-committed"] += 1
        self.cluster.tell("transaction", group[0], value, expected, outcome)
        ended = positions(self.cluster)
        self.transactions.append(
            Transaction(group, value, expected, outcome, versions, place, found, began, ended)
        )

    # -- the judge ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        history = TableHistory(self.cluster, self.shard_ids)
        self._check_batches(history)
        for one in self.transactions:
            self._check_outcome(history, one)
        for read in self.reads:
            if read.together and not history.is_split:
                values = {row[1] for row in read.rows.values() if row is not None}
                require(
                    not read.rows or (len(values) == 1 and len(read.rows) == len(read.keys)),
                    "seen-together",
                    f"a scan of a group saw {read.rows}, and every transaction writes all of {read.keys}",
                    self.shard_ids[0],
                )
            check_read(history, read)

    def _check_batches(self, history: TableHistory) -> None:
        """What is committed at once is a group, whole."""
        for shard_id, written in history.by_shard.items():
            batches: dict[int, list[bytes]] = {}
            for one in written:
                batches.setdefault(one.batch, []).append(one.key)
            for batch, keys in batches.items():
                require(
                    tuple(keys) in self.groups,
                    "all-or-nothing",
                    f"the entry at {batch} changes {keys}, and every transaction changes one of {self.groups}",
                    shard_id,
                )

    def _check_outcome(self, history: TableHistory, one: Transaction) -> None:
        """A transaction is there once and as it was told, or not at all if it was refused."""
        first = history.by_key.get(one.group[0], [])
        at = [
            place for place, change in enumerate(first) if one.value is not None and change.value == one.value
        ]
        what = f"the transaction that sets {one.group} to {one.value!r}"
        shard_id = self.shard_ids[0]
        require(len(at) <= 1, "exactly-once", f"{what} was carried out {len(at)} times", shard_id)
        if one.outcome == "ok" and one.value is not None:
            require(at, "acknowledged-kept", f"{what} was acknowledged and is not there", shard_id)
            versions = tuple(
                change.version
                for key in one.group
                for change in history.by_key[key]
                if change.value == one.value
            )
            require(
                versions == one.versions,
                "acknowledged-kept",
                f"{what} was told the versions {one.versions}, they are {versions}",
                shard_id,
            )
        elif one.outcome != "unknown":
            require(not at, "refused-nowhere", f"{what} was refused and carried out: {one.outcome}", shard_id)
        if at and one.expected is not None:
            before = first[at[0] - 1].row if at[0] else None
            version = ABSENT if before is None else before[0]
            require(
                version == one.expected, "condition", f"{what} met {version}, not {one.expected}", shard_id
            )
        if one.place >= 0:
            self._check_refusal(history, one, what)

    def _check_refusal(self, history: TableHistory, one: Transaction, what: str) -> None:
        """The reason that was given was one."""
        states = history.allowed(one.group[one.place], one.began, one.ended)
        versions = [ABSENT if state is None else state[0] for state in states]
        require(
            one.found in versions,
            "refusal",
            f"{what} was refused because operation {one.place} found {one.found}; it could find {versions}",
            self.shard_ids[0],
        )
