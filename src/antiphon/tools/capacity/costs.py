"""What work costs a node, as measured by `antiphon bench capacity`. CPU in microseconds, memory in bytes.

A node is one process. Its event loop is one thread, so it uses one core at most, however many there are; what writes, syncs,
compresses and checks runs in other threads. Both are measured apart (`Cpu`).
"""

from importlib.resources import files
from typing import Final, NamedTuple, Self

import msgspec

FILE: Final = "costs.json"  # beside this module: our own figures


class Cpu(NamedTuple):
    """Microseconds of the event loop's thread, and of all other threads of the node."""

    loop: float = 0.0
    threads: float = 0.0

    def plus(self, other: "Cpu") -> "Cpu":
        """Both together."""
        return Cpu(self.loop + other.loop, self.threads + other.threads)

    def times(self, count: float) -> "Cpu":
        """That often."""
        return Cpu(self.loop * count, self.threads * count)


class PerBatch(NamedTuple):
    """What a batch costs: `each`, and `kib` for every KiB of it. Never below nothing."""

    each: Cpu = Cpu()
    kib: Cpu = Cpu()

    def of(self, size_bytes: float) -> Cpu:
        """A batch of that size."""
        cost = self.each.plus(self.kib.times(size_bytes / 1024))
        return Cpu(max(0.0, cost.loop), max(0.0, cost.threads))

    def on(self, replicas: int, size_bytes: float, to_follower: Self, follow: Self) -> Cpu:
        """As what a batch costs its leader: what it costs all nodes together."""
        more = to_follower.of(size_bytes).plus(follow.of(size_bytes))
        return self.of(size_bytes).plus(more.times(replicas - 1))

    @classmethod
    def through(cls, small: tuple[float, Cpu], large: tuple[float, Cpu]) -> Self:
        """The line through two measurements, each (bytes, cost)."""
        kib = (large[0] - small[0]) / 1024
        slope = Cpu(*((after - before) / kib for before, after in zip(small[1], large[1], strict=True)))
        return cls(small[1].plus(slope.times(-small[0] / 1024)), slope)


class PerRow(NamedTuple):
    """What a row of 64 bytes costs: a put to the leader, for each follower that it goes to, and to a follower; a get."""

    put: Cpu = Cpu()
    to_follower: Cpu = Cpu()
    follow: Cpu = Cpu()
    get: Cpu = Cpu()

    def put_on(self, replicas: int) -> Cpu:
        """A put, to all nodes together."""
        return self.put.plus(self.to_follower.plus(self.follow).times(replicas - 1))


class Check(NamedTuple):
    """What the model says, and what was measured: CPU in microseconds, or bytes, of all nodes together."""

    what: str
    said: float
    measured: float

    @property
    def ratio(self) -> float:
        """The model's figure over the measured one."""
        return self.said / self.measured


class Costs(msgspec.Struct, frozen=True):
    """All of them.

    Attributes:
        append: to the leader of a shard, for a batch of Kafka's protocol, with no follower.
        to_follower: to the leader, for each follower that a batch goes to.
        follow: to a follower.
        fetch: to the leader, for a batch that a Kafka consumer reads.
        rows: of a table through the native protocol, where a client has 64 in flight, which share requests.
        row: of the same, one in flight.
        node, peer, shard: in a second of a node that nobody asks anything: of itself, of each other node, of each replica.
        node_bytes, shard_bytes, connection_bytes: resident memory of a node that holds nothing, of each replica, of each
            client's connection.
        machine: where that was measured, for people.
        checks: measurements there that the costs were not made from, beside what the model says.
    """

    append: PerBatch
    to_follower: PerBatch
    follow: PerBatch
    fetch: PerBatch
    rows: PerRow
    row: PerRow
    node: Cpu
    peer: Cpu
    shard: Cpu
    node_bytes: int
    shard_bytes: int
    connection_bytes: int
    machine: str = ""
    checks: tuple[Check, ...] = ()


def our_costs() -> Costs:
    """Those that come with this version."""
    return msgspec.json.decode(files("antiphon.tools.capacity").joinpath(FILE).read_bytes(), type=Costs)
