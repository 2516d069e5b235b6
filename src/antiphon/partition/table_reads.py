"""Gets and scans of a table's shard, each as consistent as it asks to be."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError, NotReadyError, StorageFailedError
from antiphon.model.attributes import IndexFind, IndexRow, IndexRows, IndexScan
from antiphon.model.key_order import OrderedFind, OrderedKeys, OrderedScan
from antiphon.model.metadata import HASH_MAX
from antiphon.model.requests import FIND_KEYS_MAX, GET_KEYS_MAX, TableGet, TableRows, TableScan
from antiphon.model.rows import Row
from antiphon.model.table_transactions import CheckReads, KeysRead, ReadKeys, ReadsChecked
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.records.key_order import key_of
from antiphon.table.evaluator import ABSENT
from antiphon.table.index_reads import find_by_index, scan_index
from antiphon.table.neighbours import DOWN, EQUAL
from antiphon.table.order_reads import (
    bounds_of,
    check_found,
    check_ordered,
    find_ordered,
    list_ordered,
    scan_ordered,
)
from antiphon.table.places import place_of_row
from antiphon.table.prepared import PreparedTransactions, locked_error
from antiphon.table.ranges import OwnedRange, covers, wrong_shard
from antiphon.table.state import TableState

if TYPE_CHECKING:
    from antiphon.partition.table_shard import TableShard

READ_TIMEOUT_S: Final = 30.0
LINEARIZABLE: Final = "linearizable"
LOCAL: Final = "local"
CONSISTENCIES: Final = (LINEARIZABLE, "leader", LOCAL)
Admit = Callable[[Callable[[], None]], None]


class TableReads:
    """See the module's text; of one replica. Raises what is known at once.

    `admit` is called with what reads the rows, at the moment from which they may be read.
    """

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients

    def get(self, request: TableGet, done: Done, admit: Admit | None = None) -> None:
        """Carry out a TableGet; `done` gets TableRows or an error."""
        table = self._state.require_table()
        keys_max = GET_KEYS_MAX if request.comparison == EQUAL else FIND_KEYS_MAX
        if len(request.keys) > keys_max:
            raise InvalidRequestError(
                f"a get has up to {GET_KEYS_MAX} keys, {FIND_KEYS_MAX} with a comparison, not {len(request.keys)}"
            )

        def read() -> None:
            store = table.state
            if request.comparison == EQUAL:
                owned = store.shown
                is_part = owned.first > 0 or owned.last != HASH_MAX
                if request.placed:
                    elsewhere = not covers(owned, request.hashes)
                else:
                    elsewhere = is_part and not all(map(owned.holds, request.keys))
                if elsewhere:
                    raise wrong_shard(self._state.shard_id, owned)
                rows = store.get_many(request.keys, include_value=request.include_value)
                if request.placed and owned.purging:
                    rows = [None if row is None or _is_stray(owned, row) else row for row in rows]
            else:
                if request.placed and not covers(store.shown, request.hashes):
                    raise wrong_shard(self._state.shard_id, store.shown)
                rows = store.find_many(request.keys, request.comparison, include_value=request.include_value)
            if store.transactions.locked and request.consistency != LOCAL:
                _check_unlocked(store.transactions, request, rows)
            done(TableRows(tuple(rows)))

        self._read(request.consistency, read, admit, done)

    def scan(self, request: TableScan, done: Done, admit: Admit | None = None) -> None:
        """Carry out a TableScan; `done` gets TableRows or an error."""
        table = self._state.require_table()

        def read() -> None:
            store, hashes = table.state, request.hashes
            owned = store.shown
            if not covers(owned, hashes):
                raise wrong_shard(self._state.shard_id, owned)
            if hashes and hashes[0] <= owned.first and owned.last <= hashes[1]:
                hashes = ()  # all that is here
            end, locked = request.end, None
            if store.transactions.locked and request.consistency != LOCAL:
                locked = store.transactions.first_in(request.start, end)
                if locked == request.start:
                    raise locked_error(locked)
                end = end if locked is None else locked  # the rows before it can be given now
            rows, more = store.scan(
                request.start, end, request.limit, include_value=request.include_value, hashes=hashes
            )
            if locked is not None and not rows:
                raise locked_error(locked)
            done(TableRows(tuple(rows), more or locked is not None))

        self._read(request.consistency, read, admit, done)

    # -- by an index ----------------------------------------------------------------------------------------------

    def by_index(self, request: IndexFind | IndexScan, done: Done, admit: Admit | None = None) -> None:
        """Carry out a read by an index; `done` gets IndexRows or an error."""
        table = self._state.require_table()

        def read() -> None:
            store, rows, more = table.state, [], False
            if isinstance(request, IndexFind):
                found = find_by_index(
                    store,
                    request.index,
                    request.secondary,
                    request.comparison,
                    include_value=request.include_value,
                )
                rows = [] if found is None else [found]
            else:
                if not covers(store.shown, request.hashes):
                    raise wrong_shard(self._state.shard_id, store.shown)
                bounds = (request.start, request.end)
                rows, more = scan_index(
                    store,
                    request.index,
                    bounds,
                    request.after,
                    request.limit,
                    include_value=request.include_value,
                )
            store.transactions.check_keys([row.key for _, row in rows])
            done(IndexRows(tuple(IndexRow(*one) for one in rows), more))

        self._read(LINEARIZABLE, read, admit, done)

    # -- in the hierarchical order --------------------------------------------------------------------------------

    def ordered(self, request: OrderedFind | OrderedScan, done: Done, admit: Admit | None = None) -> None:
        """Carry out a read in the order of Oxia's clients; `done` gets TableRows, OrderedKeys or an error."""
        state = self._state.require_table().state
        check_ordered(state)
        if isinstance(request, OrderedFind):
            work = partial(self._find_ordered, request, done)
        else:
            work = partial(self._scan_ordered, request, done)
        self._read(LINEARIZABLE, work, admit, done)

    def _find_ordered(self, request: OrderedFind, done: Done) -> None:
        store = self._covering(request.hashes)
        rows = find_ordered(
            store, request.keys, request.comparison, request.hashes, include_value=request.include_value
        )
        if store.transactions.locked:
            check_found(store.transactions, request, rows)
        done(TableRows(tuple(rows)))

    def _scan_ordered(self, request: OrderedScan, done: Done) -> None:
        store = self._covering(request.hashes)
        start, end = bounds_of(request.start, request.end, request.after)
        locked = store.transactions.first_ordered(start, end) if store.transactions.locked else None
        bounds = (start, end if locked is None else locked)  # what comes before it can be given now
        answer: TableRows | OrderedKeys
        if request.keys_only:
            keys, more = list_ordered(store, request, bounds)
            answer = OrderedKeys(tuple(keys), more or locked is not None)
        else:
            rows, more = scan_ordered(store, request, bounds)
            keys, answer = [row.key for row in rows], TableRows(tuple(rows), more or locked is not None)
        if locked is not None and not keys:
            raise locked_error(key_of(locked))
        done(answer)

    def _covering(self, hashes: Sequence[int]) -> TableState:
        """The store, if the shard holds what is expected in it."""
        store = self._state.require_table().state
        if not covers(store.shown, hashes):
            raise wrong_shard(self._state.shard_id, store.shown)
        return store

    # -- for transactions that span shards ------------------------------------------------------------------------

    def in_transaction(self, request: ReadKeys | CheckReads, done: Done, admit: Admit | None = None) -> None:
        """Carry out a read of a transaction; `done` gets KeysRead or ReadsChecked, or an error."""
        table = self._state.require_table()
        if isinstance(request, ReadKeys):
            work = partial(self._read_keys, table, request, done)
        else:
            work = partial(self._check_reads, table, request, done)
        self._read(LINEARIZABLE, work, admit, done)

    def _read_keys(self, table: "TableShard", request: ReadKeys, done: Done) -> None:
        store, keys = table.state, request.keys
        if not all(map(store.shown.holds, keys)):
            raise wrong_shard(self._state.shard_id, store.shown)
        store.transactions.check_keys(keys)
        done(KeysRead(tuple(store.get_many(keys)), store.applied_offset))

    def _check_reads(self, table: "TableShard", request: CheckReads, done: Done) -> None:
        """Compare with what is there now. Nobody else has prepared a change of these keys, as far as it is committed."""
        store, evaluator = table.state, table.evaluator
        if evaluator is None:
            raise NotReadyError(f"shard {self._state.shard_id} has just been elected; retry")
        keys = [read.key for read in request.reads]
        if not all(map(store.shown.holds, keys)):
            raise wrong_shard(self._state.shard_id, store.shown)
        store.transactions.check_keys(keys)
        changed = []
        for place, (read, version) in enumerate(zip(request.reads, store.versions(keys), strict=True)):
            now = ABSENT if version is None else version[0]
            was_absent = now == ABSENT and read.version == ABSENT
            if now != read.version or (
                was_absent and not evaluator.removals.is_known_absent(read.key, read.position)
            ):
                changed.append((place, now))
        done(ReadsChecked(tuple(changed)))

    def _read(self, consistency: str, read: Callable[[], None], admit: Admit | None, done: Done) -> None:
        try:
            self._consistently(consistency, self._guarded(read, admit), done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _guarded(self, read: Callable[[], None], admit: Admit | None) -> Callable[[], None]:
        """What reads when it is admitted. By then the replica may have been closed, or find its store broken."""
        if admit is None:
            return read

        def later() -> None:
            try:
                self._state.check_alive()
                read()
            except StorageFailedError as error:
                raise self._driver.stopped_by(error) from error

        return partial(admit, later)

    def _consistently(self, consistency: str, read: Callable[[], None], done: Done) -> None:
        state = self._state
        state.services.metrics.table_reads += 1
        if state.is_joining:
            raise joins(state.shard_id)
        if consistency == LINEARIZABLE:
            state.check_serving()
            self._clients.when_confirmed(0, READ_TIMEOUT_S, read, done)
        elif consistency == "leader":
            state.check_serving()
            read()
        elif consistency == LOCAL:
            state.check_alive()
            read()
        else:
            raise InvalidRequestError(
                f"consistency is one of {', '.join(CONSISTENCIES)}, not {consistency!r}"
            )


def _is_stray(owned: OwnedRange, row: Row) -> bool:
    """Is it a row that a split took away, and that is still in the store?"""
    return not owned.first <= place_of_row(row) <= owned.last


def _check_unlocked(prepared: PreparedTransactions, request: TableGet, rows: Sequence[Row | None]) -> None:
    """Raise KeyLockedError where a prepared transaction may change what was asked for."""
    if request.comparison == EQUAL:
        prepared.check_keys(request.keys)
        return
    for key, row in zip(request.keys, rows, strict=True):
        if request.comparison in DOWN:
            locked = prepared.first_in(b"" if row is None else row.key, key + b"\x00")
        else:
            locked = prepared.first_in(key, b"" if row is None else row.key + b"\x00")
        if locked is not None:
            raise locked_error(locked)


def joins(shard_id: int) -> NotReadyError:
    """The error while the shard is being split off another one: it is not part of its table yet."""
    return NotReadyError(f"shard {shard_id} is being split off another one and does not serve yet; retry")
