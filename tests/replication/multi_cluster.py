"""A few replicas of one shard that all of them write, on disks and links that a test works by hand."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from antiphon.replication.actions import Commit, Repaired
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_actions import (
    AdoptBase,
    AppendEntries,
    MultiAction,
    ReadForRelay,
    Send,
    SplitBrain,
    TrimmedAway,
)
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.origin_history import START, History, Mark, OriginEntry
from antiphon.replication.origin_index import OriginIndex

if TYPE_CHECKING:
    from antiphon.replication.multi_messages import MultiMessage

SHARD = 7


class Site:
    """One node: a replica, its disk and what it told its clients."""

    def __init__(self, sites: "Sites", node: int) -> None:
        self.sites = sites
        self.node = node
        self.life = 0
        self.base = START
        self.disk: list[OriginEntry] = []
        self.log: list[OriginEntry] = []  # with what is not durable yet
        self.unsynced: deque[tuple[int, Sequence[OriginEntry]]] = deque()
        self.said: list[MultiMessage] = []
        self.splits: list[SplitBrain] = []
        self.trimmed_away: list[int] = []
        self.repaired = 0
        self.up = False
        self.committed = 0
        self.damaged = False
        self.kept: list[OriginEntry] = []  # what stands behind the damage of its log

    def start(self) -> None:
        self.life += 1
        self.up, self.log, self.committed = True, list(self.disk), 0
        history = History(self.base)
        for entry in self.log:
            history.take(entry)
        self.replica = MultiWriterReplica(
            node_id=self.node,
            shard=SHARD,
            origins=self.sites.origins,
            index=OriginIndex([self.base], stride=2),
            end=history.mark(),
            life=self.life,
            config=self.sites.config,
            damaged=self.damaged,
        )
        self.damaged = False
        self.replica.kept.extend(self.kept)
        self.run(self.replica.start())

    def crash(self) -> None:
        self.up = False
        self.unsynced.clear()

    def lose_disk(self) -> None:
        self.crash()
        self.disk, self.base = [], START

    def write(self, *texts: str) -> None:
        """Clients write these here, one entry each."""
        self.run(self.replica.propose([(1, crc32(text.encode()), len(text), text) for text in texts]))
        if self.sites.sync_at_once:
            self.sync()

    def sync(self) -> None:
        """Everything that waits for the disk is durable."""
        while self.unsynced:
            write_id, entries = self.unsynced.popleft()
            self.disk += entries
            self.run(self.replica.persisted(write_id))

    def run(self, actions: Sequence[MultiAction]) -> None:
        for action in actions:
            match action:
                case AppendEntries():
                    self.log += action.entries
                    self.unsynced.append((action.write_id, action.entries))
                case AdoptBase():
                    self.base = action.mark
                    self.unsynced.append((action.write_id, ()))
                case Send():
                    self.said.append(action.message)
                    self.sites.mail.append((self.node, action.to, action.message))
                case ReadForRelay():
                    found = [
                        entry
                        for entry in self.log
                        if action.from_offset <= entry.base_offset < action.to_offset
                    ]
                    self.run(
                        self.replica.entries_read(action.to, action.from_offset, found[: self.sites.feed_max])
                    )
                case Commit():
                    self.committed = action.high_watermark
                case SplitBrain():
                    self.splits.append(action)
                case TrimmedAway():
                    self.trimmed_away.append(action.peer)
                case Repaired():
                    self.repaired += 1

    def vclock(self, origins: int) -> list[int]:
        clock = self.replica.vclock[1:]
        return [*clock, *[0] * (origins - len(clock))]

    def of_origin(self, origin: int) -> list[object]:
        return [entry.data for entry in self.log if entry.origin == origin]

    def trim(self, offset: int) -> None:
        """The log begins there from now on, on the disk too."""
        base = self.mark_at(offset)
        self.run(self.replica.trimmed(base))
        self.base, self.log = base, [entry for entry in self.log if entry.base_offset >= offset]
        self.disk = list(self.log)

    def mark_at(self, offset: int) -> Mark:
        history = History(self.base)
        for entry in self.log:
            if entry.base_offset < offset:
                history.take(entry)
        return history.mark()


class Sites:
    """All nodes and the mail between them, delivered in order when a test says so."""

    def __init__(
        self, nodes: int = 3, *, first_hand: bool = False, sync_at_once: bool = True, feed_max: int = 3
    ) -> None:
        self.origins = {node: node for node in range(1, nodes + 1)}
        self.config = MultiWriterConfig(
            window_bytes=40, feed_bytes_max=20, resend_ticks=2, stall_ticks=5, first_hand=first_hand
        )
        self.sync_at_once = sync_at_once
        self.feed_max = feed_max
        self.mail: deque[tuple[int, int, MultiMessage]] = deque()
        self.cut: set[tuple[int, int]] = set()
        self.sites = {node: Site(self, node) for node in self.origins}
        for site in self.sites.values():
            site.start()

    def __getitem__(self, node: int) -> Site:
        return self.sites[node]

    def split(self, *group: int) -> None:
        """Cut these nodes off the others, silently."""
        for one in self.sites:
            for other in self.sites:
                if (one in group) != (other in group):
                    self.cut.add((one, other))

    def heal(self) -> None:
        self.cut.clear()

    def deliver(self) -> None:
        """Deliver what is underway, and what comes of it."""
        while self.mail:
            source, target, message = self.mail.popleft()
            site = self.sites[target]
            if (source, target) not in self.cut and site.up and self.sites[source].up:
                site.run(site.replica.receive(source, message))
                if self.sync_at_once:
                    site.sync()

    def restart(self, node: int) -> None:
        """A node comes (back) up, and everybody connects."""
        site = self.sites[node]
        site.start()
        for other in self.sites.values():
            if other.node != node and other.up:
                other.run(other.replica.peer_connected(node))

    def settle(self, ticks: int = 30) -> None:
        """Let time pass until nothing is outstanding."""
        for _ in range(ticks):
            self.deliver()
            if not any(site.up and site.replica.needs_tick for site in self.sites.values()):
                return
            for site in self.sites.values():
                if site.up:
                    site.run(site.replica.tick())
        self.deliver()

    def vclocks(self) -> list[list[int]]:
        return [site.vclock(len(self.origins)) for site in self.sites.values()]

    def agree(self) -> bool:
        """Does everybody have the same entries of each origin?"""
        first = self.sites[1]
        return all(
            site.of_origin(origin) == first.of_origin(origin)
            for site in self.sites.values()
            for origin in range(1, 32)
        )
