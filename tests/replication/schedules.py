"""What random schedules of one shard have in common: events that are drawn, and a search through seeds."""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TypeVar

import pytest

from antiphon.invariants import InvariantError
from tests.replication.cluster import Cluster, Host

T = TypeVar("T")


class ShardSchedule:
    """One seeded run. Who makes one sets `random` and `cluster`."""

    random: Random
    cluster: Cluster

    @property
    def hosts(self) -> list[Host]:
        return list(self.cluster.hosts.values())

    def living(self) -> list[Host]:
        return [host for host in self.hosts if host.alive]

    # -- events ----------------------------------------------------------------------------------------------------

    def deliver_some(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.deliver_one()

    def deliver_one(self) -> None:
        """One of the oldest messages arrives, mostly in order; some are lost, some come twice."""
        underway, random = self.cluster.underway, self.random
        if not underway:
            return
        at = random.randrange(min(len(underway), 6 if random.random() < 0.3 else 1))
        item = underway[at]
        if random.random() > 0.05:
            del underway[at]
        if random.random() > 0.05:
            self.cluster.receive(*item)

    def sync_some(self) -> None:
        host = self.random.choice(self.hosts)
        if host.alive:
            host.sync(self.random.randint(1, 3))
            if host.feeds:
                host.feed(host.feeds.pop(0))

    def tick(self) -> None:
        for host in self.living():
            if host.replica.needs_tick and self.random.random() < 0.8:
                host.run(host.replica.tick())
            if host.snapshots and self.random.random() < 0.5:
                self.snapshot(host)

    def snapshot(self, host: Host) -> None:
        to = host.snapshots[0]
        target = self.cluster.hosts.get(to)
        same_term = target is not None and target.alive and target.replica.term == host.replica.term
        if same_term and self.random.random() < 0.8:
            self.cluster.snapshot(host.node, to)
        else:
            host.snapshots.pop(0)
            host.run(host.replica.snapshot_failed(to))

    def crash_or_restart(self) -> None:
        host = self.random.choice(self.hosts)
        if not host.alive:
            self.boot(host)
        elif len(self.living()) > 1:
            if self.random.random() < 0.5:
                host.high_watermark = host.replica.settled
            host.sync(self.random.randint(0, len(host.writes)))
            self.cluster.crash(host.node)

    def restart_all(self) -> None:
        for host in self.hosts:
            if not host.alive:
                self.boot(host)

    def boot(self, host: Host) -> None:
        host.boot()

    def end_faults(self) -> None:
        """Everybody is up and connected, and disks are as quick as can be."""
        self.cluster.heal()
        self.restart_all()
        for host in self.hosts:
            host.auto_sync, host.late_feeds = True, False
            host.sync()


def passed(run: Callable[[int], T], seeds: Iterable[int]) -> Iterator[T]:
    """The run of each seed; what fails says which seed it was."""
    for seed in seeds:
        try:
            made = run(seed)
        except (AssertionError, InvariantError) as error:
            error.add_note(f"seed {seed}")
            raise
        yield made


def must_fail(run: Callable[[int], object], seeds: Iterable[int]) -> None:
    """At least one of the seeds sees what is wrong."""
    for seed in seeds:
        try:
            run(seed)
        except (AssertionError, InvariantError):
            return
    pytest.fail("no schedule sees it")
