"""Logs of simulated nodes are made to begin later."""

import contextlib
from random import Random
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.node import trimming
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.simulation.cluster.drawing import MAIN, Drawn, one_of
from antiphon.simulation.cluster.faults import Fault, Faults, register
from antiphon.simulation.cluster.hurt_machines import shards_on

if TYPE_CHECKING:
    from antiphon.node.node import Node
    from antiphon.partition.partition import Partition

TRIMMED: Final = (
    "log",
    "rows",
    "carts",
    "newest",
    "leases",
    "backed-up-rows",
    "whole",
    "whole-rows",
)  # whoever reads them by offsets goes on behind what is gone


@register(
    "trim",
    24,
    Drawn(one_of(0, 0, 1), MAIN, 31),
    told="node {node} was to cut the head of its logs",
)
def _trim(faults: Faults, fault: Fault, draw: Random) -> None:
    """The logs of a node's replicas are asked to begin later, also above what is committed; they do so as far as that is
    allowed.

    With `writers=multi` the node runs its retention check. Who needs what is gone needs a snapshot.
    """
    machine = faults.machine(fault)
    node, process = machine.node, machine.process
    if node is None or process is None:
        return
    mine = [
        shard.shard_id for topic, shard in shards_on(faults.cluster, machine.node_id) if topic.name in TRIMMED
    ]
    for shard_id in mine:
        host = node.hosts.get(shard_id)
        if host is None or host.state.failed is not None:
            continue
        if isinstance(host, MultiWriterPartition):
            process.run(_keep_house(host))
        else:
            log = host.log
            before = log.log_end if draw.random() < 0.5 else draw.randint(log.log_start, log.log_end)
            process.run(_trim_one(node, shard_id, before))


async def _keep_house(host: "Partition") -> None:
    """What a node does now and then: what is too much by the shard's settings goes, where everybody has it."""
    if not host.state.closed:
        host.upkeep.apply_retention(system.wall_ms())


async def _trim_one(node: "Node", shard_id: int, before: int) -> None:
    # It may not lead any more, have stopped, or be busy: as the node would answer a client.
    with contextlib.suppress(AntiphonError):
        await trimming.trim_replica(node.replicas, shard_id, before)
