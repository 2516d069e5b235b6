"""Which workloads a run has: appends to a topic and writes to a table always, and the others by its options."""

from typing import TYPE_CHECKING

from antiphon.simulation.cluster.workloads.registry import workloads_in_order
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.workloads.workload import Workload


def workloads_of(cluster: "SimulatedCluster") -> "list[Workload]":
    """What the clients of a run do."""
    topic = TopicWorkload(cluster, losses_allowed=cluster.options.commit == "local")
    table = TableWorkload(cluster)
    read = {"": (), "topic": (topic,), "table": (table,)}
    wanted = [one for one in workloads_in_order() if getattr(cluster.options, one.option)]
    return [topic, table, *(one.cls(cluster, *read[one.reads]) for one in wanted)]
