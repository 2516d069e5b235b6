"""A monitor that waits until a node that came back says it is in step, as whoever restarts nodes one by one does."""

import asyncio
import json
from typing import TYPE_CHECKING, Final

from antiphon.coordination.profiles import Replication, replication_of
from antiphon.model.metadata import ShardStatus
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.http import OK, PATIENCE_S, get_page
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import Workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.node.node import Node
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

PAUSE_S: Final = 0.02


@workload("readiness_monitors", 28, Drawn(one_of(0, 0, 0, 0, 0, 1)), logs_in=False)
class ReadinessWorkload(Workload):
    """A monitor asks nodes for `/readyz` all the time.

    Checked: a node that says that it is in step has all that had been committed before its process joined, of every shard
    that it holds.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster") -> None:
        super().__init__(cluster, "readiness")
        self._before: dict[
            str, dict[int, int]
        ] = {}  # by process: how far shards were committed before it joined
        self.outcomes = {"ready": 0, "not_ready": 0, "no_page": 0, "judged": 0}

    async def _work(self, process: "Process", _number: int) -> None:
        draw = process.random
        while not self.stopped:
            for machine in self.cluster.machines:
                if (node := machine.node) is not None:
                    self._meet(node)
            machine = draw.choice(self.cluster.machines)
            asked = machine.node
            led = _led(asked)
            try:
                reply = await asyncio.wait_for(get_page(machine.host, "/readyz"), PATIENCE_S)
            except (OSError, TimeoutError):
                self.outcomes["no_page"] += 1
            else:
                self._judge(machine, asked, reply, led)
            await asyncio.sleep(draw.uniform(0.0, PAUSE_S))

    def _meet(self, node: "Node") -> None:
        """Remember what was committed before a process joins; of one that had joined before it was met, nothing."""
        if node.incarnation not in self._before:
            truths = {} if node.agent.registered.is_set() else self.cluster.evidence.truths
            self._before[node.incarnation] = {shard_id: truth.end for shard_id, truth in truths.items()}

    def _judge(self, machine: "Machine", asked: "Node | None", reply: bytes, led: dict[int, int]) -> None:
        """`led`: the terms of the shards that had a leader when the node was asked."""
        head, found, body = reply.partition(b"\r\n\r\n")
        if not found or asked is None or machine.node is not asked or not body:
            return
        status, said = int(head.split(b" ", 2)[1]), json.loads(body)
        require(said["ready"] == (status == OK), "page", f"{machine.host}/readyz answers {status}: {said}")
        if status != OK:
            self.outcomes["not_ready"] += 1
            return
        self.outcomes["ready"] += 1
        before = self._before.get(asked.incarnation, {})
        for topic in asked.gateway.metadata.topics:
            if not _keeps_what_is_committed(replication_of(topic.profile, topic.config)):
                continue
            for shard in topic.shards:
                online = shard.status is ShardStatus.ONLINE and asked.node_id in shard.ensemble
                elected_since = led.get(shard.shard_id) != shard.term
                if online and shard.split is None and shard.shard_id in before and not elected_since:
                    self._judge_shard(asked, shard.shard_id, before[shard.shard_id])

    def _judge_shard(self, node: "Node", shard_id: int, committed: int) -> None:
        host = node.hosts.get(shard_id)
        end = -1 if host is None else host.log.log_end
        self.outcomes["judged"] += 1
        require(
            end >= committed,
            "in-step",
            f"node {node.node_id} says that it is in step and has the log up to {end}; {committed} was committed before it "
            "joined",
            shard_id,
        )

    def check(self) -> None:
        """See `Workload`: all was judged when it came."""


def _led(node: "Node | None") -> dict[int, int]:
    shards = () if node is None else (one for topic in node.gateway.metadata.topics for one in topic.shards)
    return {shard.shard_id: shard.term for shard in shards if shard.status is ShardStatus.ONLINE}


def _keeps_what_is_committed(options: Replication) -> bool:
    """Is what was committed in every later leader's log?"""
    return not options.is_multi and not options.unclean and not options.commit.may_lose(3)
