"""The page of Spark queries that write."""

import re

import msgspec

from antiphon import system
from antiphon.model.internal import EPOCHS_TABLE
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableWrite
from antiphon.spark.staging.epochs import HEAD, Epoch, key_of
from tests.dashboard.looking import page, served
from tests.dashboard.test_rights_and_rows import EVIL, at_leader
from tests.node.in_process import Nodes, in_virtual_time


async def put_heads(nodes: Nodes, heads: list[tuple[str, int, int]]) -> None:
    """Queries with when they decided and applied their last epoch, as Spark leaves them."""
    gateway = nodes.nodes[0].gateway
    topic = await gateway.create_topic(CreateTopic("flights"))
    epochs = await gateway.create_topic(CreateTopic(EPOCHS_TABLE, Kind.TABLE, internal=True))
    puts = [
        Put(
            key_of(HEAD, topic.topic_id, query),
            msgspec.msgpack.encode(
                Epoch(query, 3, "flights", topic.topic_id, False, b"", 1234, decided, applied, {}, ())
            ),
        )
        for query, decided, applied in heads
    ]
    write = TableWrite(epochs.shards[0].shard_id, tuple(puts), internal=True)
    await at_leader(nodes, write.shard_id, lambda there: there.table_write(write))


def cells(text: str, query: str) -> list[str]:
    row = next(one for one in text.split("<tr>") if f'scope="row">{query}<' in one)
    return [re.sub("<[^>]+>", "", one).strip() for one in re.findall("<td.*?</td>", row)]


@in_virtual_time
async def test_queries_have_their_lag_and_since_when_they_are_silent() -> None:
    async with served() as nodes:
        assert "No query has written exactly once" in (await page("/ui/queries")).text
        now = system.wall_ms()
        late, done = now - 90_000, now - 600_000
        await put_heads(nodes, [("done", done, done + 5), ("waits", late, 0), (EVIL, done, done)])
        for node in nodes.nodes:
            text = (await page("/ui/queries", node)).text
            assert EVIL not in text
            assert 'href="/ui/queries" data-key="q" aria-current="page"' in text
            assert text.index(">waits<") < text.index('scope="row">done<'), "what waits is told first"
            _, batch, rows, state, lag_rows, lag_ms, silent = cells(text, "waits")
            assert (batch, rows, state, lag_rows) == ("3", "1\u202f234", "waits", "1\u202f234")
            assert int(lag_ms.replace("\u202f", "")) >= 90_000
            assert silent.endswith("s ago")
            assert cells(text, "done")[3:] == ["applied", "0", "0", "10\u202fmin ago"]
        assert (await page("/ui/queries?q=WAIT")).text.count('scope="row"') == 1
        assert "No name has" in (await page("/ui/queries?q=nothing")).text


@in_virtual_time
async def test_queries_are_paged() -> None:
    async with served(1) as nodes:
        await put_heads(nodes, [(f"query-{number:02}", 1_000 + number, 5_000) for number in range(60)])
        first, second = (await page("/ui/queries")).text, (await page("/ui/queries?start=50")).text
        assert (first.count('scope="row"'), second.count('scope="row"')) == (50, 10)
        assert 'rel="next" href="/ui/queries?start=50"' in first
        assert first.index("query-59") < first.index("query-10")
