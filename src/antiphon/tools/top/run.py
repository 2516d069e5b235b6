"""Reads a cluster again and again, and shows it: on the whole screen of a terminal, or as lines."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from typing import Final, TypeAlias

from antiphon.client import aio
from antiphon.tools.top.layout import screen
from antiphon.tools.top.reading import Reader
from antiphon.tools.top.screen import Screen
from antiphon.tools.top.view import SORTS

ONCE_S: Final = 1.0  # between the two reads that rates take
PLAIN_LINES: Final = 60  # of a refresh where there is no terminal
PLAIN_WIDTH: Final = 160
WriteJson: TypeAlias = Callable[[object], None]
KEYS: Final = "q quit, s sort"


async def run(
    servers: str, topic: str, sort: str, every_s: float, *, once: bool, write_json: WriteJson | None
) -> None:
    """Show a cluster until it is told to end: on the whole screen, or, elsewhere than in a terminal, as lines.

    `sort`: one of SORTS. `every_s`: between two refreshes. `once`: one second of it. `write_json`: takes each refresh in
    the place of a screen.
    """
    async with aio.connect(servers, client_id="antiphon top") as db:
        reader = Reader(db, topic)
        try:
            await reader.start()
            if once or write_json or not sys.stdout.isatty():
                await _plain(reader, sort, every_s, once=once, write_json=write_json)
            else:
                await _Live(reader, sort, every_s).run()
        finally:
            await reader.close()


async def _plain(
    reader: Reader, sort: str, every_s: float, *, once: bool, write_json: WriteJson | None
) -> None:
    """Refreshes as lines. The first one comes after two reads, so that it has rates."""
    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    await reader.read()
    while True:
        await asyncio.sleep(ONCE_S if once else every_s)
        await reader.read()
        view = reader.view(sort)
        if write_json is not None:
            write_json(view.plain())
        else:
            print("\n".join(line.text for line in screen(view, width, PLAIN_LINES)))
            if not once:
                print()
        sys.stdout.flush()
        if once:
            return


class _Live:
    """The screen, drawn anew after each read, after each key, and when its size changes."""

    def __init__(self, reader: Reader, sort: str, every_s: float) -> None:
        self._reader = reader
        self._sort = sort
        self._every_s = every_s
        self._is_read = False
        self._quit = asyncio.Event()

    async def run(self) -> None:
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
        if self._is_read:
            width, height = self._screen.size()
            self._screen.draw(screen(self._reader.view(self._sort), width, height, KEYS))

    def _pressed(self, key: str) -> None:
        if key in {"q", "Q", "\x03", "\x04"}:
            self._quit.set()
        elif key == "s":
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
            self._draw()
