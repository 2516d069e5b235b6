"""What `antiphon top` makes of nodes' answers, without a cluster: rates, which shards it asks for, the lines of a screen."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from rich.cells import cell_len

from antiphon.errors import UnavailableError, UnknownTopicError
from antiphon.model.counters import LATENCY_BOUNDS_S, Counters
from antiphon.model.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import GetStatus, ReplicaStatus, StatusReply
from antiphon.tools.top.layout import Line, amount, cut, duration, folded, milliseconds, screen, size
from antiphon.tools.top.rates import PAGE_SHARDS, NodeRates, ShardBook, node_rates, quantile_s
from antiphon.tools.top.reading import Reader
from antiphon.tools.top.view import (
    CONSUMERS,
    ROWS_MAX,
    SHARES,
    SORTS,
    Census,
    EventRow,
    GroupRow,
    Reached,
    View,
    busiest,
    group_rows,
    merged_events,
    node_rows,
)
from tests.coroutines import on_a_loop

NODES = (0, 1, 2)
BUCKETS = len(LATENCY_BOUNDS_S) + 1


def status(node: int = 0, up_s: float = 10, counters: Counters | None = None, **more: object) -> StatusReply:
    meta = NodeMeta(node, "h:1", incarnation=str(more.pop("incarnation", "a")))
    return StatusReply(meta, "1", int(up_s * 1000), 2**26, (), counters=counters or Counters(), **more)  # type: ignore[arg-type]


def replica(
    shard_id: int, end: int, followers: Sequence[tuple[int, int]] = (), state: str = "ok"
) -> ReplicaStatus:
    return ReplicaStatus(shard_id, "leader", 1, 0, end, end, 1000 * end, tuple(followers), state)


def cluster(shards: int = 4, *, dead: int | None = None, name: str = "flights") -> ClusterMeta:
    nodes = tuple(NodeMeta(node, f"h:{node}", alive=node != dead) for node in NODES)
    made = tuple(
        ShardMeta(1 + n, n, NODES, leader=n % 3, term=1, status=ShardStatus.ONLINE, live=NODES)
        for n in range(shards)
    )
    return ClusterMeta("c0ffee00", 7, 0, nodes, (TopicMeta(name, b"t" * 16, Kind.TOPIC, 3, "oxia", made),))


# -- rates --------------------------------------------------------------------------------------------------------


def test_rates_are_differences_by_the_nodes_own_clock() -> None:
    before = status(up_s=10, counters=Counters(10, 100, 1000, 0, 500, 7, 1, cpu_ms=1000))
    now = status(up_s=12.5, counters=Counters(15, 350, 6000, 0, 1000, 17, 1, cpu_ms=2250))
    rates = node_rates(before, now)
    assert rates == NodeRates(2.0, 100.0, 2000.0, 200.0, 4.0, 0.0, 0.5, None, None)


def test_a_node_that_was_started_anew_has_no_rates_at_first() -> None:
    counted = Counters(append_records=100)
    assert node_rates(None, status()) is None
    assert node_rates(status(up_s=50, counters=counted), status(up_s=3)) is None
    restarted = status(up_s=60, incarnation="b")
    assert node_rates(status(up_s=50, counters=counted), restarted) is None, (
        "it is up longer than when it was asked last"
    )


def test_the_slowest_hundredth_is_that_of_the_time_between_two_reads() -> None:
    old = [1_000_000, *[0] * (BUCKETS - 1)]  # fast, and long ago
    new = list(old)
    new[5] += 100  # from 3 to 5 ms
    assert quantile_s(old, new, 0.99) == pytest.approx(0.003 + 0.002 * 0.99)
    new[8] += 100  # up to 50 ms: now they are the slow half
    assert quantile_s(old, new, 0.99) == pytest.approx(0.02 + 0.03 * 0.98)
    new[-1] += 1000
    assert quantile_s(old, new, 0.99) == float("inf")
    assert quantile_s(old, old, 0.99) is None
    assert quantile_s(old[:-1], new, 0.99) is None, "another version's buckets"


def test_a_shards_rate_and_its_slowest_replica() -> None:
    book = ShardBook()
    book.take(0, 100.0, {1}, [replica(1, 1000, [(1, 1000), (2, 940)]), replica(2, 5)])
    assert book.reads[1].records_s is None
    assert 2 not in book.reads, "nobody asked for it"
    book.take(0, 104.0, {1}, [replica(1, 1400, [(1, 1390), (2, 940)])])
    read = book.reads[1]
    assert (read.records_s, read.lag, read.lag_node) == (100.0, 460, 2)
    book.take(1, 105.0, {1}, [replica(1, 1390)])
    assert book.reads[1].records_s is None, "another leader, whose log is shorter"
    book.keep({1: None}, 105.0)
    assert 1 in book.reads
    book.keep({}, 105.0)
    assert not book.reads


# -- which shards are asked for -----------------------------------------------------------------------------------


def test_all_shards_are_asked_for_where_they_are_few() -> None:
    assert ShardBook(10).next_page(0, range(10)) == list(range(10))


def test_of_many_shards_the_busy_ones_and_the_next_ones_are_asked_for() -> None:
    book = ShardBook(100)
    led = list(range(10_000))
    for at_s in (0.0, 2.0):
        book.take(0, at_s, {7000, 8000}, [replica(7000, int(at_s * 10)), replica(8000, int(at_s * 20))])
    seen: set[int] = set()
    for _ in range(210):
        page = book.next_page(0, led, first={9_999})
        assert len(page) == len(set(page)) == 100
        assert {7000, 8000, 9_999} <= set(page)
        seen.update(page)
    assert seen == set(led), "a round of pages reaches every shard"


# -- rows ---------------------------------------------------------------------------------------------------------


def test_what_the_metadata_says() -> None:
    census = Census(cluster(6, dead=2))
    assert (census.without_leader, census.under_replicated) == (0, 6)
    assert (census.leads, census.holds) == ({0: 2, 1: 2, 2: 2}, {0: 6, 1: 6, 2: 6})
    rows = node_rows(census, {0: status(0), 2: status(2)}, {})
    assert [row.state for row in rows] == ["up", "no answer", "not in"]
    assert [row.state for row in node_rows(census, {}, {})] == ["no answer", "no answer", "DOWN"]
    assert Census(cluster(), "other").has_topic is False


@pytest.mark.parametrize(
    ("sort", "order"),
    [("rate", [1, 2, 3, 0]), ("lag", [2, 1, 3, 0]), ("size", [3, 1, 2, 0]), ("name", [0, 1, 2, 3])],
)
def test_shards_are_sorted(sort: str, order: list[int]) -> None:
    census, book = Census(cluster()), ShardBook()
    ends = {1: (0, 0), 2: (0, 400), 3: (100, 300), 4: (500, 500)}  # by shard id, which is its index + 1
    lags = {2: 10, 3: 99, 4: 0}
    for at in (0, 1):
        replicas = [replica(one, ends[one][at], [(1, ends[one][at] - lags[one])]) for one in lags]
        book.take(0, 1.0 + at, ends, replicas)
    assert [row.shard for row in busiest(census, book, "", sort)] == order
    assert busiest(census, book, "nothing", sort) == []
    assert len(busiest(census, book, "flights", sort, most=2)) == 2


def test_a_shard_without_a_leader_comes_first_in_every_order() -> None:
    meta = cluster()
    lost = ShardMeta(9, 9, NODES, term=3, status=ShardStatus.ELECTION)
    topic = TopicMeta("z", b"z" * 16, Kind.TOPIC, 3, "oxia", (lost,))
    census = Census(ClusterMeta("c", 1, 0, meta.nodes, (*meta.topics, topic)))
    assert census.without_leader == 1
    for sort in SORTS:
        first = busiest(census, ShardBook(), "", sort)[0]
        assert (first.topic, first.leader, first.status) == ("z", None, "Election")


def test_groups_by_what_they_are_behind() -> None:
    census, book = Census(cluster()), ShardBook()
    book.take(0, 1.0, {1, 2}, [replica(1, 100), replica(2, 50)])
    offsets = [
        Reached("b", "flights", 0, 90, SHARES),
        Reached("a", "flights", 0, 10, CONSUMERS),
        Reached("a", "flights", 1, 49, CONSUMERS),
        Reached("a", "flights", 2, 0, CONSUMERS),
    ]
    rows = group_rows(census, book, offsets)
    assert rows == [
        GroupRow("a", CONSUMERS, 3, 91, "flights/0", 1),
        GroupRow("b", SHARES, 1, 10, "flights/0", 0),
    ]


def test_events_are_those_of_the_node_that_is_up_longest() -> None:
    told = [
        status(0, 5, events=((9, "leader", "t/0", "x"),)),
        status(1, 500, events=((7, "a", "b", "c"), (8, "d", "e", "f"))),
    ]
    assert merged_events(told, 1) == [EventRow(8, "d", "e", "f")]
    assert merged_events([], 5) == []


# -- lines --------------------------------------------------------------------------------------------------------


def view(shards: int = 4, *, groups: int = 2, events: int = 5, nodes: int = 3, name: str = "flights") -> View:
    census, book = Census(cluster(shards, name=name)), ShardBook(1000)
    for at_s in (1.0, 2.0):
        book.take(
            0,
            at_s,
            set(range(1, 901)),
            [replica(n, n * int(at_s) * 12_345) for n in range(1, min(shards, 900) + 1)],
        )
    rates = NodeRates(1.5, 123_456.7, 9.9e9, 1234.0, 0.0, 1.0, 7.99, 0.0123, float("inf"))
    answers = {0: status(0, events=()), 1: status(1, 1e6, Counters(descriptors=123_456))}
    row = node_rows(census, answers, {0: rates})
    return View(
        1.7e9, "c0ffee00-1", 7, 0, 1, 0, shards, 1, 2, min(shards, 1500), "", "rate",
        (row * nodes)[:nodes],
        busiest(census, book, "", "rate"),
        [GroupRow(f"{name} group {n}", SHARES, 3, 10 * n, f"{name}/1", n % 2) for n in range(groups)],
        "no groups",
        [EventRow(1_700_000_000_000, "leader", f"{name}/1", "went from node 1 to node 2 in term 4")] * events,
        "",
    )  # fmt: skip


SIZES = [(80, 24), (200, 60), (132, 43), (40, 10), (20, 4), (250, 12)]
VIEWS = {
    "small": view(),
    "large": view(10_000, groups=900, events=100, nodes=50),
    "empty": view(0, groups=0, events=0, nodes=1),
    "names": view(30, name="航班\x1b[2J\u202egnp" * 20),
}


@pytest.mark.parametrize("columns_and_lines", SIZES, ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_no_line_is_wider_and_no_screen_higher_than_the_terminal(
    name: str, columns_and_lines: tuple[int, int]
) -> None:
    width, height = columns_and_lines
    lines = screen(VIEWS[name], width, height, "q quit")
    assert 0 < len(lines) <= height
    assert max(cell_len(line.text) for line in lines) <= width
    assert all(line.text.isprintable() for line in lines), "no name moves the cursor"


@pytest.mark.parametrize("name", ["small", "large"])
def test_at_80_by_24_everything_has_its_place(name: str) -> None:
    text = "\n".join(line.text for line in screen(VIEWS[name], 80, 24))
    for wanted in (
        "NODE  STATE",
        "SHARD",
        "GROUP",
        "LAST EVENTS",
        "1 without leader, 2 under-replicated",
        "flights/",
    ):
        assert wanted in text
    assert ("more" in text) == (name == "large"), "what does not fit is told as a number"


def test_a_wide_screen_has_every_column() -> None:
    text = "\n".join(line.text for line in screen(VIEWS["small"], 200, 60))
    for heading in (
        "REPL",
        "GETS/s",
        "COMMIT99",
        "SYNC99",
        "CPU%",
        "FDS",
        "UP",
        "SLOWEST",
        "END",
        "MOST BEHIND",
    ):
        assert heading in text
    row = next(line for line in text.splitlines() if line.strip().startswith("0*"))
    for cell in ("123k", "9.2G", "12.3", ">10s", "799"):
        assert f" {cell} " in row


def test_what_is_wrong_stands_out() -> None:
    found = VIEWS["small"]._replace(problem="no node answers")
    lines = screen(found, 80, 24)
    assert Line("! no node answers", "bad") in lines
    assert [line.style for line in lines if line.text.startswith("NODE")] == ["head"]
    nodes = lines[[line.style for line in lines].index("head") + 1 :][:3]
    assert [(line.text.split()[0], line.style) for line in nodes] == [("0*", ""), ("1", ""), ("2", "bad")]


def test_events_that_follow_from_one_are_folded() -> None:
    leaders = [EventRow(5000 - n, "leader", f"t/{n}", "is led by node 1") for n in range(6)]
    down = EventRow(4500, "node down", "node 2", "is not heard of any more")
    old = EventRow(1000, "leader", "t/9", "is led by node 1")
    assert folded([*leaders, down, old]) == [
        EventRow(5000, "leader", "t/0", "is led by node 1, and 5 like it"),
        down,
        old,
    ]
    assert folded([*leaders[:2], old, old, old]) == [
        *leaders[:2],
        old._replace(what="is led by node 1, and 2 like it"),
    ]
    assert folded([leaders[0], old, down, leaders[1]]) == [leaders[0], old, down, leaders[1]]


def test_figures_are_short() -> None:
    values = (None, 0, 7, 0.25, 12.34, 99.96, 999, 999.6, 1234, 99_960, 123_456, 1e6, 1e13)
    shown = [amount(value) for value in values]
    assert shown == [
        "-",
        "0",
        "7",
        "0.2",
        "12.3",
        "100",
        "999",
        "1.0k",
        "1.2k",
        "100k",
        "123k",
        "1.0M",
        "10.0T",
    ]
    assert [size(1024), size(2**26), size(1023)] == ["1.0k", "64.0M", "1.0k"]
    assert [milliseconds(one) for one in (None, 0.00021, 0.25, float("inf"))] == ["-", "0.2", "250", ">10s"]
    assert [duration(one) for one in (None, 59, 119, 120, 7200, 90_000, 200_000)] == [
        "-",
        "59s",
        "119s",
        "2m",
        "2h",
        "25h",
        "2d",
    ]
    assert cell_len(cut("航班航班", 5)) <= 5


# -- asking -------------------------------------------------------------------------------------------------------


class Nodes:
    """Stands for a client: nodes that answer, or do not, as the test says."""

    def __init__(self, meta: ClusterMeta) -> None:
        self.meta = meta
        self.silent: set[int] = set()
        self.asked: list[GetStatus] = []
        self.metadata_asked = 0
        self.held: asyncio.Future[None] | None = None

    async def metadata(self) -> ClusterMeta:
        self.metadata_asked += 1
        if self.held is not None:
            await self.held
        return self.meta

    async def node_status(self, node: int, of: GetStatus, *, timeout_s: float) -> StatusReply:
        assert timeout_s < 2
        self.asked.append(of)
        if node in self.silent:
            raise UnavailableError("no")
        return status(node, 10 + len(self.asked), metadata_version=self.meta.version)

    def table(self, name: str) -> Any:
        raise UnknownTopicError(f"no {name}")


def reader_of(nodes: Nodes, topic: str = "") -> Reader:
    return Reader(cast("Any", nodes), topic)


@on_a_loop
async def test_a_refresh_costs_each_node_one_request_of_bounded_size() -> None:
    nodes = Nodes(cluster(10_000))
    reader = reader_of(nodes)
    await reader.start()
    for n in range(1, 5):
        await reader.read()
        assert len(nodes.asked) == 3 * n
    assert max(len(one.shards or ()) for one in nodes.asked) == PAGE_SHARDS
    assert nodes.metadata_asked == 1, "metadata that is known is not asked for again"
    nodes.meta = msgspec.structs.replace(cluster(10_000), version=8)
    await reader.read()
    await reader.read()
    assert nodes.metadata_asked == 2
    assert len(reader.view().busiest) == ROWS_MAX
    await reader.close()


@on_a_loop
async def test_nodes_that_go_away_are_rows_that_say_so() -> None:
    nodes = Nodes(cluster())
    reader = reader_of(nodes)
    await reader.start()
    await reader.read()
    nodes.silent = {1}
    await reader.read()
    assert [row.state for row in reader.view().nodes] == ["up", "no answer", "up"]
    assert reader.view().problem == ""
    nodes.silent = {0, 1, 2}
    await reader.read()
    assert "no node answers" in reader.view().problem
    nodes.silent = set()
    await reader.read()
    assert ([row.state for row in reader.view().nodes], reader.view().problem) == (["up"] * 3, "")
    nodes.meta = ClusterMeta("c0ffee00", 9, 0, nodes.meta.nodes, ())
    await reader.read()
    assert reader.view().busiest == []
    await reader.close()


@on_a_loop
async def test_a_read_ends_at_once_although_its_answer_comes_in_that_moment() -> None:
    nodes = Nodes(cluster())
    reader = reader_of(nodes)
    await reader.start()
    nodes.meta = msgspec.structs.replace(nodes.meta, version=8)
    nodes.held = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0.01)
    assert nodes.metadata_asked == 2
    nodes.held.set_result(None)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await reader.close()
