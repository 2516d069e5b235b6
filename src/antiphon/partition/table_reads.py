"""Gets and scans of a table's shard, each as consistent as it asks to be."""

from collections.abc import Callable
from functools import partial
from typing import Final

from antiphon.errors import InvalidRequestError, NotReadyError, StorageFailedError
from antiphon.model.metadata import HASH_MAX
from antiphon.model.requests import FIND_KEYS_MAX, GET_KEYS_MAX, TableGet, TableRows, TableScan
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.table.ranges import covers, wrong_shard
from antiphon.table.state import EQUAL

READ_TIMEOUT_S: Final = 30.0
CONSISTENCIES: Final = ("linearizable", "leader", "local")
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
                owned = store.owned
                if (owned.first or owned.last != HASH_MAX) and not all(map(owned.holds, request.keys)):
                    raise wrong_shard(self._state.shard_id, owned)
                rows = store.get_many(request.keys, include_value=request.include_value)
            else:
                rows = store.find_many(request.keys, request.comparison, include_value=request.include_value)
            done(TableRows(tuple(rows)))

        try:
            self._consistently(request.consistency, self._guarded(read, admit), done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def scan(self, request: TableScan, done: Done, admit: Admit | None = None) -> None:
        """Carry out a TableScan; `done` gets TableRows or an error."""
        table = self._state.require_table()

        def read() -> None:
            store, hashes = table.state, request.hashes
            owned = store.owned
            if not covers(owned, hashes):
                raise wrong_shard(self._state.shard_id, owned)
            if hashes and hashes[0] <= owned.first and owned.last <= hashes[1]:
                hashes = ()  # all that is here
            rows, more = store.scan(
                request.start, request.end, request.limit, include_value=request.include_value, hashes=hashes
            )
            done(TableRows(tuple(rows), more))

        try:
            self._consistently(request.consistency, self._guarded(read, admit), done)
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
        if state.services.is_joining(state.shard_id):
            raise joins(state.shard_id)
        if consistency == "linearizable":
            state.check_serving()
            self._clients.when_confirmed(0, READ_TIMEOUT_S, read, done)
        elif consistency == "leader":
            state.check_serving()
            read()
        elif consistency == "local":
            state.check_alive()
            read()
        else:
            raise InvalidRequestError(
                f"consistency is one of {', '.join(CONSISTENCIES)}, not {consistency!r}"
            )


def joins(shard_id: int) -> NotReadyError:
    """The error while the shard is being split off another one: it is not part of its table yet."""
    return NotReadyError(f"shard {shard_id} is being split off another one and does not serve yet; retry")
