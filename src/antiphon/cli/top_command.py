"""`antiphon top`: nodes, busy shards, groups and what happened, refreshed in a terminal until `q`."""

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import print_json, usage

if TYPE_CHECKING:
    from antiphon.tools.top.reading import Reader

EVERY_S: Final = 2.0
ONCE_S: Final = 1.0  # between the two reads that rates take
PLAIN_LINES: Final = 60  # of a refresh where there is no terminal
PLAIN_WIDTH: Final = 160
KEYS: Final = "q quit, s sort"


@command("top", "antiphon top --every 5 --sort lag")
def top(
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, max=3600.0, help="Seconds between two refreshes.")
    ] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Show one second of the cluster, and end.")] = False,
    sort: Annotated[
        str, typer.Option("--sort", help="Order of the shards: rate, lag, size, name or leader.")
    ] = "rate",
    topic: Annotated[
        str, typer.Option("--topic", help="Only shards and groups of this topic or table.")
    ] = "",
    common: CommonOptions = COMMON,
) -> None:
    """Watch a cluster: nodes with their rates, the busiest shards, groups by lag, what happened last.

    In a terminal: q ends it, s changes the order of the shards. Elsewhere each refresh is plain lines, and with --json one
    JSON document on one line. A node is asked once for each refresh, about at most 500 of the shards that it leads.
    """
    from antiphon.tools.top.view import SORTS

    if sort not in SORTS:
        usage(f"--sort takes {', '.join(SORTS)}; not {sort!r}")
    asyncio.run(_run(common.addresses(), topic, sort, every_s, once=once, as_json=common.as_json))


async def _run(servers: str, topic: str, sort: str, every_s: float, *, once: bool, as_json: bool) -> None:
    from antiphon.client import aio
    from antiphon.tools.top.reading import Reader

    async with aio.connect(servers, client_id="antiphon top") as db:
        reader = Reader(db, topic)
        try:
            await reader.start()
            if once or as_json or not sys.stdout.isatty():
                await _plain(reader, sort, every_s, once=once, as_json=as_json)
            else:
                await _Live(reader, sort, every_s).run()
        finally:
            await reader.close()


async def _plain(reader: "Reader", sort: str, every_s: float, *, once: bool, as_json: bool) -> None:
    """Refreshes as lines. The first one comes after two reads, so that it has rates."""
    from antiphon.tools.top.layout import screen

    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    await reader.read()
    while True:
        await asyncio.sleep(ONCE_S if once else every_s)
        await reader.read()
        view = reader.view(sort)
        if as_json:
            print_json(view.plain())
        else:
            typer.echo("\n".join(line.text for line in screen(view, width, PLAIN_LINES)))
            if not once:
                typer.echo("")
        sys.stdout.flush()
        if once:
            return


class _Live:
    """The screen, drawn anew after each read, after each key, and when its size changes."""

    def __init__(self, reader: "Reader", sort: str, every_s: float) -> None:
        self._reader = reader
        self._sort = sort
        self._every_s = every_s
        self._is_read = False
        self._quit = asyncio.Event()

    async def run(self) -> None:
        from antiphon.tools.top.screen import Screen

        with Screen(self._pressed, self._draw) as self._screen:
            ends = asyncio.create_task(self._quit.wait())
            reads = asyncio.create_task(self._refresh())
            try:
                await asyncio.wait({ends, reads}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ends.cancel()
                reads.cancel()
                told = await asyncio.gather(reads, return_exceptions=True)
        if isinstance(told[0], Exception):
            raise told[0]

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = min(ONCE_S, self._every_s)  # the second read gives the first rates
        while not self._quit.is_set():
            began_s = loop.time()
            await self._reader.read()
            self._is_read = True
            self._draw()
            await asyncio.sleep(max(0.1, pause_s - (loop.time() - began_s)))
            pause_s = self._every_s

    def _draw(self) -> None:
        from antiphon.tools.top.layout import screen

        if self._is_read:
            width, height = self._screen.size()
            self._screen.draw(screen(self._reader.view(self._sort), width, height, KEYS))

    def _pressed(self, key: str) -> None:
        from antiphon.tools.top.view import SORTS

        if key in {"q", "Q", "\x03", "\x04"}:
            self._quit.set()
        elif key == "s":
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
            self._draw()
