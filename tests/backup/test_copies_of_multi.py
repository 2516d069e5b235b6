"""What an operator does about tables that every replica writes, which no backup takes: see docs/operations.md."""

from pathlib import Path

import pytest

from antiphon.backup.create import create_backup
from antiphon.backup.place import Place
from antiphon.backup.restore_topic import restore_topic
from antiphon.client.aio import AsyncClient
from antiphon.errors import BackupError
from tests.node.in_process import cluster_of, in_virtual_time

MULTI = {"writers": "multi"}


async def copy_rows(db: AsyncClient, source: str, target: str) -> None:
    async for row in db.table(source).scan():
        await db.table(target).put(row.key, row.value)


async def rows_of(db: AsyncClient, name: str) -> dict[bytes, bytes]:
    return {row.key: row.value async for row in db.table(name).scan()}


@in_virtual_time
async def test_a_copy_with_one_writer_is_backed_up_and_brought_back(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "place"))
    async with cluster_of(3), AsyncClient("node-0:7400") as db:
        await db.create_table("carts", replicas=3, config=MULTI)
        for number in range(20):
            await db.table("carts").put(b"%d" % number, b"filled")
        await db.table("carts").delete(b"7")
        with pytest.raises(BackupError, match=r"every replica writes carts .*--without carts"):
            await create_backup(db, place)
        await db.create_table("carts-copy")
        await copy_rows(db, "carts", "carts-copy")
        saved = await create_backup(db, place, without=["carts"])
        wanted = await rows_of(db, "carts")
        assert len(wanted) == 19

        await db.delete_table("carts")
        await restore_topic(db, place, saved, "carts-copy", "carts-back")
        await db.create_table("carts", replicas=3, config=MULTI)
        await copy_rows(db, "carts-back", "carts")
        assert await rows_of(db, "carts") == wanted
