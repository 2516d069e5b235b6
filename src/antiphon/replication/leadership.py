"""What stays the same while one replica leads one term."""

from typing import NamedTuple

from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import NodeId, ShardId


class Leadership(NamedTuple):
    """One leadership: `node` leads `shard` in `term`, and writes `log`."""

    shard: ShardId
    node: NodeId
    term: int
    log: LocalLog
