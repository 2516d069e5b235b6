"""The coordinator of the transactional ids whose shard of `__transactions` this node leads.

It holds the rows of those shards in memory, as they were read when this node began to lead them in a term, and nothing
else: what is decided stands in the table before anybody is told (`coordination.transactions`). When the replica leads in
another term, or not at all, the rows are dropped and read anew. A write whose outcome is not known has the row read again
before the next step, which the table refuses if it was of another version.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import structlog

from antiphon import system
from antiphon.coordination import transactions as t
from antiphon.coordination.transactions import Bounds, Producer, Refused, Row, State, Step
from antiphon.errors import AntiphonError, NotReadyError, OverloadedError
from antiphon.gateway.interface import Gateway
from antiphon.model.cluster import AskTransaction
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.model.metadata import ShardMeta
from antiphon.shares import Shares
from antiphon.transactions.endings import Endings
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.led_shards import LOOK_S, Holder, LedShard, LedShards
from antiphon.transactions.rows import ABSENT, Kept, RowChangedError, TransactionRows

IDS_MAX: Final = 20_000  # transactional ids of one node
PARTICIPANTS_MAX: Final = 500_000  # partitions and groups in all transactions of one node
WAITING_MAX: Final = 64  # requests of one id that wait for each other
END_WAIT_S: Final = 0.5  # for the end of the transaction before, whose markers take milliseconds
SWEEP_S: Final = 60.0  # between two looks for ids that expire
SHARDS: Final = 4


StepWithId = Callable[[Row | None, int], Step]
"""By the row, and a producer id that is fresh: NOBODY until it needs one."""
Taken = tuple[Refused | None, Row | None]
"""What a step came to: why it was refused, and the row as it stands then."""


class TransactionConfig(NamedTuple):
    """What an operator may choose."""

    bounds: Bounds = Bounds()
    table_shards: int = SHARDS

    @classmethod
    def bounded(cls, timeout_ms_max: int, expire_ms: int) -> "TransactionConfig":
        """What an operator says of time-outs and of ids that are silent."""
        return cls(Bounds(timeout_ms_max=timeout_ms_max, expire_ms=expire_ms))


DEFAULT_TRANSACTION_CONFIG: Final = TransactionConfig()


class _Held:
    """One id: its row, and who waits for the step before to be written."""

    __slots__ = ("ending", "kept", "lock", "participants", "waiting")

    def __init__(self, kept: Kept | None) -> None:
        self.kept = kept  # None: the outcome of the last write is not known, or not known yet
        self.participants = 0
        self.lock = asyncio.Lock()
        self.waiting = 0
        self.ending: asyncio.Task[None] | None = None


class _Led(LedShard):
    """A shard in one term."""

    def __init__(self, shard_id: int, term: int) -> None:
        super().__init__(shard_id, term)
        self.held: dict[str, _Held] = {}
        self.ongoing: dict[str, None] = {}  # oldest first: a set's order differs in each process
        self.participants = 0


class TransactionCoordinator:
    """See the module's text. Methods raise NotLeaderError where another node coordinates."""

    def __init__(self, gateway: Gateway, config: TransactionConfig = DEFAULT_TRANSACTION_CONFIG) -> None:
        self.bounds = config.bounds
        self.endings = Endings(gateway)
        self._gateway = gateway
        self._table = InternalTable(gateway, TRANSACTIONS_TABLE, config.table_shards, "transactional id")
        self._rows = TransactionRows(gateway)
        holder = Holder("transactions", _Led, self._rows.load, self._take_rows, self._drop)
        self._led = LedShards(gateway, self._table, holder)
        self._sweep_s = 0.0
        self._shares = Shares(IDS_MAX, "transactional ids")

    def start(self) -> None:
        """Begin to follow who leads, and the time."""
        self._led.start(self._sweep)

    async def stop(self) -> None:
        """Coordinate nothing any more."""
        await self._led.stop()
        await self._table.stop()

    async def locate(self, name: str) -> ShardMeta:
        """The shard of an id, whoever leads it; makes the table when it is asked for first."""
        return await self._table.locate(name)

    # -- steps ----------------------------------------------------------------------------------------------------

    async def init(self, name: str, timeout_ms: int, expected: Producer | None) -> Taken:
        """InitProducerId. Returns why it is refused, or the row as it stands then."""
        return await self._after_end(
            name,
            lambda row, fresh_id: t.init(row, timeout_ms, expected, fresh_id, system.wall_ms(), self.bounds),
        )

    async def _after_end(self, name: str, step: StepWithId) -> Taken:
        """A step that may have to wait for the end of the id's last transaction: for `END_WAIT_S`, then it is refused."""
        deadline_s = asyncio.get_running_loop().time() + END_WAIT_S
        while True:
            refused, row = await self._take_with_id(name, step)
            if refused is not Refused.CONCURRENT or not await self._is_over(name, deadline_s):
                return refused, row

    async def _take_with_id(self, name: str, step: StepWithId) -> Taken:
        """A step that may need a fresh producer id, which is fetched then."""
        fresh_id = t.NOBODY
        while True:
            taken_id = fresh_id
            refused, row, needs_id = await self._take(name, lambda row: step(row, taken_id))  # noqa: B023
            if not needs_id:
                return refused, row
            fresh_id = await self._gateway.new_producer_id()

    async def join(
        self, name: str, producer: Producer, shards: list[int], groups: list[str], *, known_at: int = -1
    ) -> Refused | None:
        """AddPartitionsToTxn, AddOffsetsToTxn. `known_at`: metadata in which `shards` exist; this node's may be older."""
        if self.participants + len(shards) + len(groups) > PARTICIPANTS_MAX:
            raise OverloadedError(
                f"{PARTICIPANTS_MAX} partitions and groups take part in transactions here already"
            )
        known_at = max(known_at, self._gateway.metadata_version)
        refused, _ = await self._after_end(
            name,
            lambda row, _: t.join(row, producer, shards, groups, known_at, system.wall_ms(), self.bounds),
        )
        return refused

    async def end(self, name: str, producer: Producer, *, commit: bool) -> Refused | None:
        """EndTxn: the decision stands when this returns; participants are told afterwards."""
        refused, _, _ = await self._take(
            name, lambda row: t.end(row, producer, commit=commit, now_ms=system.wall_ms())
        )
        return refused

    async def end_and_raise(
        self, name: str, producer: Producer, *, commit: bool
    ) -> tuple[Refused | None, Producer | None]:
        """EndTxn of KIP-890's second version: the same, and what the client's producer is from now on."""
        refused, row = await self._take_with_id(
            name,
            lambda row, fresh_id: t.end_and_raise(
                row, producer, fresh_id, commit=commit, now_ms=system.wall_ms()
            ),
        )
        return refused, None if row is None else row.producer

    async def abort(self, name: str, *, only_overdue: bool = False) -> Refused | None:
        """Abort what is under way, for an operator or because of its time-out."""
        refused, _, _ = await self._take(
            name, lambda row: t.abort(row, system.wall_ms(), only_overdue=only_overdue)
        )
        return refused

    async def check(
        self, name: str, producer: Producer, shard_id: int | None, group: str | None
    ) -> tuple[Refused | None, int]:
        """Does that take part in the producer's transaction? And the transaction's number."""
        row = await self.describe(name)
        return t.check(row, producer, shard_id, group), row.number if row is not None else 0

    async def answer(self, asked: AskTransaction) -> tuple[Refused | None, int]:
        """The same for who is to append, or to keep offsets; `joins` has it take part first."""
        producer = Producer(asked.producer_id, asked.epoch)
        if asked.joins:
            shards = [] if asked.shard_id is None else [asked.shard_id]
            groups = [] if asked.group is None else [asked.group]
            refused = await self.join(
                asked.transactional_id, producer, shards, groups, known_at=asked.known_at
            )
            if refused is not None:
                return refused, 0
        return await self.check(asked.transactional_id, producer, asked.shard_id, asked.group)

    async def describe(self, name: str) -> Row | None:
        """The row of an id; None where there is none."""
        led = await self._ready(name)
        held = led.held.get(name)
        if held is None:
            return None
        if held.kept is not None:
            return held.kept.row
        async with held.lock:
            return (await self._current(led, name, held)).row

    async def listed(self) -> list[tuple[str, Row]]:
        """All ids that this node coordinates, by name. Raises NotReadyError while some are not read yet."""
        for shard in self._table.led_shards():
            await self._ready_shard(shard.shard_id)
        return sorted(self._all(), key=lambda found: found[0])

    def _all(self) -> Iterator[tuple[str, Row]]:
        for led in self._led:
            for name, held in led.held.items():
                if held.kept is not None and held.kept.row is not None:
                    yield name, held.kept.row

    @property
    def ids(self) -> int:
        """Transactional ids that are held here."""
        return sum(len(led.held) for led in self._led)

    @property
    def open_transactions(self) -> int:
        """Transactions that are under way, or decided and not told to all, here."""
        return sum(
            len(led.ongoing) + sum(1 for held in led.held.values() if held.ending is not None)
            for led in self._led
        )

    @property
    def oldest_s(self) -> float:
        """Seconds since the oldest transaction under way here began; 0 where there is none."""
        began_ms = min((row.began_ms for _, row in self._open()), default=None)
        return 0.0 if began_ms is None else max(0.0, (system.wall_ms() - began_ms) / 1000)

    @property
    def participants(self) -> int:
        """Partitions and groups in them."""
        return sum(led.participants for led in self._led)

    def _open(self) -> Iterator[tuple[str, Row]]:
        for led in self._led:
            for name in led.ongoing:
                held = led.held.get(name)
                if held is not None and held.kept is not None and held.kept.row is not None:
                    yield name, held.kept.row

    async def _take(
        self, name: str, step: Callable[[Row | None], Step]
    ) -> tuple[Refused | None, Row | None, bool]:
        """One step of an id, after those before it; returns when its row is committed."""
        led = await self._ready(name)
        held = led.held.get(name)
        if held is None:
            self._shares.check(self.ids)
            held = led.held[name] = _Held(Kept(None, ABSENT))
        self._shares.add(held)
        if held.waiting >= WAITING_MAX:
            return Refused.CONCURRENT, None, False
        held.waiting += 1
        try:
            async with held.lock:
                kept = await self._current(led, name, held)
                found = step(kept.row)
                row = kept.row
                if found.row is not None:
                    row = found.row
                    await self._write(led, name, held, kept, row)
                return found.refused, row, found.needs_id
        finally:
            held.waiting -= 1
            if not held.waiting and held.kept == Kept(None, ABSENT):
                self._let_go(led, name, held)

    async def _current(self, led: _Led, name: str, held: _Held) -> Kept:
        """The row as it stands in the table. Called with the id's lock."""
        self._led.check(led)
        if held.kept is None:
            kept = await self._rows.read(led.shard_id, name)
            self._led.check(led)
            self._note(led, name, held, kept)
            return kept
        return held.kept

    async def _write(self, led: _Led, name: str, held: _Held, kept: Kept, row: Row) -> None:
        held.kept = None
        try:
            version = await self._rows.write(led.shard_id, name, row, kept.version)
        except RowChangedError:
            raise NotReadyError(
                f"the row of {name!r} was written by another coordinator; ask again"
            ) from None
        self._note(led, name, held, Kept(row, version))

    def _note(self, led: _Led, name: str, held: _Held, kept: Kept) -> None:
        """A row is known to stand: what follows from it is begun."""
        held.kept = kept
        count = 0 if kept.row is None else len(kept.row.shards) + len(kept.row.groups)
        led.participants += count - held.participants
        held.participants = count
        ongoing = kept.row is not None and kept.row.state is State.ONGOING
        if ongoing:
            led.ongoing.setdefault(name)
        else:
            led.ongoing.pop(name, None)
        if kept.row is not None and held.ending is None and t.due(kept.row) is not None:
            work = self._end_all(led, name, held)
            held.ending = asyncio.get_running_loop().create_task(work, name="end of a transaction")

    async def _is_over(self, name: str, deadline_s: float) -> bool:
        """Wait until all have been told of the id's last transaction: clients who are to ask again wait much longer.

        False where that takes too long, or nothing is under way, or too many wait.
        """
        held = (await self._ready(name)).held.get(name)
        if held is None or held.ending is None or held.waiting >= WAITING_MAX:
            return False
        held.waiting += 1
        try:
            left_s = deadline_s - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait({held.ending}, timeout=max(0.0, left_s))
        finally:
            held.waiting -= 1
        return bool(done)

    # -- decided transactions -------------------------------------------------------------------------------------

    async def _end_all(self, led: _Led, name: str, held: _Held) -> None:
        """Tell the participants, then write that it is done; again, until that is written or somebody else does it."""
        try:
            while self._led.leads(led):
                try:
                    row = await self.describe(name)
                    ending = None if row is None else t.due(row)
                    if row is None or ending is None:
                        return
                    await self.endings.carry_out(name, ending, row.known_at)
                    decided = row
                    await self._take(
                        name,
                        lambda row: t.complete(row, system.wall_ms()) if row == decided else Step(),  # noqa: B023
                    )
                except AntiphonError as error:
                    structlog.get_logger().info(
                        "transaction_not_completed", transactional_id=name, reason=error.message
                    )
                    await asyncio.sleep(LOOK_S * system.rng().uniform(0.5, 1.0))
        finally:
            held.ending = None

    # -- who leads ------------------------------------------------------------------------------------------------

    async def _ready(self, name: str) -> _Led:
        shard_id, _ = self._table.home(name)
        return await self._ready_shard(shard_id)

    async def _ready_shard(self, shard_id: int) -> _Led:
        """The rows of a shard, in the term in which this node leads it, once they are read."""
        await self._led.wait_read(shard_id)
        return self._led.read_one(shard_id)

    def _take_rows(self, led: _Led, rows: dict[str, Kept]) -> None:
        for name, kept in rows.items():
            held = led.held[name] = _Held(kept)
            self._note(led, name, held, kept)

    def _drop(self, led: _Led) -> None:
        for held in led.held.values():
            self._shares.drop(held)
            if held.ending is not None and held.ending is not asyncio.current_task():
                held.ending.cancel()

    # -- time -----------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Abort what is overdue, forget what expired."""
        try:
            await self._read_unknown()
            await self._abort_overdue()
            await self._forget_expired()
        except AntiphonError as error:
            structlog.get_logger().info("transactions_not_looked_at", reason=error.message)

    async def _read_unknown(self) -> None:
        """Read rows whose last write has no known outcome: what it decided is to be told, whoever asks again."""
        for led in self._led:
            for name, held in list(led.held.items()):
                if held.kept is None and not held.waiting:
                    await self.describe(name)

    async def _abort_overdue(self) -> None:
        now_ms = system.wall_ms()
        for name, row in list(self._open()):
            deadline_ms = t.deadline_ms(row)
            if deadline_ms is not None and deadline_ms <= now_ms:
                structlog.get_logger().warning(
                    "transaction_timed_out", transactional_id=name, timeout_ms=row.timeout_ms
                )
                await self.abort(name, only_overdue=True)

    async def _forget_expired(self) -> None:
        now_s, now_ms = asyncio.get_running_loop().time(), system.wall_ms()
        if now_s < self._sweep_s:
            return
        self._sweep_s = now_s + SWEEP_S
        for led in self._led:
            for name, held in list(led.held.items()):
                kept = held.kept
                if kept is None or kept.row is None or held.waiting:
                    continue
                if t.is_expired(name, kept.row, now_ms, self.bounds):
                    await self._forget(led, name, held, kept)

    async def _forget(self, led: _Led, name: str, held: _Held, kept: Kept) -> None:
        async with held.lock:
            if held.kept != kept or not self._led.leads(led):
                return
            held.kept = None
            try:
                await self._rows.forget(led.shard_id, name, kept.version)
            except RowChangedError:
                return
            held.kept = Kept(None, ABSENT)
            if not held.waiting:
                self._let_go(led, name, held)

    def _let_go(self, led: _Led, name: str, held: _Held) -> None:
        if led.held.get(name) is held:
            del led.held[name]
            self._shares.drop(held)
