"""Row groups of archived files that are in a node's memory, for the next fetches."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from antiphon.archive.files import RowGroup
    from antiphon.archive.format import ArchivedFile

KEEP_S: Final = 10.0  # for so long a group that nobody has read yet gives its place to none
FileKey = tuple[bytes, str]


class _Held:
    __slots__ = ("client", "group", "is_read", "since_s", "size_bytes")

    def __init__(self, group: "RowGroup", since_s: float, client: object) -> None:
        self.group = group
        self.client = client
        self.size_bytes = int(group.rows.nbytes)
        self.since_s = since_s
        self.is_read = False


class RowGroups:
    """At most `limit_bytes` of them, and the one that came last; the least recently used is the first to go.

    What was read for somebody stays until it was used, or for `KEEP_S`: more readers than there is room for take turns,
    and none reads a file again and again in vain. What waits for one client's readers takes no more than what is left for
    the others: who asks for much and fetches none of it keeps nobody out.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[tuple[FileKey, int], _Held] = {}  # the least recently used first
        self._starts: dict[FileKey, list[int]] = {}

    def find(self, file: "ArchivedFile", offset: int) -> "RowGroup | None":
        """The group of a file that holds an offset, if it is here."""
        key = _key(file)
        for start in self._starts.get(key, ()):
            held = self._held[key, start]
            if start <= offset < held.group.end:
                held.is_read = True
                self._held[key, start] = self._held.pop((key, start))
                return held.group
        return None

    def has_room(self, now_s: float, client: object = None) -> bool:
        """May another group be read for a client? Not while those that wait for his readers take as much as is left."""
        waiting = [one for one in self._held.values() if not _may_go(one, now_s)]
        own = sum(one.size_bytes for one in waiting if one.client == client)
        return own < self.limit_bytes - sum(one.size_bytes for one in waiting)

    def add(self, file: "ArchivedFile", group: "RowGroup", now_s: float, client: object = None) -> None:
        """Keep a group that was just read for a client."""
        key = _key(file)
        place = key, group.start
        self._drop(place)
        held = self._held[place] = _Held(group, now_s, client)
        self._starts.setdefault(key, []).append(group.start)
        self.held_bytes += held.size_bytes
        for other in [other for other, one in self._held.items() if other != place and _may_go(one, now_s)]:
            if self.held_bytes <= self.limit_bytes:
                return
            self._drop(other)

    def _drop(self, place: tuple[FileKey, int]) -> None:
        held = self._held.pop(place, None)
        if held is None:
            return
        self.held_bytes -= held.size_bytes
        key, start = place
        self._starts[key].remove(start)
        if not self._starts[key]:
            del self._starts[key]


def _may_go(held: _Held, now_s: float) -> bool:
    return held.is_read or now_s - held.since_s >= KEEP_S


def _key(file: "ArchivedFile") -> FileKey:
    return file.key, file.checksum
