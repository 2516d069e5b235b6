"""A cluster of whole nodes in one process, with its clients, and the trace of all that happens in it.

The trace is a hash of every byte that goes over a connection, every start, crash and fault, each with its time. Ids, time
stamps and everything that is drawn are in those bytes, so two runs with one hash did the same.
"""

from collections import deque
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError
from antiphon.invariants import InvariantError
from antiphon.simulation.cluster.machine import NATIVE_PORT, Machine
from antiphon.simulation.cluster.watch import Watch
from antiphon.simulation.rocks_on_disk import RealFiles
from antiphon.simulation.runtime.loop import HostedProcess, VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.pipe import End
from antiphon.simulation.runtime.process import Process
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from antiphon.simulation.cluster.operator import Operator
    from antiphon.simulation.cluster.options import ClusterOptions

KEPT_EVENTS: Final = 10_000
HASH_BYTES: Final = 1 << 16

Event = tuple[float, str, tuple[Any, ...]]  # time by the loop's clock, kind, facts


class SimulatedCluster:
    """See the module's text. Make it, `start`, let it run (`loop.run_until`), `close`."""

    def __init__(self, options: "ClusterOptions") -> None:
        self.options = options
        self._draw = Random(f"antiphon cluster run {options.profile} {options.seed}")
        self.loop = VirtualLoop(self.stream("loop"))
        self.loop.thread_lag_s = options.thread_lag_us / 1e6
        low, high = options.delay_us
        self.network = Network(self.loop, self.stream("network"), (low / 1e6, high / 1e6))
        self.network.medium.observe = self._observe
        self._hash = blake2b(digest_size=16)
        self._hashed = bytearray()
        self.told: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self.counts: dict[str, int] = {}
        self.rocks_files = RealFiles() if options.rocks else None
        self.watch = Watch(self)
        self.loop.on_step = self._after_step
        self.machines = [Machine(self, i, self.stream(f"machine {i}")) for i in range(options.nodes)]
        self._machine_of = {machine.host: machine for machine in self.machines}
        self.operator: Operator | None = None  # carries out commands, where a run has them
        self._clients = 0

    def stream(self, what: str) -> Random:
        """A source of chance of its own for a part of the world, so that parts do not disturb each other's draws."""
        return Random(f"antiphon cluster {what} {self.options.profile} {self.options.seed}")

    @property
    def servers(self) -> str:
        """Native addresses of all nodes."""
        return ",".join(f"{machine.host}:{NATIVE_PORT}" for machine in self.machines)

    def client_process(self, name: str) -> Process:
        """A new process on a machine of its own."""
        self._clients += 1
        host = f"client-{self._clients}"
        return Process(self.loop, f"{host}-{name}", host, self.stream(host).getrandbits(64))

    def start_all(self) -> None:
        """Start all nodes."""
        for machine in self.machines:
            machine.start()

    # -- what happens -------------------------------------------------------------------------------------------------

    def tell(self, kind: str, *facts: Any) -> None:
        """Note an event that a reader of the run wants to know of."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.told.append((self.loop.now, kind, facts))
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

    def _after_step(self, process: HostedProcess | None) -> None:
        if self.loop.failures:
            self._judge_failures()
        if process is None:
            return
        machine = self._machine_of.get(process.host)
        if machine is not None and machine.process is process:
            machine.look()
            if machine.node is not None:
                self.watch.look(machine, machine.node)

    def _judge_failures(self) -> None:
        failures, self.loop.failures = self.loop.failures, []
        for context in failures:
            error = context.get("exception")
            raise ViolationError("no-crash", -1, f"{context.get('message')}: {error!r}") from error

    def start_failed(self, machine: Machine, error: Exception) -> None:
        """A node did not start: a finding, unless its disk was made to refuse."""
        self.tell("start-failed", machine.node_id, repr(error))
        expected = isinstance(error, AntiphonError | OSError) and not isinstance(error, InvariantError)
        if not expected or not machine.is_troubled:
            raise ViolationError(
                "no-crash", -1, f"node {machine.node_id} did not start: {error!r}"
            ) from error
        self.loop.call_later(0.0, machine.end_failed_start, machine.process)

    def close(self) -> None:
        """End all processes and forget what was to happen."""
        self.loop.on_step = None
        self.loop.close()
        if self.rocks_files is not None:
            self.rocks_files.close()
