"""Rebalances of a group: how long it takes until each member has its part when one more joins, and when that one goes."""

import time
from typing import Final

from antiphon.tools.bench.rebalance import Group, Protocol
from tests.peers.clients.process import Job, Result, result

HEARTBEAT_MS: Final = 500  # at a heartbeat members of the classic protocol hear of a rebalance


class Rebalance:
    """A group of `members` with as many partitions, one of whom goes and joins again; `group_protocol` is its protocol.

    A rebalance is over when the members that are in it have all partitions between them, evenly.
    """

    def __init__(self, job: Job) -> None:
        heartbeat_ms = HEARTBEAT_MS if job["group_protocol"] == "classic" else 0  # Kafka takes 5 s and more
        protocol = Protocol(job["group_protocol"], job["assignor"], heartbeat_ms)
        self._group = Group(job["servers"], job["topic"], job["partitions"], protocol, job["members"])
        self._group.join(self._group.members)

    def run(self, seconds: float) -> Result:
        """Let the last member go and come, again and again."""
        took_us: list[float] = []
        began = time.perf_counter()
        last = self._group.members[-1]
        while time.perf_counter() < began + seconds:
            took_us.append(self._group.leave(last) * 1e6)
            took_us.append(self._group.join([last]) * 1e6)
        return result(len(took_us), time.perf_counter() - began, took_us)
