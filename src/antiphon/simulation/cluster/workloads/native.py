"""Which workloads of native clients a run has, beside appends to a topic and writes to a table."""

from typing import TYPE_CHECKING

from antiphon.simulation.cluster.workloads.followers import FollowerWorkload
from antiphon.simulation.cluster.workloads.forwarded import ForwardedWorkload
from antiphon.simulation.cluster.workloads.ledger import LedgerWorkload
from antiphon.simulation.cluster.workloads.multi_table import MultiTableWorkload
from antiphon.simulation.cluster.workloads.range_deletes import RangeWorkload
from antiphon.simulation.cluster.workloads.scans import ScanWorkload
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload
from antiphon.simulation.cluster.workloads.transactions import TransactionWorkload
from antiphon.simulation.cluster.workloads.watches import WatchWorkload
from antiphon.simulation.cluster.workloads.workload import Workload

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster


def native_workloads(
    cluster: "SimulatedCluster", topic: TopicWorkload, table: TableWorkload
) -> list[Workload]:
    """What the options ask for; readers read what others write."""
    options = cluster.options
    found: list[Workload] = []
    if options.scans:
        found.append(ScanWorkload(cluster, table))
    if options.transactions:
        found.append(TransactionWorkload(cluster))
    if options.watches:
        found.append(WatchWorkload(cluster, table))
    if options.followers:
        found.append(FollowerWorkload(cluster, topic))
    if options.range_deletes:
        found.append(RangeWorkload(cluster))
    if options.ledger_keepers:
        found.append(LedgerWorkload(cluster))
    if options.forwarded_clients:
        found.append(ForwardedWorkload(cluster))
    if options.multi_tables:
        found.append(MultiTableWorkload(cluster))
    return found
