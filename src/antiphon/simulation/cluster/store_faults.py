"""Rows of tables' stores that rot while their node is down: `store_flip` finds all files of all stores, this one rows."""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind
from antiphon.simulation.cluster.faults import NEVER, Fault, Faults, register, restart_later
from antiphon.simulation.cluster.hurt_machines import TABLES, hurt, shards_on, to_be_hurt

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine

ROWS_IN: Final = (".sst", ".run")  # of RocksDB, and of the store in memory


@register(
    "row_flip",
    28,
    NEVER,
    then="the machine is *hurt*",
)
def _row_flip(faults: Faults, fault: Fault, draw: Random) -> None:
    """As `bit_flip`, always in a file of rows, of a table that clients read."""
    machine = to_be_hurt(faults, fault)
    if machine is None:
        return
    tables = _tables(faults.cluster, machine)
    machine.kill()
    files = [found for shard_id in tables for found in _files_with_rows(machine, shard_id)]
    if files:
        path, size = draw.choice(files)
        bit = draw.randrange(size * 8)
        hurt(faults, machine, f"bit {bit} of {path}")
        machine.disk.flip_bit(path, bit)
        machine.flipped.append((path, bit))
    restart_later(faults, machine, fault.lasts_ms)


def _tables(cluster: "SimulatedCluster", machine: "Machine") -> list[int]:
    return [
        shard.shard_id
        for topic, shard in shards_on(cluster, machine.node_id)
        if topic.kind is Kind.TABLE and not is_internal(topic)
    ]


def _files_with_rows(machine: "Machine", shard_id: int) -> list[tuple[str, int]]:
    root = f"{TABLES}/{shard_id}"
    found = machine.disk.copy(root) if machine.disk.is_dir(root) else {}
    parts = found if isinstance(found, dict) else {}
    return [(f"{root}/{name}", len(parts[name])) for name in sorted(parts) if name.endswith(ROWS_IN)]
