"""Records of one key on the page of a topic's records: in its shard, backwards, within a bound of bytes."""

import base64
import re
from typing import Any, cast

import pytest

from antiphon.http.pages import key_records
from antiphon.http.pages.asking import Asker, Piece
from antiphon.http.pages.log_pages import PIECE_BYTES
from antiphon.model.requests import CreateTopic
from antiphon.model.topic_keys import shard_of_topic_key
from tests.api.test_reads import client
from tests.dashboard.looking import page, served
from tests.dashboard.test_pages import batch
from tests.dashboard.test_rights_and_rows import at_leader
from tests.node.in_process import in_virtual_time

BINARY = b"\x00\xff<key>"


def offsets(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"/record\?shard=\d+&amp;offset=(\d+)", text)]


def following(text: str) -> str | None:
    found = re.search(r'rel="next" href="([^"]+)"', text)
    return None if found is None else found[1].replace("&amp;", "&")


@in_virtual_time
async def test_a_key_is_found_in_its_shard_however_it_is_written() -> None:
    async with served() as nodes, client(nodes) as db:
        topic = await db.create_topic("orders", shards=5)
        for number in range(3):
            await topic.append(b"of binary %d" % number, key=BINARY)
            await topic.append(b"of text %d" % number, key="k\u00fc")
            await topic.append(b"of a longer key", key="k\u00fc-and-more")
        path = "/ui/topics/orders/records"
        coded = {"hex": BINARY.hex(), "base64": base64.urlsafe_b64encode(BINARY).decode()}
        for node in nodes.nodes:
            for form, text in coded.items():
                shown = (await page(f"{path}?key={text}&key_as={form}", node)).text
                assert re.findall(r"of binary \d", shown) == ["of binary 2", "of binary 1", "of binary 0"]
                assert f"the key into shard {shard_of_topic_key(BINARY, 5)}" in shown
            shown = (await page(f"{path}?key=k%C3%BC&shard=0", node)).text
            assert re.findall(r"of text \d", shown) == ["of text 2", "of text 1", "of text 0"]
            assert "longer" not in shown
        elsewhere = (shard_of_topic_key(BINARY, 5) + 1) % 5
        there = (await page(f"{path}?key={BINARY.hex()}&key_as=hex&here=1&shard={elsewhere}")).text
        assert "has this key" in there
        for odd in ("key=zz&key_as=hex", "key=%25&key_as=base64", "key=" + "k" * 8_193, "key=k&shard=9"):
            assert (await page(f"{path}?{odd}")).status == 400, odd
        for odd in ("key=k&key_as=none", "key=%ff", "key=k&offset=newest", "key=k&offset=-7"):
            assert (await page(f"{path}?{odd}")).status == 200, odd
        shard = shard_of_topic_key(BINARY, 5)
        one = (await page(f"/ui/topics/orders/record?shard={shard}&offset=0")).text
        assert "Records of this key" in one
        table = await db.create_table("carts", shards=3)
        await table.put("a", b"first")
        await table.put("a", b"second")
        exact = (await page("/ui/tables/carts?q=a")).text
        changes = re.search(r'href="([^"]+)">Its changes', exact)
        assert changes is not None
        assert len(offsets((await page(changes[1].replace("&amp;", "&"))).text)) == 2


@in_virtual_time
async def test_records_that_were_deleted_are_not_shown_though_their_batch_is_there() -> None:
    class Deleted:
        async def log_piece(self, _shard: int, _offset: int, _max_bytes: int) -> Piece:
            return Piece(memoryview(batch(*[(b"k", b"v")] * 4)), 2, 4, 4, (), 0)

    found = await key_records.read_key(cast("Asker", Deleted()), 1, 2, 4, b"k")
    assert ([one.offset for one in found.records], found.low, found.seen) == ([3, 2], 2, 2)


@in_virtual_time
async def test_a_key_is_paged_backwards_from_the_end_within_a_bound_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    honest = Asker.log_piece

    async def counted(self: Asker, *args: Any) -> Piece:
        piece = await honest(self, *args)
        read.append(len(piece.batches))
        return piece

    monkeypatch.setattr(Asker, "log_piece", counted)
    async with served(1) as nodes:
        shard = (await nodes.nodes[0].gateway.create_topic(CreateTopic("orders"))).shards[0]
        wanted: list[int] = []
        for number in range(120):
            # Large and small batches take turns, and some are of several records.
            size = 90_000 if number % 3 else 10
            made = batch((b"other", b"x" * size), (b"k", b"v"), (b"other", b"y"), (b"k", b"w"))
            wanted += [number * 4 + 1, number * 4 + 3]
            await at_leader(nodes, shard.shard_id, lambda there, b=made: there.append(shard.shard_id, b))
        seen: list[int] = []
        path: str | None = "/ui/topics/orders/records?key=k"
        while path is not None:
            read.clear()
            text = (await page(path)).text
            assert sum(read) <= key_records.READ_BYTES_MAX + 2 * PIECE_BYTES
            seen += offsets(text)
            path = following(text)
            assert len(seen) <= len(wanted), "no record is shown twice"
        assert seen == wanted[::-1]
        read.clear()
        path, pages = "/ui/topics/orders/records?key=nowhere", 0
        while path is not None:
            text = (await page(path)).text
            assert offsets(text) == []
            path, pages = following(text), pages + 1
        assert pages >= 4, "7.2 MB are not looked through at once"
        assert sum(read) < 3 * 7_300_000, "little is read twice"
        assert offsets((await page("/ui/topics/orders/records?key=k&offset=7")).text) == [7, 5, 3, 1]
        monkeypatch.setattr(key_records, "FIRST_STRETCH", 1)
        assert offsets((await page("/ui/topics/orders/records?key=k")).text) == seen[:50]
