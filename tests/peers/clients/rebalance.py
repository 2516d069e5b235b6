"""Rebalances of a group: how long it takes until each member has its part when one more joins, and when that one goes."""

import time
from typing import Any, Final

from confluent_kafka import Consumer

from tests.peers.clients.process import Job, Result, result

PATIENCE_S: Final = 120.0
HEARTBEAT_MS: Final = 500  # at a heartbeat members of the classic protocol hear of a rebalance


class Rebalance:
    """A group of `members` with as many partitions, one of whom goes and joins again; `group_protocol` is its protocol.

    A rebalance is over when the members that are in it have all partitions between them, evenly.
    """

    def __init__(self, job: Job) -> None:
        self._topic: str = job["topic"]
        self._partitions: int = job["partitions"]
        group = f"rebalance-{job['topic']}-{job['number']}"
        self._members = [self._member(job, group) for _ in range(job["members"])]
        for member in self._members:
            member.subscribe([self._topic])
        self._await(self._members)

    def _member(self, job: Job, group: str) -> Any:
        classic = {
            "partition.assignment.strategy": job["assignor"],
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": 30_000,
        }
        return Consumer(
            {
                "bootstrap.servers": job["servers"],
                "group.id": group,
                "group.protocol": job["group_protocol"],
                "enable.auto.commit": False,
                **(classic if job["group_protocol"] == "classic" else {}),
            }
        )

    def _await(self, members: list[Any]) -> None:
        """Poll until the partitions are spread evenly over these; the others have none."""
        least, rest = divmod(self._partitions, len(members))
        wanted = [least] * (len(members) - rest) + [least + 1] * rest
        until_s = time.perf_counter() + PATIENCE_S
        while True:
            for member in self._members:
                member.poll(0)
            places = [[(place.topic, place.partition) for place in member.assignment()] for member in members]
            if sorted(map(len, places)) == wanted and len({one for each in places for one in each}) == sum(
                wanted
            ):
                return
            if time.perf_counter() > until_s:
                raise TimeoutError(f"{len(members)} members have {sorted(map(len, places))}")
            time.sleep(0.005)

    def run(self, seconds: float) -> Result:
        """Let the last member go and come, again and again."""
        took_us: list[float] = []
        began = time.perf_counter()
        last, others = self._members[-1], self._members[:-1]
        while time.perf_counter() < began + seconds:
            for change, members in ((last.unsubscribe, others), (self._joins, self._members)):
                at = time.perf_counter()
                change()
                self._await(members)
                took_us.append((time.perf_counter() - at) * 1e6)
        return result(len(took_us), time.perf_counter() - began, took_us)

    def _joins(self) -> None:
        self._members[-1].subscribe([self._topic])
