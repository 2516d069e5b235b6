"""Puts, deletes and gets of a table's keys, with and without conditions: each key's history has to be linearizable."""

from typing import TYPE_CHECKING, Any, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError, KeyNotFoundError, VersionMismatchError
from antiphon.simulation import linearizability
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload, make_table
from antiphon.simulation.linearizability import NO, Operation, Verdict
from antiphon.simulation.violation import require
from antiphon.table.evaluator import ABSENT

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

KEYS: Final = ("antenna", "bell", "choir", "drum", "echo")
SEGMENT_BYTES: Final = 4096  # where the log is bounded
JUDGE_STEPS_MAX: Final = 200_000
MILLION: Final = 1_000_000
TICKS_PER_S: Final = 1_000_000


class TableWorkload(Workload):
    """Put, delete, get, with and without expected versions.

    Checked: each key's history is linearizable.
    """

    option = "putters"

    def __init__(self, cluster: "SimulatedCluster", name: str = "rows") -> None:
        super().__init__(cluster, name)
        self.operations: list[Operation] = []
        self.outcomes = {"ok": 0, "refused": 0, "unknown": 0}
        self.shard_ids: list[int] = []
        lease_ms, log_bytes = cluster.options.read_lease_ms, cluster.options.row_log_bytes
        self.config = {"read.lease.ms": str(lease_ms)} if lease_ms else {}  # of the table
        if log_bytes:
            self.config |= {"segment.bytes": str(SEGMENT_BYTES), "retention.bytes": str(log_bytes)}
        self.model = one_key
        self._pending: dict[
            int, tuple[str, str, Any, int]
        ] = {}  # by client: its write that has no outcome yet

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`."""
        shards = await make_table(self.cluster, db, self.name, self.config)
        self.shard_ids = [shard.shard_id for shard in shards]

    async def _work_with(self, db: AsyncClient, process: "Process", number: int) -> None:
        table = self.open_table(db, process)
        draw, serial = process.random, 0
        versions: dict[str, int] = {}
        while not self.stopped:
            key, kind = draw.choice(KEYS), draw.random()
            serial += 1
            expected = None
            if draw.randrange(MILLION) < self.cluster.options.conditional_ppm:
                expected = versions.get(key, ABSENT)
            if kind < 0.35:
                await self._get(table, number, key, versions)
            elif kind < 0.85:
                value = self._value(number, serial)
                put = table.put(key, value, expected_version=expected, timeout_s=PATIENCE_S)
                await self._write(number, key, "put", value, expected, put, versions)
            else:
                removal = table.delete(key, expected_version=expected, timeout_s=PATIENCE_S)
                await self._write(number, key, "delete", None, expected, removal, versions)
            await self.think(process)

    def _value(self, number: int, serial: int) -> bytes:
        return f"{number}-{serial}".encode().ljust(self.cluster.options.row_bytes, b".")

    def open_table(self, db: AsyncClient, _process: "Process") -> Any:
        """What a client works with: `find`, `put` and `delete` of the table."""
        return db.table(self.name)

    def _now(self) -> int:
        return int(self.now * TICKS_PER_S)

    def _note(
        self, number: int, key: str, what: str, argument: Any, result: Any, invoked: int, *, returned: bool
    ) -> None:
        self._pending.pop(number, None)
        self.outcomes["ok" if returned else "unknown"] += 1
        end = self._now() if returned else None
        self.operations.append(Operation(number, what, argument, result, invoked, end, key))
        self.cluster.tell(what, key, argument, result, returned)

    def died(self, number: int) -> None:
        """See `Workload`."""
        if number in self._pending:
            key, what, argument, invoked = self._pending[number]
            self._note(number, key, what, argument, None, invoked, returned=False)

    async def _get(self, table: Any, number: int, key: str, versions: dict[str, int]) -> None:
        invoked = self._now()
        try:
            row = await table.find(key, timeout_s=PATIENCE_S)
        except AntiphonError:
            return  # a read without an answer says nothing
        result = None if row is None else (row.version.id, bytes(row.value))
        versions[key] = ABSENT if row is None else row.version.id
        self._note(number, key, "get", None, result, invoked, returned=True)

    async def _write(
        self,
        number: int,
        key: str,
        what: str,
        value: bytes | None,
        expected: int | None,
        change: Any,
        versions: Any,
    ) -> None:
        """A put or a deletion was asked for: `change` is its outcome, by which `versions` of the client are changed."""
        invoked, argument = self._now(), (expected, value)
        self._pending[number] = (key, what, argument, invoked)
        try:
            version = await change
        except KeyNotFoundError:
            result = ("absent", ABSENT)
        except VersionMismatchError as error:
            self.outcomes["refused"] += 1
            result = ("mismatch", int(error.details["actual"]))
        except AntiphonError as error:
            said = () if value is None else (value,)
            self.cluster.tell(f"{what}-failed", key, *said, error.code)
            self._note(number, key, what, argument, None, invoked, returned=False)
            return
        else:
            result = ("ok", ABSENT if version is None else version.id)
        versions[key] = result[1]
        self._note(number, key, what, argument, result, invoked, returned=True)

    def check(self) -> None:
        """See `Workload`."""
        for key in dict.fromkeys(operation.key for operation in self.operations):
            done = [operation for operation in self.operations if operation.key == key]
            verdict = linearizability.check(done, self.model, None, JUDGE_STEPS_MAX)
            require(
                verdict is not Verdict.NOT_LINEARIZABLE,
                "linearizable",
                f"no order of the operations on key {key!r} of table {self.name!r} explains what its clients were told",
                self.shard_ids[0],
            )
        if self.cluster.options.row_log_bytes:
            self.outcomes["bounded"] = self._bounded()

    def _bounded(self) -> int:
        """Replicas whose log begins behind what their stores have made of it."""
        hosts = [host for one in self.shard_ids for _, host in self.cluster.replicas_of(one)]
        return sum(host.log.log_start > 0 for host in hosts)


def one_key(state: Any, operation: Operation) -> Any:
    """The model of one key: None where it is not there, else (version, value); version None: not known to anybody yet."""
    if operation.what == "get":
        return _seen(state, operation.result)
    expected, value = operation.argument
    if operation.returned is None:
        if expected is not None and not _may_be(state, expected):
            return state
        return None if operation.what == "delete" else (None, value)
    outcome, version = operation.result
    if outcome == "mismatch":
        return _known(state, version) if version != expected and _may_be(state, version) else NO
    if outcome == "absent":
        return state if state is None and expected in {None, ABSENT} else NO
    if expected is not None and not _may_be(state, expected):
        return NO
    if operation.what == "delete":
        return None if state is not None else NO
    return (version, value) if state is None or state[0] is None or version > state[0] else NO


def _seen(state: Any, result: Any) -> Any:
    if state is None or result is None:
        return state if state is result else NO
    return result if state[1] == result[1] and state[0] in {None, result[0]} else NO


def _may_be(state: Any, version: int) -> bool:
    """Can the key have this version (`ABSENT`: not be there)?"""
    if state is None:
        return version == ABSENT
    return version != ABSENT and state[0] in {None, version}


def _known(state: Any, version: int) -> Any:
    return state if state is None else (version, state[1])
