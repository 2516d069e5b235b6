"""Rows of share-partitions as they stand in the group's log, read without the code that writes them."""

from dataclasses import dataclass

import msgspec

DONE = (2, 3)  # acknowledged, archived


@dataclass(slots=True)
class StoredShare:
    """A row: who wrote it, in which term, and what is done."""

    partition: int
    owner: bytes
    term: int
    start: int
    spans: list[tuple[int, int, int]]

    @property
    def done(self) -> int:
        """Records from the start offset on that are never given to anybody any more."""
        return sum(length for length, state, _ in self.spans if state in DONE)

    def is_done(self, offset: int) -> bool:
        """Is the record at this offset never given to anybody any more?"""
        if offset < self.start:
            return True
        at = self.start
        for length, state, _ in self.spans:
            at += length
            if offset < at:
                return state in DONE
        return False


def stored_share(key: bytes, value: bytes | None, group: str, topic_id: bytes) -> StoredShare | None:
    """The row of a share-partition of this group and topic; None for other rows."""
    prefix = f"share/{group}/{topic_id.hex()}/".encode()
    if value is None or not key.startswith(prefix):
        return None
    owner, term, _, _, start, *spans = msgspec.msgpack.decode(value)
    return StoredShare(
        int(key[len(prefix) :]), owner, term, start, [tuple(s) for s in spans[0]] if spans else []
    )
