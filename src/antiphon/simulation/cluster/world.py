"""What everything in a simulated cluster shares: time, network, chance by the seed, and the trace of what happens.

The trace is a hash of every byte that goes over a connection, every start, crash and fault, each with its time. Ids, time
stamps and everything that is drawn are in those bytes, so two runs with one hash did the same.
"""

from collections import deque
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.account import use_account
from antiphon.simulation.cluster.accounts import root_account
from antiphon.simulation.rocks_on_disk import RealFiles
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.pipe import End
from antiphon.simulation.runtime.process import Process

if TYPE_CHECKING:
    from antiphon.simulation.cluster.world_options import WorldOptions

NATIVE_PORT, KAFKA_PORT, HTTP_PORT, PEER_PORT, OXIA_PORT = 7400, 9092, 8080, 7500, 6648
CLUSTER_ID: Final = "simulated"
KEPT_EVENTS: Final = 10_000
HASH_BYTES: Final = 1 << 16

Event = tuple[float, str, tuple[Any, ...]]  # time by the loop's clock, kind, facts


class World:
    """See the module's text."""

    def __init__(self, options: "WorldOptions") -> None:
        self.options = options
        self.cluster_id = CLUSTER_ID
        self.loop = VirtualLoop(self.stream("loop"))
        self.loop.thread_lag_s = options.thread_lag_us / 1e6
        low, high = options.delay_us
        self.network = Network(self.loop, self.stream("network"), (low / 1e6, high / 1e6))
        self.network.medium.observe = self._observe
        self.told: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self.counts: dict[str, int] = {}
        self.rocks_files = RealFiles() if options.rocks else None
        self._hash = blake2b(digest_size=16)
        self._hashed = bytearray()
        self._clients = 0

    def stream(self, what: str) -> Random:
        """A source of chance of its own for a part of the world, so that parts do not disturb each other's draws."""
        return Random(f"antiphon cluster {what} {self.options.profile} {self.options.seed}")

    @property
    def servers(self) -> str:
        """Native addresses of all nodes."""
        return ",".join(f"node-{node_id}:{NATIVE_PORT}" for node_id in range(self.options.nodes))

    def client_process(self, name: str, address: str = "") -> Process:
        """A new process on a machine of its own. `address`: an IP address, where nodes are to know it by one."""
        self._clients += 1
        host = address or f"client-{self._clients}"
        skew, clock = self.options.client_skew_ppm / 1e6, self.stream(f"clock of {host}")
        made = Process(
            self.loop,
            f"{host}-{name}",
            host,
            self.stream(host).getrandbits(64),
            rate=1.0 + clock.uniform(-skew, skew),
            wall_skew_s=clock.uniform(-1.0, 1.0) if skew else 0.0,
        )
        if self.options.has_logins:
            made.call(use_account, root_account())
        return made

    # -- what happens -------------------------------------------------------------------------------------------------

    def tell(self, kind: str, *facts: Any) -> None:
        """Note an event that a reader of the run wants to know of."""
        self.tell_only(kind, *facts)
        self._note(f"{self.loop.now!r} {kind} {facts!r}".encode())

    def tell_only(self, kind: str, *facts: Any) -> None:
        """The same for what follows from hashed events."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.told.append((self.loop.now, kind, facts))

    def _observe(self, what: str, end: End, data: bytes) -> None:
        if what == "read":
            self._note(f"{self.loop.now!r} {end.number}".encode() + data)

    def _note(self, data: bytes) -> None:
        self._hashed += data
        if len(self._hashed) > HASH_BYTES:
            self._hash.update(self._hashed)
            self._hashed.clear()

    def digest(self) -> str:
        """Hash of all that happened so far, in hexadecimal."""
        self._hash.update(self._hashed)
        self._hashed.clear()
        return self._hash.hexdigest()

    def close(self) -> None:
        """End all processes and forget what was to happen."""
        self.loop.on_step = None
        self.loop.close()
        if self.rocks_files is not None:
            self.rocks_files.close()
