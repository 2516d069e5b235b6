"""Rows of a table as they were, on its page: as of an offset, a time, and by version."""

import asyncio
import re
from datetime import UTC, datetime

from tests.api.test_reads import client
from tests.dashboard.looking import page, served
from tests.node.in_process import in_virtual_time


def keys(text: str) -> list[str]:
    return re.findall(r'scope="row"><pre class="data text">([^<]+)</pre>', text)


@in_virtual_time
async def test_rows_are_shown_as_of_an_offset_of_a_shard() -> None:
    async with served() as nodes, client(nodes) as db:
        one = await db.create_table("one")
        await one.put("a", b"first")
        end = (await one.offsets())[1]
        await one.put("a", b"second")
        await one.put("b", b"later")
        now = (await page("/ui/tables/one")).text
        assert (keys(now), ">second<" in now, "The past" in now) == (["a", "b"], True, False)
        for node in nodes.nodes:
            then = (await page(f"/ui/tables/one?offset={end}", node)).text
            assert (keys(then), "first" in then, ">second<" in then) == (["a"], True, False)
            assert f"as of offset {end} of shard 0" in then
            assert 'href="/ui/tables/one?q=&amp;as=auto"' in then, "there is a way back to now"
            assert f'name="offset" value="{end}"' in then
        assert "There was no row then" in (await page("/ui/tables/one?offset=0")).text
        beyond = await page("/ui/tables/one?offset=10000&q=a")
        assert (beyond.status, "nothing is written there yet" in beyond.text) == (200, True)
        assert 'name="q" value="a"' in beyond.text, "what was asked for stays, to ask for something else"
        for odd in ("offset=x", "offset=-1", "offset=1&version=2", "at=x", "version=1", "at=99999-01-01"):
            found = await page(f"/ui/tables/one?{odd}")
            assert (found.status, found.text.count('class="empty bad"')) == (200, 1), odd
        assert "name the shard too" not in (await page("/ui/tables/one?offset=0")).text
        await db.create_table("two", shards=2)
        assert "name the shard too" in (await page("/ui/tables/two?offset=0")).text
        assert "of shard 1" in (await page("/ui/tables/two?offset=0&shard=1")).text


@in_virtual_time
async def test_rows_are_shown_as_of_a_time_over_all_shards_and_page_on_in_the_same_past() -> None:
    async with served() as nodes, client(nodes) as db:
        table = await db.create_table("carts", shards=4)
        for number in range(70):
            await table.put(f"k{number:02}", b"old")
        row = await table.get("k69")
        await asyncio.sleep(5)
        for number in range(70):
            await table.put(f"k{number:02}", b"new")
        await table.put("late", b"new")
        moment = row.version.modified_ms + 2_000
        at = datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        seen: list[str] = []
        path = f"/ui/tables/carts?at={at}"
        for _ in range(3):
            text = (await page(path)).text
            assert "The past" in text
            assert "of shard 3" in text
            assert ">new<" not in text
            seen += keys(text)
            following = re.search(r'rel="next" href="([^"]+)"', text)
            if following is None:
                break
            path = following[1].replace("&amp;", "&")
        assert seen == [f"k{number:02}" for number in range(70)]
        assert keys((await page(f"/ui/tables/carts?at={at}&q=k1")).text) == [f"k1{n}" for n in range(10)]


@in_virtual_time
async def test_one_version_of_a_key_is_shown() -> None:
    async with served() as nodes, client(nodes) as db:
        one = await db.create_table("one", shards=2)
        await one.put("a", b"first")
        version = (await one.get("a")).version.id
        await one.put("a", b"second")
        text = (await page(f"/ui/tables/one?q=a&version={version}")).text
        assert (keys(text), "first" in text, ">second<" in text) == (["a"], True, False)
        assert f"when it had version {version}" in text
        assert "never had version" in (await page("/ui/tables/one?q=a&version=999")).text
        assert "write the whole key" in (await page("/ui/tables/one?version=1")).text
