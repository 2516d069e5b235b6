"""A network that loses, delays, repeats and reorders messages, and that can be cut, one way or both."""

from collections.abc import Callable
from random import Random
from typing import Any

from antiphon.simulation.options import MILLION, SimulationOptions
from antiphon.simulation.scheduler import MICROSECOND, Scheduler

Address = int  # nodes count from 0, clients from CLIENTS


class Network:
    """Carries messages between addresses; everything it does to them is drawn from `random`."""

    def __init__(
        self,
        options: SimulationOptions,
        scheduler: Scheduler,
        random: Random,
        deliver: Callable[[Address, Address, Any], None],
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._deliver = deliver
        self._in_order = options.in_order
        self._delay_ns_min = options.delay_us_min * MICROSECOND
        self._delay_rate = 1.0 / (options.delay_us_mean * MICROSECOND)
        self._loss = options.loss_ppm / MILLION
        self._duplicate = options.duplicate_ppm / MILLION
        self._cut: dict[tuple[Address, Address], None] = {}
        self._clogged_until_ns: dict[tuple[Address, Address], int] = {}
        self._last_ns: dict[tuple[Address, Address], int] = {}
        self._born_ns: dict[Address, int] = {}

    def send(self, source: Address, target: Address, message: Any) -> None:
        """Hand over a message; it arrives later, once, twice or never."""
        if self._loss and self._random.random() < self._loss:
            return
        self._dispatch(source, target, message)
        if self._duplicate and self._random.random() < self._duplicate:
            self._dispatch(source, target, message)

    def _dispatch(self, source: Address, target: Address, message: Any) -> None:
        link = (source, target)
        delay_ns = self._delay_ns_min + int(self._random.expovariate(self._delay_rate))
        arrival_ns = max(self._scheduler.now_ns, self._clogged_until_ns.get(link, 0)) + delay_ns
        if self._in_order:
            arrival_ns = max(arrival_ns, self._last_ns.get(link, 0) + 1)
            self._last_ns[link] = arrival_ns
        self._scheduler.at(arrival_ns, self._arrive, source, target, message, self._scheduler.now_ns)

    def _arrive(self, source: Address, target: Address, message: Any, sent_ns: int) -> None:
        if (source, target) not in self._cut and (
            not self._born_ns or sent_ns >= self._born_ns.get(target, 0)
        ):
            self._deliver(source, target, message)

    def forget(self, target: Address) -> None:
        """Nothing that is underway arrives at `target` any more: who has lost its disk has new connections only."""
        self._born_ns[target] = self._scheduler.now_ns

    def cut(self, source: Address, target: Address) -> None:
        """Nothing arrives from `source` at `target` until `heal`."""
        self._cut[source, target] = None

    def clog(self, source: Address, target: Address, until_ns: int) -> None:
        """Messages sent from now on wait until `until_ns` (and then still take their time)."""
        self._clogged_until_ns[source, target] = until_ns

    def is_cut(self, source: Address, target: Address) -> bool:
        """Is this direction cut?"""
        return (source, target) in self._cut

    def heal(self) -> list[tuple[Address, Address]]:
        """Undo every cut and clog; returns the directions that were cut."""
        healed = list(self._cut)
        self._cut.clear()
        self._clogged_until_ns.clear()
        return healed

    def become_perfect(self) -> list[tuple[Address, Address]]:
        """From now on nothing is lost, repeated or cut (start of the liveness phase); returns what was cut."""
        self._loss = self._duplicate = 0.0
        return self.heal()
