"""Bugs to plant in the keeping of tables."""

from typing import Final

from antiphon.node import table_shard
from antiphon.node.shard_host import ShardHost
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM

TABLE_PLANTS: Final = (
    ClusterPlant(
        "node-table-refuses-uncommitted",
        "a table's leader answers a refused condition that it judged on uncommitted state before that is committed",
        (
            Edit(
                table_shard,
                "write_table",
                "clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)",
                "clients.when_confirmed(0, timeout_s, lambda: done(written), done)",
            ),
        ),
        options={
            **CALM,
            "fault_ms": 6_000,
            "fault_every_ms": 300,
            "slow_weight": 4,
            "power_weight": 1,
            "conditional_ppm": 600_000,
            "putters": 6,
            "appenders": 0,
        },
    ),
    ClusterPlant(
        "node-table-applies-uncommitted",
        "a follower applies a table's log beyond the high watermark",
        (
            Edit(
                ShardHost,
                "_commit",
                "self.table.committed(high_watermark)",
                "self.table.committed(high_watermark if self.is_leader else self.log.log_end)",
            ),
        ),
        options=CALM,
    ),
)
