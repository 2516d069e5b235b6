"""Which workloads a run has: appends to a topic and writes to a table always, and the others by its options."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.workloads.access import AccessWorkload
from antiphon.simulation.cluster.workloads.bulk import BulkWorkload
from antiphon.simulation.cluster.workloads.compacted import CompactedWorkload
from antiphon.simulation.cluster.workloads.consumer_group import ConsumerGroupWorkload
from antiphon.simulation.cluster.workloads.followers import FollowerWorkload
from antiphon.simulation.cluster.workloads.forwarded import ForwardedWorkload
from antiphon.simulation.cluster.workloads.http import HttpWorkload
from antiphon.simulation.cluster.workloads.impostors import ImpostorWorkload
from antiphon.simulation.cluster.workloads.intruders import IntruderWorkload
from antiphon.simulation.cluster.workloads.kafka_admin import AdminWorkload
from antiphon.simulation.cluster.workloads.kafka_consume import ConsumerWorkload
from antiphon.simulation.cluster.workloads.kafka_group import GroupWorkload
from antiphon.simulation.cluster.workloads.kafka_produce import ProducerWorkload
from antiphon.simulation.cluster.workloads.kafka_transactions import TransactionalWorkload
from antiphon.simulation.cluster.workloads.ledger import LedgerWorkload
from antiphon.simulation.cluster.workloads.multi_table import MultiTableWorkload
from antiphon.simulation.cluster.workloads.nearest import NearestWorkload
from antiphon.simulation.cluster.workloads.range_deletes import RangeWorkload
from antiphon.simulation.cluster.workloads.record_deletes import RecordDeletes
from antiphon.simulation.cluster.workloads.scans import ScanWorkload
from antiphon.simulation.cluster.workloads.stalled_readers import StalledReaders
from antiphon.simulation.cluster.workloads.static_group import StaticGroupWorkload
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload
from antiphon.simulation.cluster.workloads.transactions import TransactionWorkload
from antiphon.simulation.cluster.workloads.watches import WatchWorkload
from antiphon.simulation.cluster.workloads.workload import Workload

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster

Make = Callable[["SimulatedCluster", TopicWorkload, TableWorkload], Workload]
"""Makes one for a cluster; readers read what the two others write."""

DRAWN: Final[dict[str, Make]] = {
    "scans": lambda cluster, _, table: ScanWorkload(cluster, table),
    "transactions": lambda cluster, *_: TransactionWorkload(cluster),
    "watches": lambda cluster, _, table: WatchWorkload(cluster, table),
    "followers": lambda cluster, topic, _: FollowerWorkload(cluster, topic),
    "range_deletes": lambda cluster, *_: RangeWorkload(cluster),
    "ledger_keepers": lambda cluster, *_: LedgerWorkload(cluster),
    "forwarded_clients": lambda cluster, *_: ForwardedWorkload(cluster),
    "multi_tables": lambda cluster, *_: MultiTableWorkload(cluster),
    "bulk_writers": lambda cluster, *_: BulkWorkload(cluster),
    "kafka_producers": lambda cluster, *_: ProducerWorkload(cluster),
    "kafka_consumers": lambda cluster, *_: ConsumerWorkload(cluster),
    "kafka_members": lambda cluster, *_: GroupWorkload(cluster),
    "stalled_readers": lambda cluster, *_: StalledReaders(cluster),
    "static_members": lambda cluster, *_: StaticGroupWorkload(cluster),
    "kafka_admins": lambda cluster, *_: AdminWorkload(cluster),
    "http_clients": lambda cluster, *_: HttpWorkload(cluster),
    "intruders": lambda cluster, *_: IntruderWorkload(cluster),
    "impostors": lambda cluster, *_: ImpostorWorkload(cluster),
    "record_deleters": lambda cluster, *_: RecordDeletes(cluster),
    "kafka_transactors": lambda cluster, *_: TransactionalWorkload(cluster),
    "principals": lambda cluster, *_: AccessWorkload(cluster),
    "consumer_members": lambda cluster, *_: ConsumerGroupWorkload(cluster),
    "finders": lambda cluster, _, table: NearestWorkload(cluster, table),
    "compacted_writers": lambda cluster, *_: CompactedWorkload(cluster),
}
"""By the option that asks for it. In this order they begin, so that a seed stays what it is."""


def workloads_of(cluster: "SimulatedCluster") -> list[Workload]:
    """What the clients of a run do."""
    topic = TopicWorkload(cluster, losses_allowed=cluster.options.commit == "local")
    table = TableWorkload(cluster)
    wanted = [make for option, make in DRAWN.items() if getattr(cluster.options, option)]
    return [topic, table, *(make(cluster, topic, table) for make in wanted)]
