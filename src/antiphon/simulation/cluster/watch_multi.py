"""`watch` for shards that every replica writes, after every step.

- `lsn-order`: on every disk the entries of an origin follow each other, none missing, none twice.
- `identity`: an origin and an LSN name one entry, everywhere and for ever.
- `clock-is-its-log`: a replica says that it has what its log has.
- `durable-ack`: what a replica says to others that it has, passes on to them, or tells clients is committed, is on its disk.
- `loss-noticed`, `no-loss`: a log that lost what was durable is found damaged, and no other one is.
- `trimmed-by-all`: nothing is trimmed that a member never had.
- `last-writer-wins`: a table's row is the newest change of its key that is in the log, in whatever order they came.
- `no-split-brain`: nobody finds another history at a peer.

Where a disk loses what was durable, an entry that was on no other disk may be gone (guarantees.md), and its number free.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon.errors import AntiphonError
from antiphon.partition.multi_batches import identity
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.records.batch import check_batch, read_header
from antiphon.records.changes import VERSION, effects_of
from antiphon.replication.multi_messages import OriginAnswer, Relay, RelayAck
from antiphon.replication.vclock import LOCAL, Vclock, clock_of, component, covers, join
from antiphon.simulation.violation import ViolationError, require
from antiphon.table.merge import Cell

if TYPE_CHECKING:
    from antiphon.node.node import Node
    from antiphon.replication.origin_history import Mark
    from antiphon.simulation.cluster.evidence import Evidence
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.cluster.world_options import WorldOptions

SAYS: Final = (Relay, RelayAck, OriginAnswer)

Identity = tuple[int, int]
"""Origin and LSN."""


class MultiTruth:
    """What is known of one shard's entries."""

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.entries: dict[
            Identity, bytes
        ] = {}  # all that were ever durable anywhere, as they were first seen
        self.lost: list[bytes] = []  # what stood on one disk alone, which lost what it held
        self.clocks: dict[int, Vclock] = {}  # by node: what its disk durably holds
        self.had: dict[int, set[Identity]] = {}  # by node: what was ever durable there
        self.skipped: dict[int, Vclock] = {}  # by node: what it does not need, as it was trimmed
        self.retired: Vclock = ()  # what somebody trimmed

    def take(self, name: Identity, batch: bytes, node: int) -> None:
        """An entry is on a disk: learn it, or hold it against what is known."""
        known = self.entries.setdefault(name, batch)
        one, other = read_header(known), read_header(batch)
        require(
            (one.crc, len(known)) == (other.crc, len(batch)),
            "identity",
            f"entry {name[1]} of origin {name[0]} is another one on node {node} than elsewhere",
            self.shard_id,
        )
        self.had.setdefault(node, set()).add(name)

    def skips(self, node: int, clock: Vclock) -> None:
        """A node's log begins behind these, for whoever asks, and for itself."""
        self.skipped[node] = join(self.skipped.get(node, ()), clock)

    def elsewhere(self, node: int) -> Vclock:
        """What the disks of the other nodes hold together."""
        found: Vclock = ()
        for other, clock in self.clocks.items():
            if other != node:
                found = join(found, clock)
        return found

    def disk_hurt(self, node: int) -> None:
        """A node's disk loses what it held: entries that are on no other disk may be gone, and their numbers free."""
        safe = self.elsewhere(node)
        for name in [name for name in self.entries if name[1] > component(safe, name[0])]:
            self.lost.append(self.entries.pop(name))
        self.clocks.pop(node, None)


class _Seen:
    """What was seen last of one replica."""

    __slots__ = ("at", "base", "cells", "changed", "clock", "end", "host", "jump", "multi", "state")

    def __init__(self, host: MultiWriterPartition) -> None:
        self.host = host
        self.state = host.state
        self.multi = host.replica
        self.base: Mark = host.replica.log.index.base
        self.at = self.base.offset  # all before it was looked at on the disk
        self.end = -1  # the durable end at that time
        self.clock = self.base.clock  # at `at`
        self.jump: Mark | None = None  # a base that was taken over from a peer
        self.cells: dict[bytes, Cell] = {}  # of a table: the newest change of each key
        self.changed: dict[bytes, None] = {}  # keys whose rows are to be looked at

    def move(self, origin: int, lsn: int) -> None:
        lsns = [*self.clock, *[0] * (origin + 1 - len(self.clock))]
        lsns[origin] = lsn
        self.clock = clock_of(lsns)

    def fold(self, batch: bytes) -> None:
        """An entry of a table."""
        for key, value, packed in effects_of(batch):
            cell = Cell(value, VERSION.unpack(packed))
            known = self.cells.get(key)
            if known is None or cell.stamp > known.stamp:
                self.cells[key] = cell
            self.changed[key] = None


NOBODY: Final[tuple[int, list[_Seen]]] = (-1, [])


class MultiWatch:
    """See the module's text."""

    def __init__(
        self,
        evidence: "Evidence",
        options: "WorldOptions",
        judge: Callable[..., None],
        look_at_failed: "Callable[[Machine, MultiWriterPartition], None]",
    ) -> None:
        self._evidence = evidence
        self._options = options
        self._judge = judge
        self._look_at_failed = look_at_failed
        self.truths: dict[int, MultiTruth] = {}
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._gathered: dict[int, tuple[int, list[_Seen]]] = {}

    def truth(self, shard_id: int) -> MultiTruth:
        """What is known of a shard."""
        found = self.truths.get(shard_id)
        if found is None:
            found = self.truths[shard_id] = MultiTruth(shard_id)
        return found

    def node_gone(self, machine: "Machine") -> None:
        """A process ended: what its disk durably holds, as the clocks tell, the next one has to find."""
        self._gathered.pop(machine.node_id, None)
        for key in [key for key in self._seen if key[0] == machine.node_id]:
            del self._seen[key]

    def disk_hurt(self, machine: "Machine") -> dict[int, Vclock]:
        """See `MultiTruth`; the node is down. Returns what its replicas can get back from the others, by shard."""
        for truth in self.truths.values():
            truth.disk_hurt(machine.node_id)
        return {shard_id: truth.elsewhere(machine.node_id) for shard_id, truth in self.truths.items()}

    def is_sound(self, machine: "Machine", needed: Mapping[int, Vclock]) -> bool:
        """Have the replicas of this machine got that back, on its disk, and know it?"""
        for host in machine.hosts.values():
            if isinstance(host, MultiWriterPartition):
                multi = host.replica
                if multi.damaged or not covers(multi.vclock, needed.get(host.shard_id, ())):
                    return False
                if not self.is_whole(machine, host):
                    return False
        return True

    def is_whole(self, machine: "Machine", host: MultiWriterPartition) -> bool:
        """Can all that the replica has be read from its disk?"""
        try:
            for batch in self.batches(machine, host):
                check_batch(read_header(batch), batch)
        except (AntiphonError, ViolationError):
            return False
        return True

    # -- after each step --------------------------------------------------------------------------------------------

    def look(self, machine: "Machine", node: "Node") -> None:
        """A step of this node is over."""
        count, found = self._gathered.get(machine.node_id, NOBODY)
        if count != len(node.hosts) or (found and any(seen.state.closed for seen in found)):
            found = self._gather(machine, node)
        for seen in found:
            if seen.state.failed is not None:
                self._look_at_failed(machine, seen.host)
                continue
            multi = seen.multi
            if multi.splits and not self._options.old_disk_weight:
                require(
                    False,
                    "no-split-brain",
                    f"node {machine.node_id} found other histories: {multi.splits} (node: origin, LSN)",
                    multi.shard,
                )
            if multi.log.durable_end != seen.end or multi.log.index.base != seen.base:
                self._look_at_log(machine, seen)
            if seen.changed:
                self._look_at_rows(machine, seen)

    def _gather(self, machine: "Machine", node: "Node") -> list[_Seen]:
        hosts = node.hosts
        found = [
            self._seen_of(machine, host)
            for host in hosts.values()
            if isinstance(host, MultiWriterPartition) and not host.state.closed
        ]
        self._gathered[machine.node_id] = (len(hosts), found)
        return found

    def _seen_of(self, machine: "Machine", host: MultiWriterPartition) -> _Seen:
        key = (machine.node_id, host.shard_id)
        seen = self._seen.get(key)
        if seen is None or seen.host is not host:
            seen = self._seen[key] = _Seen(host)
            self._meet(machine, seen)
        return seen

    def _meet(self, machine: "Machine", seen: _Seen) -> None:
        """A replica was opened: was there cause to take its log for damaged, and has it what its disk held?"""
        host, multi, damaged = seen.host, seen.multi, seen.host.log.damaged
        truth, node = self.truth(host.shard_id), machine.node_id
        require(
            damaged is None or damaged.joins or node in self._evidence.hurt,
            "no-loss",
            f"node {node} takes its log for damaged, and its disk lost nothing: {damaged}",
            host.shard_id,
        )
        had = truth.clocks.get(node, ())
        require(
            damaged is not None
            or covers(multi.vclock, had)
            or self._options.moves_replicas,  # who may have moved it away, and back
            "loss-noticed",
            f"the disk of node {node} held {had}, and it goes on from {multi.vclock} as if that was all",
            host.shard_id,
        )
        truth.skips(node, seen.base.clock)
        tell = host.clients.committed

        def told(high_watermark: int) -> None:
            self._judge(self._check_told, machine, seen, high_watermark)
            tell(high_watermark)

        host.clients.committed = told  # type: ignore[method-assign]
        self._look_at_log(machine, seen)

    # -- what is on the disk ------------------------------------------------------------------------------------------

    def _look_at_log(self, machine: "Machine", seen: _Seen) -> None:
        """What has become durable since the last time."""
        multi, truth = seen.multi, self.truth(seen.multi.shard)
        if multi.log.index.base != seen.base:
            self._look_at_base(machine, seen, truth)
        is_hurt = machine.node_id in self._evidence.hurt
        try:
            self._read(machine, seen, truth, multi.log.durable_end)
        except (AntiphonError, LookupError, ValueError):  # what is on a hurt disk may be anything
            if not is_hurt:
                raise
            seen.at, seen.clock = multi.log.durable_end, multi.vclock
        seen.end = multi.log.durable_end
        truth.clocks[machine.node_id] = seen.clock
        require(
            is_hurt or seen.clock[LOCAL + 1 :] == multi.vclock[LOCAL + 1 :],
            "clock-is-its-log",
            f"node {machine.node_id} says that it has {multi.vclock}, its log up to {seen.at} comes to {seen.clock}",
            multi.shard,
        )

    def _read(self, machine: "Machine", seen: _Seen, truth: MultiTruth, end: int) -> None:
        hurt, node = machine.node_id in self._evidence.hurt, machine.node_id
        while True:
            jump = seen.jump
            if jump is not None and seen.at >= jump.offset and covers(seen.multi.vclock, jump.clock):
                seen.clock, seen.jump = join(seen.clock, jump.clock), None
            if seen.at >= end:
                return
            batch = self._evidence.durable_log(node, truth.shard_id).batch(machine.disk, seen.at)
            if batch is None and hurt:
                raise LookupError
            require(
                batch is not None,
                "durable-log",
                f"the disk of node {node} has no batch at {seen.at}, though {end} is called durable",
                truth.shard_id,
            )
            data = cast("bytes", batch)
            header = read_header(data)
            if hurt:
                check_batch(header, data)
            origin, lsn = identity(header)
            if origin != LOCAL:
                require(
                    lsn == component(seen.clock, origin) + 1,
                    "lsn-order",
                    f"on node {node} entry {lsn} of origin {origin} comes after {component(seen.clock, origin)}",
                    truth.shard_id,
                )
                truth.take((origin, lsn), data, node)
                seen.move(origin, lsn)
                if seen.host.table is not None:
                    seen.fold(data)
            seen.at = header.next_offset

    def _look_at_base(self, machine: "Machine", seen: _Seen, truth: MultiTruth) -> None:
        """The log begins elsewhere: it was trimmed, or goes on behind what a peer has no more."""
        multi, node = seen.multi, machine.node_id
        was, base = seen.base, multi.log.index.base
        seen.base = base
        if not covers(multi.vclock, base.clock) or base.offset >= seen.at:
            seen.jump = base
            truth.skips(node, base.clock)
            return
        for member in multi.members:
            had, skipped = truth.had.get(member, set()), truth.skipped.get(member, ())
            for origin in range(LOCAL + 1, len(base.clock)):
                for lsn in range(component(was.clock, origin) + 1, base.clock[origin] + 1):
                    require(
                        (origin, lsn) in had or lsn <= component(skipped, origin),
                        "trimmed-by-all",
                        f"node {node} trims entry {lsn} of origin {origin}, which node {member} never had",
                        truth.shard_id,
                    )
        truth.retired = join(truth.retired, base.clock)
        truth.skips(node, base.clock)

    def _look_at_rows(self, machine: "Machine", seen: _Seen) -> None:
        """Once the table has merged all that is durable."""
        state = seen.host.state.require_table().state
        if state.applied_offset != seen.at or seen.at != seen.multi.log.durable_end:
            return
        keys, seen.changed = list(seen.changed), {}
        if seen.base.offset > 0 or machine.node_id in self._evidence.hurt:
            return  # what lies before is not known, and in the table
        for key, row in zip(keys, state.get_many(keys, include_value=True), strict=True):
            cell = seen.cells[key]
            found = None if row is None else (row.value, row.version.id)
            require(
                found == (None if cell.value is None else (cell.value, cell.version[0])),
                "last-writer-wins",
                f"the table on node {machine.node_id} has {found} at {key!r}, the newest in its log is {cell}",
                seen.multi.shard,
            )

    # -- what is said ---------------------------------------------------------------------------------------------------

    def check_said(self, machine: "Machine", node: "Node", message: Any) -> None:
        """What a replica says that it has, and what it passes on, is on its disk."""
        host = node.hosts.get(message.shard)
        if not isinstance(host, MultiWriterPartition) or machine.node_id in self._evidence.hurt:
            return
        seen = self._seen_of(machine, host)
        self._look_at_log(machine, seen)
        require(
            covers(seen.clock, message.vclock),
            "durable-ack",
            f"node {machine.node_id} says that it has {message.vclock}, on its disk is {seen.clock}",
            message.shard,
        )
        for entry in message.entries if isinstance(message, Relay) else ():
            require(
                entry.lsn <= component(seen.clock, entry.origin),
                "durable-ack",
                f"node {machine.node_id} passes on entry {entry.lsn} of origin {entry.origin}, on its disk is {seen.clock}",
                message.shard,
            )

    def _check_told(self, machine: "Machine", seen: _Seen, high_watermark: int) -> None:
        if machine.node_id in self._evidence.hurt:
            return
        self._look_at_log(machine, seen)
        require(
            high_watermark <= seen.at,
            "durable-ack",
            f"node {machine.node_id} tells clients that {high_watermark} is committed, its disk holds what is before "
            f"{seen.at}",
            seen.multi.shard,
        )

    # -- at the end -------------------------------------------------------------------------------------------------------

    def batches(self, machine: "Machine", host: MultiWriterPartition) -> Iterator[bytes]:
        """All batches of a replica from where its log begins for its peers, as they are durable on its disk."""
        start, end = host.replica.log_start, host.replica.log.durable_end
        return cast("Iterator[bytes]", self._evidence.batches_between(machine, host.shard_id, start, end))
