"""The faults of `antiphon verify`: a schedule that a seed decides, and the hands that carry it out on node processes."""

import heapq
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.tools.local_cluster import LocalCluster

FAULTS: Final = {
    "kill": "SIGKILL a node, start it again up to 3 s later",
    "pause": "SIGSTOP a node for 0.2 to 3 s",
    "partition": "cut a node off from the others, not from its clients, for 0.2 to 3 s",
    "disk": "a node's disk is full for 0.2 to 3 s, or its syncs fail and it is started again",
}
DISK_FAULTS: Final = ("full disk", "broken disk")
ENDED_BY_START: Final = ("kill", "broken disk")
ROLES: Final = ("leader", "coordinator", "any")
GAP_S: Final = (0.2, 3.0)
QUIET_START_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """At `at_s` after the start, hurt `count` nodes for `length_s`, first of all the one in this role."""

    at_s: float
    what: str
    role: str
    count: int
    length_s: float

    def words(self) -> str:
        """One line for a person."""
        nodes = "" if self.count == 1 else f", {self.count} nodes"
        return f"{self.at_s:6.2f} s  {self.what} {self.role}{nodes} for {self.length_s:.2f} s"


def parse_faults(text: str) -> list[str]:
    """Names from a comma-separated list; raises InvalidRequestError that lists those there are. `none`: no faults."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return []
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        there = "; ".join(f"{name}: {what}" for name, what in FAULTS.items())
        asked = f"no fault named {', '.join(unknown)}" if unknown else "name at least one fault, or none"
        raise InvalidRequestError(f"{asked}. There are: {there}")
    return list(dict.fromkeys(names))


def plan(faults: Sequence[str], seconds: float, rng: random.Random) -> list[Planned]:
    """What happens when; the last fault begins before the load ends."""
    planned: list[Planned] = []
    at_s = QUIET_START_S
    while faults and at_s < seconds:
        what = rng.choice(faults)
        role = rng.choices(ROLES, (5, 2, 3))[0]
        count = rng.choices((1, 2, 3), (80, 14, 6))[0]
        if what == "disk":
            what = rng.choice(DISK_FAULTS)
        length_s = rng.choice((0.0, rng.uniform(0.0, 3.0))) if what == "kill" else rng.uniform(0.2, 3.0)
        planned.append(Planned(round(at_s, 2), what, role, count, round(length_s, 2)))
        at_s += rng.uniform(*GAP_S)
    return planned


class Hands:
    """Carries out a plan. `find` says which node is in a role now, or None; nodes that are hurt are not hurt again."""

    def __init__(
        self, cluster: LocalCluster, find: Callable[[str], int | None], say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._find = find
        self._say = say
        self._hurt: dict[int, str] = {}
        self._being_started: set[int] = set()
        self._starting: list[threading.Thread] = []
        self._errors: list[AntiphonError] = []
        self.done: dict[str, int] = {}

    def carry_out(self, planned: Sequence[Planned], seconds: float) -> None:
        """Run for this long; then every node is up again."""
        began = time.monotonic()
        queue: list[tuple[float, int, Any]] = [
            (fault.at_s, number, fault) for number, fault in enumerate(planned)
        ]
        heapq.heapify(queue)
        number = len(queue)
        try:
            while queue:
                at_s, _, event = heapq.heappop(queue)
                time.sleep(max(0.0, began + at_s - time.monotonic()))
                if isinstance(event, Planned):
                    for node_id in self._victims(event):
                        self._hit(node_id, event.what)
                        number += 1
                        heapq.heappush(queue, (time.monotonic() - began + event.length_s, number, node_id))
                else:
                    self._heal(event)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            for node_id in [one for one in list(self._hurt) if one not in self._being_started]:
                self._heal(node_id)
            for thread in self._starting:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _victims(self, fault: Planned) -> list[int]:
        up = [node_id for node_id in self._cluster.nodes if node_id not in self._hurt]
        first = self._find(fault.role)
        if first in up:
            up.remove(first)
            up.insert(0, first)
        return up[: fault.count]

    def _hit(self, node_id: int, what: str) -> None:
        self._hurt[node_id] = what
        self.done[what] = self.done.get(what, 0) + 1
        self._say(f"{what} node {node_id}")
        match what:
            case "kill":
                self._cluster.kill(node_id)
            case "pause":
                self._cluster.pause(node_id)
            case "partition":
                self._cluster.hurt(
                    node_id, cut=tuple(other for other in self._cluster.nodes if other != node_id)
                )
            case "full disk":
                self._cluster.hurt(node_id, disk="full")
            case "broken disk":
                self._cluster.hurt(node_id, disk="broken")

    def _heal(self, node_id: int) -> None:
        what = self._hurt[node_id]
        self._say(f"{'start' if what in ENDED_BY_START else 'resume'} node {node_id}")
        if what not in ENDED_BY_START:
            del self._hurt[node_id]
            if what == "pause":
                self._cluster.resume(node_id)
            else:
                self._cluster.hurt(node_id)
            return
        if what == "broken disk":
            self._cluster.hurt(node_id)
            self._cluster.kill(node_id)
        # A node is ready when a majority is: where several are down, each start waits for the others.
        self._being_started.add(node_id)
        thread = threading.Thread(target=self._start, args=(node_id,), name=f"start-{node_id}")
        self._starting.append(thread)
        thread.start()

    def _start(self, node_id: int) -> None:
        try:
            self._cluster.start_node(node_id)
        except AntiphonError as error:
            self._errors.append(error)
        else:
            self._say(f"node {node_id} is back")
            del self._hurt[node_id]
        finally:
            self._being_started.discard(node_id)
