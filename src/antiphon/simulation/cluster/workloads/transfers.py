"""Transactions over several shards of a table: money goes from account to account, and the sum never changes.

- `transfer-half`: a transaction changed all that it said, in every shard, or nothing; as its client was told.
- `transfer-journal`: the journal, a topic, has a record of each transfer that changed rows, and of no other.
- `transfer-offsets`: the offsets that were sent with transactions are those of the last one that was committed.
- `transfer-sum`: every transaction that read all accounts, and was committed, found the same sum, and one hold. So does the
  end.
- `transfer-dirty`: nobody read a version that was never committed.
- `transfer-order`: transactions, plain reads and plain writes are serializable, in an order that real time agrees with
  (`simulation/serializability.py`).
- What the logs say by themselves is judged in `transfer_history.py`: the versions of each key rise, and every transaction
  ends.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, TimedOutError
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.transfer_history import TransferHistory, Version, tag_of
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Workload,
    durable_options,
    insist,
    make_table,
    shards_of,
)
from antiphon.simulation.serializability import Transaction, cycle_in, places_of
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.client.aio import AsyncClient
    from antiphon.client.producer import AsyncProducer, AsyncTransaction
    from antiphon.model.rows import Row
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

ACCOUNTS: Final = tuple(b"account-%d" % number for number in range(6))
HOLDS: Final = tuple(b"hold-%d" % number for number in range(3))
"""Exactly one of these keys is there at any time."""
BALANCE: Final = 100
TIMEOUTS_S: Final = (1.5, 4.0)
ABSENT: Final = -1
COMMIT_TRIES: Final = 3
BACK_OFF_S: Final = 0.1


@dataclass
class Asked:
    """What a client asked for. `outcome`: committed, not, or unknown. `ended`: None where it was not told."""

    tag: str
    kind: str
    began: float
    ended: float | None = None
    outcome: str = "unknown"
    reads: dict[bytes, int] = field(default_factory=dict)
    writes: dict[bytes, bytes | None] = field(default_factory=dict)
    values: dict[bytes, bytes | None] = field(default_factory=dict)  # what it read
    group: str = ""
    offset: int = -1

    def saw(self, key: bytes, row: "Row | None") -> "Row | None":
        """It read a key."""
        self.reads[key] = ABSENT if row is None else row.version.id
        self.values[key] = None if row is None else row.value
        return row


class Mover:
    """One client."""

    def __init__(
        self, of: "TransferWorkload", db: "AsyncClient", process: "Process", number: int, name: str
    ) -> None:
        self._of = of
        self._db = db
        self._draw = process.random
        self._number = number
        self._name = name
        self._serial = 0
        self._producer: AsyncProducer | None = None
        self._seen: dict[bytes, Row] = {}
        self._table = db.table(of.name)

    async def one(self) -> None:
        """Do something."""
        kind = self._draw.random()
        try:
            if kind < 0.4:
                await self._in_transaction("transfer", self._transfer)
            elif kind < 0.6:
                await self._in_transaction("hold", self._move_hold)
            elif kind < 0.75:
                await self._in_transaction("audit", self._audit)
            elif kind < 0.85:
                await self._touch()
            else:
                await self._look(self._draw.sample([*ACCOUNTS, *HOLDS], 3))
        except AntiphonError as error:
            self._of.cluster.tell("transfer-step", self._name, error.code)
            await self._of.pause(BACK_OFF_S)

    async def rest(self) -> None:
        """Return when nothing of it is under way: whoever becomes the producer of its id has waited for that."""
        while True:
            try:
                await self._db.producer(self._name).start()
            except AntiphonError:
                await self._of.pause(BACK_OFF_S)
            else:
                return

    # -- transactions ---------------------------------------------------------------------------------------------

    async def _in_transaction(
        self, kind: str, fill: "Callable[[AsyncTransaction, Asked], Awaitable[None]]"
    ) -> None:
        transaction = await self._begin()
        asked = self._of.ask(self._tag(), kind)
        try:
            await fill(transaction, asked)
        except AntiphonError:
            asked.outcome = "not"  # its commit was not asked for
            await self._give_up(transaction)
            raise
        if self._draw.random() < 0.3:
            await self._of.pause(self._draw.uniform(0.0, 0.1))
        if self._draw.random() < 0.15:
            self._dawdle(transaction)
        if self._draw.random() < 0.08:
            await self._abandon(transaction, asked)
            return
        await self._commit(transaction, asked)
        if asked.outcome == "committed" and self._draw.random() < 0.6:
            await self._look([*asked.writes])

    async def _begin(self) -> "AsyncTransaction":
        if self._producer is None or self._draw.random() < 0.05:
            self._producer = None
            producer = self._db.producer(self._name, transaction_timeout_s=self._draw.choice(TIMEOUTS_S))
            await producer.start()
            self._producer = producer
        return self._producer.begin()

    async def _give_up(self, transaction: "AsyncTransaction") -> None:
        try:
            await transaction.abort()
        except AntiphonError:
            self._producer = None

    async def _abandon(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """Leave it when all is prepared: its coordinator has to end it."""
        asked.outcome, self._producer = "not", None
        self._of.cluster.tell("transfer-abandoned", asked.tag)
        await transaction._prepare_tables()  # noqa: SLF001 - what a commit begins with

    def _dawdle(self, transaction: "AsyncTransaction") -> None:
        """Have it wait between the last look and the decision, while it holds its locks."""
        prepared, seconds = transaction._prepared, self._draw.uniform(0.1, 0.8)  # noqa: SLF001 - see `_abandon`

        async def slowly() -> None:
            await prepared()
            await self._of.pause(seconds)

        transaction._prepared = slowly  # type: ignore[method-assign]  # noqa: SLF001

    async def _commit(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        for _ in range(COMMIT_TRIES):
            try:
                await transaction.commit()
            except TimedOutError as error:
                self._of.cluster.tell("transfer-unknown", asked.tag, error.message)
                if "earlier_try" not in error.details:
                    asked.outcome = "not"
                    break
                continue
            except AntiphonError as error:
                if "earlier_try" not in error.details:
                    asked.outcome = "not"
                self._of.outcomes["transfers-refused"] += 1
                self._of.cluster.tell("transfer-refused", asked.tag, error.code)
            else:
                asked.outcome, asked.ended = "committed", self._of.now
                self._of.outcomes[f"{asked.kind}s"] += 1
                self._of.cluster.tell("transfer-committed", asked.tag)
            if transaction.may_be_aborted:
                await self._give_up(transaction)
            return
        self._producer = None

    async def _transfer(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """From one account to another; a third one is only read."""
        chosen = self._draw.sample(ACCOUNTS, self._draw.randint(2, 3))
        rows = [asked.saw(key, await transaction.find(self._of.name, key)) for key in chosen]
        amount = self._draw.randint(1, 20)
        for key, row, change in zip(chosen, rows, (-amount, amount), strict=False):
            balance = 0 if row is None else int(row.value.split()[0])
            value = b"%d %s" % (balance + change, asked.tag.encode())
            asked.writes[key] = value
            expected = asked.reads[key] if self._draw.random() < 0.3 else None
            await transaction.put(self._of.name, key, value, expected_version=expected)
        await transaction.append(self._of.topic, asked.tag)
        if self._draw.random() < 0.4:
            asked.group, asked.offset = f"{self._of.name}-{self._number}", self._serial
            await transaction.send_offsets(asked.group, {(self._of.topic, 0): self._serial})

    async def _move_hold(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """The hold goes to another key: one is removed, the other made. Whoever is not there is only read."""
        rows = {key: asked.saw(key, await transaction.find(self._of.name, key)) for key in HOLDS}
        there = [key for key, row in rows.items() if row is not None]
        free = [key for key, row in rows.items() if row is None]
        if not there or not free:
            return  # it did not read all of it at once, and will be refused
        old, new = there[0], self._draw.choice(free)
        value = b"1 %s" % asked.tag.encode()
        asked.writes |= {old: None, new: value}
        await transaction.delete(self._of.name, old)
        await transaction.put(self._of.name, new, value, expected_version=ABSENT)

    async def _audit(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """Read all that is there."""
        keys = [*ACCOUNTS, *HOLDS]
        self._draw.shuffle(keys)
        for key in keys:
            asked.saw(key, await transaction.find(self._of.name, key))

    # -- without transactions -------------------------------------------------------------------------------------

    async def _touch(self) -> None:
        """Write an account anew, as it is, or was when this client last saw it, unless it has changed."""
        key = self._draw.choice(ACCOUNTS)
        row = self._seen.get(key) if self._draw.random() < 0.6 else None
        if row is None:
            row = self._seen[key] = await self._table.get(key, timeout_s=PATIENCE_S)
        asked = self._of.ask(self._tag(), "touch")
        asked.reads[key] = row.version.id
        asked.writes[key] = b"%d %s" % (int(row.value.split()[0]), asked.tag.encode())
        await self._table.put(
            key, asked.writes[key] or b"", expected_version=row.version.id, timeout_s=PATIENCE_S
        )
        asked.outcome, asked.ended = "committed", self._of.now

    async def _look(self, keys: list[bytes]) -> None:
        """Read some keys, one after the other."""
        for key in keys:
            asked = self._of.ask(self._tag(), "look")
            row = asked.saw(key, await self._table.find(key, timeout_s=PATIENCE_S))
            if row is not None:
                self._seen[key] = row
            asked.outcome, asked.ended = "committed", self._of.now

    def _tag(self) -> str:
        self._serial += 1
        return f"{self._number}-{self._serial}"


@workload("transfer_clients", 29, Drawn(one_of(0, 0, 0, 0, 2, 3)))
class TransferWorkload(Workload):
    """Python clients move money between rows of several shards in transactions, with a journal and offsets, abandon some,
    and read and write plainly beside them.

    Checked: all of a transaction, or nothing, as its client was told; the journal and the rows agree; the sum is the same in
    every transaction that read all of it; no read saw what was not committed; the history is serializable, by the versions
    of the logs and by time; none stays open.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "transfers") -> None:
        super().__init__(cluster, name)
        self.topic = f"journal-of-{name}"
        self.shard_ids: list[int] = []
        self.journals: list[int] = []
        self.asked: dict[str, Asked] = {}
        self.outcomes = {
            "transfers": 0,
            "holds": 0,
            "audits": 0,
            "transfers-refused": 0,
        }

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        shards = max(2, self.cluster.options.table_shards)
        made = await make_table(self.cluster, db, self.name, shards=shards)
        self.shard_ids = [shard.shard_id for shard in made]
        options = durable_options(self.cluster)
        await insist(lambda: db.create_topic(self.topic, **options))
        self.journals = await shards_of(db, self.topic)
        for key, amount in (*((key, BALANCE) for key in ACCOUNTS), (HOLDS[0], 1)):
            asked = self.ask(f"begin-{key.decode()}", "touch")
            value = asked.writes[key] = b"%d %s" % (amount, asked.tag.encode())
            await insist(lambda: db.table(self.name).put(key, value))  # noqa: B023 - awaited at once

    def ask(self, tag: str, kind: str) -> Asked:
        """Something is about to be asked for."""
        asked = self.asked[tag] = Asked(tag, kind, self.now)
        return asked

    async def pause(self, seconds: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(seconds)

    async def _work_with(self, db: "AsyncClient", process: "Process", number: int) -> None:
        first = number
        while first in self.heirs:
            first = self.heirs[first]
        mover = Mover(self, db, process, number, f"mover-{first}")
        while not self.stopped:
            await mover.one()
            await self.think(process, 4)
        await mover.rest()

    # -- judged at the end ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        history = TransferHistory(self.cluster, self.shard_ids)
        there = self._check_changes(history)
        self._check_journal(history, there)
        self._check_offsets(history, there)
        self._check_sums(history)
        self._check_order(history, there)

    def _check_changes(self, history: TransferHistory) -> set[str]:
        """Each transaction changed what it said; returns the tags of those that are in the logs, plain writes too."""
        there = {
            one.tag for known in history.versions.values() for one in known if one.by is None and one.tag
        }
        for by, changes in history.changes.items():
            tags = {tag_of(value) for value in changes.rows.values() if value is not None}
            asked = self.asked.get(next(iter(tags), ""))
            require(
                asked is not None and len(tags) == 1 and changes.rows == asked.writes,
                "transfer-half",
                f"number {by[1]} of producer {by[0]} changed {changes.rows}; it was to change "
                f"{None if asked is None else asked.writes}",
                min(changes.shards),
            )
            there |= tags
        for asked in self.asked.values():
            told = {"committed": True, "not": False}.get(asked.outcome)
            if asked.writes and told is not None and asked.kind != "touch":
                require(
                    (asked.tag in there) == told,
                    "transfer-half",
                    f"{asked.tag} was told {asked.outcome}, and its changes {asked.writes} are "
                    f"{'there' if asked.tag in there else 'not there'}",
                    self.shard_ids[0],
                )
        return there

    def _check_journal(self, history: TransferHistory, there: set[str]) -> None:
        wanted = sorted(tag for tag in there if self.asked[tag].kind == "transfer")
        found = sorted(history.journal(self.journals))
        require(
            found == wanted,
            "transfer-journal",
            f"the journal has {sorted({*found} - {*wanted})[:5]} without changes, and lacks "
            f"{sorted({*wanted} - {*found})[:5]}",
            self.journals[0],
        )

    def _check_offsets(self, history: TransferHistory, there: set[str]) -> None:
        wanted: dict[str, int] = {}
        for tag in there:
            asked = self.asked[tag]
            if asked.group:
                wanted[asked.group] = max(asked.offset, wanted.get(asked.group, -1))
        found = history.offsets(f"{self.name}-")
        require(found == wanted, "transfer-offsets", f"offsets are {found}, not {wanted}", self.journals[0])

    def _check_sums(self, history: TransferHistory) -> None:
        at_the_end = {key: known[-1].value for key, known in history.versions.items()}
        reads = [(one.tag, one.values) for one in self.asked.values() if one.outcome == "committed"]
        for tag, values in (*reads, ("the end", at_the_end)):
            amounts = {key: int(value.split()[0]) for key, value in values.items() if value is not None}
            total = sum(amount for key, amount in amounts.items() if key in ACCOUNTS)
            holds = [key for key in amounts if key in HOLDS]
            require(
                (len(holds) == 1 or not values.keys() >= {*HOLDS})
                and (total == BALANCE * len(ACCOUNTS) or not values.keys() >= {*ACCOUNTS}),
                "transfer-sum",
                f"{tag} found {total} in accounts, and the holds {holds}: {values}",
                self.shard_ids[0],
            )

    def _check_order(self, history: TransferHistory, there: set[str]) -> None:
        places = {key: places_of(_numbered(known)) for key, known in history.versions.items()}
        made: dict[str, Transaction] = {}
        for asked in self.asked.values():
            if asked.tag in there if asked.writes else asked.outcome == "committed":
                made[asked.tag] = Transaction(asked.tag, asked.began, asked.ended)
        by_transaction = {
            by: tag_of(value)
            for by, changes in history.changes.items()
            for value in changes.rows.values()
            if value
        }
        for key, known in history.versions.items():
            for place, one in enumerate(known, 1):
                tag = one.tag if one.by is None else by_transaction[one.by]
                made[tag].writes.setdefault(key, []).append(place)
        for tag, reader in made.items():
            for key, version in self.asked[tag].reads.items():
                read = self._place(history, places, key, version)
                if read is not None:
                    reader.reads[key] = read
        found = cycle_in(list(made.values()))
        require(not found, "transfer-order", f"not serializable: {', '.join(found[:12])}", self.shard_ids[0])

    def _place(
        self, history: TransferHistory, places: dict[bytes, dict[int, int]], key: bytes, version: int
    ) -> int | None:
        """Which version was read; None where it was absent several times."""
        known = history.versions.get(key, [])
        if version != ABSENT:
            place = places.get(key, {}).get(version)
            require(
                place is not None,
                "transfer-dirty",
                f"version {version} of {key!r} was read, and is not there",
                self.shard_ids[0],
            )
            return place
        absent = [0, *(place for place, one in enumerate(known, 1) if one.value is None)]
        return absent[0] if len(absent) == 1 else None


def _numbered(known: list[Version]) -> list[int]:
    """Version ids in order; a removal, which has that of the row that it removes, gets a number of its own."""
    return [one.version if one.value is not None else -2 - place for place, one in enumerate(known)]
