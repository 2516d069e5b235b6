"""Since when it is known what is wrong, over restarts: the file `findings` of the node's directory.

A finding keeps its time when the node starts again and finds the same. What was there at the last stop, and is not found
again, is forgotten: of the node itself a minute after the start, of a replica when the scrub has read it and found nothing.
"""

import os
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from antiphon.errors import UNDECODABLE
from antiphon.log.disk import read_whole, replace_file
from antiphon.model.findings import OF_NODE

if TYPE_CHECKING:
    from antiphon.log.disk import Disk

BOOK_NAME: Final = "findings"
SETTLED_MS: Final = 60_000  # after a start: what is wrong with the node itself is known again by then

Key = tuple[int, str]  # the shard, and the kind where it is the node's


class FirstSeen:
    """See the module's text; of one node, on its event loop, but for `write`."""

    def __init__(self, disk: "Disk", directory: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, BOOK_NAME)
        self._since_ms = _load(disk, self._path)
        self._began_ms = 0
        self._now: set[Key] = set()
        self._has_news = False

    def since_ms(self, key: Key, now_ms: int) -> int:
        """Since when this is known, which is wrong now. A clock that was set back since makes nothing of the future."""
        self._now.add(key)
        found = self._since_ms.get(_name(key), now_ms)
        if self._since_ms.get(_name(key)) != min(found, now_ms):
            self._since_ms[_name(key)] = min(found, now_ms)
            self._has_news = True
        return min(found, now_ms)

    def mended(self, key: Key) -> None:
        """This is not wrong any more."""
        self._now.discard(key)
        self._forget(key)

    def read_whole(self, shard_id: int) -> None:
        """The replica has been read, and is as it should be, unless something else is known of it."""
        if (shard_id, "") not in self._now:
            self._forget((shard_id, ""))

    def _forget(self, key: Key) -> None:
        if self._since_ms.pop(_name(key), None) is not None:
            self._has_news = True

    def news(self, now_ms: int) -> dict[str, int] | None:
        """What is to be written; None where nothing has changed since the last time."""
        self._began_ms = self._began_ms or now_ms
        if now_ms - self._began_ms > SETTLED_MS:
            known = {_name(key) for key in self._now}
            of_node = f"{OF_NODE} "
            for name in [name for name in self._since_ms if name.startswith(of_node) and name not in known]:
                del self._since_ms[name]
                self._has_news = True
        if not self._has_news:
            return None
        self._has_news = False
        return dict(self._since_ms)

    def write(self, book: dict[str, int]) -> None:
        """Write it down, in any thread. Where that fails a restart begins to count anew."""
        try:
            replace_file(self._disk, self._path, msgspec.json.encode(book), durable=False)
        except OSError as error:
            structlog.get_logger().warning("findings_not_kept", error=str(error))


def _name(key: Key) -> str:
    return f"{key[0]} {key[1]}"


def _load(disk: "Disk", path: str) -> dict[str, int]:
    try:
        return msgspec.json.decode(read_whole(disk, path) or b"{}", type=dict[str, int])
    except (OSError, *UNDECODABLE):
        return {}
