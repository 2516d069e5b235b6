"""Lists, scans, gets next to a key and removals of ranges over Oxia's protocol, of a table in each order, at any node.

Every answer is of one shard, and is judged by the committed logs, in an order that is written down here a second time.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import AntiphonError
from antiphon.gateway.protobuf import decode
from antiphon.model.metadata import key_hash
from antiphon.oxia import messages as m
from antiphon.oxia.reads import PAGE_ROWS
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.oxia_client import PATIENCE_S, SERVICES, CallError, NoEndError, OxiaClient
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.scans import fits
from antiphon.simulation.cluster.workloads.table_history import (
    Positions,
    Seen,
    TableHistory,
    Written,
    positions,
)
from antiphon.simulation.cluster.workloads.workload import Workload, make_table
from antiphon.simulation.cluster.world import OXIA_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

KEYS: Final = (
    b"a", b"a/", b"a0", b"b", b"/", b"/a", b"/a/", b"/a/x", b"/a/y", b"/a//", b"/a/x/1", b"/a0", b"/b", b"/b/x", b"/b//",
    b"//", "é/ö".encode(),
)  # fmt: skip
NO_TEXT: Final = (b"\xff", b"\xff/a")  # only other clients put them, and Oxia's see nothing of them
BOUNDS: Final = (*KEYS, b"/a/xx", b"z/z", b"")
FLOOR, CEILING, LOWER, HIGHER = 1, 2, 3, 4
WORDS: Final = {FLOOR: "floor", CEILING: "ceiling", LOWER: "lower", HIGHER: "higher"}
LOOKS_MAX: Final = 50_000
SLASH: Final = ord("/")
Place = Any
"""Where a key stands in an order: what compares."""


def by_depth(key: bytes) -> Place:
    """Its depth first, then slashes behind everything else. None: it is in no order."""
    if key in NO_TEXT:
        return None
    depth = key.count(b"/") - (1 if key[-2:] == b"//" else 0)
    return depth, tuple(256 if one == SLASH else one for one in key)


def by_bytes(key: bytes) -> Place:
    """As it is."""
    return key


class Span(NamedTuple):
    """Places from `low` to `high`, each of them included or not; None: no bound."""

    low: Place
    high: Place
    with_low: bool = True
    with_high: bool = False

    def holds(self, place: Place) -> bool:
        """Is a place in it?"""
        if place is None:
            return False
        above = self.low is None or place > self.low or (self.with_low and place == self.low)
        return above and (self.high is None or place < self.high or (self.with_high and place == self.high))


class Table(NamedTuple):
    """A table, and the order of its keys."""

    name: str
    config: dict[str, str]
    place: Callable[[bytes], Place]
    shard_ids: list[int]

    def span(self, start: bytes, end: bytes) -> Span:
        """A range that a client names."""
        return Span(self.place(start), self.place(end) if end else None)


class Look(NamedTuple):
    """What a client was told of a shard: everything in `span`. `together`: of one moment."""

    table: Table
    shard_id: int
    what: str
    span: Span
    rows: dict[bytes, Seen]
    began: Positions
    ended: Positions
    together: bool


class Removal(NamedTuple):
    """What was to go, of a shard or of all (-1); `ended`: None where nobody knows whether it did, or still will."""

    table: Table
    shard_id: int
    span: Span
    began: Positions
    ended: Positions | None


class Asking(NamedTuple):
    """What a client of the workload works with."""

    db: "AsyncClient"
    oxia: OxiaClient
    process: "Process"
    number: int
    shards: dict[str, list[tuple[int, int]]]  # by table: last hash, shard


@workload("oxia_scanners", 36, Drawn(one_of(0, 0, 0, 0, 2, 3)), logs_in=False)
class OxiaRangeWorkload(Workload):
    """Two tables, one in each order of keys, written by Oxia's and by Python's clients; List, RangeScan, gets next to a key
    and removals of ranges over Oxia's protocol, in pages of a few rows in some worlds.

    Checked: each answer is in the table's order and has exactly the keys of its range that were there in that time, those
    of one page at one moment; what was removed as a range was gone at once, and nothing else went.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "oxia-ranges") -> None:
        super().__init__(cluster, name)
        self.tables = (
            Table("oxia-by-depth", {"key.sorting": "hierarchical"}, by_depth, []),
            Table("oxia-by-bytes", {}, by_bytes, []),
        )
        self.looks: list[Look] = []
        self.removals: list[Removal] = []
        self.outcomes = {"written": 0, "looked": 0, "ranges-removed": 0, "failed": 0}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        for table in self.tables:
            shards = await make_table(self.cluster, db, table.name, table.config)
            table.shard_ids.extend(shard.shard_id for shard in shards)

    async def _work(self, process: "Process", number: int) -> None:
        draw = self.cluster.stream(f"nodes asked by {process.name}")
        nodes = [(machine.host, OXIA_PORT) for machine in self.cluster.machines]
        client = OxiaClient(nodes, draw, "grpc-go/1", draw.choice(SERVICES))
        by = Asking(await self.connected(), client, process, number, {})
        serial = 0
        while not self.stopped and len(self.looks) < LOOKS_MAX:
            serial += 1
            table, kind = process.random.choice(self.tables), process.random.random()
            try:
                if kind < 0.55:
                    await self._write(by, table, b"%d-%d" % (number, serial))
                elif kind < 0.62:
                    await self._remove_range(by, table)
                elif kind < 0.75:
                    await self._find(by, table)
                else:
                    await self._list(by, table, values=kind < 0.88)
            except (CallError, NoEndError, AntiphonError) as error:
                self.outcomes["failed"] += 1
                self.cluster.tell("oxia-range-failed", repr(error))
                by.shards.pop(table.name, None)
            if process.random.random() < 0.05:
                client.hang_up()
            await self.think(process)
        client.hang_up()
        await by.db.close()

    # -- what clients ask for -----------------------------------------------------------------------------------------

    async def _shards(self, by: Asking, table: Table) -> list[tuple[int, int]]:
        """The shards of a table, by the map that the client has; it asks for one where it has none."""
        if table.name not in by.shards:
            request = m.ShardAssignmentsRequest(namespace=table.name)
            connection, stream_id, stream = await by.oxia.begin("GetShardAssignments", request)
            data = await stream.next(PATIENCE_S)
            connection.give_up(stream_id)
            found = decode(m.ShardAssignments, data or b"").namespaces[0].value.assignments
            by.shards[table.name] = sorted((one.hashes.last, one.shard) for one in found)
        return by.shards[table.name]

    async def _write(self, by: Asking, table: Table, value: bytes) -> None:
        draw = by.process.random
        how = draw.random()
        if how < 0.25:
            await self._write_natively(by, table, draw.choice((*KEYS, *NO_TEXT)), value)
            return
        key = draw.choice(KEYS)
        shard_id = next(shard for last, shard in await self._shards(by, table) if key_hash(key) <= last)
        if how < 0.8:
            request = m.WriteRequest(shard=shard_id, puts=[m.PutRequest(key=key, value=value)])
            await by.oxia.call("Write", request, m.WriteResponse)
        else:
            place = self._asked(table, -1, Span(table.place(key), table.place(key), with_high=True))
            request = m.WriteRequest(shard=shard_id, deletes=[m.DeleteRequest(key=key)])
            await by.oxia.call("Write", request, m.WriteResponse)
            self._removed(place)
        self.outcomes["written"] += 1

    async def _write_natively(self, by: Asking, table: Table, key: bytes, value: bytes) -> None:
        await by.db.table(table.name).put(key, value, timeout_s=PATIENCE_S)
        self.outcomes["written"] += 1

    def _asked(self, table: Table, shard_id: int, span: Span) -> int:
        """Note a removal before it is carried out: its client may be killed meanwhile."""
        self.removals.append(Removal(table, shard_id, span, positions(self.cluster), None))
        return len(self.removals) - 1

    def _removed(self, place: int) -> None:
        self.removals[place] = self.removals[place]._replace(ended=positions(self.cluster))

    async def _remove_range(self, by: Asking, table: Table) -> None:
        start, end, shard_id = await self._range(by, table)
        place = self._asked(table, shard_id, table.span(start, end))
        wanted = m.DeleteRangeRequest(start_inclusive=start, end_exclusive=end)
        request = m.WriteRequest(shard=shard_id, delete_ranges=[wanted])
        self.cluster.tell("oxia-range-removal", table.name, shard_id, start, end)
        await by.oxia.call("Write", request, m.WriteResponse)
        self._removed(place)
        self.outcomes["ranges-removed"] += 1

    async def _range(self, by: Asking, table: Table) -> tuple[bytes, bytes, int]:
        """A range that is most often not empty, and a shard."""
        draw = by.process.random
        shard_id = draw.choice(await self._shards(by, table))[1]
        parent = draw.choice((b"", b"/a", b"/b", b"/a/x", b"a"))
        if draw.random() < 0.4:
            return parent + b"/", parent + b"//", shard_id
        start, end = sorted(draw.sample(BOUNDS, 2), key=table.place)
        return start, draw.choice((end, end, end, b"")), shard_id

    async def _list(self, by: Asking, table: Table, *, values: bool) -> None:
        start, end, shard_id = await self._range(by, table)
        request = m.RangeRequest(shard=shard_id, start_inclusive=start, end_exclusive=end)
        began = positions(self.cluster)
        if values:
            scanned = await by.oxia.calls("RangeScan", request, m.RangeScanResponse)
            found = [(one.key, _seen(one)) for page in scanned for one in page.records]
        else:
            listed = await by.oxia.calls("List", request, m.ListResponse)
            found = [(key, (-1, None)) for page in listed for key in page.keys]
        keys = [key for key, _ in found]
        require(
            all(table.place(one) < table.place(other) for one, other in pairwise(keys)),
            "oxia-order",
            f"a scan of {table.name!r} from {start!r} to {end!r} returned {keys}",
            shard_id,
        )
        page = self.cluster.options.oxia_page_rows or PAGE_ROWS
        what = f"{'scan' if values else 'list'} from {start!r} to {end!r}"
        together = len(keys) + len(NO_TEXT) < page
        self._note(table, shard_id, what, table.span(start, end), dict(found), began, together=together)

    async def _find(self, by: Asking, table: Table) -> None:
        draw = by.process.random
        key, comparison = draw.choice(BOUNDS[:-1]), draw.choice(tuple(WORDS))
        shard_id = draw.choice(await self._shards(by, table))[1]
        wanted = m.GetRequest(key=key, include_value=True, comparison_type=comparison)
        began = positions(self.cluster)
        answer = await by.oxia.call("Read", m.ReadRequest(shard=shard_id, gets=[wanted]), m.ReadResponse)
        (one,) = answer.gets
        rows = {one.key: _seen(one)} if one.status == m.Status.OK else {}
        at, found = table.place(key), table.place(one.key) if rows else None
        if comparison in {FLOOR, LOWER}:
            span = Span(found, at, with_high=comparison == FLOOR)
        else:
            span = Span(at, found, with_low=comparison == CEILING, with_high=True)
        what = f"{WORDS[comparison]} of {key!r}"
        self._note(table, shard_id, what, span, rows, began, together=True)

    def _note(
        self,
        table: Table,
        shard_id: int,
        what: str,
        span: Span,
        rows: dict[bytes, Seen],
        began: Positions,
        *,
        together: bool,
    ) -> None:
        self.outcomes["looked"] += 1
        self.cluster.tell("oxia-look", table.name, shard_id, what, sorted(rows))
        self.looks.append(Look(table, shard_id, what, span, rows, began, positions(self.cluster), together))

    # -- judges -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        for table in self.tables:
            history = TableHistory(self.cluster, table.shard_ids)
            removals = [one for one in self.removals if one.table is table]
            for look in self.looks:
                if look.table is table:
                    _check_look(history, look)
            for one in removals:
                if one.ended is not None and not history.is_split:
                    _check_gone(history, one, one.ended)
            for shard_id, written in history.by_shard.items():
                for change in written:
                    require(
                        change.value is not None or any(_explains(history, one, change) for one in removals),
                        "only-the-range",
                        f"{change.key!r} of {table.name!r} was removed at {change.offset}, and nobody had asked for that",
                        shard_id,
                    )


def _seen(one: m.GetResponse) -> Seen:
    return one.version.version_id or 0, bytes(one.value or b"")


def _keys_of(history: TableHistory, table: Table, shard_id: int, span: Span) -> list[bytes]:
    """Keys of a shard that ever were in a span."""
    return [
        key
        for key, written in history.by_key.items()
        if written[0].shard_id == shard_id and span.holds(table.place(key))
    ]


def _check_look(history: TableHistory, look: Look) -> None:
    """What was found was there; what was not found was not, where the shard was never split."""
    table, shard_id = look.table, look.shard_id
    keys = list(look.rows)
    if not history.is_split:
        mine = _keys_of(history, table, shard_id, look.span)
        keys += [key for key in mine if key not in look.rows and key not in NO_TEXT]
    for key in keys:
        allowed, row = history.allowed(key, look.began, look.ended), look.rows.get(key)
        require(
            look.span.holds(table.place(key)) and any(fits(row, state) for state in allowed),
            "oxia-range",
            f"a {look.what} in {table.name!r} found {key!r} to be {row}; it was {allowed} in that time",
            shard_id,
        )
    if look.together and not history.is_split:
        require(
            any(
                all(fits(look.rows.get(key), state.get(key)) for key in keys)
                for state in history.states(shard_id, look.began, look.ended)
            ),
            "oxia-range-of-one-moment",
            f"a {look.what} in {table.name!r} found {look.rows}; at no moment in that time was that so",
            shard_id,
        )


def _check_gone(history: TableHistory, one: Removal, ended: Positions) -> None:
    """Everything that was to go was gone at one moment between question and answer."""
    if one.shard_id < 0:
        return
    keys = _keys_of(history, one.table, one.shard_id, one.span)
    require(
        any(
            all(state.get(key) is None for key in keys)
            for state in history.states(one.shard_id, one.began, ended)
        ),
        "range-gone-at-once",
        f"{keys} of {one.table.name!r} were removed as a range, and were never gone at one moment",
        one.shard_id,
    )


def _explains(history: TableHistory, one: Removal, change: Written) -> bool:
    return (
        one.span.holds(one.table.place(change.key))
        and (one.shard_id in {-1, change.shard_id} or history.is_split)
        and change.end > one.began.get(change.shard_id, 0)
        and (one.ended is None or change.end <= one.ended.get(change.shard_id, 0))
    )
