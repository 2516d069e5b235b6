"""How far each origin's log has come at one place of a replica's log, with a digest of all that led there.

Beside the last LSN of each origin stands a *chain*: a checksum over the checksums of that origin's entries from the first to
the last. Whoever passes an entry on says the chain before it, and the receiver compares it with its own: two histories that
ever parted are found out at their first exchange, however long ago they parted and whoever brings the entry. It is for a
log per origin what the preceding entry's term is for Raft's.
"""

import struct
from typing import Annotated, Any, Final, NamedTuple

from crc32c import crc32c
from msgspec import Meta

from antiphon.replication.vclock import NOTHING, ORIGINS_MAX, Vclock

_LINK: Final = struct.Struct(">IqI")

Chain = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Chains = Annotated[tuple[Chain, ...], Meta(max_length=ORIGINS_MAX + 1)]


class OriginEntry(NamedTuple):
    """One entry of a shard where every replica writes: a whole RecordBatch, opaque here.

    `(origin, lsn)` is its identity for everybody (S4.21), `crc` the batch's own checksum; the offsets are its place in the
    log of whoever holds it.
    """

    origin: int
    lsn: int
    crc: int
    base_offset: int
    next_offset: int
    size_bytes: int
    data: Any  # bytes-like in the node; anything comparable in the simulator


class Mark(NamedTuple):
    """The history as it is before the entry at `offset` of a log. `chains` go with the components of `clock`."""

    offset: int
    clock: Vclock
    chains: Chains


START: Final = Mark(0, NOTHING, ())


def link(chain: int, lsn: int, crc: int) -> int:
    """The chain after an entry, from the chain before it."""
    return int(crc32c(_LINK.pack(chain, lsn, crc)))


class History:
    """A mark that moves forward entry by entry."""

    __slots__ = ("chains", "lsns", "offset")

    def __init__(self, start: Mark = START) -> None:
        blank = [0] * (ORIGINS_MAX + 1)
        self.offset = start.offset
        self.lsns = [*start.clock, *blank[len(start.clock) :]]
        self.chains = [*start.chains, *blank[len(start.chains) :]]

    def take(self, entry: OriginEntry) -> None:
        """Move past `entry`."""
        origin = entry.origin
        self.chains[origin] = link(self.chains[origin], entry.lsn, entry.crc)
        self.lsns[origin] = entry.lsn
        self.offset = entry.next_offset

    def clock(self) -> Vclock:
        """The vector clock here."""
        lsns = self.lsns
        last = ORIGINS_MAX
        while last >= 0 and lsns[last] == 0:
            last -= 1
        return tuple(lsns[: last + 1])

    def mark(self) -> Mark:
        """This place, to be kept."""
        clock = self.clock()
        return Mark(self.offset, clock, tuple(self.chains[: len(clock)]))
