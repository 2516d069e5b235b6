"""How long a group of Kafka's consumers (confluent-kafka) takes until each member has its part of a topic.

All members are in one process, and as many as there are partitions; a rebalance is over when each member that is in the
group has one. A member hears of it with a heartbeat, so the interval bounds what can be reached.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from antiphon.tools.local_cluster import LocalCluster

MEMBERS: Final = 100
TOPIC: Final = "bench-rebalance"
PATIENCE_S: Final = 120.0
SESSION_MS: Final = 45_000  # Kafka's default; longer than the patience of no interval below
POLL_S: Final = 0.005


class Protocol(NamedTuple):
    """How a group shares its partitions, and how often its members heartbeat.

    Attributes:
        name: `classic` or `consumer`.
        assignor: empty: the cluster's choice, in the consumer protocol.
        heartbeat_ms: the interval; 0: the cluster's, in the consumer protocol.
    """

    name: str
    assignor: str
    heartbeat_ms: int


# 5,000 ms is the default of the consumer protocol, 3,000 ms of these clients in the classic one.
PROTOCOLS: Final = (
    Protocol("classic", "range", 500),
    Protocol("classic", "cooperative-sticky", 500),
    Protocol("classic", "cooperative-sticky", 3_000),
    Protocol("consumer", "uniform", 500),
    Protocol("consumer", "uniform", 5_000),
)


class Group:
    """Members of one group, all in this process."""

    def __init__(self, servers: str, topic: str, partitions: int, protocol: Protocol, members: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._servers = servers
        self._name = f"rebalance-{topic}-{time.time_ns()}"
        if protocol.name == "consumer" and protocol.heartbeat_ms:
            self._heartbeats(protocol.heartbeat_ms)
        self.members = [self._member(protocol) for _ in range(members)]

    def _heartbeats(self, interval_ms: int) -> None:
        """In the consumer protocol the group tells its members how often."""
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        setting = ConfigEntry(
            "consumer.heartbeat.interval.ms",
            str(interval_ms),
            incremental_operation=AlterConfigOpType.SET,
        )
        group = ConfigResource(ResourceType.GROUP, self._name, incremental_configs=[setting])
        admin = AdminClient({"bootstrap.servers": self._servers})
        for answer in admin.incremental_alter_configs([group]).values():
            answer.result()

    def _member(self, protocol: Protocol) -> Any:
        from confluent_kafka import Consumer

        own: dict[str, dict[str, str | int]] = {
            "classic": {
                "partition.assignment.strategy": protocol.assignor,
                "heartbeat.interval.ms": protocol.heartbeat_ms,
                "session.timeout.ms": SESSION_MS,
            },
            "consumer": {"group.remote.assignor": protocol.assignor} if protocol.assignor else {},
        }
        return Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": self._name,
                "group.protocol": protocol.name,
                "enable.auto.commit": False,
                **own[protocol.name],
            }
        )

    def join(self, members: Sequence[Any]) -> float:
        """Let these join. Returns the seconds until all are served."""
        began = time.perf_counter()
        for member in members:
            member.subscribe([self._topic])
        return self._served(self.members, began)

    def leave(self, member: Any) -> float:
        """Let a member go. Returns the seconds until the others have its part."""
        began = time.perf_counter()
        member.unsubscribe()
        return self._served([one for one in self.members if one is not member], began)

    def _served(self, members: Sequence[Any], began: float) -> float:
        """Poll all until the partitions are spread evenly over these. Raises TimeoutError."""
        least, rest = divmod(self._partitions, len(members))
        wanted = [least] * (len(members) - rest) + [least + 1] * rest
        while True:
            for member in self.members:
                member.poll(0)
            held = [[place.partition for place in member.assignment()] for member in members]
            if sorted(map(len, held)) == wanted and len({one for each in held for one in each}) == sum(
                wanted
            ):
                return time.perf_counter() - began
            if time.perf_counter() > began + PATIENCE_S:
                raise TimeoutError(f"{len(members)} members have {sorted(map(len, held))}")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Let all go."""
        for member in self.members:
            member.close()


def measure_rebalance(seconds: float) -> list[dict[str, Any]]:
    """Seconds until all are served: all members start, then the last one goes and comes, by protocol and heartbeat."""
    import antiphon

    with LocalCluster.start() as cluster:
        with antiphon.connect(cluster.native) as db:
            db.create_topic(TOPIC, shards=MEMBERS, replicas=3)
        return [_measure(cluster.kafka, protocol, seconds) for protocol in PROTOCOLS]


def _measure(servers: str, protocol: Protocol, seconds: float) -> dict[str, Any]:
    group = Group(servers, TOPIC, MEMBERS, protocol, MEMBERS)
    try:
        start_s = group.join(group.members)
        gone_s: list[float] = []
        come_s: list[float] = []
        last = group.members[-1]
        until = time.perf_counter() + seconds
        while not come_s or time.perf_counter() < until:
            gone_s.append(group.leave(last))
            come_s.append(group.join([last]))
    finally:
        group.close()
    return {
        "protocol": protocol.name,
        "assignor": protocol.assignor,
        "heartbeat_ms": protocol.heartbeat_ms,
        "members": MEMBERS,
        "all_start_s": round(start_s, 2),
        "one_goes_s": _middle(gone_s),
        "one_comes_s": _middle(come_s),
        "longest_s": round(max(*gone_s, *come_s), 3),
        "times": len(come_s),
    }


def _middle(found_s: Sequence[float]) -> float:
    return round(sorted(found_s)[len(found_s) // 2], 3)
