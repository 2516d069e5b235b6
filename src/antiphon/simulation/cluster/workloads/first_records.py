"""Some rows in the table that every cluster begins with, so that none of its shards is empty.

A replica on a new disk counts again when it holds what was committed in a term begun since. In an empty shard that takes
somebody who writes.
"""

from typing import Final

from antiphon.client.aio import AsyncClient
from antiphon.coordination.coordinator import DEFAULT_TABLE
from antiphon.simulation.cluster.workloads.workload import Workload, insist

ROWS: Final = 32  # of four shards each gets some


class FirstRecords(Workload):
    """See the module's text. It has no clients: all is done before faults begin."""

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`."""
        table = db.table(DEFAULT_TABLE)
        for number in range(ROWS):
            key = f"first-{number}"
            await insist(lambda key=key: table.put(key, b""))  # type: ignore[misc]

    def begin(self) -> None:
        """See `Workload`."""

    def check(self) -> None:
        """See `Workload`."""
