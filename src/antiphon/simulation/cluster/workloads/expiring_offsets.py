"""Committed offsets that expire soon, while members and coordinators come and go.

- `expired-early`: an offset is there for the retention from its commit on, and while its group has members that read its
  topic, and for the retention from the last moment on at which the group had one.
- At the end what nobody reads expires while the group has a member, and all the rest, and groups of the consumer protocol
  themselves, when the member has gone; or the run does not end.

In these worlds no other groups commit: their judges expect to find what was committed.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.timing import OFFSETS_KEPT_MS
from antiphon.simulation.cluster.workloads.expiring_member import (
    ELSEWHERE,
    Alone,
    ClassicMember,
    ConsumerMember,
    Kept,
)
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import make_topic
from antiphon.simulation.runtime.process import calling_process

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

KINDS: Final = (ClassicMember, ConsumerMember, Alone)
MILLION: Final = 1_000_000


@workload("expiring_groups", 50, Drawn(seldom(0.12, 3)), logs_in=False)
class ExpiringOffsetsWorkload(KafkaWorkload):
    """Members of groups of both protocols, and clients without a group, commit offsets that nodes keep for two seconds.

    Checked: no offset is gone before its time, nor while its group has members that read its topic; in the end all are gone
    that are to be, and with them groups of the consumer protocol.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "expiring") -> None:
        super().__init__(cluster, name)
        self.outcomes: Counter[str] = Counter()
        self._kept: dict[int, Kept] = {}  # by place
        skew = cluster.options.node_skew_ppm / MILLION
        self._retention_s = OFFSETS_KEPT_MS / 1000 / (1 + skew)

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: the table of groups is made when somebody looks for a coordinator."""
        await super().set_up(db)
        await make_topic(self.cluster, db, ELSEWHERE, 1)
        client = self.client(calling_process())
        while await client.coordinator(self.name) is None:
            await client.back_off()
        client.close()

    async def _work(self, process: "Process", number: int) -> None:
        place = number
        while place in self.heirs:
            place = self.heirs[place]
        kept = self._kept.setdefault(place, Kept())
        group = f"{self.name}-{place}"
        one = KINDS[place % len(KINDS)](self, process, group, kept, self._retention_s)
        while not self.stopped:
            await one.one()
            await one.client.back_off()
        await one.last()
        one.client.close()

    def check(self) -> None:
        """See `Workload`: all was judged as it was told."""
