"""Pages of a cluster of 10,000 shards in 1,000 topics: what they visit, ask and render is bounded."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgspec
import pytest

from antiphon.errors import UnavailableError
from antiphon.http.api import tables as api_tables
from antiphon.http.pages.asking import Asker
from antiphon.model.findings import Finding
from antiphon.model.metadata import ClusterMeta, KeyRanges, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.past import bounds_of
from antiphon.model.requests import StatusReply, TableGet, TableRows, TableScan
from antiphon.model.sessions import ListSessions
from antiphon.node.node_gateway import NodeGateway
from tests.dashboard.looking import page, served
from tests.node.in_process import in_virtual_time

TOPICS, SHARDS = 1_000, 10  # of each topic
ALL = TOPICS * SHARDS
FINDINGS = 300
PAGE_BYTES = 400_000


class Counted(tuple[ShardMeta, ...]):
    """Shards that count how many of them somebody looked at."""

    __slots__ = ()
    visits: ClassVar[int] = 0

    def __iter__(self) -> Iterator[ShardMeta]:
        for at in range(len(self)):
            Counted.visits += 1
            yield tuple.__getitem__(self, at)

    def __getitem__(self, at: Any) -> Any:
        found = tuple.__getitem__(self, at)
        Counted.visits += len(found) if isinstance(at, slice) else 1
        return found


def shard(shard_id: int, index: int) -> ShardMeta:
    # The last thousand lost their leaders; each third has a replica that is not live.
    lost = shard_id % 10 == 9
    return ShardMeta(
        shard_id, index, (0, 1, 2), leader=-1 if lost else 0, term=1,
        status=ShardStatus.OFFLINE if lost else ShardStatus.ONLINE, live=(0, 1) if shard_id % 3 else (0, 1, 2),
    )  # fmt: skip


def made() -> tuple[TopicMeta, ...]:
    return tuple(
        TopicMeta(
            f"t-{number:04}", b"%16d" % number, Kind.TABLE if number % 2 else Kind.TOPIC, 3, "oxia",
            Counted(shard(100 + number * SHARDS + index, index) for index in range(SHARDS)),
        )
        for number in range(TOPICS)
    )  # fmt: skip


@asynccontextmanager
async def large(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A node that knows of a large cluster, and has found many things wrong."""
    topics = made()
    by_id = {one.shard_id: (topic, one) for topic in topics for one in topic.shards}
    by_name = {topic.name: topic for topic in topics}
    async with served(1) as nodes:
        view = nodes.nodes[0].gateway.cluster.view
        others = tuple(NodeMeta(node, f"h:{node}", alive=False) for node in (1, 2))
        honest_topic, honest_shard, honest_status = NodeGateway.topic, NodeGateway.shard, NodeGateway.status

        def metadata(_gateway: NodeGateway) -> ClusterMeta:
            now = view.cluster()
            return msgspec.structs.replace(now, topics=(*topics, *now.topics), nodes=(*now.nodes, *others))

        def status(gateway: NodeGateway, shards: Any = None) -> StatusReply:
            found = tuple(
                Finding("damaged", 100 + number * 33, "unhealthy", 1, f"finding {number}")
                for number in range(FINDINGS)
            )
            return msgspec.structs.replace(honest_status(gateway, shards), findings=found)

        monkeypatch.setattr(NodeGateway, "metadata", property(metadata))
        monkeypatch.setattr(
            NodeGateway, "topic", lambda self, name: by_name.get(name) or honest_topic(self, name)
        )
        monkeypatch.setattr(NodeGateway, "shard", lambda self, one: by_id.get(one) or honest_shard(self, one))
        monkeypatch.setattr(NodeGateway, "status", status)
        monkeypatch.setattr(Asker, "rows", _no_rows)
        yield


async def _no_rows(_self: Asker, body: TableGet | TableScan) -> TableRows:
    return TableRows(tuple(None for _ in body.keys) if isinstance(body, TableGet) else ())


# How often the page may look at a shard, and how many rows of tables it may render.
BOUNDS = {
    "/": (2 * ALL, 60),
    "/?q=t-0999": (2 * ALL, 60),
    "/?q=bad&start=3000": (2 * ALL, 60),
    "/ui/sample": (0, 0),
    "/ui/topics": (3 * 50 * SHARDS, 55),
    "/ui/topics?sort=shards&start=950": (3 * 50 * SHARDS, 55),
    "/ui/topics?q=t-05": (3 * 50 * SHARDS, 55),
    "/ui/topics/t-0500": (5 * SHARDS, 20),
    "/ui/topics/t-0500/records?shard=9": (2 * SHARDS, 5),
    "/ui/topics/t-0500/records?key=k": (2 * SHARDS, 5),
    "/ui/tables/t-0501": (5 * SHARDS, 5),
    "/ui/groups": (0, 5),
    "/ui/transactions": (0, 5),
    "/ui/jobs": (0, 5),
    "/ui/queries": (0, 5),
    "/ui/sessions": (ALL, 5),
    "/ui/client-metrics": (0, 5),
    "/ui/security": (0, 10),
    "/ui/nodes/0": (ALL, 200),
    "/ui/nodes/1?q=t-09": (ALL, 200),
    "/ui/actions/create_topic": (0, 5),
    "/ui/actions/elect_leader?topic=t-0999&shard=9": (SHARDS, 5),
    "/api": (0, 1_000),
}


@in_virtual_time
async def test_each_page_of_ten_thousand_shards_is_bounded_in_what_it_visits_and_renders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with large(monkeypatch):
        for path, (visits, rows) in BOUNDS.items():
            Counted.visits = 0
            found = await page(path)
            assert found.status == 200, path
            assert Counted.visits <= visits, f"{path} looked at shards {Counted.visits} times"
            assert found.text.count("<tr") <= rows, path
            assert len(found.text) <= PAGE_BYTES, path
        text = (await page("/")).text
        assert "9\u202f004<small>/10\u202f004" in text, "the table that a cluster begins with has four shards"
        assert text.count("has no leader (Offline)") == 28, (
            "with two nodes that are down, as many as a page shows"
        )
        assert "303 more" in text, "findings, and a line for all other shards without a leader"
        assert "t-0003/3" in (await page("/ui/nodes/0")).text, "findings name their shards"


@in_virtual_time
async def test_sessions_ask_a_bounded_number_of_shards_for_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def silent(_self: Asker, body: ListSessions) -> Any:
        asked.append(body.shard_id)
        raise UnavailableError("nobody answers")

    monkeypatch.setattr(Asker, "sessions", silent)
    async with large(monkeypatch):
        text = (await page("/ui/sessions")).text
        assert len(asked) == api_tables.SHARDS_ASKED
        assert "Look on with the button below" in text
        path, pages = "/ui/sessions?after=0-0", 0
        asked.clear()
        while path:
            text = (await page(path)).text
            rest = text.partition('rel="next" href="')[2]
            path, pages = rest.partition('"')[0].replace("&amp;", "&"), pages + 1
        assert len(asked) == len(set(asked)) == TOPICS // 2 * SHARDS + 4, "each shard of a table once"
        assert pages == -(-len(asked) // api_tables.SHARDS_ASKED)


def test_bounds_of_a_shard_do_not_search_the_table_for_each_of_its_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[ShardMeta] = []
    honest = KeyRanges.range_of

    def searched(self: KeyRanges, one: ShardMeta) -> tuple[int, int]:
        searches.append(one)
        return honest(self, one)

    monkeypatch.setattr(KeyRanges, "range_of", searched)
    Counted.visits = 0
    shards = Counted(shard(100 + index, index) for index in range(2_000))
    table = TopicMeta("wide", b"w" * 16, Kind.TABLE, 3, "oxia", shards)
    found = bounds_of(table, tuple.__getitem__(shards, 1_999), 3, 9)
    assert (found.start, found.end, found.last) == (3, 9, 2**32 - 1)
    first = bounds_of(table, tuple.__getitem__(shards, 0), 0, 0)
    assert (first.first, first.last_ever) == (0, first.last)
    assert len(searches) == 2
    assert Counted.visits <= 2 * 4 * 2_000
