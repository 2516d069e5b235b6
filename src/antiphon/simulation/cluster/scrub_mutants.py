"""Mutants of the scrub, where what is on disks decays while nodes run."""

import struct
from array import array
from typing import Final

from antiphon.log import log_check, recovery
from antiphon.log.aborted import AbortedIndex
from antiphon.log.disk import Disk, read_whole
from antiphon.log.log_check import LogCheck
from antiphon.node.scrub import Scrub
from antiphon.node.shards import Shards
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_ROT: Final = {
    **CALM,
    "fault_ms": 4_000,
    "fault_every_ms": 400,
    "scrub": True,
    "rot_weight": 1,
    "topic_config": "segment.bytes=16384",
    "record_bytes": 500,
    "operations_per_s": 200,
    "store_flush_every": 20,
}
# Logs keep one segment, and stores so few runs that none is merged away with what is rotten in it.
_ROT_IN_STORES: Final = {**_ROT, "topic_config": "", "store_flush_every": 150, "fault_every_ms": 1_500}
# All voters' replicas of the cluster's own log are damaged, one after the other: who leads it stops.
_ROT_IN_CLUSTER: Final = {
    **_ROT,
    "fault_ms": 45_000,
    "fault_every_ms": 1_000,
    "operations_per_s": 20,
    "rot_weight": 0,
    "cluster_rot_weight": 1,
}
_PRODUCERS_BEFORE: Final = "producers_before(self.disk, self.directory, self.bases[0])"

_ROT_IN_INDEXES: Final = {
    **_ROT,
    **only(operations_per_s=1_000, rot_weight=0, aborted_rot_weight=1, kafka_transactors=3),
}

_HEAD_BYTES: Final = 16  # of an index of aborted transactions; then four numbers for each


def _unchecked(disk: Disk, path: str, before: int) -> AbortedIndex | None:
    data = (read_whole(disk, path) or b"")[_HEAD_BYTES:]
    found = AbortedIndex(array("q", struct.unpack(f">{len(data) // 8}q", data)))
    found.truncate(before)
    return found


SCRUB_MUTANTS: Final = (
    ClusterMutant(
        "scrub-skips-aborted",
        "the scrub reads the logs, and not the indexes of aborted transactions beside them",
        Edit(Scrub, "_read", "await self._read_aborted(host)", "True"),
        options=_ROT_IN_INDEXES,
    ),
    ClusterMutant(
        "scrub-tells-of-aborted-only",
        "an index of aborted transactions that is not whole is told of, and not made anew",
        Edit(
            Scrub,
            "_make_anew",
            "host.driver.submit(made_anew(host.log, damage.offset), lambda _: done.set())",
            "done.set()",
        ),
        options=_ROT_IN_INDEXES,
    ),
    ClusterMutant(
        "log-takes-rotten-aborted",
        "a log that is opened takes an index of aborted transactions without a look at its checksum",
        ((recovery, "load_aborted", _unchecked),),
        options={**_ROT_IN_INDEXES, "kill_weight": 2, "fault_every_ms": 200},
        first_seed=5,
    ),
    ClusterMutant(
        "scrub-skips-checksums",
        "the scrub reads all batches, and does not compare them with their checksums",
        Edit(
            vars(log_check)["_Piece"],
            "_batches",
            "if not batch_matches(entry, data[at : at + entry.size]):",
            "if False:",
        ),
        options=_ROT,
        quick=True,
    ),
    ClusterMutant(
        "scrub-finds-and-does-not-tell",
        "the scrub counts what is damaged, and tells nobody who would have it mended",
        Edit(Scrub, "_read", "self._mending.found(host, damage)", "pass"),
        options=_ROT,
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "scrub-skips-stores",
        "the scrub reads the logs of tables, and not their stores",
        Edit(Scrub, "_read", "damage = await self._read_store(host, table)", "pass"),
        options=_ROT_IN_STORES,
        quick=True,
    ),
    ClusterMutant(
        "cluster-log-stays-closed",
        "a voter whose replica of the cluster's own log was found damaged closes it, and does not open it again",
        Edit(Shards, "_removed", "self._long.open(shard_id)", "pass"),
        options=_ROT_IN_CLUSTER,
    ),
    ClusterMutant(
        "cluster-log-without-coordinator",
        "no coordinator rests on a replica of the cluster's own log that is opened anew while its node runs",
        Edit(
            Shards,
            "_cluster_recovered",
            "self._start_cluster_shard(found)",
            "self._node.hosts[CLUSTER_SHARD_ID] = self._opener.start_cluster_shard(found)",
        ),
        options=_ROT_IN_CLUSTER,
        quick=True,
    ),
    ClusterMutant(
        "cluster-log-counts-as-whole",
        "a replica of the cluster's own log that is opened anew votes at once, whatever its log has lost",
        Edit(
            Shards,
            "_cluster_recovered",
            "self._start_cluster_shard(found)",
            "found.log.clear_damage(); self._start_cluster_shard(found)",
        ),
        options=_ROT_IN_CLUSTER,
        quick=True,
        first_seed=4,
    ),
    ClusterMutant(
        "scrub-skips-what-was-trimmed",
        "the scrub reads logs from their start on, and not what was trimmed before it in the same file",
        Edit(LogCheck, "plan", "views[0].base_offset if views else 0", "log.log_start"),
        options={
            **_ROT,
            "trim_weight": 1,
            "rot_weight": 3,
            "fault_every_ms": 250,
            "operations_per_s": 400,
            "appenders": 3,
        },
    ),
    ClusterMutant(
        "node-damaged-log-forgets-producers",
        "a damaged log that begins with a later segment learns its producers from what is left of it alone",
        Edit(vars(recovery)["_Recovery"], "run", _PRODUCERS_BEFORE, "ProducerState()"),
        options={
            **_ROT,
            **only(
                operations_per_s=150,
                trim_weight=2,
                lost_files_weight=2,
                fault_every_ms=300,
                appenders=20,
                putters=20,
                record_bytes=1_500,
            ),
        },
        first_seed=9,
    ),
)
