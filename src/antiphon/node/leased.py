"""Which replicas may have promised to support nobody but a leader (docs/decisions/0049-leases-for-reads.md).

A promise is not on the disk; that there may be one is. An empty file stands in the replica's directory before it promises
for the first time, and stays: whoever finds it at an opening is bound for as long as anybody can be.
"""

import os
from typing import TYPE_CHECKING, Final

import structlog

from antiphon import system
from antiphon.log.disk import Disk, replace_file
from antiphon.replication.promise import LEASE_MS_MAX, US_PER_MS

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition
    from antiphon.partition.settings import PartitionSettings

LEASED_NAME: Final = "leased"


def is_leased(disk: Disk, path: str) -> bool:
    """May a replica in this directory have promised anything?"""
    return disk.exists(os.path.join(path, LEASED_NAME))


def note_leased(disk: Disk, path: str) -> None:
    """From now on it may. Blocking; durable when this returns."""
    if not is_leased(disk, path):
        replace_file(disk, os.path.join(path, LEASED_NAME), b"")


def may_promise(disk: Disk, path: str, host: "Partition", settings: "PartitionSettings") -> bool:
    """Is it noted, if these settings let a replica that is open promise? If not, it goes by the old ones until it is."""
    if not settings.replica.lease_ms or host.state.has_leases:
        return True
    try:
        note_leased(disk, path)
    except OSError as error:
        structlog.get_logger().warning("lease_not_noted", shard=host.shard_id, error=str(error))
        return False
    return True


def bound_from_now_us() -> int:
    """Until when a replica that is opened now, and that may have promised, supports nobody, by this node's clock."""
    return system.elapsed_us() + LEASE_MS_MAX * US_PER_MS
